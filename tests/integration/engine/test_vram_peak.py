"""The planned RAM against the measured peak of real loads: never below it, at most 15 % above."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.vram.devices import Device
from engine.vram.ledger import PROCESS, Placement, make_ledger
from engine.vram.planning import load
from engine.vram.settings import context_settings
from tests.support.memorypeak import measured_peak
from tests.support.tinymodels import write_model

RAM = Device("RAM", "cpu", 2**40, 0.0, True)
_MIB = 2**20


def planned(config: EngineConfig, path: Path) -> dict[str, int]:
    model = load(path)
    settings = context_settings(config, model.shape.n_ctx_train)
    return make_ledger(model, settings, Placement(), RAM).ram.items


@pytest.mark.model
@pytest.mark.parametrize(
    "settings",
    [
        {"n_ctx": 1024},
        {"n_ctx": 8192, "n_parallel": 1, "cache_type_k": "q4_0", "cache_type_v": "q4_0"},
    ],
    ids=["1024-f16", "8192-q4_0"],
)
@pytest.mark.timeout(120)
def test_a_real_load_stays_within_its_plan(
    settings: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    config = EngineConfig(name="m", use_mmap=False, **settings)  # type: ignore[arg-type]
    items = planned(config, find_model("m", "demo"))
    plan, peak = sum(items.values()), measured_peak(config)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  demo {settings}: planned {plan / _MIB:.1f} MiB (of which process {items[PROCESS] / _MIB:.1f}), "
            f"measured {peak / _MIB:.1f} MiB, {100 * (plan / peak - 1):+.1f} %",
            end="",
        )
    assert peak <= plan <= 1.15 * peak


@pytest.mark.parametrize("name", ["llama", "qwen35moe", "granitehybrid"])
@pytest.mark.timeout(120)
def test_tiny_models_are_never_planned_too_small(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a model of 2 MB nearly all is the process itself: only the lower limit means something."""
    path = write_model(name, tmp_path)
    config = EngineConfig(name="m", path=str(path), use_mmap=False, n_ctx=1024)
    items = planned(config, path)
    plan, peak = sum(items.values()), measured_peak(config)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {name}: planned {plan / _MIB:.1f} MiB (of which process {items[PROCESS] / _MIB:.1f}), "
            f"measured {peak / _MIB:.1f} MiB",
            end="",
        )
    assert peak <= plan

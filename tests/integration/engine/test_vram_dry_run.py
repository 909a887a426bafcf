"""Our arithmetic against llama.cpp's own dry run: every model and setting at hand, at most 2 % apart.

The greatest error of each model is printed: it is a figure of the product, not only a limit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.llamaparams import experts_pattern
from engine.config import EngineConfig
from engine.vram import probe
from engine.vram.devices import Device
from engine.vram.ledger import COMPUTE, EXPERTS, KV, LOGITS, STATE, Placement, make_ledger
from engine.vram.planning import load
from engine.vram.probe import DryRun, ProbeFailed, build_devices, dry_run
from engine.vram.settings import context_settings
from tests.support.shapefiles import write_shape
from tests.support.tinymodels import MODELS, write_model

RAM = Device("RAM", "cpu", 2**40, 0.0, True)
# Digits that llama.cpp logs: a hundredth of a MiB for each of up to four buffers.
LOGGED = 4 * 0.005 * 2**20
SETTINGS = (
    {"n_ctx": 4096, "n_parallel": 4},
    {"n_ctx": 1024, "n_parallel": 2, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "n_ubatch": 256},
    {"n_ctx": 2048, "n_parallel": 8, "cache_type_k": "q4_0", "cache_type_v": "q4_0"},
)  # fmt: skip
MORE = (
    {"n_ctx": 8192, "n_parallel": 1},
    {"n_ctx": 2048, "n_parallel": 2, "flash_attention": "off"},
    {"n_ctx": 1000, "n_parallel": 3, "kv_cells": 1111, "n_ubatch": 64},
)


def ours(config: EngineConfig, path: Path) -> dict[str, int]:
    model = load(path)
    settings = context_settings(config, model.shape.n_ctx_train)
    items = make_ledger(model, settings, Placement(), RAM).ram.items
    return items | {"weights": model.head.weight_bytes, "cells": settings.n_cells}


def compare(config: EngineConfig, path: Path) -> float:
    """The relative error of the whole; KV, state and weights must agree to the logged digit."""
    mine, theirs = ours(config, path), dry_run(config)
    assert mine["weights"] == theirs.weight_bytes
    assert mine["cells"] == theirs.n_cells
    assert mine.get(KV, 0) == pytest.approx(theirs.kv_bytes, abs=LOGGED)
    assert mine.get(STATE, 0) == pytest.approx(theirs.state_bytes, abs=LOGGED)
    assert mine[LOGITS] == pytest.approx(theirs.output_bytes, abs=LOGGED)
    total = sum(mine.get(purpose, 0) for purpose in ("weights", KV, STATE, COMPUTE, LOGITS))
    return total / theirs.total_bytes - 1


def check(name: str, path: Path, settings: tuple[dict[str, object], ...], capsys: object) -> None:
    errors = [compare(config_of(path, one), path) for one in settings]
    with capsys.disabled():  # type: ignore[attr-defined]
        worst = max(errors, key=abs)
        print(f"\n  {name}: {len(errors)} settings, greatest error {100 * worst:+.2f} %", end="")  # noqa: T201
    assert all(abs(error) <= 0.02 for error in errors), errors


def config_of(path: Path, settings: dict[str, object]) -> EngineConfig:
    return EngineConfig(name="m", path=str(path), **settings)  # type: ignore[arg-type]


@pytest.mark.model
def test_the_demo_model(capsys: pytest.CaptureFixture[str]) -> None:
    from engine.backends.modelfile import find_model

    check("demo", find_model("m", "demo"), SETTINGS + MORE, capsys)


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_memory(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, write_model(name, tmp_path), SETTINGS, capsys)


@pytest.mark.parametrize(
    "name",
    ["deepseek-v2-lite-q4_k_m", "deepseek-v2-lite-old-q4_k_m", "qwen3-30b-a3b-q4_k_m",
     "qwen3-14b-q4_k_m", "gemma3-27b-q3_k_s"],
)  # fmt: skip
def test_published_shapes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(name, write_shape(name, tmp_path), SETTINGS[:2], capsys)


def test_experts_in_ram_are_asked_of_llama_cpp_as_well(tmp_path: Path) -> None:
    """The table of overrides is a bare pointer: llama.cpp takes it, and the names are those of real tensors."""
    path = write_model("qwen3moe", tmp_path)
    answer = dry_run(config_of(path, {"n_cpu_moe": 2}))
    assert answer.weight_bytes == load(path).head.weight_bytes
    names = [tensor.name for tensor in load(path).head.tensors]
    moved = [name for name in names if any(experts_pattern(i).search(name) for i in range(2))]
    assert len(moved) == 6
    experts = [part for part in load(path).parts if part.purpose == EXPERTS and part.layer < 2]
    assert len(experts) == 2


def test_refusals_aborts_and_silence_are_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model("deepseek2", tmp_path)
    with pytest.raises(ProbeFailed, match=r"refused these settings: .*different K .* and V"):
        dry_run(config_of(path, {"cache_type_v": "q8_0"}))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:-200_000])
    with pytest.raises(ProbeFailed, match="damaged or cut off"):
        dry_run(config_of(cut, {}))
    with pytest.raises(ProbeFailed, match="did not answer within 0 s"):
        dry_run(config_of(path, {}), timeout_s=0.01)
    monkeypatch.setattr(probe.sys, "executable", "/bin/false")
    with pytest.raises(ProbeFailed, match="ended by status 1"):
        dry_run(config_of(path, {}))
    monkeypatch.setattr(probe.sys, "executable", str(_suicide(tmp_path)))
    with pytest.raises(ProbeFailed, match=r"ended by SIGABRT .*GGML_ASSERT\(n <= 4\) failed"):
        dry_run(config_of(path, {}))


def _suicide(folder: Path) -> Path:
    script = folder / "abort.sh"
    script.write_text("#!/bin/sh\necho 'x.c:1: GGML_ASSERT(n <= 4) failed' >&2\nkill -6 $$\n")
    script.chmod(0o755)
    return script


def test_the_devices_of_this_build() -> None:
    for device in build_devices():
        assert device.is_driven
        assert device.kind in {"gpu", "igpu"}


def test_figures_are_added_up_by_device() -> None:
    log = (
        "llama_kv_cache: layer   0: dev = CPU\nllama_kv_cache: layer   1: dev = CUDA0\n"
        "llama_kv_cache: size =    2.00 MiB (   256 cells,   2 layers\n"
        "llama_kv_cache: size =    1.50 MiB (   256 cells,   2 layers\n"
        "sched_reserve:      CUDA0 compute buffer size =    30.38 MiB\n"
        "sched_reserve:  CUDA_Host compute buffer size =     3.00 MiB\n"
    )
    answer = probe._parse(probe._Opened(256, 4096, 7), log)
    assert isinstance(answer, DryRun)
    assert answer.kv_bytes == 3.5 * 2**20
    assert answer.kv_layers == {"CPU": 1, "CUDA0": 1}
    assert answer.compute == {"CUDA0": round(30.38 * 2**20), "CUDA_Host": 3 * 2**20}
    assert answer.total_bytes == 7 + answer.kv_bytes + sum(answer.compute.values())

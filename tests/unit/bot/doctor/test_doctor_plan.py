"""What the doctor makes of a plan: the real placement, what a start would change, and settings that stand too high."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bot.doctor.findings import Finding, Level
from bot.doctor.memory import judge_plan
from engine.config import EngineConfig
from engine.vram.planning import Wishes, make_plan
from tests.support.doctorkit import said
from tests.support.shapefiles import write_shape

GIB = 2**30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shape("deepseek-v2-lite-q4_k_m", tmp_path_factory.mktemp("m"), sparse=False)


def judged(model: Path, vram: int, ram: int = 64, **settings: Any) -> list[Finding]:
    quantized = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    config = EngineConfig(name="main", path=str(model), **(quantized | settings))
    wishes = Wishes(vram=vram * GIB, ram=ram * GIB, ask_llama=False)
    return list(judge_plan("main", make_plan(config, wishes)))


def test_the_real_placement_is_told_whatever_was_asked(model: Path) -> None:
    (finding,) = judged(model, 8, n_gpu_layers=99, asked=("n_gpu_layers",), is_fitted=True)
    assert finding.level is Level.OK
    assert "of 8.0 GiB of 8 GiB card (n_gpu_layers = 28, n_cpu_moe = 1" in finding.what


@pytest.mark.parametrize("n_gpu_layers", [-1, 99])
def test_settings_that_stand_too_high_are_told(n_gpu_layers: int, model: Path) -> None:
    """-ngl 99 on a card for which it is too much, where no plan corrects it."""
    (text,) = said(judged(model, 8, n_gpu_layers=n_gpu_layers), Level.WARNING)
    assert f"n_gpu_layers = {n_gpu_layers} stands as it is, which is more than fits" in text
    assert "set n_gpu_layers = 28, n_cpu_moe = 1" in text


def test_settings_that_fit_are_left_alone(model: Path) -> None:
    assert said(judged(model, 24), Level.WARNING) == []
    assert said(judged(model, 8, n_gpu_layers=4), Level.WARNING) == []


def test_what_a_start_would_change_is_told(model: Path) -> None:
    found = judged(model, 8, ram=8, is_fitted=True, kv_ram_bytes=20 * GIB)
    (text,) = said(found, Level.WARNING)
    assert "as asked it does not fit; the start would take" in text
    assert "kv_ram" in text


def test_what_fits_nowhere_is_an_error(model: Path) -> None:
    (text,) = said(judged(model, 1, ram=4), Level.ERROR)
    assert "models.main" in text
    assert "see hearth plan main" in text

"""A model file at a glance: kind, quantization, and whether it fits here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.vram.devices import GIB, PROFILES, Device
from engine.vram.gguf import read_model
from engine.vram.glance import glance, quantization
from tests.support.shapefiles import write_shape
from tests.support.tinymodels import write_model

USUAL = EngineConfig(name="m", cache_type_k="q8_0", cache_type_v="q8_0")
CARD = PROFILES["12GiB desktop"]


def ram(gib: float) -> Device:
    return Device("RAM", "cpu", int(gib * GIB), 76.8e9, True)


@pytest.mark.parametrize(
    ("name", "card", "gib", "fits", "verdict"),
    [
        ("deepseek-v2-lite-q4_k_m", CARD, 32, True, "yes, all on the card"),
        ("qwen3-30b-a3b-q4_k_m", CARD, 32, True, "yes, the experts of 21 layers in RAM"),
        ("gemma3-27b-q3_k_s", CARD, 32, True, "yes, 60 of 63 layers on the card"),
        ("qwen3-14b-q4_k_m", None, 16, True, "yes, in RAM"),
        ("qwen3-14b-q4_k_m", None, 9.3, False, "no; with … it would"),
        ("qwen3-14b-q4_k_m", None, 1, False, "no"),
    ],
)
def test_whether_it_fits(
    tmp_path: Path, name: str, card: Device | None, gib: float, fits: bool, verdict: str
) -> None:
    look = glance(write_shape(name, tmp_path), USUAL, ram(gib), card)
    said = re.sub(r"with .* it", "with … it", look.verdict)
    assert (look.fits, said) == (fits, verdict)
    assert look.n_ctx_train > 0


def test_what_it_is(tmp_path: Path) -> None:
    look = glance(write_model("qwen3moe", tmp_path), USUAL, ram(16), None)
    assert look.architecture == "qwen3moe"
    assert look.quantization == "F32"  # general.file_type says so
    assert look.n_bytes == look.path.stat().st_size
    assert look.n_ctx_train == 4096


def test_a_file_that_names_no_mixture_is_called_by_its_largest_type(tmp_path: Path) -> None:
    path = write_shape("deepseek-v2-lite-q4_k_m", tmp_path, sparse=False)
    assert quantization(read_model(path)) == "Q4_K"


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    head = glance(write_shape("qwen3-14b-q4_k_m", tmp_path, sparse=False), USUAL, ram(16), None)
    assert head.fits is None
    assert head.verdict == "not whole: 8.38 GiB are missing"
    page = tmp_path / "page.gguf"
    page.write_text("<html>")
    wrong = glance(page, USUAL, ram(16), None)
    assert wrong.fits is None
    assert "is not a GGUF file" in wrong.verdict
    assert wrong.n_bytes == 6
    assert "cannot be read" in glance(tmp_path / "none.gguf", USUAL, ram(16), None).verdict

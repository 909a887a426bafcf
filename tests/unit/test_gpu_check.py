"""The parts of `tests/gpu/check.sh` that need no GPU: what is held is held, and a step that fails is a line of the table."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.vram.devices import GIB, Device
from tests.gpu.ballast import held
from tests.gpu.check import Check, Row, capped, table
from tests.gpu.meter import Meter

MIB = 2**20


def check(card: Device | None = None, minutes: float = 5) -> Check:
    return Check(Path("/none"), card, 12 * GIB, minutes)


def test_the_ballast_holds_what_it_says_and_lets_go() -> None:
    with held("CPU", 96 * MIB) as got:
        assert got == 96 * MIB
        (child,) = [p for p in psutil.Process().children() if "tests.gpu.ballast" in p.cmdline()]
    assert not child.is_running()
    with held("CUDA9", MIB) as got:
        assert got == 0
    with held("CPU", 0) as got:
        assert got == 0


def test_a_fault_is_a_line_and_the_next_step_runs() -> None:
    run = check()

    def fails(row: Row) -> None:
        raise RuntimeError("the card fell out")

    def works(row: Row) -> None:
        row.figures = "12 tok/s"

    run.step("one", fails)
    run.step("two", works)
    text = table(run)
    assert "| one | FAILED: the card fell out |" in text
    assert "| two | passed | 0 | 12 tok/s |" in text
    assert "no figure below is of a GPU" in text


def test_no_step_begins_when_the_time_is_over() -> None:
    run = check(minutes=0.1)
    run.begun = time.monotonic() - 5
    run.step("late", lambda row: None)
    assert run.rows[0].result == "not run: no time left"


def test_a_command_that_fails_is_told_by_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'hearth: no such model' >&2\nexit 2\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    run = check()
    run.step("plan", lambda row: run.hearth("plan", "/none.gguf") and None)
    assert run.rows[0].result == "FAILED: hearth: no such model"


def test_the_cap_is_tried_on_the_cpu_and_named_for_a_card() -> None:
    run = check()
    with capped(run):
        assert run.rows[0].result == "passed"
    small = Device("CPU", "gpu", 12 * GIB + 64 * MIB, 1e11, True)
    run = check(small)
    with capped(run):
        assert run.rows[0].figures == "0.1 GiB held, 12.0 GiB left for the model"
    assert "CPU, 12.1 GiB free, 12.0 GiB to be used" in table(run)


def test_nobody_who_tells_is_no_figure() -> None:
    with Meter(None) as meter:
        pass
    assert meter.taken is None

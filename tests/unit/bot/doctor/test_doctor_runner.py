"""Checks one after the other: none stops another, and what they say comes in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bot.doctor.checks import BOT, MACHINE, VRAM, checks_for
from bot.doctor.findings import Check, Finding, Level, ok
from bot.doctor.patient import Patient
from bot.errors import StoreError
from tests.support.doctorkit import look, patient


def of_generator(_: Patient) -> Iterator[Finding]:
    yield ok("one")
    yield ok("two")


async def of_coroutine(_: Patient) -> list[Finding]:
    return [ok("three")]


def broken(_: Patient) -> Iterator[Finding]:
    yield ok("never shown")
    raise RuntimeError("line one\nline two")


def refused(_: Patient) -> list[Finding]:
    raise StoreError("the database is locked")


def test_both_kinds_of_checks_run(tmp_path: Path) -> None:
    who = patient(tmp_path)
    assert [f.what for f in look(Check("a", of_generator), who)] == ["one", "two"]
    assert [f.what for f in look(Check("b", of_coroutine), who)] == ["three"]


def test_a_broken_check_is_one_line(tmp_path: Path) -> None:
    (finding,) = look(Check("disk", broken), patient(tmp_path))
    assert finding.level is Level.ERROR
    assert finding.what == "this check itself failed: RuntimeError: line one"


def test_a_known_fault_keeps_its_sentence(tmp_path: Path) -> None:
    (finding,) = look(Check("x", refused), patient(tmp_path))
    assert finding.what == "the database is locked"


def test_what_is_asked_for_decides_what_is_looked_at(tmp_path: Path) -> None:
    who = patient(tmp_path)
    assert checks_for(who) == MACHINE
    assert checks_for(Patient(who.config, vram_test=True)) == MACHINE + VRAM
    assert checks_for(Patient(who.config, bot="ding")) == BOT

"""Warnings about the machine: each for its cause, none for a moment's dip, none that flickers."""

from __future__ import annotations

from typing import Any

import pytest

from engine.machine.alarms import CLEAR_S, RAISE_S, Alarm, AlarmKind, Alarms
from engine.machine.margins import Margins
from engine.machine.sample import ProcessMemory
from tests.support.samplekit import GIB, MIB, card, sample

SHORT = {"ram_available": 500 * MIB}


class Row:
    """Feeds a sample every five seconds."""

    def __init__(self, **margins: Any) -> None:
        self.alarms = Alarms(Margins(**margins))
        self.at = 0.0
        self.told: list[str] = []

    def feed(self, seconds: float, **changes: Any) -> tuple[Alarm, ...]:
        end = self.at + seconds
        while self.at < end:
            self.at += 5.0
            raised, ended = self.alarms.look(sample(self.at, **changes))
            self.told += [f"+{one.kind}" for one in raised] + [f"-{one.kind}" for one in ended]
        return self.alarms.raised


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        (SHORT, AlarmKind.RAM_LOW, "only 500 MiB of memory are available (margin 819 MiB)"),
        (
            {"cards": (card(free=300 * MIB),)},
            AlarmKind.VRAM_LOW,
            "only 300 MiB are free on RTX 3060 0 (margin 512 MiB)",
        ),
        (
            {"engines": {"main": ProcessMemory(42, swap=900 * MIB)}},
            AlarmKind.ENGINE_SWAPPED,
            "900 MiB of the engine main are in swap",
        ),
        (
            {
                "cards": (card(shared_bytes=2 * GIB),),
                "engines": {"main": ProcessMemory(42, shared=3 * GIB, evicted=1536 * MIB)},
            },
            AlarmKind.SHARED_MEMORY,
            "RTX 3060 0 uses system memory in place of its own (1.5 GiB)",
        ),
        (
            {"cards": (card(throttled=("heat (driver)",), temperature_c=88),)},
            AlarmKind.THROTTLED,
            "RTX 3060 0 lowers its clocks: heat (driver) (88 °C)",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, AlarmKind) else "",
)
def test_each_cause_has_its_warning(changes: dict[str, Any], kind: AlarmKind, words: str) -> None:
    row = Row()
    assert row.feed(60) == ()
    (alarm,) = row.feed(RAISE_S + 5, **changes)
    assert alarm.kind is kind
    assert words in alarm.sentence
    assert row.feed(CLEAR_S + 5) == ()
    assert row.told == [f"+{kind}", f"-{kind}"]


def test_a_dip_is_no_warning() -> None:
    row = Row()
    for _ in range(20):
        row.feed(5, **SHORT)
        row.feed(5)
    assert row.told == []


def test_a_figure_around_its_limit_does_not_flicker() -> None:
    row = Row(ram=1000 * MIB)
    row.feed(20, ram_available=990 * MIB)
    for _ in range(30):
        row.feed(40, ram_available=1100 * MIB)  # above the limit, not clear of it
        row.feed(10, ram_available=990 * MIB)
    assert row.told == ["+ram_low"]
    row.feed(CLEAR_S + 5, ram_available=1300 * MIB)
    assert row.told == ["+ram_low", "-ram_low"]


def test_swap_that_grows_warns_and_swap_that_lies_there_does_not() -> None:
    row = Row()
    assert row.feed(120, swap_used=3 * GIB) == ()
    for used in range(3 * GIB, 3 * GIB + 400 * MIB, 40 * MIB):
        row.feed(5, swap_used=used)
    assert [alarm.kind for alarm in row.alarms.raised] == [AlarmKind.SWAP_GROWS]


def test_on_windows_a_full_card_spills_without_a_word() -> None:
    full = (card(free=100 * MIB, engine_bytes=None),)
    kinds = {alarm.kind for alarm in Row().feed(30, cards=full, is_wsl=True)}
    assert kinds == {AlarmKind.VRAM_LOW, AlarmKind.SHARED_MEMORY}
    assert {alarm.kind for alarm in Row().feed(30, cards=full)} == {AlarmKind.VRAM_LOW}


def test_buffers_between_ram_and_card_are_no_spill() -> None:
    """A model half in RAM has its weights in memory that the card can reach."""
    engines = {"main": ProcessMemory(42, shared=5 * GIB, evicted=0)}
    assert Row().feed(60, cards=(card(shared_bytes=5 * GIB),), engines=engines) == ()


def test_a_card_that_no_engine_uses_is_nobodys_worry() -> None:
    busy = (card(free=0, engine_bytes=0, throttled=("heat (driver)",)),)
    assert Row().feed(60, cards=busy) == ()


def test_two_cards_are_told_apart() -> None:
    cards = (card(free=0), card(index=1), card(index=2, free=0))
    assert [alarm.about for alarm in Row().feed(30, cards=cards)] == ["RTX 3060 0", "RTX 3060 2"]

"""What an engine gives back when others take memory: in order, after a while, not twice, and back again without flapping."""

from __future__ import annotations

from typing import Any

from engine.config import EngineConfig
from engine.link.obituary import Shortage
from engine.link.pressure import AGAIN_S, Pressure, Step, What
from engine.link.stepback import Depth, Ladder
from engine.machine.margins import Margins
from engine.machine.sample import ProcessMemory
from tests.support.samplekit import GIB, MIB, card, sample

HOLD_S, CALM_S = 30.0, 300.0
SHORT: dict[str, Any] = {"ram_available": 300 * MIB}


class Row:
    """Feeds a sample every five seconds and notes when a step was asked for."""

    def __init__(self, kv_ram: int = 2 * GIB, **margins: Any) -> None:
        self.pressure = Pressure("main", Margins(**margins), kv_ram)
        self.at = 0.0

    def feed(self, seconds: float, **changes: Any) -> list[tuple[float, Step]]:
        steps, start = [], self.at
        while self.at < start + seconds:
            self.at += 5.0
            step = self.pressure.look(sample(self.at, **changes))
            if step is not None:
                steps.append((self.at - start, step))
        return steps


def whats(steps: list[tuple[float, Step]]) -> list[What]:
    return [step.what for _, step in steps]


def test_the_order_is_disk_then_nothing_then_a_restart() -> None:
    row = Row()
    assert row.feed(60) == []
    assert row.pressure.is_calm
    steps = row.feed(4 * HOLD_S, **SHORT)
    assert whats(steps) == [What.KEEP_LESS, What.KEEP_LESS, What.RESTART]
    assert [step.ram_bytes for _, step in steps] == [GIB // 2, 0, 0]
    assert [at for at, _ in steps] == [35.0, 65.0, 95.0], "each has its time to help"
    assert steps[-1][1].shortage == Shortage()
    assert steps[0][1].sentence == "only 300 MiB of memory are available"
    assert not row.pressure.is_calm


def test_a_restart_comes_again_only_after_a_while() -> None:
    row = Row(kv_ram=0)
    steps = row.feed(2.5 * AGAIN_S, **SHORT)
    assert whats(steps) == [What.RESTART] * 3
    assert steps[1][0] - steps[0][0] == AGAIN_S


def test_a_moments_shortage_costs_nothing() -> None:
    row = Row()
    for _ in range(20):
        assert row.feed(HOLD_S - 10, **SHORT) == []
        assert row.feed(5) == []


def test_a_step_that_helped_is_the_last_and_is_taken_back_when_there_is_room_for_it() -> None:
    row = Row()
    assert whats(row.feed(40, **SHORT)) == [What.KEEP_LESS]
    barely = {
        "ram_available": 2 * GIB
    }  # with 2 GiB of idle conversations there would be nothing left
    assert row.feed(4 * CALM_S, **barely) == []
    assert row.pressure.ram_bytes == GIB // 2
    steps = row.feed(CALM_S + 10)
    assert whats(steps) == [What.KEEP_AGAIN]
    assert steps[0][1].ram_bytes == 2 * GIB
    assert row.pressure.is_calm
    assert not row.pressure.has_given_back


def test_a_full_card_means_a_restart_at_once() -> None:
    row = Row()
    steps = row.feed(HOLD_S + 10, cards=(card(free=100 * MIB), card(index=1)))
    assert whats(steps) == [What.RESTART]
    assert steps[0][1].shortage == Shortage(on_device=True)
    assert steps[0][1].sentence == "only 100 MiB are free on RTX 3060"
    assert not row.pressure.is_calm
    row.feed(5)
    assert row.pressure.is_calm


def test_a_card_that_no_engine_uses_costs_nobody_a_restart() -> None:
    assert Row().feed(4 * HOLD_S, cards=(card(free=0, engine_bytes=0),)) == []
    other = {"main": ProcessMemory(42), "other": ProcessMemory(43, uses_card=True)}
    assert Row().feed(4 * HOLD_S, cards=(card(free=0),), engines=other) == []


def test_it_can_be_switched_off_and_needs_new_samples() -> None:
    assert Row(gives_back=False).feed(300, **SHORT) == []
    pressure = Pressure("main", Margins(), 0)
    old = sample(100.0, **SHORT)
    assert [pressure.look(one) for one in (None, old, old, old)] == [None] * 4


def test_what_a_restart_for_others_may_cost() -> None:
    """Speed, never somebody's window, the KV type or what is not to be sacrificed."""
    config = EngineConfig(name="m", n_ctx=8192, n_parallel=2, n_ubatch=128, kv_ram_bytes=GIB)
    ladder = Ladder(config)
    ram, depth = Shortage(), Depth(27)
    assert ladder.can_leave_room(ram, depth)
    steps = 0
    while ladder.leave_room(ram, depth, "at 12:00"):
        steps += 1
    assert steps == 2
    assert ladder.sentence == "n_ubatch 128 → 64, n_parallel 2 → 1 to leave memory to other programs at 12:00"  # fmt: skip
    assert not ladder.can_leave_room(ram, depth)
    on_card = Shortage(on_device=True)
    assert ladder.leave_room(on_card, depth, "at 12:10")
    assert ladder.config.n_gpu_layers == 24
    kept = Ladder(EngineConfig(name="m", n_parallel=4, sacrifice=("kv_ram", "n_ctx")))
    assert not kept.can_leave_room(ram, depth)

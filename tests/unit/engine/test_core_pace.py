"""Running replies while a long prompt comes in, on a machine whose steps take the time the test says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from engine.backends.base import BatchPart, DecodeStatus
from engine.types import Delta, Priority
from tests.support.corekit import CoreKit, fake_kit

STEP_S, REPLY_S, TOKEN_S = 0.004, 0.008, 0.003
LONG = "q" * 2500


def kit_with_time(monkeypatch: pytest.MonkeyPatch, **fields: int) -> CoreKit:
    """A core whose clock goes on with every decode."""
    kit = fake_kit({"reply": "x" * 400}, n_ctx=4096, **fields)
    decode = kit.backend.decode

    def timed(parts: Sequence[BatchPart]) -> DecodeStatus:
        n_replies = sum(part.n_outputs for part in parts)
        n_tokens = sum(len(part.tokens) for part in parts)
        kit.clock.now += STEP_S + n_replies * REPLY_S + (n_tokens - n_replies) * TOKEN_S
        return decode(parts)

    monkeypatch.setattr(kit.backend, "decode", timed)
    return kit


def gaps(kit: CoreKit, request_id: str, n_steps: int) -> list[float]:
    """Times between the tokens of a reply during so many steps."""
    times: list[float] = []
    for _ in range(n_steps):
        n_before = len(kit.events)
        kit.step()
        new = kit.events[n_before:]
        if any(isinstance(e, Delta) and e.request_id == request_id for e in new):
            times.append(kit.clock.now)
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize("n_replies", [1, 3])
def test_no_reply_waits_longer_than_two_more_steps(
    monkeypatch: pytest.MonkeyPatch, n_replies: int
) -> None:
    kit = kit_with_time(monkeypatch)
    for i in range(n_replies):
        kit.ask(f"reply{i}", owner=f"o{i}")
    kit.step(20)
    usual_s = STEP_S + n_replies * REPLY_S
    assert max(gaps(kit, "reply0", 20)) == pytest.approx(usual_s)
    kit.ask("long", LONG, owner="late")
    settling = gaps(kit, "reply0", 12)
    steady = gaps(kit, "reply0", 80)
    assert max(settling) < 0.15
    assert max(steady) <= 3 * usual_s + TOKEN_S
    # And the prompt gets its share: two thirds of the time.
    long = next(job for job in kit.core._running.values() if job.id == "long")
    assert long.n_computed > 80 * 1.8 * usual_s / TOKEN_S
    kit.run()


def test_a_prompt_of_the_background_leaves_people_their_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = kit_with_time(monkeypatch)
    kit.ask("reply")
    kit.step(20)
    kit.ask("summary", LONG, priority=Priority.BACKGROUND)
    gaps(kit, "reply", 12)
    between = gaps(kit, "reply", 80)
    usual_s = STEP_S + REPLY_S
    assert sum(between) <= 1.3 * usual_s * len(between)
    assert max(between) <= 3 * usual_s + TOKEN_S
    # In few and large pieces, as small ones are dear on a CPU.
    assert sum(gap > 1.01 * usual_s for gap in between) <= len(between) / 6
    summary = next(job for job in kit.core._running.values() if job.id == "summary")
    assert summary.n_computed > 0.15 * sum(between) / TOKEN_S
    kit.run()


def test_without_replies_the_prompt_has_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = kit_with_time(monkeypatch)
    kit.ask("long", LONG)
    begun_at = kit.clock.now
    kit.run()
    first_s = kit.finished("long").usage.prefill_s
    assert first_s <= 1.02 * len(LONG) * TOKEN_S + 0.6
    assert begun_at < kit.clock.now

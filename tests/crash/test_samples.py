"""A fixed sample of the long proofs (`make prove`): each kind once, short."""

from __future__ import annotations

import pytest

from tests.prove import crash, fuzz, load, talk
from tests.support.stand import KillPoint

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    "point",
    [KillPoint(1, "after"), KillPoint(3, "after"), KillPoint(4, "before"), KillPoint(7, "after")],
    ids=str,
)
async def test_kill_at_a_call(point: KillPoint) -> None:
    figures = await crash.kill_at_call(point)
    assert figures["killed"].startswith(point.phase)


async def test_kill_twice_with_three_people() -> None:
    assert (await crash.kill_by_clock(1))["questions"] == 3


async def test_twenty_messages_a_second() -> None:
    figures = await load.run_load(20, 3)
    assert figures["answers"] == 60
    assert figures["answered_twice"] == 0


@pytest.mark.model
async def test_a_short_talk_in_a_small_window_with_a_kill() -> None:
    assert (await talk.talk(10, n_ctx=512, restarts=1))["overflows"] == 0


async def test_hostile_webhooks() -> None:
    assert "200×" in (await fuzz.fuzz(11, 200))["statuses"]

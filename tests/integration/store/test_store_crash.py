"""kill -9 in the middle of writing: whatever was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bot.domain.types import TurnState
from bot.store import Store

# Twenty writers at once; each line is printed only after its accept (and snapshot) returned.
_CHILD = """
import asyncio, sys
from bot.domain.types import Snapshot
from bot.store import Store
from tests.store_drafts import chat, event

async def main():
    store = Store(sys.argv[1])
    await store.open()
    async def person(user):
        for n in range(100_000):
            accepted = await store.accept(event(chat(f"q{n}", user=user), key=f"{user}.{n}"))
            sys.stdout.write(f"turn {accepted.turn_id} {user}.{n}\\n")
            sys.stdout.flush()
            for turn in await store.claim(user, 60, 1):
                await store.save_reply(turn.id, Snapshot(1, f"answer to {turn.question}", (n,)), None)
                sys.stdout.write(f"reply {turn.id} {turn.question}\\n")
                sys.stdout.flush()
    await asyncio.gather(*(person(f"u{k}") for k in range(20)))

asyncio.run(main())
"""


@pytest.mark.crash
@pytest.mark.parametrize("lines", [5, 120])
async def test_everything_acknowledged_survives_kill_9(url: str, open_store, lines: int) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CHILD, url, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    said = [await child.stdout.readline() for _ in range(lines)]
    child.send_signal(signal.SIGKILL)
    said += (await child.stdout.read()).splitlines(keepends=True)
    assert await child.wait() == -signal.SIGKILL
    words = [line.decode().split() for line in said if line.endswith(b"\n")]
    turns = [(w[1], w[2]) for w in words if w[0] == "turn"]
    replies = [(w[1], w[2]) for w in words if w[0] == "reply"]
    assert turns

    store: Store = await open_store(url)
    for turn_id, key in turns:
        turn = await store.turn(turn_id)
        assert turn is not None, f"{key} was acknowledged"
        assert turn.question == f"q{key.split('.')[1]}"
    for turn_id, question in replies:
        snapshot, _ = await store.reply(turn_id)
        assert snapshot is not None
        assert snapshot.text == f"answer to {question}"
    await _nothing_is_stuck(store)


async def _nothing_is_stuck(store: Store) -> None:
    """What ran when the process died comes back; no more than one per line runs."""
    before = await store.facts()
    if store._db.place.is_sqlite:
        assert await store.recover("after") == before.turns_running
        assert (await store.facts()).turns_running == 0
        claimed = await store.claim("after", 60, 1000)
        assert {t.state for t in claimed} <= {TurnState.RUNNING}
        assert len({t.session_id for t in claimed}) == len(claimed)
        assert all(
            await asyncio.gather(
                *(store.finish_turn(t.id, "after", TurnState.DONE) for t in claimed)
            )
        )
    assert before.turns_queued + before.turns_running > 0

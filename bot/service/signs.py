"""Signs of life: "I have seen it" within a second of a question, taken away once the reply itself is there.

What a platform gave to take the sign away with is stored as a part of the reply with a negative `n` (which drivers never
see), so that a restart leaves no reaction behind (cases B1). It is stored as ATTEMPTED before the call: after a crash in
between the platform is asked for it, since showing it a second time would notify people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace

import structlog

from bot.domain.ports import Store
from bot.domain.types import PartState, ReplyPart, ReplyTarget
from bot.platforms.base import PlatformAdapter

log = structlog.get_logger()

SIGN_PART_N = -1
SIGN_KIND = "sign"


class SignsOfLife:
    """Owns the signs shown and the tasks that show and clear them; `close` waits for these.

    A sign that is to be cleared before it was even shown is cleared right after.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shown: dict[str, tuple[PlatformAdapter, ReplyTarget, str]] = {}
        self._cleared: set[str] = set()
        self._showing: set[str] = set()
        self._known: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def show(self, turn_id: str, adapter: PlatformAdapter, target: ReplyTarget) -> None:
        """Show a sign on the question, once per turn; returns at once."""
        if turn_id not in self._known:
            self._known.add(turn_id)
            self._showing.add(turn_id)
            self._spawn(
                self._settle(turn_id, adapter, target, self._show(turn_id, adapter, target))
            )

    def adopt(
        self,
        turn_id: str,
        adapter: PlatformAdapter,
        target: ReplyTarget,
        parts: Sequence[ReplyPart],
    ) -> bool:
        """Take over a sign that an earlier process showed. True when there is one."""
        for part in parts:
            if part.n != SIGN_PART_N or turn_id in self._known:
                continue
            where = replace(target, reply_to=part.message_id)
            if part.state is PartState.CONFIRMED:
                self._shown[turn_id] = (adapter, where, part.remote_id)
                self._known.add(turn_id)
            elif part.state is PartState.ATTEMPTED:
                self._known.add(turn_id)
                self._showing.add(turn_id)
                self._spawn(self._settle(turn_id, adapter, where, adapter.find_alive(where)))
        return turn_id in self._known

    def clear(self, turn_id: str) -> None:
        """Take the sign away; returns at once. Harmless when there is none."""
        self._known.discard(turn_id)
        if turn_id in self._showing:
            self._cleared.add(turn_id)
        elif turn_id in self._shown:
            self._spawn(self._clear(turn_id, *self._shown.pop(turn_id)))

    async def close(self, grace_s: float) -> None:
        """Let the tasks in flight end, then cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("sign_of_life_failed", error=type(task.exception()).__name__)

    async def _show(self, turn_id: str, adapter: PlatformAdapter, target: ReplyTarget) -> str:
        attempted = _part(turn_id, target, "", PartState.ATTEMPTED)
        await self._store.save_reply(turn_id, None, attempted)
        return await adapter.show_alive(target)

    async def _settle(
        self,
        turn_id: str,
        adapter: PlatformAdapter,
        target: ReplyTarget,
        getting_token: Coroutine[None, None, str],
    ) -> None:
        """Wait for the sign's token and keep it; a sign that is no longer wanted by then is cleared at once."""
        try:
            token = await getting_token
            if token:
                await self._store.save_reply(turn_id, None, _part(turn_id, target, token))
                self._shown[turn_id] = (adapter, target, token)
        finally:
            self._showing.discard(turn_id)
            cleared = turn_id in self._cleared
            self._cleared.discard(turn_id)
        if cleared:
            self.clear(turn_id)

    async def _clear(
        self, turn_id: str, adapter: PlatformAdapter, target: ReplyTarget, token: str
    ) -> None:
        await adapter.clear_alive(target, token)
        part = _part(turn_id, target, token, PartState.CLOSED)
        await self._store.save_reply(turn_id, None, part)


def _part(
    turn_id: str, target: ReplyTarget, token: str, state: PartState = PartState.CONFIRMED
) -> ReplyPart:
    return ReplyPart(
        turn_id=turn_id,
        n=SIGN_PART_N,
        kind=SIGN_KIND,
        idem_key="",
        state=state,
        remote_id=token,
        message_id=target.reply_to,
    )

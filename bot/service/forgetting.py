"""`/forget`: a conversation's words go from everywhere — turns, answers, token ids, summary, index, the engine's caches.

Rows keep their ids, and dedupe hashes stay, so that a redelivered event is not answered again. Everything here may be
repeated by a turn that is taken up after a crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import structlog

from bot.domain.catalogue import say
from bot.domain.commands import arguments_of, number_of
from bot.domain.records import Erased, Summary
from bot.domain.sessions import is_shared
from bot.domain.types import Turn
from bot.errors import StoreError
from bot.service.context import Context
from bot.service.conversation import cache_keys
from engine.errors import EngineError

log = structlog.get_logger()

MOST_TURNS = 50
# How long turns that were just cancelled are waited for; what they write later is erased by the timers' sweep.
ENDING_S = 10.0
PAUSE_S = 0.05
_YES = {"yes", "确认"}
_LAST = {"last", "最近"}


class Forgetting:
    """Executes /forget. Holds no state. `cancel` stops a turn wherever it is."""

    def __init__(self, context: Context, cancel: Callable[[str], Awaitable[bool]]) -> None:
        self._context = context
        self._cancel = cancel

    async def leave(self, turn: Turn, bot_name: str) -> None:
        """Begin the next epoch at once, if all is to be forgotten: what is asked right behind belongs to it."""
        if arguments_of(turn.question).casefold() in _YES and self._may_forget_all(turn, bot_name):
            current = await self._context.store.session(turn.session)
            if current.id == turn.session_id:
                await self._context.store.next_epoch(turn.session, erase_from_prompt=True)

    async def forget(self, turn: Turn, bot_name: str) -> str:
        """What to answer. Raises StoreError."""
        words = arguments_of(turn.question).casefold().split()
        if words and words[0] in _LAST and len(words) <= 2:
            n = number_of(words[1], MOST_TURNS) if len(words) == 2 else 1
            if n is not None:
                return await self._forget_last(turn, bot_name, n)
        elif len(words) == 1 and words[0] in _YES:
            return await self._forget_all(turn, bot_name)
        elif not words:
            allowed = self._may_forget_all(turn, bot_name)
            return self._say("forget.confirm" if allowed else "forget.admins")
        return self._say("forget.usage", most=MOST_TURNS)

    def _may_forget_all(self, turn: Turn, bot_name: str) -> bool:
        """What several people said is not one member's to erase."""
        return not is_shared(turn.session) or self._context.is_admin(bot_name, turn.asker.user_id)

    async def _forget_all(self, turn: Turn, bot_name: str) -> str:
        if not self._may_forget_all(turn, bot_name):
            return self._say("forget.admins")
        await self.leave(turn, bot_name)
        await self._end_running(turn)
        erased = await self._context.store.forget_session(turn.session, but_turn=turn.id)
        for one in erased:
            await forget_kv(self._context, one)
        if is_shared(turn.session):
            await self._context.store.unhear(turn.session.app_id, chat_id=turn.session.chat_id)
        await self._empty_log()
        log.info("conversation_forgotten", n_sessions=len(erased))
        return self._say("forget.done")

    async def _end_running(self, turn: Turn) -> None:
        store, clock = self._context.store, self._context.clock
        for other in await store.unfinished_turns(turn.session_id):
            await self._cancel(other.id)
        until = clock.monotonic() + ENDING_S
        while await store.unfinished_turns(turn.session_id) and clock.monotonic() < until:
            await clock.sleep(PAUSE_S)

    async def _forget_last(self, turn: Turn, bot_name: str, n: int) -> str:
        store = self._context.store
        if await store.unfinished_turns(turn.session_id):
            return self._say("forget.running")
        is_admin = self._context.is_admin(bot_name, turn.asker.user_id)
        user_id = turn.asker.user_id
        past = await store.past_turns(turn.session_id)
        mine = [one for one in past if is_admin or one.asker.user_id == user_id][-n:]
        mine = [one for one in mine if one.turn_no < turn.turn_no]
        if not mine:
            return self._say("forget.none")
        erased = await store.forget_turns(
            turn.session_id,
            from_turn_no=mine[0].turn_no,
            before_turn_no=turn.turn_no,
            asker_id=None if is_admin or not is_shared(turn.session) else user_id,
        )
        await forget_kv(self._context, erased)
        await self._empty_log()
        return self._say("forget.last", n=len(mine))

    async def _empty_log(self) -> None:
        """The words are erased by now; where the log is in use, the next sweep empties it."""
        try:
            done = await self._context.store.empty_log()
        except StoreError as error:
            log.warning("log_not_emptied", error=str(error))
        else:
            log.info("log_emptied", done=done)

    def _say(self, key: str, **values: object) -> str:
        return say(self._context.settings.language, key, **values)


async def forget_kv(context: Context, erased: Erased) -> None:
    """Every copy of a session's computed state, in every model that may have answered there."""
    summary = Summary(erased.session_id, erased.rev, 0, "", 0, "") if erased.rev else None
    for engine in context.engines.values():
        for key in cache_keys(erased.session_id, summary):
            with contextlib.suppress(EngineError):
                await engine.forget(key)

"""Keeps conversations inside their window: the oldest turns become a summary, in the background, one at a time per model.

Owns the queue of conversations that may have grown too long, and one task per model. The turns themselves stay in the store.
A person never waits for it: every request has the lowest priority; the new prefix is computed under a cache key of its own
while the old one still serves, and the switch is one transaction between two turns.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import structlog

from bot.domain.prompt import conversation_fingerprint, covers, reserve_tokens, usable
from bot.domain.records import Canonical, PastTurn, Summary
from bot.domain.turns import answering
from bot.domain.types import Turn, TurnState
from bot.errors import HearthError
from bot.service.compression import Compressor, Measured, collect, turns_to_compress
from bot.service.context import Context
from bot.service.conversation import cache_key, is_common, session_system, summary_pair
from engine.errors import EngineError
from engine.face import Engine
from engine.types import EngineRequest, ModelInfo, Priority, Sampling

log = structlog.get_logger()

SWITCH_TRIES = 60
SWITCH_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Compressed:
    """What a compression did, for people. Tokens count the whole prompt without a question."""

    n_before: int
    n_after: int
    n_turns: int
    n_kept: int
    how: str


class Summarizer:
    """Owned by the service. `notice` may be called at any time; `close` ends the tasks, and nothing is lost by it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queues: dict[str, asyncio.Queue[tuple[Turn, str]]] = {
            name: asyncio.Queue() for name in context.engines
        }
        self._queued: set[str] = set()
        self._locks = {name: asyncio.Lock() for name in context.engines}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [
            asyncio.create_task(self._work(queue), name=f"summarizer_{name}")
            for name, queue in self._queues.items()
        ]

    async def close(self) -> None:
        """Stop; a compression that has not switched yet is begun anew at the conversation's next turn."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def notice(self, turn: Turn, bot_name: str) -> None:
        """A turn has ended: its conversation may have become too long."""
        if self._context.settings.config.summarizer.enabled and turn.session_id not in self._queued:
            self._queued.add(turn.session_id)
            self._queues[self._context.model_of(bot_name)].put_nowait((turn, bot_name))

    async def _work(self, queue: asyncio.Queue[tuple[Turn, str]]) -> None:
        while True:
            turn, bot_name = await queue.get()
            self._queued.discard(turn.session_id)
            with structlog.contextvars.bound_contextvars(session_id=turn.session_id):
                try:
                    await self.compress(turn, bot_name)
                except (HearthError, EngineError) as error:
                    log.warning("compression_put_off", error=type(error).__name__)
                except Exception:  # one conversation's trouble must not end all compressions
                    log.exception("compression_failed")

    async def compress(
        self, turn: Turn, bot_name: str, *, at_once: bool = False
    ) -> Compressed | None:
        """Compress a conversation if it is above the high mark (`at_once`: whatever its size). None = nothing to do.

        Raises EngineError while there is no engine, HearthError when the store fails.
        """
        writer = self._context.settings.config.summarizer.model
        model = writer if writer in self._locks else self._context.model_of(bot_name)
        async with self._locks[model]:  # of the one that writes: two others may both have it write
            return await _Compression(self._context, turn, bot_name).run(at_once=at_once)


class _Compression:
    """One conversation, once."""

    def __init__(self, context: Context, turn: Turn, bot_name: str) -> None:
        settings = context.settings
        self._context = context
        self._turn = turn
        self._session_id = turn.session_id
        self._rules = settings.config.summarizer
        self._engine: Engine = context.engines[context.model_of(bot_name)]
        adapter = context.adapters[bot_name]
        self._adapter = adapter
        self._system = ""
        writer = context.engines.get(self._rules.model, self._engine)
        self._compressor = Compressor(
            self._engine, writer, self._rules, settings.language, adapter.display_name
        )

    async def run(self, *, at_once: bool) -> Compressed | None:
        info = self._engine.info
        if info is None:
            return None
        self._system = await session_system(self._context, self._turn, self._adapter.display_name)
        old = await self._context.store.summary(self._session_id)
        past = await self._past(old)
        if not at_once and await self._is_short(old, past, info):
            return None
        measured = await self._measure(old, past, info)
        limit, n_system = measured.limit, measured.n_system
        n_max = self._compressor.summary_tokens(limit, n_system)
        if not at_once and measured.n_tokens <= self._compressor.high_mark(limit, n_system):
            return None
        n_gone = turns_to_compress(measured, self._rules, n_max)
        if at_once and n_gone == 0:
            n_gone = max(0, len(measured.past) - 1)
        if n_gone == 0:
            return None
        gone = measured.past[:n_gone]
        rev = old.rev + 1 if old else 1
        written, n_tokens = await self._compressor.write(
            old, gone, n_max, f"summary.{self._session_id}.{rev}"
        )
        summary = Summary(
            self._session_id, rev, gone[-1].last_turn_no, written.text(), n_tokens, written.how
        )
        if at_once:
            # Of a short talk the summary may be longer than the turns it stands for.
            planned = await self._measure(summary, await self._past(summary), info)
            if planned.n_tokens >= measured.n_tokens:
                return None
        after = await self._switch(summary, old, info)
        if after is None:
            return None
        done = Compressed(measured.n_tokens, after.n_tokens, n_gone, len(after.past), written.how)
        log.info(
            "compressed",
            n_before=done.n_before,
            n_after=done.n_after,
            n_turns=done.n_turns,
            n_kept=done.n_kept,
            how=done.how,
        )
        return done

    async def _is_short(
        self, summary: Summary | None, past: list[PastTurn], info: ModelInfo
    ) -> bool:
        """Whether the list in the store, if it is these very turns, says that there is nothing to do: nothing is counted."""
        canonical = await self._context.store.canonical(self._session_id)
        text = summary.text if summary else ""
        fingerprint = conversation_fingerprint(info.fingerprint, self._system, text)
        if canonical is None or not covers(canonical, fingerprint, usable(past), 3 if text else 1):
            return False
        window, reply = info.n_ctx_tokens, self._context.settings.chat.max_new_tokens
        limit = window - reserve_tokens(reply, window)
        n_system = canonical.boundaries[1]  # there is a turn behind it
        return len(canonical.token_ids) <= self._compressor.high_mark(limit, n_system)

    async def _past(self, summary: Summary | None) -> list[PastTurn]:
        first = summary.covers_turn_no + 1 if summary else 0
        return await self._context.store.past_turns(self._session_id, from_turn_no=first)

    async def _measure(
        self, summary: Summary | None, past: list[PastTurn], info: ModelInfo
    ) -> Measured:
        settings = self._context.settings
        pair = summary_pair(settings.language, summary)
        return await self._compressor.measure(
            self._system, pair, past, info, settings.chat.max_new_tokens
        )

    async def _switch(
        self, summary: Summary, old: Summary | None, info: ModelInfo
    ) -> Measured | None:
        """Compute the new prefix, then use it, between two turns. None = it was not to be (erased, or never quiet)."""
        key = cache_key(self._session_id, summary)
        warmed: tuple[int, ...] = ()
        first = summary.covers_turn_no + 1
        for number in range(SWITCH_TRIES):
            past = await self._context.store.past_turns(self._session_id, from_turn_no=first)
            measured = await self._measure(summary, past, info)
            if measured.n_tokens > measured.limit and len(measured.past) > 1:
                # A talk that never rests has outgrown the window meanwhile. Its newest turns are shown, as they would be
                # without a summary; the next compression takes what lies between.
                n_out = turns_to_compress(measured, self._rules, summary.n_tokens)
                past = list(measured.past[min(n_out, len(measured.past) - 1) :])
                first = past[0].turn_no
                measured = await self._measure(summary, past, info)
            tokens = measured.rendered.token_ids[: measured.rendered.tail_start]
            if tokens != warmed:
                await self._warm(key, tokens, measured, number)
                warmed = tokens
            if number + 1 < SWITCH_TRIES and await self._is_answering():
                await self._context.clock.sleep(SWITCH_PAUSE_S)
                continue
            canonical = Canonical(
                fingerprint=conversation_fingerprint(info.fingerprint, self._system, summary.text),
                token_ids=tokens,
                boundaries=measured.rendered.starts if tokens else (),
                window_from_turn_no=first,
                covers_turn_no=measured.past[-1].last_turn_no
                if measured.past
                else summary.covers_turn_no,
            )
            if not await self._context.store.save_summary(summary, canonical):
                with contextlib.suppress(EngineError):  # erased meanwhile: nothing of it may stay
                    await self._engine.forget(key)
                return None
            with contextlib.suppress(EngineError):
                await self._engine.forget(cache_key(self._session_id, old))
            return measured
        return None

    async def _is_answering(self) -> bool:
        """Whether a turn runs that was begun with the old prefix. In a group that never rests the switch is made in the
        end all the same: then the next prompt is rendered anew once."""
        unfinished = await self._context.store.unfinished_turns(self._session_id)
        return any(turn.state is TurnState.RUNNING for turn in answering(unfinished))

    async def _warm(
        self, key: str, tokens: tuple[int, ...], measured: Measured, number: int
    ) -> None:
        """Have the new prefix computed; returns when it is. A request of one token, because its end is told."""
        if not tokens:
            return
        name = self._adapter.display_name
        is_shared = is_common(self._context, self._turn, name, self._system)
        request = EngineRequest(
            id=f"warm.{key}.{number}",
            prompt_tokens=tokens,
            max_new_tokens=1,
            sampling=Sampling(temperature=0),
            cache_key=key,
            scope=self._turn.session.app_id,
            owner="summarizer",
            priority=Priority.BACKGROUND,
            n_shared_prefix=measured.n_system if is_shared else 0,
        )
        await collect(self._engine.submit(request))

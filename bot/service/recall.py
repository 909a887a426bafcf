"""Old turns come back when they are asked about: kept findable in the background, looked up for each question.

`RecallIndex` owns a task that indexes what was said after each answer; how far it has come is in the store, so that nothing
is lost by a crash. `Recaller` finds quotes for one question. A question never fails for want of a quote.
"""

from __future__ import annotations

import asyncio

import structlog

from bot.domain.catalogue import say
from bot.domain.recall import Quote, choose, parse, rank
from bot.domain.records import Found
from bot.domain.types import Turn
from bot.errors import HearthError
from bot.service.context import Context
from engine.face import Engine
from engine.types import ModelInfo

log = structlog.get_logger()

# Turns indexed in one transaction: some milliseconds of the writer.
CHUNK_TURNS = 100
# How long a question waits for an old history that has never been indexed; the rest is done in the background.
CATCH_UP_S = 2.0
N_CANDIDATES = 40


class RecallIndex:
    """Indexes conversations after their answers, one at a time. Owner: the service."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._known: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._work(), name="recall_index")

    async def close(self) -> None:
        """Stop; what is left is indexed after the conversation's next answer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def notice(self, turn: Turn) -> None:
        """A turn has ended: it can be found from now on."""
        if self._context.settings.config.recall.enabled and turn.session_id not in self._known:
            self._known.add(turn.session_id)
            self._waiting.put_nowait(turn.session_id)

    async def _work(self) -> None:
        while True:
            session_id = await self._waiting.get()
            self._known.discard(session_id)
            try:
                while not await self._context.store.index_history(session_id, limit=CHUNK_TURNS):
                    pass
            except HearthError as error:
                log.warning("recall_index_put_off", error=type(error).__name__)
            except Exception:  # one conversation's trouble must not end the index of all
                log.exception("recall_index_failed")


class Recaller:
    """Finds what bears on one question. Holds no state."""

    def __init__(self, context: Context, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._rules = context.settings.config.recall

    async def quotes(self, turn: Turn, before_turn_no: int, info: ModelInfo) -> tuple[str, ...]:
        """Lines to show with a question: a heading, then quotes from turns before `before_turn_no`, the best first.

        Nothing where nothing is good enough. Together at most the configured share of the window. Raises EngineError.
        """
        if not self._rules.enabled or before_turn_no <= 1 or not turn.question.strip():
            return ()
        query = parse(turn.question)
        if not query.terms:
            return ()
        try:
            found = await self._find(turn.session_id, query.terms, before_turn_no)
        except HearthError as error:
            log.warning("recall_failed", error=str(error))
            return ()
        chosen = choose(
            query,
            rank(query, found),
            min_score=self._rules.min_score,
            max_quotes=self._rules.max_quotes,
        )
        lines = await self._within(chosen, int(self._rules.max_share * info.n_ctx_tokens))
        log.info("recalled", n_found=len(found.hits), n_quotes=max(0, len(lines) - 1))
        return lines

    async def _find(self, session_id: str, terms: tuple[str, ...], before_turn_no: int) -> Found:
        store = self._context.store
        found = await store.search(session_id, terms, before_turn_no, N_CANDIDATES)
        if found.indexed_to >= before_turn_no - 1:
            return found
        await self._catch_up(session_id)
        return await store.search(session_id, terms, before_turn_no, N_CANDIDATES)

    async def _catch_up(self, session_id: str) -> None:
        """Hardly ever needed: the history is indexed as it grows, except one from before there was an index."""
        clock = self._context.clock
        end = clock.monotonic() + CATCH_UP_S
        while not await self._context.store.index_history(session_id, limit=CHUNK_TURNS):
            if clock.monotonic() > end:
                return

    async def _within(self, chosen: list[Quote], max_tokens: int) -> tuple[str, ...]:
        """The heading and as many quotes as fit into a number of tokens, counted exactly; none, and there is no heading."""
        language = self._context.settings.language
        lines = [say(language, "recall.given")]
        if not chosen:
            return ()
        offered = [self._line(quote) for quote in chosen]
        counts = await asyncio.gather(
            *(self._engine.count(f"{line}\n") for line in lines + offered)
        )
        n_tokens = counts[0]
        for line, n_line in zip(offered, counts[1:], strict=True):
            if n_tokens + n_line <= max_tokens:
                lines.append(line)
                n_tokens += n_line
        return tuple(lines) if len(lines) > 1 else ()

    def _line(self, quote: Quote) -> str:
        settings = self._context.settings
        when = quote.said_at.astimezone(settings.zone).date().isoformat() if quote.said_at else ""
        who = say(settings.language, "recall.own") if quote.is_answer else quote.speaker
        text = quote.text
        if quote.reply:
            text = say(settings.language, "recall.answered", text=text, reply=quote.reply)
        return say(
            settings.language, "recall.quote", who=who, when=when, n=quote.turn_no, text=text
        )

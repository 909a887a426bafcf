"""Commands about what a conversation remembers: /context, /compact, /history, /export, /system. Holds no state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from bot.domain.catalogue import say
from bot.domain.commands import arguments_of, number_of
from bot.domain.prompt import speaker_name, usable
from bot.domain.records import Told
from bot.domain.types import ChatKind, Turn
from bot.service.compression import Compressor, Measured
from bot.service.context import Context
from bot.service.conversation import first_verbatim, session_system, summary_pair
from bot.service.summarizer import Compressed
from engine.errors import EngineError

HISTORY_TURNS, MOST_HISTORY_TURNS = 5, 20
# Of each question and answer that /history shows.
HISTORY_CHARS = 400
EXPORT_TURNS, EXPORT_CHARS = 1000, 200_000
SYSTEM_CHARS = 1000
BAR_CELLS = 24
_MARKS = ("█", "▓", "▒", "▞", "░", "·")
_RESET = {"reset", "重置", "取消"}

Compress = Callable[[Turn, str], Awaitable[Compressed | None]]


class MemoryCommands:
    """`compress` puts a conversation's oldest turns into a summary at once; None = there was nothing to do."""

    def __init__(self, context: Context, compress: Compress) -> None:
        self._context = context
        self._compress = compress

    # -- /compact and /context ---------------------------------------------------------------------------------------
    async def compact(self, turn: Turn, bot_name: str) -> str:
        """Older turns become a summary now."""
        engine = self._context.engines[self._context.model_of(bot_name)]
        if engine.info is None:
            return self._say("compact.later")
        try:
            done = await self._compress(turn, bot_name)
        except EngineError:
            return self._say("compact.later")
        if done is None:
            return self._say("compact.nothing")
        return self._say(
            "compact.done",
            before=done.n_before,
            after=done.n_after,
            turns=done.n_turns,
            how=self._say(f"compact.how.{done.how}"),
            kept=done.n_kept,
        )

    async def context(self, turn: Turn, bot_name: str) -> str:
        """What fills the window, as a bar and in figures."""
        model = self._context.model_of(bot_name)
        engine, settings = self._context.engines[model], self._context.settings
        store = self._context.store
        info = engine.info
        if info is None:
            return self._say("status.tokens_unknown", window=settings.n_ctx(model))
        summary = await store.summary(turn.session_id)
        first = first_verbatim(await store.canonical(turn.session_id), summary)
        past = await store.past_turns(turn.session_id)
        shown = [one for one in usable(past) if one.turn_no >= first]
        name = self._context.adapters[bot_name].display_name
        system = await session_system(self._context, turn, name)
        compressor = Compressor(engine, engine, settings.config.summarizer, settings.language, name)
        pair = summary_pair(settings.language, summary)
        try:
            measured = await compressor.measure(
                system, pair, shown, info, settings.chat.max_new_tokens
            )
        except EngineError:
            return self._say("status.tokens_unknown", window=info.n_ctx_tokens)
        has_older = any(one.turn_no < first for one in past)
        lines = self._bar(measured, info.n_ctx_tokens, has_older=has_older)
        covered = summary.covers_turn_no if summary is not None else 0
        if summary is not None and summary.text:
            n = sum(one.last_turn_no <= covered for one in past)
            how = self._say(f"compact.how.{summary.how}")
            lines.append(self._say("context.summarized", n=n, how=how))
        if n_dropped := sum(covered < one.turn_no < first for one in past):
            lines.append(self._say("context.dropped", n=n_dropped))
        return "\n".join(lines)

    def _bar(self, measured: Measured, window: int, *, has_older: bool) -> list[str]:
        starts, n_tokens = measured.rendered.starts, measured.n_tokens
        n_head = starts[measured.n_head] if len(starts) > measured.n_head else n_tokens
        # The last answer may have filled a part of what is kept for the next: the oldest turns make room for it then.
        n_reserve = min(window - measured.limit, max(0, window - n_tokens))
        n_free = max(0, measured.limit - n_tokens)
        rules = self._context.settings.config.recall
        may_quote = rules.enabled and has_older
        n_recall = min(n_free, int(rules.max_share * window)) if may_quote else 0
        parts = (
            ("context.system", measured.n_system),
            ("context.summary", n_head - measured.n_system),
            ("context.turns", n_tokens - n_head),
            ("context.recall", n_recall),
            ("context.reserve", n_reserve),
            ("context.free", n_free - n_recall),
        )
        sizes = [n for _, n in parts]
        cells = _cells(sizes, BAR_CELLS)
        bar = "".join(mark * n for mark, n in zip(_MARKS, cells, strict=True))
        percent = min(100, round(100 * n_tokens / max(1, measured.limit)))
        lines = [self._say("context.title", window=window, percent=percent), bar]
        for mark, (key, n) in zip(_MARKS, parts, strict=True):
            if n or key not in {"context.summary", "context.recall"}:
                name = self._say(key, turns=len(measured.past))
                lines.append(self._say("context.line", mark=mark, name=name, tokens=n))
        return lines

    # -- /history and /export ----------------------------------------------------------------------------------------
    async def history(self, turn: Turn, _bot_name: str) -> str:
        """The last questions and answers, also of earlier topics; of each its beginning."""
        words = arguments_of(turn.question).split()
        n = number_of(words[0], MOST_HISTORY_TURNS) if words else HISTORY_TURNS
        if len(words) > 1 or n is None:
            return self._say("history.usage", most=MOST_HISTORY_TURNS)
        told = await self._context.store.told(turn.session, n)
        if not told:
            return self._say("history.nothing")
        parts = [self._say("history.title", n=len(told))]
        for one in told:
            mark = "" if one.is_current else self._say("history.earlier")
            heading = self._say(
                "history.asked", name=self._asker(one), when=self._when(one.asked_at), mark=mark
            )
            question = "\n".join(f"> {line}" for line in self._short(one.question).splitlines())
            parts += [f"{heading}\n{question}", self._short(one.answer)]
        return "\n\n".join(parts)

    async def export(self, turn: Turn, bot_name: str) -> str:
        """The conversation as Markdown; the newest of it where it is very long."""
        told = await self._context.store.told(turn.session, EXPORT_TURNS)
        if not told:
            return self._say("history.nothing")
        kept = _newest(told, EXPORT_CHARS)
        name = self._context.adapters[bot_name].display_name
        parts = [
            self._say("export.title", when=self._when(self._context.clock.now())),
            self._say("export.count", n=len(kept)),
        ]
        if len(kept) < len(told) or len(told) == EXPORT_TURNS:
            parts.append(self._say("export.cut"))
        for number, one in enumerate(kept, 1):
            asked = self._say(
                "export.turn", n=number, when=self._when(one.asked_at), name=self._asker(one)
            )
            parts += [asked, one.question, f"**{name}**", one.answer.strip()]
        return "\n\n".join(parts)

    def _asker(self, told: Told) -> str:
        return speaker_name(self._context.settings.language, told.asker)

    def _when(self, moment: datetime) -> str:
        return moment.astimezone(self._context.settings.zone).strftime("%Y-%m-%d %H:%M")

    def _short(self, text: str) -> str:
        text = text.strip()
        if len(text) <= HISTORY_CHARS:
            return text
        more = self._say("history.more", n=len(text) - HISTORY_CHARS)
        return f"{text[:HISTORY_CHARS].rstrip()} {more}"

    # -- /system -----------------------------------------------------------------------------------------------------
    async def system(self, turn: Turn, bot_name: str) -> str:
        """Show, set or remove what the model is told in this conversation beside the configured text."""
        text, store = arguments_of(turn.question), self._context.store
        if not text:
            own = await store.session_system(turn.session)
            return self._say("system.shown", text=own) if own else self._say("system.empty")
        direct = turn.chat_kind is ChatKind.DIRECT
        if not direct and not self._context.is_admin(bot_name, turn.asker.user_id):
            return self._say("system.not_allowed")
        if text.casefold() in _RESET:
            await store.set_session_system(turn.session, "")
            return self._say("system.removed")
        if len(text) > SYSTEM_CHARS or not await self._fits(text, bot_name):
            return self._say("system.too_long", most=SYSTEM_CHARS)
        await store.set_session_system(turn.session, text)
        return self._say("system.done")

    async def _fits(self, text: str, bot_name: str) -> bool:
        """Whether it leaves the window to the talk; while the model is away a character is taken for a token."""
        model = self._context.model_of(bot_name)
        engine = self._context.engines[model]
        window = engine.info.n_ctx_tokens if engine.info else self._context.settings.n_ctx(model)
        try:
            n_tokens = await engine.count(text)
        except EngineError:
            n_tokens = len(text)
        return n_tokens <= window // 4

    def _say(self, key: str, **values: object) -> str:
        return say(self._context.settings.language, key, **values)


def _cells(sizes: Sequence[int], n_cells: int) -> list[int]:
    """Cells in proportion to sizes, n_cells in all; what is there at all gets one."""
    total = max(1, sum(sizes))
    cells = [max(1, round(n_cells * size / total)) if size else 0 for size in sizes]
    while sum(cells) != n_cells and any(cells):
        step = 1 if sum(cells) < n_cells else -1
        largest = max(range(len(cells)), key=lambda n: cells[n])
        cells[largest] += step
    return cells


def _newest(told: Sequence[Told], n_chars: int) -> list[Told]:
    """The newest turns that have at most `n_chars` together, and in any case the last."""
    kept: list[Told] = []
    for one in reversed(told):
        n_chars -= len(one.question) + len(one.answer)
        if n_chars < 0 and kept:
            break
        kept.append(one)
    return kept[::-1]

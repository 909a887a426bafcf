"""What one compression does to a conversation: which turns go, what stands for them, how much room all of it takes.

Reads the store and the engine; changes nothing. `bot.service.summarizer` decides when, and switches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import structlog

from bot.config import SummarizerConfig
from bot.domain.catalogue import Language
from bot.domain.prompt import reserve_tokens, usable
from bot.domain.records import PastTurn, Summary
from bot.domain.summary import Draft, Said, accept, draft, language_of, request_text, shorter
from bot.service.prompting import messages_of, summary_messages
from engine.face import Engine
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    EngineRequest,
    Failed,
    ModelInfo,
    Priority,
    Rendered,
    Role,
    Sampling,
)

log = structlog.get_logger()

# The last messages stay as they were said where there is room.
LAST_TURNS = 3
MAX_SUMMARY_TOKENS = 700
_SUMMARY_SAMPLING = Sampling(temperature=0.2, top_p=0.9, repeat_penalty=1.1)


@dataclass(frozen=True, slots=True)
class Measured:
    """A conversation's prompt without a newest question. `limit` is the window without the reply's reserve."""

    past: tuple[PastTurn, ...]
    rendered: Rendered
    n_head: int
    limit: int

    @property
    def n_tokens(self) -> int:
        return self.rendered.n_tokens

    def tokens_from(self, first: int) -> int:
        """What the turns from index `first` on take."""
        starts = self.rendered.starts
        at = self.n_head + 2 * first
        return self.n_tokens - starts[at] if at < len(starts) else 0

    @property
    def n_system(self) -> int:
        starts = self.rendered.starts
        return starts[1] if len(starts) > 1 else self.n_tokens


def water_mark(share: float, rules: SummarizerConfig, limit: int, n_fixed: int) -> float:
    """A mark in tokens: a share of the limit. Where the system message and the summary alone pass the low mark it is a share
    of what they leave, or no turn would ever stay as it was said, however much room there is."""
    if n_fixed <= rules.low * limit:
        return share * limit
    return n_fixed + share * max(0, limit - n_fixed)


def turns_to_compress(measured: Measured, rules: SummarizerConfig, n_summary: int) -> int:
    """How many of the oldest turns go, so that system + summary + the rest reach the low mark; 0 = not worth it."""
    n_turns = len(measured.past)
    fixed = measured.n_system + n_summary
    low = water_mark(rules.low, rules, measured.limit, fixed)
    keep = water_mark(rules.keep, rules, measured.limit, fixed)
    for first in range(n_turns + 1):
        n_kept = n_turns - first
        size = fixed + measured.tokens_from(first)
        if size <= low or (n_kept <= LAST_TURNS and size <= keep):
            return first
    return n_turns


class Compressor:
    """Measures and writes for one conversation. `writer` is the engine that writes summaries."""

    def __init__(
        self,
        engine: Engine,
        writer: Engine,
        rules: SummarizerConfig,
        language: Language,
        bot_name: str,
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._rules = rules
        self._language = language
        self._bot_name = bot_name
        self._n_requests = 0

    async def measure(
        self,
        system: str,
        pair: tuple[str, str] | None,
        past: Sequence[PastTurn],
        info: ModelInfo,
        max_new_tokens: int,
    ) -> Measured:
        """How long the prompt is now. Raises EngineError."""
        kept = tuple(usable(past))
        messages = (
            ChatMessage(role=Role.SYSTEM, content=system),
            *summary_messages(pair),
            *messages_of(kept, info.fingerprint),
        )
        rendered = await self._engine.render(messages, add_generation_prompt=False)
        limit = info.n_ctx_tokens - reserve_tokens(max_new_tokens, info.n_ctx_tokens)
        return Measured(kept, rendered, 3 if pair else 1, limit)

    def summary_tokens(self, limit: int, n_system: int) -> int:
        """The longest summary: beside a long system message it leaves most of the rest to the talk."""
        most = min(int(self._rules.share * limit), (limit - n_system) // 3)
        return max(24, min(MAX_SUMMARY_TOKENS, most))

    def high_mark(self, limit: int, n_system: int) -> float:
        """The most tokens that a conversation has before it is compressed."""
        n_fixed = n_system + self.summary_tokens(limit, n_system)
        return water_mark(self._rules.high, self._rules, limit, n_fixed)

    async def write(
        self, before: Summary | None, turns: Sequence[PastTurn], n_max: int, request_id: str
    ) -> tuple[Draft, int]:
        """A summary of at most `n_max` tokens, and how many it has. Raises EngineUnavailable while there is no engine."""
        old = before.text if before else ""
        said = [message for turn in turns for message in self._said(turn)]
        language = language_of([message.text for message in said], self._language)
        prose = await self._prose(language, old, said, n_max, request_id)
        text = "\n".join([old, *(message.text for message in said)])
        per_char = max(0.05, await self._engine.count(text) / max(1, len(text)))
        # In a thread: a block may be a thousand turns.
        result = await asyncio.to_thread(
            draft, prose, old, said, n_max, lambda t: len(t) * per_char
        )
        n_tokens = await self._engine.count(result.text())
        while n_tokens > n_max and result.text():
            result = shorter(result)
            n_tokens = await self._engine.count(result.text())
        return result, n_tokens

    def _said(self, turn: PastTurn) -> tuple[Said, Said]:
        asker = turn.asker.name or turn.asker.user_id[-4:]
        # In a shared conversation the question itself begins with who asked.
        question = turn.prompt_text.removeprefix(f"[{asker}] ")
        return Said(asker, question), Said(self._bot_name, turn.answer)

    async def _prose(
        self, language: Language, old: str, said: Sequence[Said], n_max: int, request_id: str
    ) -> str:
        """What the model makes of it, chunk by chunk; "" where it gives nothing worth keeping."""
        info = self._writer.info
        if info is None:
            return ""
        room = info.n_ctx_tokens - 2 * n_max - 200
        prose, before = "", old
        for chunk in await self._chunks(said, max(200, room // 2)):
            asked = request_text(language, self._rules.prompt, before, chunk, max_words=n_max // 2)
            written = await self._ask(asked, n_max, info, request_id)
            answer = await asyncio.to_thread(accept, written, chunk, before)
            if answer:
                prose = before = answer
        return prose

    async def _chunks(self, said: Sequence[Said], n_tokens: int) -> list[list[Said]]:
        chunks: list[list[Said]] = [[]]
        n_have = 0
        for message in said:
            n = await self._writer.count(message.text) + 8
            if chunks[-1] and n_have + n > n_tokens:
                chunks.append([])
                n_have = 0
            while (
                n > n_tokens and len(message.text) > 40
            ):  # one message longer than a chunk: its beginning counts
                message = Said(message.speaker, message.text[: len(message.text) // 2])  # noqa: PLW2901
                n = await self._writer.count(message.text) + 8
            chunks[-1].append(message)
            n_have += n
        return chunks

    async def _ask(self, text: str, n_max: int, info: ModelInfo, request_id: str) -> str:
        messages = (ChatMessage(role=Role.USER, content=text),)
        rendered = await self._writer.render(messages)
        room = info.n_ctx_tokens - rendered.n_tokens
        if room < 16:
            return ""
        self._n_requests += 1
        request = EngineRequest(
            id=f"{request_id}.{self._n_requests}",
            prompt_tokens=rendered.token_ids,
            messages=() if rendered.token_ids else messages,
            max_new_tokens=min(n_max, room),
            sampling=_SUMMARY_SAMPLING,
            scope="summarizer",
            owner="summarizer",
            priority=Priority.BACKGROUND,
            thinking_open=rendered.thinking_open,
        )
        return await collect(self._writer.submit(request))


async def collect(events: AsyncIterator[EngineEvent]) -> str:
    """The text of a background reply; "" when it failed."""
    text = []
    async for event in events:
        if isinstance(event, Delta):
            text.append(event.text)
        elif isinstance(event, Failed):
            log.info("background_reply_failed", code=event.code.value)
            return ""
    return "".join(text)

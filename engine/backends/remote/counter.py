"""Counting for a remote model: by the server's own `/tokenize` where it has one, else an upper bound from UTF-8 bytes.

Owns what was found out about the server (`Findings`) and a cache of counts under digests (no text is kept). A token of a
byte-level or byte-fallback vocabulary covers at least one byte, and SentencePiece may add one leading space: hence
bytes + 1. The chat template of the server is unknown, so a fixed allowance per message stands for it; what is added up
here is therefore always an upper bound.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.remote.protocol import Dialect
from engine.types import ChatMessage, Rendered

# Header and end of a message take 3 to 8 tokens in common templates; the base covers BOS, the generation prompt and a
# default system prompt or date line that a template may put in by itself.
TOKENS_PER_MESSAGE: Final = 12
TOKENS_BASE: Final = 64
_CACHE_ENTRIES: Final = 4096
_AT_ONCE: Final = 4

# POST a JSON body to a path beside /v1; the parsed answer, or None for whatever is not a 200 with a JSON object.
Post = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class Findings:
    """What a server has told about itself. `n_ctx_tokens` is None when it did not say."""

    dialect: Dialect = Dialect.PLAIN
    n_ctx_tokens: int | None = None

    @property
    def can_tokenize(self) -> bool:
        """Whether counts come from the model's own tokenizer."""
        return self.dialect is not Dialect.PLAIN


def byte_bound(text: str) -> int:
    """Tokens that a text can have at most."""
    return len(text.encode("utf-8", "replace")) + 1 if text else 0


def tokenize_body(dialect: Dialect, model: str, text: str) -> dict[str, Any]:
    """The body of `/tokenize`: llama-server wants `content`, vLLM `model` and `prompt`."""
    if dialect is Dialect.VLLM:
        return {"model": model, "prompt": text, "add_special_tokens": False}
    return {"content": text, "add_special": False, "parse_special": False}


def token_count(answer: dict[str, Any] | None) -> int | None:
    """The count in an answer of `/tokenize`; None when it is not one."""
    tokens = answer.get("tokens") if answer else None
    return len(tokens) if isinstance(tokens, list) else None


class RemoteCounter:
    """Counts for one remote model. Owner: its `OpenAIEngine`; never raises, a failing server only makes counts larger."""

    def __init__(self, model: str, post: Post) -> None:
        self._model = model
        self._post = post
        self._cache: OrderedDict[bytes, int] = OrderedDict()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.findings = Findings()

    async def find_dialect(self) -> Dialect:
        """Ask once which `/tokenize` the server has."""
        for dialect in (Dialect.LLAMA_SERVER, Dialect.VLLM):
            answer = await self._post("/tokenize", tokenize_body(dialect, self._model, "hello"))
            if token_count(answer):
                return dialect
        return Dialect.PLAIN

    async def count(self, text: str) -> int:
        """Tokens of a text, or an upper bound."""
        if not text or not self.findings.can_tokenize:
            return byte_bound(text)
        key = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
        if (known := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            return known
        body = tokenize_body(self.findings.dialect, self._model, text)
        async with self._slots:
            n_tokens = token_count(await self._post("/tokenize", body))
        if n_tokens is None:
            return byte_bound(text)
        self._cache[key] = n_tokens
        if len(self._cache) > _CACHE_ENTRIES:
            self._cache.popitem(last=False)
        return n_tokens

    async def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool
    ) -> Rendered:
        """A conversation without ids: an upper bound of its length, and of what remains behind each cut."""
        counts = await asyncio.gather(*(self.count(message.content) for message in messages))
        starts: list[int] = []
        at = 0
        for n_tokens in counts:
            starts.append(at)
            at += n_tokens + TOKENS_PER_MESSAGE
        # The base stands at the end, so that what remains behind any cut still contains it.
        at += TOKENS_BASE + (TOKENS_PER_MESSAGE if add_generation_prompt else 0)
        return Rendered(token_ids=(), n_tokens=at, starts=tuple(starts), exact=False)

"""The engine's narrow face: the protocol that the bot programs against, whatever is behind it.

Two things implement it: `engine.client.EngineProcess` (a child process with llama.cpp or the scripted fake) and
`engine.backends.openai.OpenAIEngine` (any OpenAI-compatible server).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from engine.types import ChatMessage, EngineEvent, EngineRequest, EngineStats, ModelInfo, Rendered


class Engine(Protocol):
    """Five verbs — submit, cancel, warm, forget, stats — and two questions, count and render."""

    @property
    def info(self) -> ModelInfo | None:
        """What is loaded; None until it was ready once."""
        ...

    async def start(self) -> None:
        """Start loading and return at once; `wait_ready` waits. Raises EngineConfigError for settings that cannot work."""
        ...

    async def wait_ready(self, timeout_s: float) -> ModelInfo:
        """Wait until requests are accepted. Raises EngineUnavailable on timeout, EngineConfigError when loading failed for good."""
        ...

    async def close(self) -> None:
        """End the child and every open request (each gets its terminal event)."""
        ...

    def submit(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        """Generate a reply: yields events, exactly one terminal event last. Never raises for the request itself.

        Closing the iterator early cancels the request.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Ask for the end of a request; its stream then ends with Finished(CANCELLED). Unknown ids are ignored."""
        ...

    async def warm(self, cache_key: str, scope: str, tokens: Sequence[int]) -> None:
        """Prefill `tokens` for a conversation at the lowest priority, so that its next message finds them computed."""
        ...

    async def forget(self, cache_key: str) -> None:
        """Drop every copy of a conversation's KV."""
        ...

    async def stats(self) -> EngineStats:
        """State and counters; never raises."""
        ...

    async def count(self, text: str) -> int:
        """Tokens of a text by the model's own tokenizer (or an upper bound where `info.exact_counts` is False)."""
        ...

    async def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> Rendered:
        """A conversation through the chat template. Raises EngineUnavailable while the model is not loaded."""
        ...

"""One completion: an exact prompt that fits, and the engine's events as pieces of text or one clear error.

Knows the engine's face and the memory of conversations, nothing of HTTP. Turns are never dropped: what does not fit is the
sender's to shorten.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from bot.web.api_memory import Recalled, TalkMemory
from bot.web.openai_wire import ApiError
from bot.web.resuming import resuming
from engine.errors import EngineError, EngineUnavailable, TextRefused
from engine.face import Engine
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    ModelInfo,
    Priority,
    Rendered,
    Role,
    Sampling,
)

log = structlog.get_logger()

# How long nothing may come before the line is looked at again (is the client still there? does a proxy need a sign?).
QUIET_S: Final = 1.0
LOADING_RETRY_S: Final = 5.0

_FAILURES: Final[dict[FailureCode, tuple[int, str, str]]] = {
    FailureCode.BUSY: (429, "engine_busy", "too many requests are waiting; try again later"),
    FailureCode.ENGINE_DIED: (503, "engine_unavailable", "the model is not running just now; try again later"),
    FailureCode.TOO_LONG: (400, "context_length_exceeded", "the messages do not fit into the model's window"),
    FailureCode.DEADLINE: (503, "engine_busy", "the request waited too long; try again later"),
    FailureCode.DECODE: (500, "engine_failed", "the model failed on this request"),
    FailureCode.BAD_REQUEST: (500, "engine_failed", "the engine refused this request"),
    FailureCode.POISON: (422, "request_refused", "the model crashed each time on this request; change its messages"),
    FailureCode.UPSTREAM: (502, "upstream_failed", "the server behind this model failed"),
}  # fmt: skip


class ClientGone(Exception):
    """Nobody reads the answer any more."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks of one model. `max_new_tokens` is cut to what the window leaves."""

    id: str
    scope: str
    model: str
    priority: Priority
    messages: tuple[ChatMessage, ...]
    max_new_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Piece:
    """What became visible; both empty: nothing came for a while."""

    text: str = ""
    thinking: str = ""


class Completion:
    """Owns one engine request from its prompt to its end. Use as an async context manager: leaving it early cancels."""

    def __init__(
        self, engine: Engine, memory: TalkMemory, wish: Wish, is_gone: Callable[[], bool]
    ) -> None:
        self._engine = engine
        self._memory = memory
        self._wish = wish
        self._is_gone = is_gone
        self._recalled: Recalled | None = None
        self._prompt: tuple[int, ...] = ()
        self._reusable = False
        self._events: asyncio.Queue[EngineEvent | Exception] = asyncio.Queue()
        self._pump: asyncio.Task[None] | None = None
        self._first: EngineEvent | None = None
        self._ids: list[int] = []
        self._text: list[str] = []
        self.n_prompt = 0
        self.finished: Finished | None = None

    @property
    def n_generated(self) -> int:
        """Ids that have come so far."""
        return len(self._ids)

    async def __aenter__(self) -> Completion:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """End the request if it has not ended, and give the conversation free for the next one."""
        try:
            if self._pump is not None:
                self._pump.cancel()
                # Whatever it has ended with meanwhile, nobody waits for it any more.
                await asyncio.gather(self._pump, return_exceptions=True)
        finally:
            if self._recalled is not None:
                self._memory.release(self._recalled)

    async def open(self) -> None:
        """Make the prompt and wait until the engine has taken it. Raises ApiError, ClientGone."""
        info = self._engine.info
        if info is None:
            raise _unavailable("the model is still loading; try again later", LOADING_RETRY_S)
        wish = self._wish
        self._recalled = self._memory.recall(
            (wish.scope, wish.model, info.fingerprint), wish.messages
        )
        rendered = await self._render(self._recalled.messages)
        request = self._request(self._recalled, rendered, info)
        self._pump = asyncio.create_task(self._fetch(request), name="api_events")
        event = await self._take()
        while event is None:
            event = await self._take()
        self._note(event)
        self._memory.note_question(self._recalled)
        self._first = event

    async def pieces(self) -> AsyncIterator[Piece]:
        """Every piece until the reply's end; then `finished` is set. Raises ApiError, ClientGone."""
        event, self._first = self._first, None
        while self.finished is None:
            if isinstance(event, Delta) and (event.text or event.thinking):
                yield Piece(event.text, event.thinking)
            elif event is None:
                yield Piece()
            event = await self._take()
            if event is not None:
                self._note(event)

    async def _render(self, messages: tuple[ChatMessage, ...]) -> Rendered:
        try:
            return await self._engine.render(messages)
        except EngineUnavailable:
            raise _unavailable(
                "the model is not running just now; try again later", LOADING_RETRY_S
            ) from None
        except TextRefused:
            status, code, message = _FAILURES[FailureCode.POISON]
            raise ApiError(status, message, code=code, param="messages") from None
        except EngineError as error:
            log.warning("api_render_refused", request_id=self._wish.id, error=type(error).__name__)
            raise ApiError(
                400, "the model's chat template cannot take these messages", param="messages"
            ) from None

    def _request(self, recalled: Recalled, rendered: Rendered, info: ModelInfo) -> EngineRequest:
        wish, ids = self._wish, rendered.token_ids
        if recalled.canonical and ids and rendered.tail_start:
            ids = (*recalled.canonical, *ids[rendered.tail_start :])
        self._prompt = ids
        # Where the template itself opened a thinking block, or goes on with a reply, later prompts begin otherwise.
        asked = wish.messages[-1].role is not Role.ASSISTANT
        self._reusable = bool(ids) and asked and not rendered.thinking_open
        self.n_prompt = len(ids) or rendered.n_tokens
        room = info.n_ctx_tokens - self.n_prompt
        if room < 1:
            about = "" if rendered.exact else "up to "
            raise ApiError(
                400,
                f"the messages are {about}{self.n_prompt} tokens, and this model's window is {info.n_ctx_tokens} "
                "for messages and reply together; send a shorter history",
                param="messages",
                code="context_length_exceeded",
            )
        return EngineRequest(
            id=wish.id,
            prompt_tokens=ids,
            messages=() if ids else wish.messages,
            max_new_tokens=min(wish.max_new_tokens, room),
            stop=wish.stop,
            sampling=wish.sampling,
            cache_key=recalled.cache_key,
            owner=wish.scope,
            scope=wish.scope,
            priority=wish.priority,
            lineage=wish.id,
            thinking_open=rendered.thinking_open,
            n_shared_prefix=_n_shared(wish.messages, rendered),
        )

    async def _take(self) -> EngineEvent | None:
        """The next event, or None when none came for a while. Raises ClientGone."""
        if self._is_gone():
            raise ClientGone
        try:
            async with asyncio.timeout(QUIET_S):
                event = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(event, Exception):
            raise event
        return event

    async def _fetch(self, request: EngineRequest) -> None:
        """Carry the engine's events to whoever takes them: a look at the line in between must not end the stream."""
        try:
            async with contextlib.aclosing(resuming(self._engine, request)) as events:
                async for event in events:
                    self._events.put_nowait(event)
            end: Exception = ApiError(
                500, "the engine's stream ended too early", code="engine_failed"
            )
        except Exception as error:  # noqa: BLE001 - told where the events are taken
            end = error
        self._events.put_nowait(end)

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, Delta):
            self._ids += event.token_ids
            self._text.append(event.text)
        elif isinstance(event, Failed):
            log.warning("api_generation_failed", request_id=event.request_id, code=event.code.value)
            raise _failure(event)
        elif isinstance(event, Finished):
            if event.reason is FinishReason.CANCELLED:
                raise _unavailable("the reply was ended from inside; try again", 1.0)
            self.finished = event
            self._remember(event)

    def _remember(self, event: Finished) -> None:
        assert self._recalled is not None  # noqa: S101 - `open` has set it
        answer = self._ids[event.answer_start : event.answer_start + event.n_answer]
        prompt = self._prompt if self._reusable else ()
        self._memory.note_reply(self._recalled, "".join(self._text), prompt, answer)


def _n_shared(messages: tuple[ChatMessage, ...], rendered: Rendered) -> int:
    """Tokens of the system messages at the beginning: other conversations of this caller begin with them too."""
    n_system = next((i for i, m in enumerate(messages) if m.role is not Role.SYSTEM), 0)
    return rendered.starts[n_system] if 0 < n_system < len(rendered.starts) else 0


def _failure(event: Failed) -> ApiError:
    """The engine's own sentence is for admins (it may name files), so the sender gets ours."""
    status, code, message = _FAILURES[event.code]
    retry_after_s = max(1.0, event.retry_after_s) if event.retryable else 0.0
    return ApiError(status, message, code=code, retry_after_s=retry_after_s)


def _unavailable(message: str, retry_after_s: float) -> ApiError:
    return ApiError(503, message, code="engine_unavailable", retry_after_s=retry_after_s)

"""`OpenAIEngine`: any OpenAI-compatible server behind the `Engine` face (vLLM, SGLang, llama-server, a cloud).

Owns the line in front of the server and the tasks that read replies. Must not know HTTP (`remote.http`) or the protocol
(`remote.protocol`); the state is the probe's (`remote.probe`). Such a server gives no token ids: deltas carry none, an interrupted
answer starts again (`generated_tokens` is not used), and KV stays the server's affair (`warm` and `forget` do nothing).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from engine.backends.remote.counter import RemoteCounter
from engine.backends.remote.gate import Gate, Ticket
from engine.backends.remote.http import RemoteServer
from engine.backends.remote.probe import ServerProbe
from engine.backends.remote.protocol import RemoteFailure
from engine.backends.remote.reply import Reply
from engine.errors import EngineUnavailable
from engine.link.mailbox import Mailbox
from engine.types import (
    ChatMessage,
    EngineEvent,
    EngineRequest,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    ModelInfo,
    Queued,
    Rendered,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from engine.config import OpenAISettings

log = structlog.get_logger()

_MAX_WAITING: Final = 256
_MAX_WAITING_PER_OWNER: Final = 16
_FIRST_GUESS_S: Final = 5.0


class OpenAIEngine:
    """See `engine.face.Engine`. Owner of everything here: the event loop it runs in.

    Requests are sent in any state but CLOSED, because the server's own answer to them says best what is wrong.
    """

    def __init__(self, settings: OpenAISettings) -> None:
        self._settings = settings
        self._server = RemoteServer(settings)
        self._counter = RemoteCounter(settings.model, self._server.post)
        self._gate = Gate(settings.n_parallel, _MAX_WAITING, _MAX_WAITING_PER_OWNER)
        self._replies: dict[str, tuple[asyncio.Task[None], Mailbox]] = {}
        self._probe = ServerProbe(settings, self._server, self._counter)
        self._closed = False
        self._log = log.bind(model=settings.name)
        self._typical_reply_s = _FIRST_GUESS_S
        self._n_prompt_total = 0
        self._n_generated_total = 0

    @property
    def info(self) -> ModelInfo | None:
        """What is served; None until the server has answered once."""
        return self._probe.readiness.info

    async def start(self) -> None:
        """Open the session and probe in the background. Raises EngineConfigError for settings that cannot work."""
        self._server.check()
        if not self._closed:
            self._server.open()
            self._probe.start()

    async def wait_ready(self, timeout_s: float) -> ModelInfo:
        """Wait until the server has answered. Raises EngineUnavailable on timeout and after close, EngineConfigError while
        the server refuses the key.
        """
        return await self._probe.readiness.wait_ready(timeout_s)

    async def close(self) -> None:
        """End every open request (each gets its terminal event) and close all connections. Twice is harmless."""
        self._closed = True
        replies = list(self._replies.items())
        for request_id, (task, box) in replies:
            box.put(_failed(request_id, FailureCode.ENGINE_DIED, "the engine was closed"))
            task.cancel()
        if replies:
            await asyncio.wait([task for _, (task, _) in replies])
        await self._probe.close()
        await self._server.close()

    async def submit(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        """Generate a reply; nothing is sent before the first event is asked for. Closing the iterator closes the connection."""
        refusal = self._refusal(request)
        if refusal is not None:
            yield refusal
            return
        box = Mailbox()
        task = asyncio.create_task(self._run(request, box), name="openai_reply")
        # A task that is cancelled before its first step never runs: its terminal event comes from here.
        task.add_done_callback(lambda _: box.put(_cancelled(request.id)))
        self._replies[request.id] = (task, box)
        try:
            ended = False
            while not ended:
                event = await box.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            self._replies.pop(request.id, None)
            task.cancel()
            await asyncio.wait({task})

    async def cancel(self, request_id: str) -> None:
        """Close the connection of a request; its stream then ends with Finished(CANCELLED). Unknown ids are ignored."""
        if request_id in self._replies:
            self._replies[request_id][0].cancel()

    async def warm(self, cache_key: str, scope: str, tokens: Sequence[int]) -> None:
        """Nothing: the server keeps its own cache."""

    async def forget(self, cache_key: str) -> None:
        """Nothing: the server keeps its own cache, which no call of this protocol can clear."""

    async def stats(self) -> EngineStats:
        """State and counters since start; never raises."""
        return EngineStats(
            state=self._probe.readiness.state,
            detail=self._probe.readiness.detail,
            n_running=self._gate.n_running,
            n_waiting=self._gate.n_waiting,
            decoded_prompt_tokens_total=self._n_prompt_total,
            decoded_generated_tokens_total=self._n_generated_total,
        )

    async def count(self, text: str) -> int:
        """Tokens by the server's tokenizer, or an upper bound where `info.exact_counts` is False."""
        return await self._counter.count(text)

    async def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> Rendered:
        """No ids, only an upper bound of the length (`exact` is False)."""
        if self._probe.readiness.info is None:
            raise EngineUnavailable(
                f"{self._server.host} has not answered yet: {self._probe.readiness.detail}"
            )
        return await self._counter.render(messages, add_generation_prompt=add_generation_prompt)

    # ── one request ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _refusal(self, request: EngineRequest) -> Failed | None:
        if self._closed:
            return _failed(request.id, FailureCode.ENGINE_DIED, "the engine was closed")
        if request.id in self._replies:
            message = "a request of this id is running already"
            return _failed(request.id, FailureCode.BAD_REQUEST, message, retryable=False)
        if not request.messages:
            message = "a remote model needs the messages; it cannot take token ids"
            return _failed(request.id, FailureCode.BAD_REQUEST, message, retryable=False)
        return None

    async def _run(self, request: EngineRequest, box: Mailbox) -> None:
        """One request from the line to its terminal event, whatever happens."""
        ticket = self._gate.enter(request.owner, request.priority)
        if ticket is None:
            wait_s = self._typical_reply_s * (1 + self._gate.n_waiting / self._settings.n_parallel)
            failure = RemoteFailure(
                FailureCode.BUSY, "the line in front of this model is full", retryable=True,
                retry_after_s=min(60.0, max(1.0, wait_s)),
            )  # fmt: skip
            box.put(failure.event(request.id))
            return
        reply = Reply(request, box, time.monotonic())
        try:
            await self._wait_in_line(ticket, request, box)
            reply.sent()
            await self._server.chat(request, reply.take)
            self._book(finished := reply.end())
            box.put(finished)
        except asyncio.CancelledError:
            box.put(
                reply.finished(FinishReason.CANCELLED)
            )  # a cancel, a close or a reader who left: all ours
        except RemoteFailure as failure:
            self._log.warning("remote_request_failed", request_id=request.id, code=failure.code)
            box.put(failure.event(request.id))
            if failure.code is FailureCode.UPSTREAM:
                self._probe.start()  # it may be gone: look again, so that `/readyz` tells
        except Exception as error:  # noqa: BLE001 - a terminal event is owed; words of the error may hold text
            kind = type(error).__name__
            self._log.error("remote_client_failed", request_id=request.id, error=kind)
            message = f"the answer of {self._server.host} could not be read ({kind})"
            box.put(_failed(request.id, FailureCode.UPSTREAM, message, retryable=False))
        finally:
            self._gate.leave(ticket)

    async def _wait_in_line(self, ticket: Ticket, request: EngineRequest, box: Mailbox) -> None:
        try:
            box.put(Queued(request_id=request.id, place=max(1, ticket.place)))
            async with asyncio.timeout(request.deadline_s or None):
                while ticket.place:
                    box.put(Queued(request_id=request.id, place=ticket.place))
                    await ticket.moved()
        except TimeoutError:
            message = f"not started within {request.deadline_s:.0f} s"
            raise RemoteFailure(FailureCode.DEADLINE, message, retryable=False) from None

    def _book(self, finished: Finished) -> None:
        usage = finished.usage
        self._n_prompt_total += max(0, usage.n_prompt - usage.n_cached)
        self._n_generated_total += usage.n_generated
        took_s = usage.prefill_s + usage.decode_s
        self._typical_reply_s += 0.2 * (took_s - self._typical_reply_s)


def _failed(request_id: str, code: FailureCode, message: str, *, retryable: bool = True) -> Failed:
    return Failed(request_id=request_id, code=code, retryable=retryable, message=message)


def _cancelled(request_id: str) -> Finished:
    return Finished(request_id=request_id, reason=FinishReason.CANCELLED, usage=Usage())

"""The engine as the bot sees it: `open_engine` and `EngineProcess`, the `Engine` behind a child process.

Owns every open request and question. Must not know models or tokens, nor how the child is kept alive (`supervisor`).
A request that cannot be served now fails at once as retryable: the queue that survives a crash is the bot's own, so
nothing waits here while there is no child.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from engine.config import EngineConfig, OpenAISettings
from engine.errors import EngineError, EngineUnavailable, TextRefused
from engine.link import wire
from engine.link.deadlytexts import DeadlyTexts
from engine.link.inflight import Inflight
from engine.link.limits import check_config
from engine.link.supervisor import Supervisor
from engine.link.suspects import Suspects, Verdict
from engine.link.watch import Supervision
from engine.types import (
    EngineEvent,
    EngineRequest,
    EngineState,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    ModelInfo,
    Rendered,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from engine.face import Engine
    from engine.machine.margins import Surroundings
    from engine.types import ChatMessage
    from engine.vram.auto import PlanListener
    from engine.vram.claims import Claims

T = TypeVar("T")


def open_engine(
    config: EngineConfig | OpenAISettings,
    claims: Claims | None = None,
    on_plan: PlanListener | None = None,
    surroundings: Surroundings | None = None,
) -> Engine:
    """The engine for one entry of `[models.*]`; call `start` next, inside the event loop.

    `claims` is shared by all engines of a program, so that their plans know of each other; `on_plan` is told each plan.
    `surroundings`: what a watch of the machine sees, so that the engine gives memory back when others take it.
    """
    if isinstance(config, OpenAISettings):
        from engine.backends.openai import OpenAIEngine

        return OpenAIEngine(config)
    return EngineProcess(config, claims=claims, on_plan=on_plan, surroundings=surroundings)


class EngineProcess:
    """A local model in a child process (see `engine.face.Engine`). Owner of everything here: the event loop it runs in."""

    def __init__(
        self,
        config: EngineConfig,
        rules: Supervision | None = None,
        *,
        claims: Claims | None = None,
        on_plan: PlanListener | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._config = config
        self._rules = rules or Supervision()
        self._supervisor = Supervisor(config, self._rules, self, claims, on_plan, surroundings)
        self._inflight = Inflight()
        self._suspects = Suspects(self._rules.max_deaths)
        self._deadly = DeadlyTexts()
        self._idle_since = time.monotonic()
        self._forgets: dict[str, None] = {}
        self._counters = EngineStats(state=EngineState.STARTING)

    @property
    def info(self) -> ModelInfo | None:
        """What is loaded; None until it was ready once."""
        return self._supervisor.readiness.info

    @property
    def child_pid(self) -> int:
        """Process id of the child; 0 = there is none now."""
        child = self._supervisor.child
        return child.pid if child else 0

    @property
    def child_output(self) -> tuple[str, ...]:
        """The last lines the child printed, for `hearth doctor`; never for users."""
        child = self._supervisor.child
        return child.tail if child else self._supervisor.last_output

    async def start(self) -> None:
        """Start loading and return at once. Raises EngineConfigError for settings that cannot work."""
        check_config(self._config)
        self._supervisor.start()

    async def wait_ready(self, timeout_s: float) -> ModelInfo:
        """Wait until requests are accepted. Raises EngineUnavailable on timeout and after close, EngineConfigError while
        the settings or the model file are wrong.
        """
        return await self._supervisor.readiness.wait_ready(timeout_s)

    async def close(self) -> None:
        """End the child and every open request; each gets its terminal event. Calling it twice is harmless."""
        self._inflight.fail_all("the engine was closed", 0.0)
        await self._supervisor.close()

    async def submit(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        """Generate a reply; nothing is sent before the first event is asked for. Closing the iterator cancels.

        Without a ready child it fails at once with ENGINE_DIED and `retry_after_s`: retryable while one is on its way or
        the engine is being closed, not so while the settings are wrong (FAILED). What has killed the child again and again
        fails with POISON instead.
        """
        child = self._supervisor.ready_child
        if child is None:
            yield self._not_ready(request.id)
            return
        verdict = self._suspects.verdict(request)
        if verdict is Verdict.POISON:
            yield _poison(request.id)
            return
        entry = self._inflight.open(request.id)
        if entry is None:
            yield _bad_request(request.id, "a request of this id is running already")
            return
        alone = request.alone or verdict is Verdict.ALONE
        sent = msgspec.structs.replace(request, id=entry.wire_id, alone=alone)
        try:
            self._suspects.sent(sent)
            try:
                child.send(wire.Submit(request=sent))
            except wire.WireError as error:
                entry.mailbox.put(_bad_request(request.id, str(error)))
            ended = False
            while not ended:
                event = await entry.mailbox.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            self._inflight.close(entry)
            self._suspects.left(entry.wire_id)
            self._idle_since = time.monotonic()
            if not entry.mailbox.ended:
                child.send(wire.Cancel(request_id=entry.wire_id))

    async def cancel(self, request_id: str) -> None:
        """Ask for the end of a request; its stream then ends with Finished(CANCELLED). Unknown ids are ignored."""
        wire_id = self._inflight.wire_id(request_id)
        child = self._supervisor.ready_child
        if wire_id is not None and child is not None:
            child.send(wire.Cancel(request_id=wire_id))

    async def warm(self, cache_key: str, scope: str, tokens: Sequence[int]) -> None:
        """Prefill a conversation in the background; a hint, so it is dropped while there is no ready child."""
        child = self._supervisor.ready_child
        if child is not None and not self._suspects.is_poisoned(cache_key):
            child.send(wire.Warm(cache_key=cache_key, scope=scope, tokens=tuple(tokens)))

    async def forget(self, cache_key: str) -> None:
        """Drop every copy of a conversation's KV; sent again to each new child until one has confirmed it."""
        self._forgets[cache_key] = None
        child = self._supervisor.ready_child
        if child is not None:
            child.send(wire.Forget(cache_key=cache_key))

    async def stats(self) -> EngineStats:
        """State and counters; never raises. While the child is in a long step the counters are the last known ones."""
        with contextlib.suppress(EngineError):
            self._counters = await self._ask(
                lambda seq: wire.AskStats(seq=seq), EngineStats, self._rules.stats_s
            )
        child = self._supervisor.child
        return msgspec.structs.replace(
            self._counters,
            state=self._supervisor.readiness.state,
            detail=self._supervisor.readiness.detail,
            n_restarts=self._supervisor.n_restarts,
            rss_bytes=child.rss_bytes if child else 0,
            child_pid=child.pid if child else 0,
            step_back=self._supervisor.step_back,
            lacks=self._supervisor.lacks,
            plan=self._supervisor.plan,
        )

    async def count(self, text: str) -> int:
        """Tokens of a text by the model's own tokenizer. Raises EngineUnavailable while the model is not loaded."""
        cleaned = wire.clean_text(text)
        return await self._ask(
            lambda seq: wire.AskCount(seq=seq, text=cleaned), int, self._rules.answer_s
        )

    async def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> Rendered:
        """A conversation through the chat template. Raises EngineUnavailable while the model is not loaded, EngineError
        when the template refuses the messages.
        """
        cleaned = tuple(
            msgspec.structs.replace(message, content=wire.clean_text(message.content))
            for message in messages
        )

        def question(seq: int) -> wire.Command:
            return wire.AskRender(
                seq=seq, messages=cleaned, add_generation_prompt=add_generation_prompt
            )

        return await self._ask(question, Rendered, self._rules.answer_s)

    # What the supervisor asks and tells (`engine.link.supervisor.Listener`).

    @property
    def idle_since(self) -> float | None:
        """Since when nobody waits for anything; None = somebody does."""
        return self._idle_since if self._inflight.is_empty else None

    def on_ready(self) -> None:
        """A new child knows nothing of what was to be forgotten."""
        child = self._supervisor.ready_child
        if child is not None:
            for key in self._forgets:
                child.send(wire.Forget(cache_key=key))

    def on_report(self, report: wire.Report) -> None:
        """Hand a report to whoever waits for it."""
        match report:
            case wire.StatsAnswer(seq=seq, stats=answer):
                self._inflight.answer(seq, answer)
            case wire.CountAnswer(seq=seq, n_tokens=n_tokens):
                self._inflight.answer(seq, n_tokens)
            case wire.RenderAnswer(seq=seq, rendered=rendered):
                self._inflight.answer(seq, rendered)
            case wire.Refusal(seq=seq, message=message):
                self._inflight.refuse(seq, EngineError(message))
            case wire.Forgotten(cache_key=key):
                self._forgets.pop(key, None)
            case _ if isinstance(report, wire.Event):
                self._suspects.note(report)
                self._inflight.deliver(report)
            case _:
                raise wire.WireError(f"an unexpected {type(report).__name__}")

    def on_down(self, message: str, retry_after_s: float) -> None:
        """End whatever waits; counters count from the start of a child."""
        self._suspects.gone()
        self._deadly.gone()
        self._inflight.fail_all(message, retry_after_s)
        self._counters = EngineStats(state=EngineState.STARTING)

    def on_death(self, *, blame: bool, healthy: bool) -> bool:
        """Count it for those that were being computed or read."""
        self._deadly.died(blame=blame)
        return self._suspects.died(blame=blame, healthy=healthy)

    async def _ask(
        self, question: Callable[[int], wire.Command], kind: type[T], timeout_s: float
    ) -> T:
        child = self._supervisor.ready_child
        if child is None:
            raise EngineUnavailable(
                f"the engine is {self._supervisor.readiness.state}: {self._supervisor.readiness.detail}"
            )
        seq, future = self._inflight.ask()
        try:
            asked = question(seq)
            if self._deadly.refuses(asked):
                raise TextRefused("the engine died each time it read this text")
            self._deadly.asked(seq, asked)
            child.send(asked)
            async with asyncio.timeout(timeout_s):
                answer = await future
            self._deadly.answered(seq)
        except TimeoutError:
            raise EngineUnavailable(f"the engine did not answer within {timeout_s:.1f} s") from None
        except wire.WireError as error:
            raise EngineError(str(error)) from None
        finally:
            self._inflight.drop(seq)
            self._deadly.left(seq)
        if not isinstance(answer, kind):
            raise EngineError(f"the engine answered with a {type(answer).__name__}")
        return answer

    def _not_ready(self, request_id: str) -> Failed:
        return Failed(
            request_id=request_id,
            code=FailureCode.ENGINE_DIED,
            retryable=self._supervisor.readiness.state is not EngineState.FAILED,
            message=f"the engine is {self._supervisor.readiness.state}: {self._supervisor.readiness.detail}",
            retry_after_s=self._supervisor.retry_after_s,
        )


def _bad_request(request_id: str, message: str) -> Failed:
    return Failed(
        request_id=request_id, code=FailureCode.BAD_REQUEST, retryable=False, message=message
    )


def _poison(request_id: str) -> Failed:
    return Failed(
        request_id=request_id,
        code=FailureCode.POISON,
        retryable=False,
        message="the engine died each time it computed this request, at last with nothing beside it",
    )

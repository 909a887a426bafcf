"""One answer from the engine: queue, prompt, stream, retries — until the reply in the ledger is final.

Trouble that passes (a dying engine, a full queue) is retried from the token ids already there; what people saw stays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import structlog

from bot.domain.catalogue import place_in_line, say
from bot.domain.prompt import CannotFit
from bot.domain.turns import may_replace_text
from bot.domain.types import Outcome
from bot.service.board import ActiveTurn, StopReason
from bot.service.context import Context
from bot.service.conversation import Conversation, Prepared
from bot.service.ledger import ReplyLedger
from bot.service.quoting import looked_up
from bot.service.slots import LineFull, Slot
from bot.service.standing import Standing
from bot.service.streamer import Streamer
from bot.service.trouble import Trouble, trouble_of
from engine.errors import (
    EngineBusy,
    EngineConfigError,
    EngineError,
    EngineUnavailable,
    PromptTooLong,
    TextRefused,
)
from engine.face import Engine
from engine.types import (
    Delta,
    EngineEvent,
    EngineRequest,
    Failed,
    Finished,
    FinishReason,
    ModelInfo,
    Progress,
    Queued,
    Started,
    Usage,
)

log = structlog.get_logger()

MAX_TRIES = 6
MAX_BACKOFF_S = 20.0
READY_TIMEOUT_S = 600.0
QUEUE_STATUS_AFTER_S = 1.0
# With many turns held, telling each its place costs more than it tells: so much later per turn held (the sign of life
# comes at once in any case).
QUEUE_STATUS_PER_TURN_S = 0.03
PREFILL_STATUS_AFTER_S = 5.0
THINKING_STATUS_AFTER_S = 1.5
LOADING_STATUS_AFTER_S = 1.0


class Generation:
    """Makes one turn's answer. Owned by the turn's task; `stop` is the polite way to end it early."""

    def __init__(
        self,
        context: Context,
        active: ActiveTurn,
        bot_name: str,
        ledger: ReplyLedger,
        streamer: Streamer,
    ) -> None:
        self._context = context
        self._active = active
        self._turn = active.turn
        self._ledger = ledger
        self._streamer = streamer
        self._standing = Standing(context, active.turn, bot_name, ledger)
        self._bot_name = bot_name
        self._model_name = context.model_of(bot_name)
        self._engine: Engine = context.engines[self._model_name]
        self._slots = context.slots[self._model_name]
        adapter = context.adapters[bot_name]
        self._conversation = Conversation(context, self._turn, adapter.display_name, self._engine)
        self._request_id = ""
        self._n_requests = 0
        self._waiting_since = context.clock.monotonic()
        self._prefill_since = 0.0
        self._restarted = False
        self._memory: tuple[Prepared, tuple[int, ...], bool] | None = None

    async def run(self) -> None:
        """Wait for a slot, then generate until the ledger is final. Raises only what is a fault of ours (a store that fails,
        a bug).
        """
        standing, wait = self._standing, self._context.clock.wait
        await self._look_around()
        if self._ledger.final:
            return
        try:
            with self._slots.enter(standing.owner, standing.priority, self._wait_in_line) as slot:
                if await wait(slot.turn_came, standing.patience_s):
                    await self._generate(slot)
                else:
                    log.info("waited_too_long", waited_s=round(standing.waited_s, 1))
                    self._ledger.end(Outcome.FAILED, self._say("end.waited"))
        except LineFull as full:
            log.info("line_full", n_waiting=full.n_waiting, own=full.own)
            key = "end.too_many_own" if full.own else "end.line_full"
            self._ledger.end(Outcome.FAILED, self._say(key, n=full.n_waiting))

    async def _look_around(self) -> None:
        """Before the line, where nobody waits behind a download: what the question refers to, and what came with it.

        Files without a question are the whole turn, unless they came with words of somebody else's.
        """
        conversation, turn = self._conversation, self._turn
        adapter = self._context.adapters[self._bot_name]
        if turn.quotes:
            conversation.quotes = await looked_up(self._context, turn, adapter)
        if files := conversation.files():
            self._streamer.status(self._say("waiting.document"), LOADING_STATUS_AFTER_S)
            with_files = replace(turn, attachments=files)
            conversation.documents = await self._context.documents.read(with_files, adapter)
            self._streamer.status("")
        if turn.question.strip() or any(quote.text for quote in conversation.quotes):
            return
        said = await conversation.acknowledge() if files else self._say("hint.empty")
        self._ledger.end(Outcome.COMPLETE, text=said)

    async def _generate(self, slot: Slot) -> None:
        """Try until it is done. The slot is kept meanwhile: who was being served when the engine died goes on first."""
        tries = 0
        while not self._ledger.final:
            n_before = self._ledger.n_ids
            trouble = await self._try(slot)
            if trouble is None:
                return
            tries = 1 if self._ledger.n_ids > n_before else tries + 1
            log.warning(
                "generation_failed", tries=tries, retryable=trouble.retryable, detail=trouble.detail
            )
            if not trouble.retryable or tries >= MAX_TRIES:
                self._ledger.end(Outcome.FAILED, self._say(trouble.notice))
                return
            self._context.metrics.engine_retries.inc()
            await self._context.clock.sleep(
                max(trouble.after_s, min(MAX_BACKOFF_S, 0.25 * 2**tries))
            )

    async def stop(self) -> bool:
        """Ask the engine to end the request. False when none is open (then the task may simply be cancelled)."""
        if not self._request_id:
            return False
        await self._engine.cancel(self._request_id)
        return True

    async def remember(self) -> None:
        """Store what later turns need. Called once the final reply is on disk."""
        if self._memory is not None:
            prepared, answer_ids, has_thinking = self._memory
            await self._conversation.remember(prepared, answer_ids, has_thinking=has_thinking)

    # -- one try -----------------------------------------------------------------------------------------------------
    async def _try(self, slot: Slot) -> Trouble | None:
        try:
            self._slots.queued(slot)
            info = await self._ready()
            prepared = await self._conversation.prepare(info)
            self._continue_or_restart(prepared)
            return await self._request(prepared, slot)
        except EngineUnavailable as error:
            return Trouble(True, "end.no_model", str(error))
        except EngineConfigError as error:
            return Trouble(False, "end.no_model", str(error))
        except EngineBusy as error:
            return Trouble(True, "end.no_model", str(error), error.retry_after_s)
        except CannotFit as error:
            key = "end.system_fills" if error.system_fills else "end.too_long"
            return Trouble(False, key, str(error))
        except PromptTooLong as error:
            return Trouble(False, "end.too_long", type(error).__name__)
        except TextRefused as error:
            return Trouble(False, "end.poison", str(error))
        except EngineError as error:  # the template refuses the messages: it would again
            return Trouble(False, "end.failed", str(error))
        finally:
            self._active.answering = False

    async def _ready(self) -> ModelInfo:
        if self._engine.info is None:
            self._streamer.status(self._say("waiting.loading"), LOADING_STATUS_AFTER_S)
        self._active.place = 0
        return await self._engine.wait_ready(READY_TIMEOUT_S)

    def _continue_or_restart(self, prepared: Prepared) -> None:
        """Go on behind the stored ids, or start the answer over where they mean nothing to this model."""
        if self._ledger.n_ids and prepared.continuable:
            return
        if not self._ledger.n_ids and not self._ledger.has_text:
            return
        in_place = may_replace_text(self._ledger.parts())
        self._restarted = self._restarted or self._ledger.has_text
        self._ledger.restart(marker="" if in_place else self._say("restart.marker"))
        self._streamer.status(self._say("waiting.restarting"))
        self._streamer.poke()

    async def _request(self, prepared: Prepared, slot: Slot) -> Trouble | None:
        request = self._make_request(prepared)
        if self._ledger.n_ids >= prepared.built.plan.max_new_tokens:
            ended = Finished(request_id=request.id, reason=FinishReason.LENGTH, usage=Usage())
            self._end(prepared, ended)
            return None
        self._request_id = request.id
        self._prefill_since = self._context.clock.monotonic()
        events = self._engine.submit(request)
        try:
            async for event in events:
                if isinstance(event, Failed):
                    return trouble_of(event)
                if isinstance(event, Finished):
                    return self._finished(prepared, event)
                self._apply(event, slot)
        finally:
            self._request_id = ""
            await _close(events)
        return Trouble(True, "end.failed", "the engine's stream ended without a terminal event")

    def _make_request(self, prepared: Prepared) -> EngineRequest:
        turn, plan = self._turn, prepared.built.plan
        settings = self._context.settings
        self._n_requests += 1
        return EngineRequest(
            id=f"{turn.id}.{turn.attempt}.{self._n_requests}",
            prompt_tokens=plan.tokens,
            messages=() if plan.tokens else prepared.built.messages,
            generated_tokens=(*prepared.begun_ids, *self._ledger.snapshot.token_ids),
            max_new_tokens=len(prepared.begun_ids) + plan.max_new_tokens,
            stop=settings.stop(self._model_name),
            sampling=settings.sampling(self._model_name),
            cache_key=prepared.cache_key,
            lineage=turn.id,
            owner=self._standing.owner,
            scope=turn.session.app_id,
            priority=self._standing.priority,
            deadline_s=self._standing.patience_s or 0.0,
            thinking_open=plan.thinking_open,
            n_shared_prefix=plan.n_shared_prefix,
        )

    # -- events ------------------------------------------------------------------------------------------------------
    def _wait_in_line(self, place: int) -> None:
        self._active.place = place
        text = place_in_line(self._context.settings.language, place)
        waited_s = self._context.clock.monotonic() - self._waiting_since
        after_s = QUEUE_STATUS_AFTER_S + QUEUE_STATUS_PER_TURN_S * len(self._context.board)
        self._streamer.status(text, max(0.0, after_s - waited_s))

    def _apply(self, event: Queued | Progress | Started | Delta, slot: Slot) -> None:
        match event:
            case Queued(place=place):
                self._slots.queued(slot, place)
            case Started():
                self._slots.started(slot)
                self._started()
            case Progress(done_tokens=done, total_tokens=total):
                self._progress(done, total)
            case Delta(token_ids=ids, text=text):
                self._ledger.grow(ids, text)
                if not self._ledger.has_text:
                    self._streamer.status(self._say("waiting.thinking"), THINKING_STATUS_AFTER_S)
                self._streamer.poke()

    def _started(self) -> None:
        self._active.place = 0
        self._active.answering = True
        self._prefill_since = self._context.clock.monotonic()
        self._streamer.status(self._say("waiting.thinking") if self._streamer.attempted else "")

    def _progress(self, done: int, total: int) -> None:
        percent = min(99, 100 * done // max(1, total))
        waited_s = self._context.clock.monotonic() - self._prefill_since
        self._streamer.status(
            self._say("waiting.reading", percent=percent),
            max(0.0, PREFILL_STATUS_AFTER_S - waited_s),
        )

    # -- the end -----------------------------------------------------------------------------------------------------
    def _finished(self, prepared: Prepared, event: Finished) -> Trouble | None:
        if event.reason is FinishReason.CANCELLED and self._active.reason is None:
            return Trouble(True, "end.failed", "the engine cancelled a request that nobody stopped")
        self._end(prepared, event)
        return None

    def _end(self, prepared: Prepared, event: Finished) -> None:
        ids = (*prepared.begun_ids, *self._ledger.snapshot.token_ids)
        answer = ids[event.answer_start : event.answer_start + event.n_answer]
        outcome, notice = self._outcome(event, goes_on=bool(prepared.begun_ids))
        kept = () if outcome is Outcome.SILENT else answer
        self._memory = (prepared, kept, event.answer_start > 0)
        notices = [self._say(notice)] if notice else []
        if self._restarted and outcome is not Outcome.SILENT:
            notices.append(self._say("end.restarted"))
        if prepared.question_cut:
            notices.append(self._say("end.cut"))
        if outcome is not Outcome.SILENT:
            notices += prepared.notices
        if prepared.note and outcome in {Outcome.COMPLETE, Outcome.LENGTH, Outcome.STOPPED}:
            notices.append(self._say(prepared.note))
        self._ledger.end(outcome, " ".join(notices))
        log.info(
            "generated",
            outcome=outcome.value,
            n_prompt=event.usage.n_prompt,
            n_cached=event.usage.n_cached,
            n_generated=event.usage.n_generated,
            queue_s=round(event.usage.queue_s, 3),
            prefill_s=round(event.usage.prefill_s, 3),
            decode_s=round(event.usage.decode_s, 3),
        )

    def _outcome(self, event: Finished, *, goes_on: bool) -> tuple[Outcome, str]:
        """How the reply ends, and the catalogue key of the sentence that says why."""
        if self._active.reason is StopReason.SILENT:
            return Outcome.SILENT, ""
        if event.reason is FinishReason.CANCELLED:
            return Outcome.STOPPED, "end.stopped"
        if not self._ledger.answer:
            return Outcome.FAILED, "end.no_more" if goes_on else "end.empty"
        if event.reason is FinishReason.LENGTH:
            return Outcome.LENGTH, "end.length"
        return Outcome.COMPLETE, ""

    def _say(self, key: str, **values: object) -> str:
        return say(self._context.settings.language, key, **values)


async def _close(events: AsyncIterator[EngineEvent]) -> None:
    """Close a stream early or late: an engine treats it as the end of interest."""
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()

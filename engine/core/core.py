"""The engine's loop: who has a sequence, what is decoded next, and what becomes of the result.

`step()` is four words: admit, plan, decode, apply. Commands (`submit`, `cancel`, `warm`, `forget`) are plain calls between
steps. Everything runs on one thread and nothing here sleeps or waits: the worker owns the thread and the waiting.

Promises:
- every accepted request gets exactly one terminal event, whatever happens;
- a running reply is never given up because the cache is full: cells for prompt + reply are reserved before it starts, and
  who finds none waits (only background work is displaced, and goes on later);
- a failed decode fails the requests that were in that batch and no others;
- KV never crosses scopes (`engine.kv.pool`).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence

import structlog

from engine.backends.base import Backend, MemoryKind
from engine.config import EngineConfig
from engine.core import prefixes
from engine.core.batch import Planned
from engine.core.drafts import harvest
from engine.core.gate import Gate
from engine.core.harvest import Harvest
from engine.core.job import Job, keeps_apart, least_needed, same_talk
from engine.core.keeper import Keeper
from engine.core.planner import Planner
from engine.core.rounds import Rounds, decode_rounds
from engine.core.scheduler import WaitLine
from engine.core.teller import Teller
from engine.errors import EngineError
from engine.kv.pool import SequencePool
from engine.kv.tiers import KvTiers
from engine.text.turnmarks import TurnMarks
from engine.types import (
    EngineEvent,
    EngineRequest,
    EngineState,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
)

_log = structlog.get_logger()

MAX_WARM_UPS = 64
MAX_FAILED_BATCHES = 3


class Core:
    """Single-threaded owner of all jobs and, through its pool, of all sequences and KV. Does not own the backend's life."""

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig,
        emit: Callable[[EngineEvent], None],
        clock: Callable[[], float] = time.monotonic,
        turns: TurnMarks = TurnMarks(),  # noqa: B008 - frozen
        tiers: KvTiers | None = None,
    ) -> None:
        """`turns`: every reply stops at its `stop_texts`. `tiers` are the core's from now on: `close` closes them."""
        self._backend = backend
        self._config = config
        self._emit = emit
        self._clock = clock
        # Hears, before each decode, whether a prompt is in the batch: then it may take long.
        self.before_decode: Callable[[bool], None] = lambda _: None
        # Asked between the rounds of a step whether somebody wants something; if nobody tells, it is always taken to be so.
        self.is_wanted: Callable[[], bool] = lambda: True
        self._turns = turns
        self._tell = Teller(emit, clock)
        self._n_parallel = min(config.n_parallel, backend.n_outputs_max)
        self._pool = SequencePool(backend)
        self._keeper = Keeper(backend, self._pool, tiers, clock)
        self._gate = Gate(backend, config, self._n_parallel)
        self._line = WaitLine()
        self._planner = Planner(backend, self._pool, config)
        self._waiting: dict[str, Job] = {}
        self._running: dict[str, Job] = {}
        self._line_changed = False
        # Who could not start last, and how often anything had been given back by then: only that can change it.
        self._blocked: tuple[str, int] | None = None
        self._n_failed_batches = 0
        self._n_prompt_tokens = 0
        self._n_generated_tokens = 0
        self._n_accepted_tokens = 0
        self._n_steps = 0
        self._decode_s = 0.0
        self._python_s = 0.0

    # Commands.

    def submit(self, request: EngineRequest) -> None:
        """Accept a request (Queued) or refuse it (Failed). An id that is open already is ignored."""
        if request.id in self._waiting or request.id in self._running:
            _log.error("duplicate_request_ignored", request_id=request.id)
            return
        refusal = self._gate.refusal(request, self._line, self._n_waiting)
        if refusal is not None:
            self._emit(refusal)
            return
        if self._backend.memory is MemoryKind.ATTENTION:
            request = prefixes.with_header(request, self._turns.user_header)
        n_limit = min(self._backend.n_ctx_seq, len(request.prompt_tokens) + request.max_new_tokens)
        tokens = [*request.prompt_tokens, *request.generated_tokens][: self._backend.n_ctx_seq]
        job = Job(request.id, request, False, tokens, n_limit, self._clock())
        self._enqueue(job, request.owner)
        self._keeper.expect(job)
        self._tell_places()

    def cancel(self, request_id: str) -> None:
        """End a request now; its sequence is free before the next step. Unknown ids are ignored."""
        job = self._waiting.get(request_id) or self._running.get(request_id)
        if job is not None and not job.is_warm:
            self._finish(job, FinishReason.CANCELLED)

    def warm(self, cache_key: str, scope: str, tokens: Sequence[int]) -> None:
        """Compute `tokens` for a conversation when nobody else needs the engine. Says nothing when it is done or dropped."""
        job_id = f"\0warm\0{scope}\0{cache_key}"
        older = self._waiting.get(job_id) or self._running.get(job_id)
        if older is not None:
            self._remove(older, keep=True)
        wanted = EngineRequest(
            id=job_id, prompt_tokens=tuple(tokens), cache_key=cache_key, scope=scope
        )
        n_warm = sum(job.is_warm for job in self._waiting.values())
        if self._gate.refusal_of_tokens(wanted) or not cache_key or n_warm >= MAX_WARM_UPS:
            _log.info("warm_up_dropped", n_tokens=len(tokens), n_waiting=n_warm)
            return
        self._enqueue(Job(job_id, wanted, True, list(tokens), len(tokens), self._clock()), "")

    def forget(self, cache_key: str, on_gone: Callable[[], None] = lambda: None) -> None:
        """Drop every copy of a conversation's KV; a reply that is running for it goes on and leaves nothing behind. `on_gone`
        is called when the disk has none either, perhaps from another thread; never where it cannot be removed."""
        self._pool.forget(cache_key)
        for job in [*self._waiting.values(), *self._running.values()]:
            if job.request.cache_key == cache_key:
                job.forgotten = True
                if job.is_warm:
                    self._remove(job, keep=False)
        self._keeper.forget(cache_key, on_gone)

    def fail_all(self, code: FailureCode, message: str) -> None:
        """End every open request as retryable."""
        for job in [*self._waiting.values(), *self._running.values()]:
            self._fail(job, code, message, retryable=True)

    def close(self) -> None:
        """End every open request and free what belongs to it. The backend is its creator's to close."""
        self.fail_all(FailureCode.ENGINE_DIED, "the engine is shutting down")
        self._keeper.close()

    @property
    def has_work(self) -> bool:
        """Whether `step` may have something to do."""
        return bool(self._waiting or self._running or self._keeper.has_work)

    def stats(self) -> EngineStats:
        """Counters since the start, and the state now. Warm-ups are not counted as requests."""
        counters = EngineStats(
            state=EngineState.READY,
            n_running=self._n_replies,
            n_waiting=self._n_waiting,
            kv_cells_used=self._pool.n_cells_used,
            kv_cells_total=self._backend.n_cells,
            n_sequences_kept=self._pool.n_idle,
            decoded_prompt_tokens_total=self._n_prompt_tokens,
            decoded_generated_tokens_total=self._n_generated_tokens,
            drafted_tokens_total=self._planner.n_drafted,
            accepted_tokens_total=self._n_accepted_tokens,
            steps_total=self._n_steps,
            step_decode_s=self._decode_s,
            step_python_s=self._python_s,
        )
        return self._keeper.complete(counters)

    @property
    def _n_waiting(self) -> int:
        return sum(not job.is_warm for job in self._waiting.values())

    @property
    def _n_replies(self) -> int:
        return sum(not job.is_warm for job in self._running.values())

    # The step.

    def step(self) -> bool:
        """One engine step. False when nothing could be done. Raises EngineError when the backend fails again and again."""
        started = self._clock()
        decode_s_before = self._decode_s
        self._expire()
        n_admitted = self._admit()
        for job in self._keeper.go_on(self._running.values()):
            self._begin(job)
        for job in prefixes.bind(self._running.values(), self._pool):
            if self._keeper.begin(job):
                self._tell.started(job)
        planned = self._planner.plan(self._running)
        self._tell_places()
        if planned:
            self._compute(planned)
        stored = self._keeper.work(self._running.values())
        self._python_s += self._clock() - started - (self._decode_s - decode_s_before)
        return bool(planned or n_admitted or stored)

    def _expire(self) -> None:
        now = self._clock()
        for job in list(self._waiting.values()):
            deadline_s = job.request.deadline_s
            if deadline_s > 0 and not job.started and now - job.submitted_at > deadline_s:
                message = f"the request waited longer than its deadline of {deadline_s:g} s"
                self._fail(job, FailureCode.DEADLINE, message, retryable=False)

    # Admit.

    def _admit(self) -> int:
        """Give sequences to those in front, strictly in order: a big request is never overtaken for ever by small ones."""
        n_admitted = 0
        while (head := self._line.head()) is not None:
            if (head, self._pool.n_releases) == self._blocked:
                break
            job = self._waiting[head]
            try:
                admitted = self._make_room(job)
            except Exception as error:  # noqa: BLE001 - it must not hold up everybody behind it
                _log.error("admission_failed", request_id=job.id, error=repr(error))
                message = f"the request could not be started: {type(error).__name__}: {error}"
                self._fail(job, FailureCode.BAD_REQUEST, message, retryable=False)
                continue
            if not admitted:
                self._blocked = (head, self._pool.n_releases)
                break
            n_admitted += 1
        return n_admitted

    def _make_room(self, job: Job) -> bool:
        """Start a job, displacing background work where that is what it takes. False = it must wait."""
        if job.is_warm:
            if any(other.is_warm or same_talk(other, job) for other in self._running.values()):
                return False
            if self._pool.trim_idle(job.request.scope, job.request.cache_key, job.tokens):
                self._remove(job, keep=True)
                return True
        elif self._ends_at_once(job):
            return True
        else:
            self._stop_warm_up_of(job)
        while not self._try_start(job):
            needs_slot = not job.is_warm and self._n_replies >= self._n_parallel
            victim = least_needed(job, self._running.values(), needs_slot=needs_slot)
            if victim is None:
                return False
            self._displace(victim)
        return True

    def _try_start(self, job: Job) -> bool:
        if not job.is_warm and self._n_replies >= self._n_parallel:
            return False
        if keeps_apart(job, self._running.values()):
            return False
        request = job.request
        seq = self._pool.take(request.scope, job.cache_key, job.tokens, job.n_limit)
        if seq is None:
            return False
        del self._waiting[job.id]
        job.ticket = self._line.admit(job.id)
        self._running[job.id] = job
        self._line_changed = True
        job.seq = seq
        job.admitted_at = job.admitted_at or self._clock()
        if job.sampler is None and not job.is_warm:
            job.sampler = self._backend.new_sampler(request.sampling, request.generated_tokens)
        if self._keeper.begin(job):
            self._begin(job)
        return True

    def _begin(self, job: Job) -> None:
        """It has all that is kept of its conversation; the shared beginning may still be missing."""
        prefixes.choose_role(job, self._running.values(), self._pool)
        prefixes.publish(job, self._pool)
        if not job.awaits_prefix:
            self._tell.started(job)

    def _ends_at_once(self, job: Job) -> bool:
        """Whether the given ids were a whole reply already; then it is finished here."""
        if job.text is not None:
            return False
        if job.open_reply(self._backend, self._turns.stop_texts):
            reason = FinishReason.STOP
        elif len(job.tokens) >= job.n_limit:
            reason = FinishReason.LENGTH
        else:
            return False
        self._finish(job, reason)
        return True

    def _stop_warm_up_of(self, job: Job) -> None:
        """A question for a conversation that is being warmed takes over what is warm by now."""
        warm = self._running.get(f"\0warm\0{job.request.scope}\0{job.request.cache_key}")
        if warm is not None:
            self._remove(warm, keep=True)

    def _displace(self, job: Job) -> None:
        """Back to its place in the line; what is computed stays as an idle sequence as long as nobody needs the room."""
        self._leave_sequence(job, keep=True)
        del self._running[job.id]
        self._waiting[job.id] = job
        if job.ticket is not None:
            self._line.put_back(job.ticket)
        self._line_changed = True

    # Decode.

    def _compute(self, planned: list[Planned]) -> None:
        self.before_decode(not all(job.in_reply for job, _ in planned))
        running = self._running.values()
        n_most = 1 if self._keeper.has_work else self._planner.most_rounds(planned, running)

        def go_on(n_rounds: int) -> bool:
            return n_rounds < n_most and not self.is_wanted()

        try:
            done = decode_rounds(planned, self._backend, self._pool, self._clock, go_on)
        except Exception as error:  # noqa: BLE001 - whatever it was, it was in this batch
            self._fail_batch(planned, error)
            return
        self._decode_s += done.decode_s
        self._n_steps += done.n_rounds
        self._n_failed_batches = 0
        self._planner.observe(done.planned, done.decode_s, done.n_rounds)
        for index, (job, _) in enumerate(done.planned):
            try:
                self._apply(index, job, done)
            except Exception as error:  # noqa: BLE001 - one broken reply must not end the others
                # Not `exception=`: pretty tracebacks print local variables, and those are somebody's words.
                trace = "".join(traceback.format_exception(error))
                _log.error("reply_failed", request_id=job.id, trace=trace)
                message = f"the reply could not be continued: {type(error).__name__}: {error}"
                self._fail(job, FailureCode.DECODE, message, retryable=True)

    def _fail_batch(self, planned: list[Planned], error: Exception) -> None:
        _log.error("batch_failed", n_requests=len(planned), error=repr(error))
        for job, _ in planned:
            self._fail(
                job, FailureCode.DECODE, f"the model failed on this batch: {error}", retryable=True
            )
        self._n_steps += 1
        self._n_failed_batches += 1
        if self._n_failed_batches >= MAX_FAILED_BATCHES:
            raise EngineError(
                f"{MAX_FAILED_BATCHES} batches in a row failed; the last one: {error}"
            ) from error

    # Apply.

    def _apply(self, index: int, job: Job, done: Rounds) -> None:
        if job.seq is None:
            return
        part, rounds = done.planned[index].part, done.harvests
        if not rounds:
            self._pool.extend(job.seq, part.tokens)
        prefixes.publish(job, self._pool)
        self._n_prompt_tokens += max(0, min(job.n_computed, job.n_given) - part.start)
        if job.is_warm:
            if job.n_to_compute == 0:
                self._remove(job, keep=True)
        elif part.n_outputs and job.sampler is not None:
            job.first_token_at = job.first_token_at or self._clock()
            got = rounds[index] if rounds else harvest(index, job, part, self._backend)
            if got.fault is not None:
                raise got.fault
            # What is more than a token per decode were guesses that came true.
            self._n_accepted_tokens += len(got.tokens) - done.n_rounds
            self._add_tokens(job, got)
        else:
            self._tell.progress(job)

    def _add_tokens(self, job: Job, got: Harvest) -> None:
        self._n_generated_tokens += len(got.tokens)
        if job.seq is not None:  # the last token is never computed yet; what was guessed wrong goes
            self._pool.cut(job.seq, len(job.tokens) - 1)
        if got.reason is not None:
            self._finish(job, got.reason, got.text, got.thinking)
        else:
            self._tell.delta(job, got.text, got.thinking)

    # Ends.

    def _finish(self, job: Job, reason: FinishReason, text: str = "", thinking: str = "") -> None:
        """The one way to a good end: what was held back comes out, then the terminal event."""
        answer_start = n_answer = 0
        if job.text is not None:
            rest = job.text.finish()
            self._tell.delta(job, text + rest.text, thinking + rest.thinking)
            answer_start, n_answer = job.text.answer_start, job.text.n_answer
        now = self._clock()
        if job.admitted_at and reason is not FinishReason.CANCELLED:
            self._gate.observe_service(now - job.admitted_at)
        self._remove(job, keep=True)
        self._emit(
            Finished(
                request_id=job.id,
                reason=reason,
                usage=job.usage(now),
                answer_start=answer_start,
                n_answer=n_answer,
            )
        )

    def _fail(self, job: Job, code: FailureCode, message: str, *, retryable: bool) -> None:
        """The one way to a bad end: its sequence is not kept, as nobody knows what it holds. Warm-ups have nobody to tell."""
        self._remove(job, keep=False)
        if not job.is_warm:
            self._emit(Failed(request_id=job.id, code=code, retryable=retryable, message=message))

    def _remove(self, job: Job, *, keep: bool) -> None:
        """Take a job out of everything; a second call does nothing."""
        self._leave_sequence(job, keep=keep)
        if job.sampler is not None:
            job.sampler.close()
            job.sampler = None
        self._line.remove(job.id)
        self._waiting.pop(job.id, None)
        self._running.pop(job.id, None)
        self._line_changed = True

    def _leave_sequence(self, job: Job, *, keep: bool) -> None:
        self._keeper.leave(job)
        if job.seq is not None:
            self._pool.release(job.seq, keep=keep and not job.forgotten)
            self._keeper.note(job.seq)
            job.seq = None
        job.builds_prefix = job.awaits_prefix = False

    def _enqueue(self, job: Job, owner: str) -> None:
        self._waiting[job.id] = job
        self._line.push(job.id, owner, job.priority)
        self._line_changed = True

    def _tell_places(self) -> None:
        if self._line_changed:
            self._line_changed = False
            self._tell.places(self._waiting[request_id] for request_id in self._line.order())

"""What the outside hears about a job before its end. Decides how often; terminal events are the core's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.core.job import Job
from engine.types import Delta, EngineEvent, Progress, Queued, Started

PROGRESS_EVERY_S = 0.25


class Teller:
    """Owned by the core. Warm-ups are never heard of."""

    def __init__(self, emit: Callable[[EngineEvent], None], clock: Callable[[], float]) -> None:
        self._emit = emit
        self._clock = clock

    def places(self, jobs: Iterable[Job]) -> None:
        """Queued for everyone whose place has changed; `jobs` is the line, next one first."""
        for place, job in enumerate(jobs, start=1):
            if job.place != place and not job.is_warm and not job.started:
                job.place = place
                self._emit(Queued(request_id=job.id, place=place))

    def started(self, job: Job) -> None:
        """Started, the first time it has a sequence; a displaced job that comes back has been announced already."""
        if not job.started and not job.is_warm:
            job.started = True
            job.n_cached = job.n_computed
            job.told_progress_at = self._clock()
            self._emit(Started(request_id=job.id, cached_tokens=job.n_cached))

    def progress(self, job: Job) -> None:
        """Progress of a long prompt, not more often than `PROGRESS_EVERY_S`."""
        now = self._clock()
        if now - job.told_progress_at >= PROGRESS_EVERY_S:
            job.told_progress_at = now
            self._emit(
                Progress(
                    request_id=job.id,
                    done_tokens=job.n_computed,
                    total_tokens=len(job.tokens),
                )
            )

    def delta(self, job: Job, text: str, thinking: str) -> None:
        """The new ids of a reply and what became visible by them, if there is anything."""
        if job.new_ids or text or thinking:
            ids = tuple(job.new_ids)
            job.new_ids.clear()
            self._emit(Delta(request_id=job.id, token_ids=ids, text=text, thinking=thinking))

"""What goes into the next batch, from all that runs: next tokens of replies, pieces of prompts, guesses; and what it cost.

Joins the pure parts (`scheduler`, `lookup`) with jobs and measured times. Starts and ends nothing: that is the core's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.backends.base import Backend
from engine.config import EngineConfig
from engine.core.batch import Planned, count_drafted, count_tokens, need_of, part_of
from engine.core.courtesy import BackgroundShare
from engine.core.drafts import Drafter
from engine.core.job import Job
from engine.core.rounds import most_rounds
from engine.core.scheduler import PrefillPace, plan_batch
from engine.kv.pool import SequencePool
from engine.types import Priority


class Planner:
    """Owned by the core, used by its thread."""

    def __init__(self, backend: Backend, pool: SequencePool, config: EngineConfig) -> None:
        self._backend = backend
        self._pace = PrefillPace(backend.n_batch)
        self._background = BackgroundShare()
        self._drafter = Drafter(backend, pool, enabled=config.speculation)
        self.n_drafted = 0

    def plan(self, running: Mapping[str, Job]) -> list[Planned]:
        """Each job's share of the next batch; empty when all have to wait."""
        memory = self._backend.memory
        wishes = (need_of(job, memory) for job in running.values())
        needs = self._background.served([need for need in wishes if need is not None])
        n_prefill = self._pace.budget_for(needs)
        grants = plan_batch(needs, n_batch=self._backend.n_batch, n_prefill=n_prefill)
        return self._drafter.extend(
            [part_of(running[grant.id], grant.n_tokens) for grant in grants]
        )

    def most_rounds(self, planned: list[Planned], running: Collection[Job]) -> int:
        """In how many rounds a planned batch may go on by itself."""
        if not self._drafter.is_quiet:
            return 1
        return most_rounds(planned, running)

    def observe(self, planned: list[Planned], decode_s: float, n_rounds: int = 1) -> None:
        """A batch was decoded, in so many rounds, which took so long together; called before its results are applied."""
        elapsed_s = decode_s / n_rounds
        n_drafted = count_drafted(planned)
        self.n_drafted += n_drafted
        self._drafter.observe(planned, elapsed_s)
        if not n_drafted:
            n_replies = sum(job.in_reply for job, _ in planned)
            n_prefill = count_tokens(planned) - n_replies
            self._pace.observe(n_replies=n_replies, n_prefill=n_prefill, elapsed_s=elapsed_s)
        n_people = sum(job.in_reply and job.priority < Priority.BACKGROUND for job, _ in planned)
        if n_people:
            self._background.observe(
                joined=any(job.priority >= Priority.BACKGROUND for job, _ in planned),
                elapsed_s=decode_s,
                alone_s=self._pace.reply_step_s(n_people),
            )

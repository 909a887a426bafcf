"""The shared beginning of conversations (the system prompt) is computed once per scope: who does it, and who waits.

The first job that needs a prefix computes it in its own sequence and publishes it in passing, at no cost. Jobs that come
meanwhile wait for that, then share its cells. When the builder leaves early, the next one takes over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace as with_fields

from engine.core.job import Job
from engine.kv.pool import SequencePool
from engine.types import EngineRequest


def with_header(request: EngineRequest, header: Sequence[int]) -> EngineRequest:
    """The request with the header of the first question counted as shared, where it comes right behind the system prompt."""
    start = request.n_shared_prefix
    end = start + len(header)
    if not start or not header or request.prompt_tokens[start:end] != tuple(header):
        return request
    return with_fields(request, n_shared_prefix=end)


def choose_role(job: Job, running: Iterable[Job], pool: SequencePool) -> None:
    """Called when a job has got its sequence."""
    if not job.n_shared or pool.has_prefix(job.request.scope, job.prefix):
        return
    if _has_builder(job, running):
        job.awaits_prefix = job.n_computed < job.n_shared
    else:
        job.builds_prefix = True


def publish(job: Job, pool: SequencePool) -> None:
    """Keep the prefix that a job builds, once it is complete."""
    if job.builds_prefix and job.seq and job.n_computed >= job.request.n_shared_prefix:
        job.builds_prefix = False
        pool.publish_prefix(job.seq, job.request.n_shared_prefix)


def bind(running: Collection[Job], pool: SequencePool) -> list[Job]:
    """Publish what is complete and let go on who waited for it. Returns those that go on."""
    for job in running:
        publish(job, pool)
    released = []
    for job in running:
        if job.awaits_prefix and job.seq and not _has_builder(job, running):
            job.awaits_prefix = False
            pool.adopt_prefix(job.seq, job.tokens)
            # Not all of it: the builder was cancelled, or there was no place to keep the prefix.
            job.builds_prefix = job.n_computed < job.n_shared
            released.append(job)
    return released


def _has_builder(job: Job, running: Iterable[Job]) -> bool:
    return any(
        other is not job
        and other.builds_prefix
        and other.request.scope == job.request.scope
        and other.prefix == job.prefix
        for other in running
    )

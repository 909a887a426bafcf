"""From running jobs to one decoded batch: what each may compute now, and what to do when it does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import structlog

from engine.backends.base import Backend, BatchPart, DecodeFailed, DecodeStatus, MemoryKind
from engine.core.job import Job
from engine.core.scheduler import Need
from engine.errors import EngineError
from engine.kv.pool import SequencePool

_log = structlog.get_logger()


class Planned(NamedTuple):
    """A job and its share of the batch."""

    job: Job
    part: BatchPart


def need_of(job: Job, memory: MemoryKind) -> Need | None:
    """What a running job could compute in this step; None = it has to wait."""
    n_tokens = job.n_to_compute
    if job.builds_prefix and memory is MemoryKind.RECURRENT:
        # Such a state can only be copied whole: stop exactly behind the prefix.
        n_tokens = min(n_tokens, job.request.n_shared_prefix - job.n_computed)
    if job.awaits_prefix or job.is_loading or n_tokens <= 0:
        return None
    return Need(job.id, n_tokens, job.in_reply, job.priority)


def part_of(job: Job, n_tokens: int) -> Planned:
    """The next `n_tokens` of a job; logits only where the next token of the reply comes out."""
    if job.seq is None:
        raise EngineError(f"request {job.id} runs without a sequence")
    start = job.n_computed
    tokens = job.tokens[start : start + n_tokens]
    n_outputs = int(not job.is_warm and start + n_tokens == len(job.tokens))
    return Planned(job, BatchPart(job.seq.id, start, tokens, n_outputs))


def decode_what_fits(planned: list[Planned], backend: Backend, pool: SequencePool) -> list[Planned]:
    """Decode; where cells are missing, drop guesses, throw out idle sequences, then halve. Returns what was decoded.

    Raises DecodeFailed, and whatever else the backend raises.
    """
    while backend.decode([part for _, part in planned]) is DecodeStatus.NO_SLOT:
        if count_drafted(planned):
            planned = [part_of(job, 1) for job, _ in planned]
            continue
        if pool.evict_one():
            continue
        n_tokens = count_tokens(planned)
        _log.warning("batch_halved", n_tokens=n_tokens, n_cells_used=pool.n_cells_used)
        if n_tokens == 1:
            raise DecodeFailed("the cache has no cell left for a single token")
        planned = _first_tokens(planned, n_tokens // 2)
    return planned


def count_tokens(planned: Iterable[Planned]) -> int:
    """Tokens in a batch."""
    return sum(len(part.tokens) for _, part in planned)


def count_drafted(planned: Iterable[Planned]) -> int:
    """Guessed tokens among them: all outputs of a part but the first follow one."""
    return sum(max(0, part.n_outputs - 1) for _, part in planned)


def _first_tokens(planned: list[Planned], n_tokens: int) -> list[Planned]:
    kept = []
    for job, part in planned:
        if n_tokens > 0:
            kept.append(part_of(job, min(n_tokens, len(part.tokens))))
        n_tokens -= len(part.tokens)
    return kept

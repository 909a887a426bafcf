"""From a planned batch to the tokens behind it. Where replies merely go on, several decodes follow each other at once.

All else that a step does (admitting, planning, storing, telling) is done once per step, so it costs a token only its share:
behind a decode, which leaves nothing of it in the processor's caches, it takes 0.5 ms, of which 0.06 are work.

Several rounds are decoded while everybody who runs is in the middle of a reply; the first end of a reply ends them, as does a
command, which waits for one decode at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.backends.base import Backend, BatchPart, DecodeStatus
from engine.core.batch import Planned, count_drafted, decode_what_fits
from engine.core.harvest import Harvest
from engine.core.job import Job
from engine.kv.pool import SequencePool

MOST_ROUNDS: Final = 8
# Text is written at most so late; a step that takes longer is a step of one round.
LONGEST_S: Final = 0.1


@dataclass(slots=True)
class Rounds:
    """What was decoded. `harvests` holds what each part brought, a token per round, where that was chosen on the way; then
    the sequences are told of what they hold, too. `decode_s` is the time within the backend."""

    planned: list[Planned]
    decode_s: float
    n_rounds: int = 1
    harvests: list[Harvest] = field(default_factory=list)


def most_rounds(planned: Sequence[Planned], running: Collection[Job]) -> int:
    """How many rounds may follow each other at most: 1 where somebody's turn may be another one in the next step."""
    if len(planned) < len(running) or count_drafted(planned):
        return 1
    jobs = [job for job, _ in planned]
    if not all(job.in_reply for job in jobs) or len({job.in_background for job in jobs}) > 1:
        return 1
    return MOST_ROUNDS


def decode_rounds(
    planned: list[Planned],
    backend: Backend,
    pool: SequencePool,
    clock: Callable[[], float],
    go_on: Callable[[int], bool],
) -> Rounds:
    """Decode the batch, and again behind the tokens chosen as long as `go_on` says so, which is told the rounds so far.

    Raises DecodeFailed, and whatever else the backend raises for a decode.
    """
    begun = clock()
    fitting = decode_what_fits(planned, backend, pool)
    done = Rounds(fitting, clock() - begun)
    if fitting is not planned or not go_on(1):
        return done
    done.harvests = [Harvest() for _ in planned]
    _extend(planned, [part for _, part in planned], pool)
    while _choose(done, backend) and go_on(done.n_rounds):
        n = done.n_rounds
        started = clock()
        if (started - begun) * (1 + 1 / n) > LONGEST_S:
            break
        parts = [
            BatchPart(part.seq_id, part.start + n, got.tokens[-1:], 1)
            for (_, part), got in zip(planned, done.harvests, strict=True)
        ]
        if backend.decode(parts) is not DecodeStatus.DONE:
            break  # the next step finds out what to do about it
        done.decode_s += clock() - started
        done.n_rounds += 1
        _extend(planned, parts, pool)
    _catch_up(done, backend)
    return done


def _extend(planned: list[Planned], parts: list[BatchPart], pool: SequencePool) -> None:
    for (job, _), part in zip(planned, parts, strict=True):
        if job.seq is not None:
            pool.extend(job.seq, part.tokens)


def _choose(done: Rounds, backend: Backend) -> bool:
    """The next token of everybody. False when that ends a reply, or somebody has none."""
    for index, ((job, _), got) in enumerate(zip(done.planned, done.harvests, strict=True)):
        try:
            got.add(job, job.choose(index, backend), backend)
        except Exception as error:  # noqa: BLE001 - one broken reply must not end the others
            got.fault = error
    return not any(got.is_over for got in done.harvests)


def _catch_up(done: Rounds, backend: Backend) -> None:
    for (job, _), got in zip(done.planned, done.harvests, strict=True):
        try:
            got.catch_up(job, backend)
        except Exception as error:  # noqa: BLE001 - as above
            got.fault = error

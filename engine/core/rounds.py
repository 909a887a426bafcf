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

from engine.backends.base import Backend, BatchPart, DecodeStatus, MemoryKind
from engine.core.batch import Planned, count_drafted, decode_what_fits
from engine.core.job import Job
from engine.kv.pool import SequencePool

MOST_ROUNDS: Final = 8
# Text is written at most so late; a step that takes longer is a step of one round.
LONGEST_S: Final = 0.1


@dataclass(slots=True)
class Rounds:
    """What was decoded. `chosen` holds, for each part, the tokens behind it, one per round, where they are chosen already;
    `faults` says by the part's number why one could not be. `decode_s` is the time within the backend."""

    planned: list[Planned]
    decode_s: float
    n_rounds: int = 1
    chosen: list[list[int]] = field(default_factory=list)
    faults: dict[int, Exception] = field(default_factory=dict)

    def computed(self, index: int) -> Sequence[int]:
        """The tokens of part `index` that its sequence holds now: its own, and all that were chosen but the last."""
        tokens = self.planned[index].part.tokens
        return [*tokens, *self.chosen[index][: self.n_rounds - 1]] if self.chosen else tokens


def most_rounds(planned: Sequence[Planned], running: Collection[Job], memory: MemoryKind) -> int:
    """How many rounds may follow each other at most: 1 where somebody's turn may be another one in the next step."""
    if len(planned) < len(running) or count_drafted(planned):
        return 1
    jobs = [job for job, _ in planned]
    if not all(job.in_reply for job in jobs) or len({job.in_background for job in jobs}) > 1:
        return 1
    # What is computed behind a stop string has to go again.
    if memory is not MemoryKind.ATTENTION and any(job.has_stops for job in jobs):
        return 1
    return min(MOST_ROUNDS, *(job.n_limit - len(job.tokens) for job in jobs))


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
    started = clock()
    fitting = decode_what_fits(planned, backend, pool)
    done = Rounds(fitting, clock() - started)
    if fitting is not planned or not go_on(1):
        return done
    done.chosen = [[] for _ in planned]
    while not _choose(done, backend) and _has_time(done) and go_on(done.n_rounds):
        n = done.n_rounds
        parts = [
            BatchPart(part.seq_id, part.start + n, chosen[-1:], 1)
            for (_, part), chosen in zip(planned, done.chosen, strict=True)
        ]
        started = clock()
        if backend.decode(parts) is not DecodeStatus.DONE:
            break  # the next step finds out what to do about it
        done.decode_s += clock() - started
        done.n_rounds += 1
    return done


def _choose(done: Rounds, backend: Backend) -> bool:
    """The next token of everybody. True when that ends a reply, or somebody has none."""
    is_over = False
    for index, (job, _) in enumerate(done.planned):
        try:
            token = job.choose(index, backend)
        except Exception as error:  # noqa: BLE001 - one broken reply must not end the others
            done.faults[index] = error
            is_over = True
            continue
        done.chosen[index].append(token)
        is_over = is_over or backend.is_eog(token)
    return is_over


def _has_time(done: Rounds) -> bool:
    return done.decode_s * (1 + 1 / done.n_rounds) <= LONGEST_S

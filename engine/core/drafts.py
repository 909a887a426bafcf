"""Guessed tokens behind the last one of a reply, in the same step: how many are worth their time, and what became of them.

A step that computes [last, a, b, c] gives the model's choice behind each of them. As long as a choice is the guess that
follows, the next one is valid too, so one step may bring several tokens; the first choice that differs is kept and the rest
is cut off. The sampler chooses exactly the tokens that come out, once each and in order, so a seed gives the same reply.

What a guess costs differs by two orders of magnitude: nearly nothing on a GPU, most of a token on two CPU cores. So it is
measured (`GuessCost`), and guesses are added only while they bring more tokens per second and slow no other reply down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice, pairwise
from operator import itemgetter
from typing import Final

from engine.backends.base import Backend, BatchPart, MemoryKind
from engine.core.batch import Planned, count_drafted
from engine.core.harvest import Harvest
from engine.core.job import Job
from engine.core.lookup import Lookup
from engine.kv.pool import SequencePool

MAX_DRAFT_TOKENS: Final = 15
# How likely guesses are and what they cost is never known exactly, so they have to promise this much more tokens per second;
# and no reply may lose more than this by those of another.
LEAST_GAIN: Final = 1.05
KEPT_SPEED: Final = 0.9
# Then one without: what guesses cost can only be seen beside it.
MOST_IN_A_ROW: Final = 64
# While guesses promise fewer tokens than this per step and reply, it is not asked about every token whether it may be guessed
# (`engine.core.rounds`); and how much of that is the last step's.
QUIET_GAIN: Final = 0.1
_GAIN_WEIGHT: Final = 0.05


@dataclass(slots=True)
class _Size:
    """A step with so many guesses, as a multiple of one without, and how often that was measured lately."""

    cost: float
    n_seen: float = 0.0


class GuessCost:
    """What a step costs by its number of guesses, with one number of replies. Learned from steps that hold nothing else.

    How long a step takes now and what guesses add to it are learned apart: the first changes with the length of the
    replies and with whatever else runs on the machine, the second hardly. What was seen seldom or long ago gets the benefit
    of the doubt, so that a few bad moments do not rule guesses out for ever.
    """

    _STEP_WEIGHT = 0.2
    _LEAST_WEIGHT = 0.1
    # A measurement counts as this much too high or too low at most: machines pause.
    _CLIP = 2.0
    # Of what is known of a size, half is forgotten in so many steps.
    _HALF_LIFE_STEPS = 512
    _DOUBT = 0.25
    # What a guess is expected to cost, of the share of one reply, before it was tried.
    _FIRST_GUESS = 0.25

    def __init__(self, n_replies: int) -> None:
        self._slope = self._FIRST_GUESS / n_replies
        # One for each reply: the kernels of a CPU take four columns as fast as three, and a fifth costs half as much again.
        self._first_try = max(3, n_replies)
        self._sizes: dict[int, _Size] = {}
        self._step_s = 0.0
        self._n_steps = 0

    def observe(self, n_guesses: int, elapsed_s: float) -> None:
        """A step took so long."""
        elapsed_s = max(elapsed_s, 1e-9)
        if not self._step_s:
            self._step_s = elapsed_s
        size = self._sizes.setdefault(n_guesses, _Size(1 + self._slope * n_guesses))
        if n_guesses:
            seen = elapsed_s / self._step_s
            seen = min(max(seen, size.cost / self._CLIP), size.cost * self._CLIP)
            size.cost += max(self._LEAST_WEIGHT, 1 / (size.n_seen + 1)) * (seen - size.cost)
        size.n_seen += 1
        self._step_s += self._STEP_WEIGHT * (elapsed_s / size.cost - self._step_s)
        self._n_steps += 1
        if self._n_steps % self._HALF_LIFE_STEPS == 0:
            for other in self._sizes.values():
                other.n_seen /= 2

    def curve(self, n_most: int) -> list[float]:
        """Costs of steps with 0, 1, … guesses, `n_most` at most; a step without costs 1.

        Numbers far beyond all that were tried are left out: they come by and by. Empty before the first step without.
        """
        if 0 not in self._sizes:
            return []
        known = [(n, self._believed(n)) for n in sorted(self._sizes)]
        curve = [1.0]
        for (n_low, low), (n_high, high) in pairwise(known):
            slope = (high - low) / (n_high - n_low)
            curve += [max(curve[-1], low + slope * i) for i in range(1, n_high - n_low + 1)]
        n_last, last = len(curve) - 1, curve[-1]
        slope = (last - 1) / n_last if n_last else self._slope
        n_next = max(2 * n_last + 1, self._first_try)
        curve += [last + slope * i for i in range(1, n_next - n_last + 1)]
        return curve[: n_most + 1]

    def _believed(self, n_guesses: int) -> float:
        size = self._sizes[n_guesses]
        return 1 + (size.cost - 1) * (1 - self._DOUBT / (size.n_seen + 1))


def share_out(odds: Sequence[Sequence[float]], costs: Sequence[float]) -> list[int]:
    """How many guesses of each reply go into the step: those that bring the most tokens per second.

    `odds[i]` are those of reply i (falling), `costs[n]` is what a step with n guesses costs. No reply may get less than
    `KEPT_SPEED` of what it has without guesses.
    """
    rows = ([(likely, i) for likely in row] for i, row in enumerate(odds))
    ranked = list(islice(merge(*rows, key=itemgetter(0), reverse=True), len(costs) - 1))
    expected = [1.0] * len(odds)
    n_expected = float(len(odds))
    best_rate, n_best = LEAST_GAIN * n_expected / costs[0], 0
    for n, (likely, i) in enumerate(ranked, start=1):
        expected[i] += likely
        n_expected += likely
        rate = n_expected / costs[n]
        if rate > best_rate and min(expected) * costs[0] >= KEPT_SPEED * costs[n]:
            best_rate, n_best = rate, n
    counts = [0] * len(odds)
    for _, i in ranked[:n_best]:
        counts[i] += 1
    return counts


class Drafter:
    """Adds guesses to a planned batch; owned by the core."""

    def __init__(self, backend: Backend, pool: SequencePool, *, enabled: bool) -> None:
        self._backend = backend
        self._pool = pool
        self._enabled = enabled and backend.memory is not MemoryKind.RECURRENT
        # By the number of replies in the step.
        self._costs: dict[int, GuessCost] = {}
        self._n_in_a_row = 0
        # Tokens that guesses promised per step and reply, lately.
        self._gain = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether guesses bring next to nothing just now."""
        return self._gain < QUIET_GAIN

    def extend(self, planned: list[Planned]) -> list[Planned]:
        """The batch with guesses, where it only goes on with replies; what prompts take of a step is measured otherwise."""
        if not self._enabled or not planned or not all(job.in_reply for job, _ in planned):
            return planned
        odds = [self._odds(job) for job, _ in planned]
        counts = self._counts(odds)
        self._n_in_a_row = self._n_in_a_row + 1 if any(counts) else 0
        gain = sum(sum(row[:n]) for row, n in zip(odds, counts, strict=True)) / len(planned)
        self._gain += _GAIN_WEIGHT * (gain - self._gain)
        return [
            _with_draft(one, n_draft) if n_draft else one
            for one, n_draft in zip(planned, counts, strict=True)
        ]

    def observe(self, planned: list[Planned], elapsed_s: float) -> None:
        """Learn from a decoded batch, before its results are applied."""
        if self._enabled and all(job.in_reply for job, _ in planned):
            cost = self._costs.setdefault(len(planned), GuessCost(len(planned)))
            cost.observe(count_drafted(planned), elapsed_s)

    def _counts(self, odds: list[list[float]]) -> list[int]:
        cost = self._costs.get(len(odds))
        if cost and any(odds) and self._n_in_a_row < MOST_IN_A_ROW:
            n_room = min(self._backend.n_outputs_max, self._backend.n_batch) - len(odds)
            if costs := cost.curve(n_room):
                return share_out(odds, costs)
        return [0] * len(odds)

    def _odds(self, job: Job) -> list[float]:
        if job.lookup is None:
            job.lookup = Lookup()
        job.lookup.advance(job.tokens)
        if not job.lookup.has_guess or job.seq is None:
            return []
        # The step brings one more token than it has guesses, and the sequence has cells for `n_limit`.
        n_room = min(job.n_limit - len(job.tokens) - 1, MAX_DRAFT_TOKENS)
        n_room = min(n_room, self._pool.n_revocable(job.seq) - 1)
        return job.lookup.odds(n_room)


def harvest(index: int, job: Job, part: BatchPart, backend: Backend) -> Harvest:
    """Let the sampler choose behind every output of part `index` that is valid: as long as the guesses there come true, up
    to the end of the reply."""
    guesses = part.tokens[len(part.tokens) - part.n_outputs + 1 :]
    got = Harvest()
    for n, guess in enumerate((*guesses, None)):
        token = job.choose(index, backend, n)
        got.add(job, token, backend)
        if got.is_over or token != guess:
            break
    got.catch_up(job, backend)
    return got


def _with_draft(planned: Planned, n_draft: int) -> Planned:
    job, part = planned
    draft = job.lookup.guess(job.tokens, n_draft) if job.lookup else []
    return Planned(job, BatchPart(part.seq_id, part.start, [*part.tokens, *draft], 1 + len(draft)))

"""`hearth tune`: real runs around the plan until no small step helps or the time is over. Owns the search, not the runs.

Every finished run is stored before the next one begins; a tuner that is stopped or killed goes on where it was. What a run does
to its process (an abort, the kernel's killer, a hang) is a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.vram.runs import HELD, RAM, Knobs, Quality, Run, asked_of, repeated, with_knobs
from engine.vram.settings import flash_attention
from engine.vram.tunechild import Question, sample_hash
from engine.vram.tunerun import Ended, Hear
from engine.vram.tunesearch import Space, fastest, is_comparable, next_shown, next_step
from engine.vram.tunestore import TuneStore, kind_of

# A run measures for so large a part of the whole time, within limits.
_SHARE: Final = 16
_RUN_S: Final = (1.5, 60.0)
# The kinds of cache that are only shown come when so much of the time is over, or nothing else is left to try.
_SHOWN_FROM: Final = 0.7
_QUALITY_S: Final = 1200.0

RunChild = Callable[[Question, float, Hear], Awaitable[Ended]]


class Listener(Protocol):
    """Hears what the tuner does; called from its task."""

    def begins(self, what: Knobs | Quality, number: int) -> None:
        """A run (the `number`-th of this session) or a perplexity begins."""
        ...

    def progress(self, phase: str, done: int, total: int) -> None:
        """How far the present run is."""
        ...

    def ends(self, what: Run | Quality) -> None:
        """It has ended, and is stored."""
        ...


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What is known now. `best` is the fastest that held with its margin, None while nothing did; `is_finished`: no small step
    was left to try."""

    runs: tuple[Run, ...]
    qualities: tuple[Quality, ...]
    start: Run | None
    best: Run | None
    is_finished: bool


class Tuner:
    """One session. `parent` is the process id that the children hang on; `limits`: bytes per card that may be used at most."""

    def __init__(
        self,
        config: EngineConfig,
        space: Space,
        store: TuneStore,
        run_child: RunChild,
        parent: int,
        limits: dict[str, int],
    ) -> None:
        self._config = config
        self._space = space
        self._store = store
        self._run_child = run_child
        self._parent = parent
        self._limits = limits
        self._asked = asked_of(config)

    async def tune(self, budget_s: float, listener: Listener) -> TuneReport:
        """Run until nothing is left to try, or no new run may begin after `budget_s`. Cancelling it loses the present run only.

        Raises EngineConfigError when results cannot be stored.
        """
        begun = time.monotonic()
        number = 0
        while (spent := time.monotonic() - begun) < budget_s or not number:
            task = self._next(spent / budget_s if budget_s else 1.0)
            if task is None:
                break
            number += 1
            listener.begins(task, number)
            if isinstance(task, Quality):
                done: Run | Quality = await self._measure_quality(task, listener)
            else:
                done = await self._measure(task, budget_s, listener)
            listener.ends(done)
        return self.report()

    def report(self) -> TuneReport:
        """What is known now."""
        runs = self._comparable()
        return TuneReport(
            runs=runs,
            qualities=self._qualities(),
            start=next((run for run in runs if run.knobs == self._space.start), None),
            best=fastest(self._space, runs),
            is_finished=self._next(1.0) is None,
        )

    def _comparable(self) -> tuple[Run, ...]:
        runs = self._store.runs(self._asked)
        return tuple(run for run in runs if is_comparable(run, self._depth))

    @property
    def _depth(self) -> int:
        """Tokens per conversation in the runs; 0 = none has held yet."""
        return max((run.depth for run in self._store.runs(self._asked)), default=0)

    def _qualities(self) -> tuple[Quality, ...]:
        return tuple(q for q in self._store.qualities if q.text == sample_hash())

    def _next(self, spent: float) -> Knobs | Quality | None:
        """What comes next when this part of the time is over."""
        runs = self._comparable()
        known = {kind_of(quality) for quality in self._qualities()}
        for run in runs:
            if run.outcome == HELD and kind_of(quality := self._quality_of(run.knobs)) not in known:
                return quality
        step, shown = next_step(self._space, runs), next_shown(self._space, runs)
        found = shown or step if spent >= _SHOWN_FROM else step or shown
        return found or self._to_repeat(runs)

    def _to_repeat(self, runs: tuple[Run, ...]) -> Knobs | None:
        """The plan and what beat it run once more: a neighbour on the machine may have decided."""
        best = fastest(self._space, runs)
        if best is None or best.knobs == self._space.start:
            return None
        rivals = (run for run in runs if run == best or run.knobs == self._space.start)
        return next((r.knobs for r in rivals if r.outcome == HELD and r.n_times == 1), None)

    def _quality_of(self, knobs: Knobs) -> Quality:
        """The perplexity that these settings have."""
        return Quality(
            cache_type_k=knobs.cache_type_k,
            cache_type_v=knobs.cache_type_v,
            flash_attention=flash_attention(with_knobs(self._config, knobs)),
            text=sample_hash(),
        )

    async def _measure(self, knobs: Knobs, budget_s: float, listener: Listener) -> Run:
        given_up = self._store.begin(self._asked, knobs)
        if given_up is not None:
            return given_up
        seconds = min(max(budget_s / _SHARE, _RUN_S[0]), _RUN_S[1])
        question = Question(
            config=with_knobs(self._config, knobs),
            parent=self._parent,
            depth=self._depth,
            seconds=seconds,
        )
        try:
            # A slow run is one that takes some times as long as the run that set the depth.
            ended = await self._run_child(question, 8 * seconds + 30, listener.progress)
        except BaseException:
            self._store.give_up(self._asked, knobs)
            raise
        run = self._run_of(knobs, ended)
        if ended.is_doubtful:  # it stays begun: tried once more, and then it counts
            return replace(run, reason=f"{run.reason}, which others took; it is tried again")
        before = next((r for r in self._comparable() if r.knobs == knobs), None)
        if before is not None:
            run = repeated(before, run)
        self._store.add(run)
        return run

    def _run_of(self, knobs: Knobs, ended: Ended) -> Run:
        measured = ended.measured
        room = {
            device: n_free if device == RAM else min(n_free, self._limits.get(device, n_free))
            for device, n_free in ended.room.items()
        }
        return Run(
            asked=self._asked,
            knobs=knobs,
            outcome=ended.outcome,
            reason=ended.reason,
            depth=measured.depth if measured else 0,
            prompt_tps=round(measured.prompt_tps, 2) if measured else 0.0,
            generation_tps=round(measured.generation_tps, 2) if measured else 0.0,
            peak=ended.peak,
            room=room,
            seconds=round(ended.seconds, 2),
        )

    async def _measure_quality(self, wanted: Quality, listener: Listener) -> Quality:
        """With the placement of the best run; a failure is stored too, so that it is not tried for ever."""
        best = fastest(self._space, self._comparable())
        knobs = best.knobs if best else self._space.start
        config = with_knobs(self._config, knobs)
        question = Question(
            config=_with_cache(config, wanted),
            parent=self._parent,
            is_quality=True,
        )
        ended = await self._run_child(question, _QUALITY_S, listener.progress)
        quality = _answered(wanted, ended)
        self._store.add_quality(quality)
        return quality


def _with_cache(config: EngineConfig, wanted: Quality) -> EngineConfig:
    return replace(
        config,
        cache_type_k=wanted.cache_type_k,
        cache_type_v=wanted.cache_type_v,
        flash_attention=wanted.flash_attention,
    )


def _answered(wanted: Quality, ended: Ended) -> Quality:
    if ended.measured is None:
        return replace(wanted, reason=ended.reason)
    return replace(
        wanted,
        perplexity=round(ended.measured.perplexity, 4),
        n_tokens=ended.measured.n_tokens,
    )

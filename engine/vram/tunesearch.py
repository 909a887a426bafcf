"""Which settings the tuner tries next: small steps from the best that is known, one knob at a time. Pure.

Nothing is remembered but the runs themselves, so an interrupted search goes on where it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from engine.vram.runs import HELD, Knobs, Run, holds, seconds_per_round
from engine.vram.settings import UNQUANTIZED

_LAYER_STEP: Final = 2
_UBATCH: Final = (32, 2048)
_BATCH: Final = (64, 4096)
# Two runs of the same settings differ by so much; only a larger gain moves the search.
NOISE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Space:
    """What may be tried. `start` is the plan; `n_layers` what `n_gpu_layers` can be at most (0 = no card); `n_moe` the layers
    whose experts can stay in RAM; `threads` the numbers worth trying; `fixed` the knobs that stay; `types` the kinds of cache
    that are shown beside the one that was asked for. `idle_bytes` of RAM are for conversations that rest.
    """

    start: Knobs
    n_layers: int = 0
    n_moe: int = 0
    threads: tuple[int, ...] = ()
    fixed: frozenset[str] = frozenset()
    types: tuple[str, ...] = ()
    idle_bytes: int = 0


def threads_to_try(n_cores: int, n_logical: int) -> tuple[int, ...]:
    """Half of the physical cores, all of them, and all that the system shows."""
    return tuple(sorted({max(1, n_cores // 2), n_cores, n_logical}))


def fastest(space: Space, runs: Iterable[Run]) -> Run | None:
    """The best run that may be kept: the asked kind of cache, held with its margin. A later one has to beat an earlier one by
    more than noise."""
    best: Run | None = None
    for run in runs:
        if not _may_be_kept(space, run.knobs) or not holds(run, run.room, space.idle_bytes):
            continue
        bar = seconds_per_round(best) * (1 - NOISE) if best else float("inf")
        if seconds_per_round(run) < bar:
            best = run
    return best


def next_step(space: Space, runs: Sequence[Run]) -> Knobs | None:
    """The next settings on the way to the fastest; None when no small step is left untried."""
    tried = {run.knobs for run in runs}
    if space.start not in tried:
        return space.start
    best = fastest(space, runs)
    if best is None:
        return _smaller(space, runs, tried)
    steps = (step for step in _around(space, best.knobs) if step not in tried)
    return next(steps, None)


def next_shown(space: Space, runs: Sequence[Run]) -> Knobs | None:
    """The next kind of cache that is only shown: one run with the best settings."""
    best = fastest(space, runs)
    if best is None:
        return None
    seen = {(run.knobs.cache_type_k, run.knobs.cache_type_v) for run in runs}
    for kind in space.types:
        if (kind, kind) in seen:
            continue
        flash = best.knobs.flash_attention
        needs = kind not in UNQUANTIZED and flash == "off"
        return replace(
            best.knobs,
            cache_type_k=kind,
            cache_type_v=kind,
            flash_attention="auto" if needs else flash,
        )
    return None


def _may_be_kept(space: Space, knobs: Knobs) -> bool:
    """Whether nothing is changed that is not the tuner's to change: runs of an earlier config may be among them."""
    stays = (getattr(knobs, name) == getattr(space.start, name) for name in space.fixed)
    return _same_types(knobs, space.start) and all(stays)


def _same_types(knobs: Knobs, other: Knobs) -> bool:
    return (knobs.cache_type_k, knobs.cache_type_v) == (other.cache_type_k, other.cache_type_v)


def _around(space: Space, at: Knobs) -> Iterator[Knobs]:
    """One step of each knob, those first that promise most."""
    ways = (
        _layers(space, at),
        _experts(space, at),
        _threads(space, at),
        _ubatch(at),
        _batch(at),
        _flash(at),
    )
    for step in itertools.chain.from_iterable(ways):
        changes = (getattr(step, name) != getattr(at, name) for name in space.fixed)
        if step != at and not any(changes):
            yield step


def _layers(space: Space, at: Knobs) -> Iterator[Knobs]:
    if space.n_layers:
        for n in (at.n_gpu_layers + _LAYER_STEP, at.n_gpu_layers - _LAYER_STEP):
            yield replace(at, n_gpu_layers=min(max(n, 0), space.n_layers))


def _experts(space: Space, at: Knobs) -> Iterator[Knobs]:
    if space.n_layers and space.n_moe:
        for n in (at.n_cpu_moe - _LAYER_STEP, at.n_cpu_moe + _LAYER_STEP):
            yield replace(at, n_cpu_moe=min(max(n, 0), space.n_moe))


def _threads(space: Space, at: Knobs) -> Iterator[Knobs]:
    """Only where the CPU computes something for every token."""
    if not space.n_layers or at.n_gpu_layers < space.n_layers or at.n_cpu_moe:
        for n in space.threads:
            yield replace(at, n_threads=n)


def _ubatch(at: Knobs) -> Iterator[Knobs]:
    for n in (at.n_ubatch * 2, at.n_ubatch // 2):
        if _UBATCH[0] <= n <= _UBATCH[1]:
            yield replace(at, n_ubatch=n, n_batch=max(at.n_batch, n))


def _batch(at: Knobs) -> Iterator[Knobs]:
    for n in (at.n_batch * 2, at.n_batch // 2):
        if max(_BATCH[0], at.n_ubatch) <= n <= _BATCH[1]:
            yield replace(at, n_batch=n)


def _flash(at: Knobs) -> Iterator[Knobs]:
    """A quantized V needs it; otherwise the other way is worth one look. "auto" is on wherever the device can."""
    if at.cache_type_v in UNQUANTIZED:
        yield replace(at, flash_attention="on" if at.flash_attention == "off" else "off")


def _smaller(space: Space, runs: Sequence[Run], tried: set[Knobs]) -> Knobs | None:
    """Nothing held yet: from the last try, two layers (or the experts of two) less on the card, then smaller batches."""
    at = next((r.knobs for r in reversed(runs) if _same_types(r.knobs, space.start)), space.start)
    on_card = at.n_gpu_layers if space.n_layers else 0
    if on_card and at.n_cpu_moe < space.n_moe and "n_cpu_moe" not in space.fixed:
        less = replace(at, n_cpu_moe=min(at.n_cpu_moe + _LAYER_STEP, space.n_moe))
    elif on_card and "n_gpu_layers" not in space.fixed:
        less = replace(at, n_gpu_layers=max(0, on_card - _LAYER_STEP))
    elif at.n_ubatch // 2 >= _UBATCH[0] and "n_ubatch" not in space.fixed:
        less = replace(at, n_ubatch=at.n_ubatch // 2)
    else:
        return None
    return less if less not in tried else None


def is_comparable(run: Run, depth: int) -> bool:
    """Whether a run's speed may be compared with others of this depth; one that did not hold has none."""
    return run.outcome != HELD or not depth or run.depth == depth

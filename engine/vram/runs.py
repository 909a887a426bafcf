"""What the tuner measures: settings, real runs of them, and what a cache type costs in quality. Plain data and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.vram.settings import usable_cores

Count = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
Layers = Annotated[int, msgspec.Meta(ge=-1, le=10_000)]
Threads = Annotated[int, msgspec.Meta(ge=1, le=512)]  # GGML_MAX_N_THREADS
Bytes = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
VERSION: Final = 2
RAM: Final = "RAM"
HELD, DIED, REFUSED, SLOW = "held", "died", "refused", "slow"
# What one question costs when earlier turns are kept: new prompt tokens, and tokens of the reply.
TURN_PROMPT: Final = 128
TURN_REPLY: Final = 128
# Left free beside a measured peak: a desktop's windows, another process's growth.
MARGIN: Final = 256 * 2**20


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for: the tuner never changes it. Tokens; `kv_cells` 0 = n_parallel × n_ctx."""

    n_ctx: int
    n_parallel: int
    kv_cells: int
    use_mmap: bool


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the tuner tries, as in `EngineConfig`; `n_threads` as llama.cpp got it."""

    n_gpu_layers: Layers
    n_cpu_moe: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    n_batch: Count
    n_ubatch: Count
    n_threads: Threads
    kv_on_card: bool
    cache_type_k: str
    cache_type_v: str
    flash_attention: Annotated[str, msgspec.Meta(pattern="^(auto|on|off)$")]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One real run. `outcome` is held, died, refused or slow (over its time); `reason` one sentence for the last three.

    `depth`: tokens that every sequence held when generation was measured. Tokens per second of all sequences together;
    `peak` bytes by device, and `room` what that device had free when the run began. After `n_times` runs: the best speeds, as
    whatever else the machine does only makes them worse, and the highest peaks.
    """

    asked: Asked
    knobs: Knobs
    outcome: Annotated[str, msgspec.Meta(pattern="^(held|died|refused|slow)$")]
    reason: str = ""
    depth: int = 0
    prompt_tps: Amount = 0.0
    generation_tps: Amount = 0.0
    peak: dict[str, Bytes] = {}
    room: dict[str, Bytes] = {}
    seconds: Amount = 0.0
    n_times: Count = 1


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The perplexity of the fixed text `text` (its hash) with one kind of cache; 0 = it could not be measured, for `reason`."""

    cache_type_k: str
    cache_type_v: str
    flash_attention: str
    text: str
    n_tokens: int = 0
    perplexity: Amount = 0.0
    reason: str = ""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was begun and never came back: the whole tuner ended with it, `n_times`."""

    asked: Asked
    knobs: Knobs
    n_times: int


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured for one model on one device with one build."""

    version: int
    device: str
    build: str
    fingerprint: str
    runs: tuple[Run, ...] = ()
    qualities: tuple[Quality, ...] = ()
    begun: tuple[Begun, ...] = ()


def asked_of(config: EngineConfig) -> Asked:
    """The part of the settings that is the person's."""
    return Asked(
        n_ctx=config.n_ctx,
        n_parallel=config.n_parallel,
        kv_cells=config.kv_cells,
        use_mmap=config.use_mmap,
    )


def knobs_of(config: EngineConfig) -> Knobs:
    """The part that the tuner tries, with the threads that llama.cpp gets."""
    return Knobs(
        n_gpu_layers=config.n_gpu_layers,
        n_cpu_moe=config.n_cpu_moe,
        n_batch=max(config.n_batch, config.n_parallel),
        n_ubatch=min(config.n_ubatch, config.n_batch),
        n_threads=config.n_threads or usable_cores(),
        kv_on_card=config.kv_on_card,
        cache_type_k=config.cache_type_k,
        cache_type_v=config.cache_type_v,
        flash_attention=config.flash_attention,
    )


def fixed_knobs(config: EngineConfig) -> dict[str, object]:
    """The knobs that are not the tuner's to choose: what the person set, and the cache's types, which cost quality."""
    fixed = {"cache_type_k", "cache_type_v", *config.asked}
    known = msgspec.structs.asdict(knobs_of(config))
    return {key: value for key, value in known.items() if key in fixed}


def with_knobs(config: EngineConfig, knobs: Knobs) -> EngineConfig:
    """The settings with these knobs."""
    return replace(config, **msgspec.structs.asdict(knobs))


def repeated(before: Run, again: Run) -> Run:
    """One measurement of two runs of the same settings; one that did not hold is the answer."""
    if {before.outcome, again.outcome} != {HELD}:
        return again
    devices = before.peak.keys() | again.peak.keys()
    return replace(
        again,
        prompt_tps=max(before.prompt_tps, again.prompt_tps),
        generation_tps=max(before.generation_tps, again.generation_tps),
        peak={name: max(run.peak.get(name, 0) for run in (before, again)) for name in devices},
        n_times=before.n_times + 1,
    )


def seconds_per_round(run: Run) -> float:
    """Seconds until all people who ask at the same moment are answered: what the tuner makes small."""
    if not run.prompt_tps or not run.generation_tps:
        return float("inf")
    each = TURN_PROMPT / run.prompt_tps + TURN_REPLY / run.generation_tps
    return run.asked.n_parallel * each


def holds(run: Run, room: Mapping[str, int], idle_bytes: int = 0) -> bool:
    """Whether a run's peak leaves the margin free. `idle_bytes` of RAM are for conversations that rest."""
    if run.outcome != HELD or RAM not in run.peak:
        return False
    kept = {device: MARGIN + (idle_bytes if device == RAM else 0) for device in run.peak}
    return all(peak + kept[device] <= room.get(device, 0) for device, peak in run.peak.items())

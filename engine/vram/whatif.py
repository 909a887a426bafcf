"""What one step of each setting would change in a plan that has been made: bytes, the bound on speed, whether it fits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.vram.ledger import Ledger, Model, Placement, make_ledger
from engine.vram.settings import context_settings
from engine.vram.shapes import fills_blocks

_SMALLER_CACHE: Final = {"f32": "q8_0", "bf16": "q8_0", "f16": "q8_0", "q8_0": "q4_0"}
_LEAST_CTX, _LEAST_UBATCH = 256, 32  # what the config takes
_LARGER_CACHE: Final = {"q4_0": "q8_0", "q8_0": "f16"}


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting changed alone: what the card (or RAM without one) would gain or lose, and the bound on speed then."""

    change: str
    n_bytes: int
    bound: float
    fits: bool


def knobs(model: Model, config: EngineConfig, ledger: Ledger) -> tuple[Knob, ...]:
    """What one step of each setting would change, the placement kept."""
    made = []
    for change, other in _steps(model, config, ledger):
        settings = context_settings(other, model.shape.n_ctx_train)
        placement = Placement(other.n_gpu_layers, other.n_cpu_moe) if ledger.card else Placement()
        device = ledger.card.device if ledger.card else None
        then = make_ledger(
            model,
            settings,
            placement,
            ledger.ram.device,
            device,
            idle_bytes=other.kv_ram_bytes,
        )
        before, after = ledger.devices[0].used, then.devices[0].used
        if after != before or then.bound() != ledger.bound():
            made.append(Knob(change, after - before, then.bound(), then.fits))
    return tuple(made)


def _steps(
    model: Model, config: EngineConfig, ledger: Ledger
) -> Iterator[tuple[str, EngineConfig]]:
    if ledger.card is not None:
        yield from _placement_steps(model, config, ledger.placement)
    yield f"n_ctx {config.n_ctx} → {2 * config.n_ctx}", replace(config, n_ctx=2 * config.n_ctx)
    if (half := config.n_ctx // 2) >= _LEAST_CTX:
        yield f"n_ctx {config.n_ctx} → {half}", replace(config, n_ctx=half)
    n = config.n_parallel
    yield f"n_parallel {n} → {n + 1}", replace(config, n_parallel=n + 1)
    if n > 1:
        yield f"n_parallel {n} → {n - 1}", replace(config, n_parallel=n - 1)
    kind, shape = config.cache_type_k, model.shape
    for table in (_LARGER_CACHE, _SMALLER_CACHE):
        other = table.get(kind)
        if other and fills_blocks(other, shape.head_k) and fills_blocks(other, shape.head_v):
            yield (
                f"cache_type {kind} → {other}",
                replace(config, cache_type_k=other, cache_type_v=other),
            )
    if (half := config.n_ubatch // 2) >= _LEAST_UBATCH:
        yield f"n_ubatch {config.n_ubatch} → {half}", replace(config, n_ubatch=half)


def _placement_steps(
    model: Model, config: EngineConfig, placement: Placement
) -> Iterator[tuple[str, EngineConfig]]:
    n, moe = placement.n_gpu_layers, placement.n_cpu_moe
    if model.expert_layers and n > model.n_layer:
        for other in (moe + 1, moe - 1):
            if 0 <= other <= model.n_layer:
                yield f"n_cpu_moe {moe} → {other}", replace(config, n_cpu_moe=other)
        return
    for other in (n - 2, n + 1):
        if 0 <= other <= model.n_layer + 1:
            yield f"n_gpu_layers {n} → {other}", replace(config, n_gpu_layers=other)

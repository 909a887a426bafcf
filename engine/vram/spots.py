"""Where a model can lie on one card and in RAM, in the order in which this is tried. Pure.

Everything on the card; then the routed experts of the first layers go to RAM; then the first layers. Beside that: the weights
on the card and the KV cache in RAM, which pays where contexts are long and replies few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.vram.ledger import Model, Placement


@dataclass(frozen=True, slots=True)
class Spot:
    """A placement of the weights, and whether the KV cache lies with its layers or in RAM."""

    placement: Placement
    kv_on_card: bool = True

    def applied(self, config: EngineConfig) -> EngineConfig:
        """The settings that put a model there."""
        return replace(
            config,
            n_gpu_layers=self.placement.n_gpu_layers,
            n_cpu_moe=self.placement.n_cpu_moe,
            kv_on_card=self.kv_on_card,
        )


# Without a card.
IN_RAM = Spot(Placement())


def placements(model: Model) -> Iterator[Placement]:
    """All placements, in the order in which they are tried."""
    everything = model.n_layer + 1
    yield Placement(everything, 0)
    for layer in model.expert_layers:
        yield Placement(everything, layer + 1)
    n_moe = model.expert_layers[-1] + 1 if model.expert_layers else 0
    for n_gpu_layers in range(everything - 1, -1, -1):
        yield Placement(n_gpu_layers, n_moe)


def as_asked(model: Model, config: EngineConfig, *, moves: bool) -> list[Spot]:
    """The spots with what a person asked for; `moves` False: the one that is left when nothing may be given up for room."""
    everything = model.n_layer + 1
    asked = {"n_gpu_layers", "n_cpu_moe"} & set(config.asked)
    n_gpu_layers = config.n_gpu_layers if 0 <= config.n_gpu_layers <= everything else everything
    if not moves:
        if "n_gpu_layers" not in asked:
            n_gpu_layers = everything
        n_cpu_moe = config.n_cpu_moe if "n_cpu_moe" in asked else 0
        return [Spot(Placement(n_gpu_layers, n_cpu_moe), config.kv_on_card)]
    if not asked:
        found = list(placements(model))
    else:
        layers = [n_gpu_layers] if "n_gpu_layers" in asked else range(everything, -1, -1)
        experts = [0, *(layer + 1 for layer in model.expert_layers)]
        if "n_cpu_moe" in asked:
            experts = [config.n_cpu_moe]
        found = [Placement(n, moe) for n in layers for moe in experts]
    return [Spot(placement, kv) for kv in _cache_places(config) for placement in found]


def all_spots(model: Model, config: EngineConfig) -> list[Spot]:
    """Every spot: where what was asked for cannot be kept."""
    places = _cache_places(config)
    return [Spot(placement, kv) for kv in places for placement in placements(model)]


def _cache_places(config: EngineConfig) -> list[bool]:
    return [config.kv_on_card] if "kv_on_card" in config.asked else [True, False]

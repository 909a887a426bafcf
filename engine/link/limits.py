"""Whether settings could ever work: asked in the parent, before a child is started for them. Pure."""

from __future__ import annotations

from typing import Final

from engine.config import SACRIFICES, EngineConfig
from engine.errors import EngineConfigError
from engine.rpc.endpoints import parse_endpoint

# Smallest and largest value of each number: what llama.cpp can take, far above what anybody needs. 0 = the engine chooses.
_RANGES: Final = {
    "n_ctx": (1, 2**24),
    "n_parallel": (1, 256),
    "kv_cells": (0, 2**27),
    "n_sequences": (0, 256),
    "n_batch": (1, 2**16),
    "n_ubatch": (1, 2**16),
    "n_threads": (0, 512),
    "n_gpu_layers": (-1, 10_000),
    "n_cpu_moe": (0, 10_000),
    "max_waiting": (1, 2**20),
    "max_waiting_per_owner": (1, 2**20),
}


def check_config(config: EngineConfig) -> None:
    """Raise EngineConfigError for settings that no model could be loaded with."""
    where = f"models.{config.name}"
    if config.backend not in {"llama.cpp", "fake"}:
        raise EngineConfigError(
            f'{where}.backend: "{config.backend}" is not known; use "llama.cpp", "fake" or "openai"'
        )
    for key, (least, most) in _RANGES.items():
        value = getattr(config, key)
        if not least <= value <= most:
            raise EngineConfigError(
                f"{where}.{key} is {value}; it must be at least {least} and at most {most}"
            )
    check_sacrifice(config.sacrifice, where)
    for address in config.rpc:
        parse_endpoint(address, f"{where}.rpc")
    if config.n_batch < config.n_parallel:
        raise EngineConfigError(
            f"{where}.n_batch is {config.n_batch}; every one of {config.n_parallel} replies (n_parallel) needs its token in it"
        )


def check_sacrifice(names: tuple[str, ...], where: str) -> None:
    """Raise EngineConfigError for an order of sacrifice that names something unknown, or twice."""
    for number, name in enumerate(names):
        if name not in SACRIFICES:
            raise EngineConfigError(
                f'{where}.sacrifice: "{name}" is not known; use some of {", ".join(SACRIFICES)}'
            )
        if name in names[:number]:
            raise EngineConfigError(f'{where}.sacrifice: "{name}" stands in it twice')

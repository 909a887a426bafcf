"""What the tuner starts from: the plan that `vram = "auto"` would make now, what may be tried around it, and whose results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.vram.auto import plan_start
from engine.vram.fingerprint import fingerprint
from engine.vram.planning import load
from engine.vram.runs import fixed_knobs, knobs_of
from engine.vram.settings import check_cache_option, usable_cores
from engine.vram.tuned import Identity, identity
from engine.vram.tunesearch import Space, threads_to_try


@dataclass(frozen=True, slots=True)
class TunePlan:
    """`config` are the planned settings, `why` the plan in one line, `limits` bytes that may be used of a card at most."""

    path: Path
    config: EngineConfig
    why: str
    space: Space
    whose: Identity
    limits: dict[str, int]


def plan_tuning(wish: EngineConfig, types: Sequence[str]) -> TunePlan:
    """Takes up to some seconds. `types`: kinds of cache to show. Raises EngineConfigError: no model, nothing fits, or a kind
    that does not exist."""
    for kind in types:
        check_cache_option(kind, "--types")
    path = find_model(wish.name, wish.path)
    plan = plan_start(wish, use_measured=False)
    model = load(path)
    card = plan.ledger.card
    space = Space(
        start=knobs_of(plan.config),
        n_layers=model.n_layer + 1 if card else 0,
        n_moe=model.expert_layers[-1] + 1 if card and model.expert_layers else 0,
        threads=threads_to_try(usable_cores(), len(os.sched_getaffinity(0))),
        fixed=frozenset(fixed_knobs(wish)),
        types=tuple(types),
        idle_bytes=plan.config.kv_ram_bytes,
    )
    whose = identity(fingerprint(path), [card.device.name] if card else [])
    limits = {card.device.name: wish.vram_bytes} if card and wish.vram_bytes else {}
    return TunePlan(path, plan.config, plan.sentence, space, whose, limits)

"""What a plan may use right now: RAM, the cards that this build of llama.cpp drives, and devices that RPC workers lend."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

from engine.backends.memory import available_bytes
from engine.config import EngineConfig
from engine.vram.claims import Held
from engine.vram.devices import Device, nvidia_cards, ram
from engine.vram.ledger import CARD_CONTEXT, CARD_RESERVE, Model
from engine.vram.probe import ProbeFailed, build_devices
from engine.vram.workers import worker_devices

_MIB: Final = 2**20
# What is left of the free RAM to everything else: the bot itself, its database, and Python in the child (about 100 MiB).
_RAM_RESERVE: Final = 256 * _MIB
_RAM_SHARE: Final = 20
# The work buffer of each further card.
_WORK: Final = 256 * _MIB
# Libraries of llama.cpp that drive no card of this machine.
_NO_CARD: Final = ("ggml", "ggml-base", "ggml-cpu", "ggml-rpc", "ggml-blas", "llama", "mtmd")


def may_drive_a_card() -> bool:
    """Whether this build of llama.cpp has a library for any card; asked of its folder, as loading it takes half a second."""
    spec = importlib.util.find_spec("llama_cpp")
    folders = (
        [Path(place) / "lib" for place in (spec.submodule_search_locations or [])] if spec else []
    )
    names = {
        file.name.split(".")[0].removeprefix("lib")
        for folder in folders
        for file in folder.glob("*.so*")
    }
    return not names <= set(_NO_CARD)


def ram_here(held: Held) -> Device:
    """The RAM that may be planned with: what is available now, in a container what its limit leaves of it."""
    free = available_bytes()
    rest = held.ram + _RAM_RESERVE + free // _RAM_SHARE
    return replace(ram(), capacity=max(0, free - rest), note="free now, less what others need")


def card_here(model: Model, config: EngineConfig, held: Held, notes: list[str]) -> Device | None:
    """The card to plan for: all that this build drives and all that RPC workers lend, as one."""
    driven: tuple[Device, ...] = ()
    if may_drive_a_card():
        try:
            driven = build_devices()
        except ProbeFailed as error:
            notes.append(f"llama.cpp could not be asked for its devices: {error}")
    lent = worker_devices(config.rpc, f"models.{config.name}.rpc", notes)
    cards = [device for device in (*driven, *lent) if device.kind == "gpu"]
    if not cards:
        if config.vram_bytes:
            notes.append("vram is set, but this build of llama.cpp drives no card here")
        return None
    named = nvidia_cards()
    limit = config.vram_bytes
    usable = [
        replace(
            device,
            capacity=min(limit, device.capacity) if limit else device.capacity,
            bandwidth=device.bandwidth
            or next((n.bandwidth for n in named if n.name in device.name), 0.0),
        )
        for device in cards
    ]
    target = usable[0] if len(usable) == 1 else _together(model, usable, notes)
    return replace(target, capacity=max(0, target.capacity - held.card))


def _together(model: Model, cards: list[Device], notes: list[str]) -> Device:
    """Several cards as one: llama.cpp spreads the layers by what each has free. Each has a context and a work buffer of its own, and
    up to one layer's worth of it stays empty."""
    layers: Counter[int] = Counter()
    for part in model.parts:
        layers[part.layer] += part.n_bytes
    each = CARD_CONTEXT + CARD_RESERVE + _WORK + max(layers.values(), default=0)
    capacity = sum(device.capacity for device in cards)
    seconds = sum(d.capacity / d.bandwidth if d.bandwidth else 0.0 for d in cards)
    known = all(device.bandwidth for device in cards)
    notes.append(f"{len(cards)} cards planned as one: an estimate")
    return replace(
        cards[0],
        name=" + ".join(device.name for device in cards),
        capacity=max(0, capacity - (len(cards) - 1) * each),
        bandwidth=capacity / seconds if known and seconds else 0.0,
    )

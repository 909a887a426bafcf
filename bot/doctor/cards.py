"""Graphics cards as their drivers tell of them: versions, who else uses them, heat, and shared memory in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bot.doctor.findings import Finding, ok, warning
from bot.doctor.patient import Patient
from bot.doctor.processes import name_process
from engine.machine.sample import Card
from engine.machine.sampler import Sampler
from engine.vram.nvidia import CardUsers, Nvidia, nvidia

_GIB: Final = 2**30
_MIB: Final = 2**20
_NOTICED: Final = 100 * _MIB  # smaller users are the desktop's helpers
_HOT: Final = 87  # degrees Celsius, where laptop cards begin to slow down
_LEAST_CUDA: Final = (11, 8)  # what docs/gpu.md asks for
# A full card with this much system memory in use spills over.
_SPILLED: Final = 512 * _MIB
_FULL_SHARE: Final = 0.05


def look_at_nvidia(patient: Patient) -> Iterator[Finding]:
    """The driver, and who uses the card: only with nvidia-ml-py."""
    seen = nvidia()
    if seen is not None:
        yield from judge_nvidia(seen, patient)


def judge_nvidia(seen: Nvidia, patient: Patient) -> Iterator[Finding]:
    """What the driver says."""
    newest = tuple(int(part) for part in seen.cuda.split("."))
    if newest < _LEAST_CUDA:
        yield warning(
            f"NVIDIA driver {seen.driver} runs CUDA up to {seen.cuda} only",
            "graphics driver",
            "install the newest driver",
        )
    else:
        yield ok(f"NVIDIA driver {seen.driver}, CUDA up to {seen.cuda}")
    for card in seen.cards:
        yield from _users(card, patient)


def _users(card: CardUsers, patient: Patient) -> Iterator[Finding]:
    known = [user for user in card.users if (user.n_bytes or 0) > _NOTICED]
    if known:
        names = "; ".join(
            f"{name_process(user.pid, patient)} {(user.n_bytes or 0) / _GIB:.1f} GiB"
            for user in known[:3]
        )
        yield ok(f"{card.name} is used by {names}")


def look_at_heat(_patient: Patient) -> Iterator[Finding]:
    """Counters of NVIDIA's and AMD's drivers at this moment."""
    sampler = Sampler()
    try:
        sample = sampler.take({})
    finally:
        sampler.close()
    for card in sample.cards:
        yield from judge_card(card)


def judge_card(card: Card) -> Iterator[Finding]:
    """Heat and spilling over: both make the speed jump up and down."""
    if card.throttled or (card.temperature_c or 0) >= _HOT:
        heat = f" at {card.temperature_c} °C" if card.temperature_c is not None else ""
        why = f": {', '.join(card.throttled)}" if card.throttled else ""
        yield warning(
            f"{card.name} is too hot or short of power{heat}{why}",
            "graphics card",
            "clean its fans, free the air's way, or lower its power limit",
        )
    if (card.shared_bytes or 0) > _SPILLED and card.free < _FULL_SHARE * card.total:
        yield warning(
            f"{card.name} is full and {(card.shared_bytes or 0) / _GIB:.1f} GiB of system memory serve in its place: "
            "4 to 10 times slower",
            "graphics card",
            "fewer layers or a shorter context: hearth plan",
        )

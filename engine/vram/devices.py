"""What memory there is: this machine's RAM and cards, what this build can drive, and recorded cards to plan for."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.backends.memory import available_bytes
from engine.errors import EngineConfigError

GIB: Final = 2**30
_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:(B)|([KMGT])(?:I?B)?)?\s*", re.IGNORECASE)
LARGEST_GIB: Final = 1024
_LEAST_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Device:
    """One memory. `capacity` bytes are what may be planned with, `bandwidth` bytes per second (0 = not known).

    `is_driven`: this build of llama.cpp can use it; a plan for another is an estimate. `shared_bytes` is system memory
    that a driver would add: 4 to 10 times slower, named and never planned with.
    """

    name: str
    kind: str
    capacity: int
    bandwidth: float
    is_driven: bool
    note: str = ""
    shared_bytes: int = 0


# Bandwidths are the makers' figures: a bound from them is never too low.
_DDR5: Final = 76.8e9
PROFILES: Final = {
    "8GiB laptop": Device(
        "8 GiB laptop card", "gpu", 8 * GIB, 256e9, False, "RTX 4060 Laptop: 256 GB/s", 8 * GIB
    ),
    "12GiB desktop": Device(
        "12 GiB desktop card", "gpu", 12 * GIB, 360e9, False, "RTX 3060: 360 GB/s"
    ),
    "12GiB laptop": Device(
        "12 GiB laptop card", "gpu", 12 * GIB, 432e9, False, "RTX 4080 Laptop: 432 GB/s"
    ),
    "16GiB desktop": Device(
        "16 GiB desktop card", "gpu", 16 * GIB, 448e9, False, "RTX 5060 Ti: 448 GB/s"
    ),
    "24GiB desktop": Device(
        "24 GiB desktop card", "gpu", 24 * GIB, 936e9, False, "RTX 3090: 936 GB/s"
    ),
}


def parse_size(text: str, option: str = "--vram") -> int:
    """Bytes of "12GiB", "12G", "11.5 GB" or "12" (all binary: memory is sold so). Raises EngineConfigError."""
    match = _SIZE.fullmatch(text)
    n_bytes = _bytes_of(match) if match else 0.0
    if not 1 <= n_bytes < 2**60:
        raise EngineConfigError(f'{option} {text}: write a size, for example "12GiB"')
    return int(n_bytes)


def _bytes_of(match: re.Match[str]) -> float:
    number, is_bytes, unit = float(match.group(1)), match.group(2), match.group(3)
    if unit:
        return number * _UNITS[unit.upper()]
    if is_bytes:
        return number if number >= _LEAST_BYTES else 0.0
    return plain_size(number)


def plain_size(number: float) -> float:
    """Bytes that a number without a unit means: GiB up to 1024, bytes from a MiB on, as nobody has a card of 12 bytes; 0.0 =
    neither."""
    if 0 < number <= LARGEST_GIB:
        return number * GIB
    return number if number >= _LEAST_BYTES else 0.0


def ram(limit: int = 0) -> Device:
    """This machine's memory: what is available now (in a container what its limit leaves), or `limit` bytes of a machine to plan
    for."""
    if limit:
        return Device("RAM", "cpu", limit, _DDR5, True, "as asked; 76.8 GB/s assumed")
    free = available_bytes()
    return Device("RAM", "cpu", free, _DDR5, True, "available now; 76.8 GB/s assumed")


def card(vram: int, driven: tuple[Device, ...], profile: str = "") -> Device | None:
    """The card to plan for: a recorded one by name, this build's own (at most `vram` bytes of it), or an imagined one."""
    if profile:
        if profile not in PROFILES:
            raise EngineConfigError(
                f"--device {profile}: not recorded; there is {', '.join(PROFILES)}"
            )
        found = PROFILES[profile]
        return replace(found, capacity=vram) if vram else found
    dedicated = [device for device in driven if device.kind == "gpu"]
    if dedicated:
        best = max(dedicated, key=lambda device: device.capacity)
        return replace(best, capacity=min(vram, best.capacity)) if vram else best
    if not vram:
        return None
    near = min(PROFILES.values(), key=lambda p: (abs(p.capacity - vram), p.bandwidth))
    return Device(
        f"{vram / GIB:.4g} GiB card",
        "gpu",
        vram,
        near.bandwidth,
        False,
        f"bandwidth as of an {near.note}" if near.note[0] in "AEIOR" else near.note,
    )


def nvidia_cards() -> tuple[Device, ...]:
    """The cards that NVIDIA's driver names, where nvidia-ml-py is installed; nothing else is asked."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  # no package, no driver, or no card: all mean that nothing is known
        return ()
    try:
        return tuple(_nvidia_card(nvml, i) for i in range(nvml.nvmlDeviceGetCount()))
    except Exception:  # noqa: BLE001
        return ()
    finally:
        nvml.nvmlShutdown()


def _nvidia_card(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
    try:
        width = nvml.nvmlDeviceGetMemoryBusWidth(handle)
    except Exception:  # noqa: BLE001  # older drivers
        width = 0
    # Two transfers per clock, `width` bits each.
    return Device(text, "gpu", int(memory.free), clock * 1e6 * 2 * width / 8, False)

"""NVIDIA's driver, where nvidia-ml-py is installed: its versions, and who uses the cards.

The cards' memory and heat are in `engine.machine.nvml`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CardUser:
    """A process with memory on a card; bytes, None where the driver does not tell."""

    pid: int
    n_bytes: int | None


@dataclass(frozen=True, slots=True)
class CardUsers:
    """Who has memory on a card."""

    name: str
    users: tuple[CardUser, ...]


@dataclass(frozen=True, slots=True)
class Nvidia:
    """The driver and its cards. `cuda`: the newest CUDA that this driver can run, as "12.4"."""

    driver: str
    cuda: str
    cards: tuple[CardUsers, ...]


def nvidia() -> Nvidia | None:
    """None: no package, no driver, or no card. Raises nothing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  # whatever it is, nothing is known
        return None
    try:
        number = nvml.nvmlSystemGetCudaDriverVersion()
        return Nvidia(
            _text(nvml.nvmlSystemGetDriverVersion()),
            f"{number // 1000}.{number % 1000 // 10}",
            tuple(_card(nvml, i) for i in range(nvml.nvmlDeviceGetCount())),
        )
    except Exception:  # noqa: BLE001
        return None
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _card(nvml: Any, index: int) -> CardUsers:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return CardUsers(_text(nvml.nvmlDeviceGetName(handle)), tuple(_users(nvml, handle)))


def _users(nvml: Any, handle: Any) -> Iterator[CardUser]:
    seen = set()
    for ask in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        with contextlib.suppress(Exception):  # WSL2 and containers tell no processes
            for process in getattr(nvml, ask)(handle):
                if process.pid not in seen:
                    seen.add(process.pid)
                    yield CardUser(int(process.pid), process.usedGpuMemory)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

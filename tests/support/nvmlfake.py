"""pynvml as its border behaves, in recorded shapes: structures with attributes, NVMLError for what a card, a driver or WSL2 does
not tell. Put into `sys.modules["pynvml"]`.

Shapes by nvidia-ml-py 13 and NVML's reference: memory is a structure of bytes; `usedGpuMemory` of a process is None where the
driver says NVML_VALUE_NOT_AVAILABLE (WSL2, WDDM); names are str in newer bindings and bytes in older ones; power is milliwatts.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MIB = 2**20
_TEXTS = {
    3: "Not Supported",
    4: "Insufficient Permissions",
    9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found",
    15: "GPU is lost",
    18: "RM has detected an NVML/RM version mismatch.",
}


class NVMLError(Exception):
    """The binding raises it with a number; its text is NVML's own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.value = number

    def __str__(self) -> str:
        return _TEXTS.get(self.value, f"NVML Error with code {self.value}")


@dataclass
class FakeCard:
    """One card. A value that is an NVMLError is raised; so is it for every name in `unsupported`."""

    name: str | bytes = "NVIDIA GeForce RTX 3060"
    total: int = 12_288 * MIB
    used: int = 1_024 * MIB
    temperature: int = 61
    clock: int = 1_807
    memory_clock: int = 7_300
    gpu_percent: int = 93
    milliwatts: int = 168_432
    reasons: int = 0
    compute: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()
    lost: NVMLError | None = None


def fake_pynvml(
    *cards: FakeCard, init: NVMLError | None = None, old_names: bool = False
) -> types.ModuleType:
    """The module. `init` is what nvmlInit raises; `old_names`: a binding from before clock event reasons."""
    module: Any = types.ModuleType("pynvml")
    module.NVMLError = NVMLError
    module.NVML_TEMPERATURE_GPU, module.NVML_CLOCK_GRAPHICS, module.NVML_CLOCK_MEM = 0, 0, 2
    module.n_open = 0

    def opened(change: int) -> None:
        if init is not None:
            raise init
        module.n_open += change

    def on_card(name: str, read: Callable[..., Any]) -> None:
        def call(card: FakeCard, *arguments: Any) -> Any:
            if card.lost is not None:
                raise card.lost
            if name in card.unsupported:
                raise NVMLError(3)
            return read(card, *arguments)

        setattr(module, name, call)

    module.nvmlInit = lambda: opened(1)
    module.nvmlShutdown = lambda: opened(-1)
    module.nvmlDeviceGetCount = lambda: len(cards)
    module.nvmlDeviceGetHandleByIndex = lambda index: cards[index]
    on_card(
        "nvmlDeviceGetMemoryInfo",
        lambda c: types.SimpleNamespace(total=c.total, used=c.used, free=c.total - c.used),
    )
    on_card("nvmlDeviceGetName", lambda c: c.name)
    on_card("nvmlDeviceGetTemperature", lambda c, _sensor: c.temperature)
    on_card("nvmlDeviceGetClockInfo", lambda c, kind: c.memory_clock if kind == 2 else c.clock)
    on_card(
        "nvmlDeviceGetUtilizationRates",
        lambda c: types.SimpleNamespace(gpu=c.gpu_percent, memory=40),
    )
    on_card("nvmlDeviceGetPowerUsage", lambda c: c.milliwatts)
    on_card("nvmlDeviceGetCurrentClocksThrottleReasons", lambda c: c.reasons)
    if not old_names:
        on_card("nvmlDeviceGetCurrentClocksEventReasons", lambda c: c.reasons)
    on_card("nvmlDeviceGetComputeRunningProcesses", lambda c: _processes(c.compute))
    on_card("nvmlDeviceGetGraphicsRunningProcesses", lambda c: _processes(c.graphics))
    return module


def _processes(table: dict[int, int | None]) -> list[types.SimpleNamespace]:
    return [types.SimpleNamespace(pid=pid, usedGpuMemory=n_bytes) for pid, n_bytes in table.items()]

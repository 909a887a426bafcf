"""NVIDIA cards through NVML (the package nvidia-ml-py). No package, no driver and no card all mean: nothing is shown.

Every question may be answered with "Not Supported" by some card, driver or WSL2, where the memory of single processes is never told:
each is asked on its own, and what is not told stays None. Calls block for about a millisecond, for longer when a driver is ill.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog

from engine.machine.sample import Card

_log = structlog.get_logger()
_Value = TypeVar("_Value")

# nvml.h, nvmlClocksEventReasons (nvmlClocksThrottleReasons before): those that mean heat or a fault, not idling or a power limit.
REASONS: Final = {
    0x08: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power supply",
}


class Nvml:
    """An opened NVML. Owner: the sampler; used by one thread at a time."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._told_fault = False
        # Bytes on all cards by process id, of the last look at `cards`; only of ours, and only those that are told.
        self.by_process: dict[int, int] = {}

    @classmethod
    def open(cls) -> Nvml | None:
        """None where there is nothing to ask; the log says why, once, for those who look (debug)."""
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            _log.debug("nvml_unavailable", reason="nvidia-ml-py is not installed")
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            _log.debug("nvml_unavailable", reason=str(error))
            return None
        return cls(nvml)

    def close(self) -> None:
        """End the session; harmless when the driver is gone."""
        self._ask(self._nvml.nvmlShutdown)

    def cards(self, pids: Iterable[int]) -> tuple[Card, ...]:
        """Every card that answers. `pids` are our engine children that have a card open."""
        ours = frozenset(pids)
        self.by_process = {}
        try:
            handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(index)
                for index in range(self._nvml.nvmlDeviceGetCount())
            ]
            found = tuple(self._card(index, handle, ours) for index, handle in enumerate(handles))
        except self._nvml.NVMLError as error:
            if not self._told_fault:
                _log.warning("nvml_lost", reason=str(error))
            self._told_fault = True
            return ()
        self._told_fault = False
        # Where a driver tells our processes on one card, it would tell them on the others.
        if any(card.engine_bytes is not None for card in found):
            found = tuple(replace(card, engine_bytes=card.engine_bytes or 0) for card in found)
        return found

    def _card(self, index: int, handle: Any, ours: frozenset[int]) -> Card:
        """Raises NVMLError only where not even the memory is told: then the card is lost."""
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        name = self._ask(nvml.nvmlDeviceGetName, handle)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        return Card(
            name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name or "GPU"),
            index=index,
            total=int(memory.total),
            free=int(memory.free),
            temperature_c=self._number(
                nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
            ),
            clock_mhz=self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_GRAPHICS),
            memory_clock_mhz=self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            busy=rates.gpu / 100 if rates is not None else None,
            power_w=power / 1000 if power is not None else None,
            throttled=self._throttled(handle),
            engine_bytes=self._engine_bytes(handle, ours) if ours else 0,
        )

    def _throttled(self, handle: Any) -> tuple[str, ...]:
        # Renamed with driver 535: an older driver lacks the new name, an older binding as well.
        for name in ("Event", "Throttle"):
            ask = getattr(self._nvml, f"nvmlDeviceGetCurrentClocks{name}Reasons", None)
            reasons = self._ask(ask, handle) if ask else None
            if reasons is not None:
                return tuple(text for bit, text in REASONS.items() if reasons & bit)
        return ()

    def _engine_bytes(self, handle: Any, ours: frozenset[int]) -> int | None:
        """None when our processes are not in the list, or their memory is not told (WSL2; containers see other ids)."""
        found: dict[int, int | None] = {}
        for ask in (
            self._nvml.nvmlDeviceGetComputeRunningProcesses,
            self._nvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in self._ask(ask, handle) or ():
                if process.pid in ours:
                    found[process.pid] = process.usedGpuMemory
        told = {pid: n_bytes for pid, n_bytes in found.items() if n_bytes is not None}
        for pid, n_bytes in told.items():
            self.by_process[pid] = self.by_process.get(pid, 0) + n_bytes
        return sum(told.values()) if told else None

    def _number(self, ask: Callable[..., Any], *arguments: Any) -> int | None:
        value = self._ask(ask, *arguments)
        return None if value is None else int(value)

    def _ask(self, ask: Callable[..., _Value], *arguments: Any) -> _Value | None:
        """None for what is not supported, not permitted, or unknown to this driver's library."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError:
            return None

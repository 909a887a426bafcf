"""Takes samples: asks the kernel and the drivers. Blocking calls; whoever owns it runs them off the event loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from engine.backends.memory import available_bytes, total_bytes
from engine.machine import procfs
from engine.machine.nvml import Nvml
from engine.machine.sample import Sample


class Sampler:
    """Opens NVML at the first look and keeps it. Used by one thread at a time."""

    def __init__(self) -> None:
        self._opened = False
        self._nvml: Nvml | None = None
        self._is_wsl = procfs.is_wsl()

    def take(self, pids: Mapping[str, int]) -> Sample:
        """The machine now; `pids` of the engine children by the model's name. Takes some milliseconds."""
        if not self._opened:
            self._opened, self._nvml = True, Nvml.open()
        found = {name: procfs.process_memory(pid) for name, pid in pids.items()}
        engines = {name: memory for name, memory in found.items() if memory is not None}
        swap_total, swap_used = procfs.swap_bytes()
        users = [memory.pid for memory in engines.values() if memory.uses_card]
        nvidia = self._nvml.cards(users) if self._nvml else ()
        told = self._nvml.by_process if self._nvml else {}
        engines = {
            name: replace(memory, card=told[memory.pid]) if memory.pid in told else memory
            for name, memory in engines.items()
        }
        return Sample(
            at=time.monotonic(),
            ram_total=total_bytes(),
            ram_available=available_bytes(),
            swap_total=swap_total,
            swap_used=swap_used,
            cards=(*nvidia, *procfs.amd_cards(engines.values())),
            engines=engines,
            is_wsl=self._is_wsl,
        )

    def close(self) -> None:
        """Give the drivers back."""
        if self._nvml is not None:
            self._nvml.close()

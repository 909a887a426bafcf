"""The most that one process took of each NVIDIA card, as far as the driver tells it."""

from __future__ import annotations

import os

from engine.machine.nvml import Nvml


class CardWatch:
    """Asks at each `look` and keeps the largest answers in `peak`: bytes by llama.cpp's name of a card (CUDA0 …), empty where
    nothing is told. Owned by one run of the tuner.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak: dict[str, int] = {}
        # With a selection of cards llama.cpp counts others than NVML does.
        self._nvml = None if "CUDA_VISIBLE_DEVICES" in os.environ else Nvml.open()

    def look(self) -> None:
        """Takes about a millisecond where there is a card."""
        for card in self._nvml.cards([self._pid]) if self._nvml else ():
            if card.engine_bytes:
                name = f"CUDA{card.index}"
                self.peak[name] = max(self.peak.get(name, 0), card.engine_bytes)

    def close(self) -> None:
        """Leave NVML; harmless twice."""
        if self._nvml:
            self._nvml.close()
            self._nvml = None

"""How much of a card is taken while something runs: the highest of ten looks a second, less what was taken before."""

from __future__ import annotations

import shutil
import subprocess
import threading
from types import TracebackType

from engine.vram.devices import Device
from engine.vram.nvidia import nvidia

_EVERY_S = 0.1


def used_bytes() -> int | None:
    """Bytes in use on all NVIDIA cards; None where nobody tells."""
    if known := nvidia():
        return sum(card.total - card.free for card in known.cards)
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    numbers = [line.strip() for line in done.stdout.splitlines()]
    return sum(int(number) * 2**20 for number in numbers if number.isdecimal()) if done.returncode == 0 else None  # fmt: skip


class Meter:
    """Owns the thread that looks. `taken`: bytes, None where nobody tells."""

    def __init__(self, card: Device | None) -> None:
        self._before = used_bytes() if card else None
        self._peak = self._before or 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Meter:
        """Begin to look."""
        if self._before is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Look no more."""
        self._over.set()
        if self._before is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._peak = max(self._peak, used_bytes() or 0)

    @property
    def taken(self) -> int | None:
        """The most that was in use beyond what was before."""
        return None if self._before is None else self._peak - self._before

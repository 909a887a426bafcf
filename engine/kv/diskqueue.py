"""The one thread that touches the disk for the KV tiers: reads go before writes, writes and removals keep their order."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Final

import structlog

_log = structlog.get_logger()

READ: Final = 0
CHANGE: Final = 1
_END: Final = 2


class DiskQueue:
    """Owner of the thread. Any thread may add work; work must handle its own errors."""

    def __init__(self) -> None:
        self._work: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = (
            queue.PriorityQueue()
        )
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    def add(self, urgency: int, work: Callable[[], None]) -> None:
        """Have `work` done; `urgency` is READ or CHANGE."""
        self._work.put((urgency, next(self._numbers), work))

    def close(self, timeout_s: float) -> None:
        """Finish what waits, for at most `timeout_s`."""
        self._work.put((_END, next(self._numbers), None))
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._work.get()[2]) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the tiers are an optimisation: never worth a child's life
                _log.error("kv_disk_work_failed", error=repr(error))

"""The child's way up: frames from any thread, written by one thread of its own.

Owns what has been reported but not yet written. Must not block whoever reports: a parent that reads slowly must never
stall decoding. Events of one request that wait melt together (`engine.link.mailbox.merge`), so the backlog is bounded.
"""

from __future__ import annotations

import socket
import threading
from collections import deque

from engine.link import wire
from engine.link.mailbox import merge

_BATCH_BYTES = 256 * 1024


class Outbox:
    """Frames waiting for the socket. Any thread may `put`; the writer thread alone takes and writes.

    A cell holds one frame; `_newest` finds the newest waiting cell of a request, the only one that may still grow, and
    likewise that of the beats, of which only the last counts.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._cells: deque[list[wire.Report]] = deque()
        self._newest: dict[str, list[wire.Report]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def put(self, frame: wire.Report) -> None:
        """Report something; returns at once."""
        key = _growing_key(frame)
        with self._changed:
            cell = self._newest.get(key) if key else None
            melted = _melt(cell[0], frame) if cell else None
            if cell is not None and melted is not None:
                cell[0] = melted
                return
            cell = [frame]
            self._cells.append(cell)
            if key:
                self._newest[key] = cell
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Write what waits, for at most `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    @property
    def n_waiting(self) -> int:
        """Frames not yet taken by the writer."""
        with self._changed:
            return len(self._cells)

    def _take(self) -> list[wire.Report]:
        """All waiting frames; waits for the first. Empty only when closing."""
        with self._changed:
            while not self._cells and not self._closing:
                self._changed.wait()
            frames = [cell[0] for cell in self._cells]
            self._cells.clear()
            self._newest.clear()
            return frames

    def _write(self) -> None:
        try:
            while frames := self._take():
                batch = bytearray()
                for frame in frames:
                    batch += wire.encode(frame)
                    if len(batch) >= _BATCH_BYTES:
                        self._sock.sendall(batch)
                        batch.clear()
                self._sock.sendall(batch)
        except OSError:
            return  # the parent is gone; the reader thread sees that too and ends the process


def _growing_key(frame: wire.Report) -> str:
    """Frames with the same key may melt; "" = never."""
    if isinstance(frame, wire.Event):
        return f"event:{frame.request_id}"
    return "beat" if isinstance(frame, wire.Beat) else ""


def _melt(earlier: wire.Report, later: wire.Report) -> wire.Report | None:
    if isinstance(earlier, wire.Event) and isinstance(later, wire.Event):
        return merge(earlier, later)
    if isinstance(earlier, wire.Beat) and isinstance(later, wire.Beat):
        return later
    return None

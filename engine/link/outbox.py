"""The child's way up: frames from any thread, written by one thread of its own.

Owns what has been reported but not yet written. Must not block whoever reports: a parent that reads slowly must never
stall decoding. Events of one request that wait melt together (`engine.link.mailbox.merge`), so the backlog is bounded.
More text of replies that have begun is written at most every `PAUSE_S`, which nobody sees: every write wakes two threads and
the bot, and on a CPU somebody's decode stands still meanwhile. Everything else, a reply's first text too, is written at once.
One thing is worth a moment's wait (`tell`): that a request is about to be computed. Were the child to die over it with
that unsaid, nobody would know what it died of.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque

from engine.link import wire
from engine.link.mailbox import merge
from engine.types import Delta, Failed, Finished, Started

_BATCH_BYTES = 256 * 1024
_STARTED_WAIT_S = 0.05
PAUSE_S = 0.025


class Outbox:
    """Frames waiting for the socket. Any thread may `put`; the writer thread alone takes and writes.

    A cell holds one frame; `_newest` finds the newest waiting cell of a request, the only one that may still grow, and
    likewise that of the beats, of which only the last counts.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._cells: deque[list[wire.Report]] = deque()
        self._newest: dict[str, list[wire.Report]] = {}
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._drained = threading.Condition(lock)
        self._writing = False
        self._closing = False
        self._urgent = False
        self._written_at = 0.0
        # Replies of which some text has been reported, until they end.
        self._begun: set[str] = set()
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
            first = not self._cells
            cell = [frame]
            self._cells.append(cell)
            if key:
                self._newest[key] = cell
            self._urgent = self._urgent or not self._can_wait(frame)
            if first or self._urgent:  # else the writer is in its pause, which ends by itself
                self._changed.notify()

    def tell(self, event: wire.Event) -> None:
        """Report an event of the core; a start is written before this returns, unless the parent does not read."""
        self.put(event)
        if isinstance(event, Started):
            with self._changed:
                self._drained.wait_for(lambda: not (self._cells or self._writing), _STARTED_WAIT_S)

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
            self._writing = False
            self._drained.notify_all()
            while not self._cells and not self._closing:
                self._changed.wait()
            while not self._urgent and not self._closing and (wait_s := self._pause_s()) > 0:
                self._changed.wait(wait_s)
            self._written_at = time.monotonic()
            self._urgent = False
            self._writing = True
            frames = [cell[0] for cell in self._cells]
            self._cells.clear()
            self._newest.clear()
            return frames

    def _can_wait(self, frame: wire.Report) -> bool:
        if isinstance(frame, Finished | Failed):
            self._begun.discard(frame.request_id)
        if not isinstance(frame, Delta):
            return False
        begun = frame.request_id in self._begun
        self._begun.add(frame.request_id)
        return begun

    def _pause_s(self) -> float:
        return self._written_at + PAUSE_S - time.monotonic()

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

"""The child's way up: frames from any thread, written by the core's own thread between two steps or by a thread of its own.

Owns what has been reported but not yet written. Must not block whoever reports: a parent that reads slowly must never
stall decoding. Events of one request that wait melt together (`engine.link.mailbox.merge`), so the backlog is bounded.

Every write wakes the bot, and a thread that is woken for it takes the interpreter and a core from the next decode. So the
core's thread writes by itself what the socket takes at once (`flush`); the writer thread is there for the other threads, and
for a parent that does not read. More text of replies that have begun is written at most every `PAUSE_S`, which nobody sees; everything
else, a reply's first text too, as soon as it is reported.

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
PAUSE_S = 0.05


class Outbox:
    """Frames waiting for the socket. Any thread may `put`; `note`, `tell` and `flush` are the core's thread's.

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
        # The end of a write that the socket did not take: it goes first, by the writer thread.
        self._rest = b""
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
        """Report something from any thread; returns at once."""
        with self._changed:
            first = not self._cells
            if self._add(frame) and (first or self._urgent):
                self._changed.notify()  # else the writer is in its pause, which ends by itself

    def note(self, frame: wire.Report) -> None:
        """Report something that the next `flush` may write."""
        with self._changed:
            self._add(frame)

    def tell(self, event: wire.Event) -> None:
        """`note` for an event of the core; a start is written before this returns, unless the parent does not read."""
        self.note(event)
        if isinstance(event, Started):
            self.flush()
            with self._changed:
                self._drained.wait_for(lambda: not self._is_busy, _STARTED_WAIT_S)

    def flush(self, *, everything: bool = False) -> None:
        """Write what is due, as far as the socket takes it; never waits. `everything`: also text that could wait."""
        with self._changed:
            if not self._cells or not (everything or self._urgent or self._pause_s() <= 0):
                return
            if self._writing or self._rest:
                self._changed.notify()
                return
            batch = b"".join(wire.encode(frame) for frame in self._take_cells())
            try:
                n_sent = self._sock.send(batch, socket.MSG_DONTWAIT)
            except ConnectionError:
                return  # the parent is gone; the reader thread sees that too and ends the process
            except OSError:  # it takes nothing now
                n_sent = 0
            self._rest = batch[n_sent:]
            if self._rest:
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

    @property
    def _is_due(self) -> bool:
        may_write = self._urgent or self._pause_s() <= 0
        return bool(self._rest) or (bool(self._cells) and may_write)

    @property
    def _is_busy(self) -> bool:
        return bool(self._cells or self._rest or self._writing)

    def _add(self, frame: wire.Report) -> bool:
        """Whether it takes a cell of its own."""
        key = _growing_key(frame)
        cell = self._newest.get(key) if key else None
        melted = _melt(cell[0], frame) if cell else None
        if cell is not None and melted is not None:
            cell[0] = melted
            return False
        cell = [frame]
        self._cells.append(cell)
        if key:
            self._newest[key] = cell
        self._urgent = self._urgent or not self._can_wait(frame)
        return True

    def _take_cells(self) -> list[wire.Report]:
        self._written_at = time.monotonic()
        self._urgent = False
        frames = [cell[0] for cell in self._cells]
        self._cells.clear()
        self._newest.clear()
        return frames

    def _take(self) -> tuple[bytes, list[wire.Report]]:
        """What is left of a write, and all waiting frames; waits for either. Both empty only when closing."""
        with self._changed:
            self._writing = False
            self._drained.notify_all()
            while not (self._is_due or self._closing):
                self._changed.wait(max(0.0, self._pause_s()) if self._cells else None)
            rest, self._rest = self._rest, b""
            self._writing = True
            return rest, self._take_cells()

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
            while any(waiting := self._take()):
                rest, frames = waiting
                self._sock.sendall(rest)
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

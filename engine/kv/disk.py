"""The disk behind the KV tiers: what is there, what is on its way, how much of it there may be.

Owns the model's folder (locked: one process at a time), the thread that reads and writes, and the count of bytes. Decides
nothing about conversations, except that files of another model file or other cache types go first.
"""

from __future__ import annotations

import fcntl
import functools
import os
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from engine.kv.blocks import opaque
from engine.kv.diskqueue import CHANGE, READ, DiskQueue
from engine.kv.files import BlockFiles, remove_conversations
from engine.kv.index import Block, Part, chain_of
from engine.kv.trace import Trace

_log = structlog.get_logger()

# Bytes that may wait for a slow disk; beyond that a block stays in RAM alone.
MAX_BACKLOG_BYTES: Final = 256 * 2**20
# After a failed write (a full disk) nothing is tried for so long.
PAUSE_S: Final = 60.0
_FLUSH_S: Final = 3.0
_TOUCH_EVERY_S: Final = 60.0


class OnLoaded(Protocol):
    """Told from the disk's thread that a read has ended; None = the block could not be read."""

    def __call__(
        self, block: Block, part: Part, tokens: array[int] | None, data: bytearray | None, /
    ) -> None: ...


class OnWritten(Protocol):
    """Told from the disk's thread that a write has ended."""

    def __call__(self, part: Part, /, *, done: bool) -> None: ...


class Disk:
    """Calls return at once. Errors are logged once and end in a pause, never in an exception."""

    def __init__(self, files: BlockFiles, trace: Trace, max_bytes: int) -> None:
        """Use `open_disk`."""
        self._files = files
        self._trace = trace
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting = 0
        self._leaving = 0
        self._paused_until = 0.0
        self._touched: dict[str, float] = {}
        self.n_damaged = 0
        self.used_bytes = 0
        self._foreign = sorted(files.others(), key=lambda item: item[0])
        self.used_bytes += sum(n_bytes for _, _, n_bytes in self._foreign)
        self.found = self._take_stock()
        self._queue = DiskQueue()

    def _take_stock(self) -> list[tuple[str, list[Block]]]:
        """Conversations that were found, least recently used first."""
        stock = []
        for folder in sorted(self._files.scan(), key=lambda found: found.used_at):
            blocks, strays = chain_of(folder.name, folder.blocks)
            for name in strays:
                self._files.remove(folder.name, name)
            self.used_bytes += sum(part.n_bytes for block in blocks for part in block.parts)
            if blocks:
                stock.append((folder.name, blocks))
        return stock

    def close(self) -> None:
        """Finish what waits, as far as a few seconds allow, and give the folder free."""
        self._queue.close(_FLUSH_S)
        self._trace.close()

    def over_limit(self) -> bool:
        """Whether conversations must go; foreign files are on their way out by then."""
        while self._foreign and self.used_bytes - self._leaving > self._max_bytes:
            _, folder, n_bytes = self._foreign.pop(0)
            self._count(-n_bytes)
            self._queue.add(CHANGE, functools.partial(self._files.remove_folder, folder))
        return self.used_bytes - self._leaving > self._max_bytes

    def has_room_for(self, part: Part) -> bool:
        """Whether it makes sense to write now: not to a disk that is full, nor to one that is far behind."""
        with self._lock:
            return (
                part.n_bytes <= self._max_bytes
                and self._waiting + part.n_bytes <= MAX_BACKLOG_BYTES
                and time.monotonic() >= self._paused_until
            )

    def read(self, block: Block, part: Part, on_loaded: OnLoaded) -> None:
        """Read a part; `on_loaded` tells."""

        def work() -> None:
            tokens, data = None, None
            try:
                tokens, data = self._files.read(block.folder, part.name)
                self._trace.add(self._files.traced(block.folder))
            except Exception as error:  # noqa: BLE001 - whatever it was, somebody waits for the answer
                self.n_damaged += 1
                _log.warning("kv_block_unreadable", file=part.name.file_name, error=str(error))
            on_loaded(block, part, tokens, data)

        self._queue.add(READ, work)

    def proved(self, folder: str) -> None:
        """What was read of it has been given to the model, which lives, or will not be given to it."""
        traced = self._files.traced(folder)
        if self._trace.names(traced):
            self._queue.add(CHANGE, functools.partial(self._trace.discard, traced))

    def write(self, block: Block, part: Part, on_written: OnWritten) -> None:
        """Write a part, whose bytes stay in RAM until `on_written` tells."""
        with self._lock:
            self._waiting += part.n_bytes

        def work() -> None:
            done = False
            try:
                data = part.data
                if data is not None:  # else it was dropped on the way
                    tokens = block.tokens if part is block.cells else None
                    part.file_bytes = self._files.write(block.folder, part.name, tokens or (), data)
                    done = True
            except OSError as error:
                self._pause(error)
            self._count(part.file_bytes, waited=part.n_bytes)
            on_written(part, done=done)

        self._queue.add(CHANGE, work)

    def remove(self, folder: str, part: Part) -> None:
        """Remove a part's file; may be called for one that is still to be written."""

        leaving = part.file_bytes
        with self._lock:
            self._leaving += leaving

        def work() -> None:
            try:
                self._files.remove(folder, part.name)
                self._count(-part.file_bytes)
                part.file_bytes = 0
            except OSError as error:
                self._pause(error)
            with self._lock:
                self._leaving -= leaving

        self._queue.add(CHANGE, work)

    def remove_everywhere(self, prefix: str, on_gone: Callable[[], None]) -> None:
        """Remove conversations whose folder begins so, of every format, behind every write that was asked for before;
        `on_gone` tells when that is done, and stays silent where it failed."""

        def work() -> None:
            try:
                self._files.remove_everywhere(prefix)
            except OSError as error:
                self._pause(error)
            else:
                on_gone()

        self._queue.add(CHANGE, work)

    def touch(self, folder: str) -> None:
        """A conversation was used: once a minute that is written down, for the order after a restart."""
        now = time.monotonic()
        if now - self._touched.get(folder, -_TOUCH_EVERY_S) >= _TOUCH_EVERY_S:
            if len(self._touched) > 10_000:
                self._touched.clear()
            self._touched[folder] = now
            self._queue.add(CHANGE, lambda: self._files.touch(folder))

    def _count(self, n_bytes: int, waited: int = 0) -> None:
        with self._lock:
            self.used_bytes += n_bytes
            self._waiting -= waited

    def _pause(self, error: OSError) -> None:
        self._paused_until = time.monotonic() + PAUSE_S
        _log.warning(
            "kv_disk_paused",
            error=error.strerror or type(error).__name__,
            folder=str(self._files.root),
            pause_s=PAUSE_S,
        )


def open_disk(root: Path, max_bytes: int, state_format: str) -> Disk | None:
    """The disk tier in `root`, or None when it cannot be used; the log says why. `state_format` as the backend tells it."""
    trace = None
    try:
        files = BlockFiles(root, opaque(state_format))
        trace = Trace(_locked(root / "in-use"))
        _remove_suspects(files, trace)
        return Disk(files, trace, max_bytes)
    except BlockingIOError:
        reason = "another Hearth uses this folder"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    if trace is not None:
        trace.close()
    _log.warning("kv_disk_unavailable", folder=str(root), reason=reason)
    return None


def clear_disk(root: Path) -> None:
    """The disk is not to be used any more: what an earlier setting left in `root` goes, as nobody could forget it later."""
    if not root.is_dir():
        return
    try:
        handle = _locked(root / "in-use")
    except OSError:  # another Hearth's, or a folder that nothing can be removed from
        return
    remove_conversations(root)
    os.close(handle)


def _locked(path: Path) -> int:
    """The open file, locked for this process. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _remove_suspects(files: BlockFiles, trace: Trace) -> None:
    """The process before this one died while it gave these back to the model: they are computed anew instead."""
    suspects = trace.found()
    for folder in suspects:
        files.remove_folder(files.root / folder)
    if suspects:
        _log.warning("kv_suspects_removed", n=len(suspects), folder=str(files.root))
        trace.clear()

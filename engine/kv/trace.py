"""Whose bytes are being given back to the model just now, written down: who dies over them leaves a name behind.

llama.cpp checks what it reads, and all the same a native crash over a stored block must not repeat itself at every start. So
a conversation's folder is named in a file as soon as bytes of it were read, until the model has computed behind them; what
the next process finds named there is removed unread. Survives the process, not a power cut, which needs none of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import PurePath
from typing import Final

_NAMED: Final = re.compile(rb"^[0-9a-f]{24}/[0-9a-f]{24}-[0-9a-f]{24}$", re.MULTILINE)
_MOST_BYTES: Final = 64 * 1024


class Trace:
    """Owner of an open, locked file and what it says. `add` and `discard` are the disk's thread's."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._named: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False

    def found(self) -> list[PurePath]:
        """What a process that died has left here. Raises OSError."""
        return [PurePath(name.decode()) for name in _NAMED.findall(os.pread(self._handle, _MOST_BYTES, 0))]  # fmt: skip

    def names(self, folder: str) -> bool:
        """Whether a folder is named now. Any thread."""
        return folder in self._named

    def add(self, folder: str) -> None:
        """Bytes of it may be given to the model from now on."""
        if folder not in self._named:
            self._named.add(folder)
            self._write()

    def discard(self, folder: str) -> None:
        """The model has lived with them."""
        if folder in self._named:
            self._named.discard(folder)
            self._write()

    def clear(self) -> None:
        """Nothing is named any more."""
        self._named.clear()
        self._write()

    def close(self) -> None:
        """Give the file, and with it the lock, free; a thread that comes later writes nothing."""
        with self._lock:
            self._closed = True
            os.close(self._handle)

    def _write(self) -> None:
        data = "".join(f"{name}\n" for name in sorted(self._named)).encode()[:_MOST_BYTES]
        # A full disk: then a crash leaves no name, which is where we were without all this.
        with self._lock, contextlib.suppress(OSError):
            if not self._closed:
                os.pwrite(self._handle, data, 0)
                os.ftruncate(self._handle, len(data))

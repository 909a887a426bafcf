"""One process per SQLite file: an exclusive flock on `<database>.lock`, held as long as the store is open.

The kernel drops the lock when the process dies, however it dies; the file itself stays (removing it would race).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from bot.errors import StoreError


class LockFile:
    """Holds the lock. Owner: the `Database` that made it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self) -> None:
        """Take the lock. Raises StoreError with one sentence that names the process holding it."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"the lock {self._path} cannot be opened: {error.strerror}; the database's folder must be writable"
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            database = self._path.with_suffix("")
            raise StoreError(
                f"the database {database} is in use by process {holder}; stop that one first, or give this one its own storage.url"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        self._fd = fd

    def drop(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def lock_holder(path: Path, proc: Path = Path("/proc")) -> int | None:
    """The process that holds a lock file, None when nobody does. Looks at the kernel's list and takes no lock itself, so
    that a service which starts in this moment is not disturbed."""
    try:
        inode = path.stat().st_ino
        lines = (proc / "locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        # "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF"; waiting ones have "->" after the number.
        fields = line.split()
        if fields[1:2] == ["FLOCK"] and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    return None

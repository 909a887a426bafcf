"""Who on this machine uses an RPC worker: a file per worker, locked by the engine child that uses it.

A worker serves one client and keeps everybody else waiting without a word, so nobody dials one that is taken. The kernel drops the
lock when the child ends, however it ends; what the worker lent is written into the file, so that the planner can tell without
asking. Users of other machines hold no such lock: for them `engine.rpc.hello` has its time limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from engine.rpc.endpoints import Endpoint
from engine.rpc.hello import LentDevice, WorkerAway

_TRIES: Final = 4
_PAUSE_S: Final = 0.05


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who uses a worker, and what it lent when it was free."""

    pid: int
    model: str
    devices: tuple[LentDevice, ...] = ()


class Lease:
    """The right to dial one worker; ends with `release` or with the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, holder: Holder) -> None:
        """Say who holds it and what is lent."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(holder), 0)

    def release(self) -> None:
        """Give the worker back; calling it twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def take_lease(endpoint: Endpoint, model: str, folder: Path | None = None) -> Lease:
    """Raises WorkerAway when another engine of this user on this machine has it, or the file cannot be made."""
    try:
        fd = _open(endpoint, folder or _folder())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise WorkerAway(f"its lock file cannot be made ({error.filename}: {reason})") from None
    if not _lock(fd):
        holder = _read(fd)
        os.close(fd)
        who = f"models.{holder.model} (process {holder.pid})" if holder else "another Hearth"
        raise WorkerAway(f"{who} uses it, and it serves one at a time")
    lease = Lease(fd)
    lease.write(Holder(pid=os.getpid(), model=model))
    return lease


def _lock(fd: int) -> bool:
    """Whether it was free; somebody who only looks holds it for a moment."""
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_PAUSE_S)
    return False


def holder_of(endpoint: Endpoint, folder: Path | None = None) -> Holder | None:
    """Who uses a worker, as far as this user's Hearths on this machine go; None = nobody. Dials nothing, locks nothing for long."""
    try:
        fd = _open(endpoint, folder or _folder())
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(fd) or Holder(pid=0, model="?")
    finally:
        os.close(fd)
    return None


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "hearth"
    return Path(tempfile.gettempdir()) / f"hearth-{os.getuid()}"


def _open(endpoint: Endpoint, folder: Path) -> int:
    """Raises OSError, also where somebody else has put the folder there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(1, "it belongs to somebody else", str(folder))
    name = re.sub(r"[^A-Za-z0-9.-]", "_", str(endpoint))
    return os.open(folder / f"rpc-{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _read(fd: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(fd, 64 * 1024, 0), type=Holder)
    except msgspec.DecodeError:
        return None

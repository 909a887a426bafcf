"""Disks: those of the database, of idle conversations' KV and of the model files. Measured with files that vanish at once."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bot.app import state_folder
from bot.config import LlamaModelConfig, parse_bytes
from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient

_MIB: Final = 2**20
_GIB: Final = 2**30
_SYNCS: Final = 8
_SLOW_SYNC_S: Final = 0.05  # an acknowledgement waits for one
_STREAM: Final = 64 * _MIB
_SLOW_STREAM: Final = (
    100 * _MIB
)  # bytes per second; below it a 1500-token state (35 MB) takes longer than 0.3 s
_LEAST_FREE: Final = 200 * _MIB
_LITTLE_FREE: Final = _GIB
# File systems that reach another machine, and those that lead out of a virtual machine.
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "ncpfs"}
    | {
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.glusterfs",
        "fuse.ceph",
        "davfs",
        "fuse.davfs",
    }
)
_FOREIGN: Final = frozenset({"9p", "drvfs", "virtiofs", "vboxsf", "fuse.vmhgfs-fuse", "prl_fs"})
_IN_RAM: Final = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class Volume:
    """Where a folder is, or will be: `there` is the nearest folder that exists; bytes."""

    folder: Path
    there: Path
    kind: str
    free: int


def volume_of(folder: Path, patient: Patient) -> Volume:
    """Raises OSError."""
    there = folder
    while not there.is_dir():
        there = there.parent
    stats = os.statvfs(there)
    return Volume(folder, there, _kind(there.resolve(), patient), stats.f_bavail * stats.f_frsize)


def _kind(path: Path, patient: Patient) -> str:
    """The file system by the longest mount point above it; the last mount of one point counts."""
    best, kind = "", "?"
    for line in patient.read("proc/mounts").splitlines():
        _, point, mounted, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, mounted
    return kind


def look_at_database_folder(patient: Patient) -> Iterator[Finding]:
    """Room, rights, and how long a commit waits for the disk."""
    folder = state_folder(patient.config)
    try:
        volume = volume_of(folder, patient)
        sync_s = _sync_time(volume.there)
    except OSError as fault:
        yield _unwritable(folder, fault, "storage.url")
        return
    yield from _room(volume, "storage.url")
    is_file = patient.config.storage.url.get_secret_value().startswith("sqlite")
    if is_file and volume.kind in _NETWORK | _FOREIGN:
        yield error(
            f"{folder} is on {volume.kind}, where SQLite's locks and its WAL do not hold: the database would be damaged",
            "storage.url",
            "put it on a local disk, or use PostgreSQL",
        )
    if volume.kind in _IN_RAM:
        yield warning(
            f"{folder} is in RAM ({volume.kind}): gone at the next start",
            "storage.url",
            "name a folder on a disk",
        )
    if sync_s > _SLOW_SYNC_S:
        yield warning(
            f"{folder}: a write takes {1000 * sync_s:.0f} ms to be on disk; every answer to a platform waits for one",
            "storage.url",
            "an SSD, or a folder that no other program keeps busy",
        )
    else:
        yield ok(
            f"{folder}: {_size(volume.free)} free, a commit takes {1000 * sync_s:.1f} ms ({volume.kind})"
        )


def look_at_kv_folders(patient: Patient) -> Iterator[Finding]:
    """Idle conversations: room and speed, where they are kept on disk at all."""
    folders: dict[Path, int] = {}
    for model in patient.config.models.values():
        if isinstance(model, LlamaModelConfig) and parse_bytes(model.kv_disk):
            folder = patient.config.path(model.kv_dir)
            folders[folder] = folders.get(folder, 0) + parse_bytes(model.kv_disk)
    for folder, wanted in folders.items():
        yield from _look_at_kv(folder, wanted, patient)


def _look_at_kv(folder: Path, wanted: int, patient: Patient) -> Iterator[Finding]:
    where = "models.*.kv_dir"
    try:
        volume = volume_of(folder, patient)
        used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if volume.free < 2 * _STREAM:
            yield warning(
                f"{folder}: {_size(volume.free)} free",
                where,
                'free some space, or set kv_disk = "0"',
            )
            return
        written, read = _stream_speed(volume.there)
    except OSError as fault:
        yield _unwritable(folder, fault, where)
        return
    if volume.free + used < wanted:
        yield warning(
            f"{folder}: {_size(volume.free)} free, and idle conversations may take {_size(wanted)}",
            where,
            f'set kv_disk = "{(volume.free + used) // 2 // _GIB or 1}GiB", or free some space',
        )
    if volume.kind in _IN_RAM:
        yield warning(
            f"{folder} is in RAM ({volume.kind})",
            where,
            "name a folder on a disk; kv_ram is the tier in RAM",
        )
    if min(written, read) < _SLOW_STREAM:
        yield warning(
            f"{folder}: writes {written / _MIB:.0f} and reads {read / _MIB:.0f} MiB/s; computing anew may be as fast",
            where,
            'an NVMe or SSD folder, or kv_disk = "0"',
        )
    else:
        yield ok(
            f"{folder}: writes {written / _MIB:,.0f}, reads {read / _MIB:,.0f} MiB/s, {_size(volume.free)} free"
        )


def _room(volume: Volume, where: str) -> Iterator[Finding]:
    if volume.free < _LEAST_FREE:
        yield error(
            f"{volume.folder}: only {_size(volume.free)} free", where, "free some space on its disk"
        )
    elif volume.free < _LITTLE_FREE:
        yield warning(
            f"{volume.folder}: only {_size(volume.free)} free", where, "free some space on its disk"
        )


def _unwritable(folder: Path, fault: OSError, where: str) -> Finding:
    user = os.environ.get("USER") or f"user {os.getuid()}"
    return error(
        f"{folder} cannot be written by {user} ({fault.strerror})",
        where,
        "chown it to the user that runs Hearth, or name another folder",
    )


def _sync_time(folder: Path) -> float:
    """Median seconds of a 4 KiB write with fsync. Raises OSError."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            began = time.monotonic()
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.monotonic() - began)
    return statistics.median(times)


def _stream_speed(folder: Path) -> tuple[float, float]:
    """Bytes per second written and read, past the page cache where the file system allows it. Raises OSError."""
    block = os.urandom(_MIB)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.monotonic()
        for _ in range(_STREAM // _MIB):
            file.write(block)
        os.fsync(file.fileno())
        written = time.monotonic() - began
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began = time.monotonic()
        while file.read(_MIB):
            pass
        read = time.monotonic() - began
    return _STREAM / max(written, 1e-6), _STREAM / max(read, 1e-6)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.1f} GiB" if n_bytes >= _GIB else f"{n_bytes / _MIB:.0f} MiB"

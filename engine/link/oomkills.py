"""How many processes the kernel has killed for want of memory, where it counts those near to us. Reads /proc and /sys only."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def oom_kills(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Kills counted in our own control group (ours and the child's), else on the whole machine; None = nobody counts them.

    The kernel counts before it sends the signal, so a rise across a SIGKILL explains it.
    """
    for file in (*_counters(proc, cgroups), proc / "vmstat"):
        number = _field(file, "oom_kill")
        if number is not None:
            return number
    return None


def _counters(proc: Path, cgroups: Path) -> list[Path]:
    """The files of our group and of those above it, nearest first: not every group has its own memory counters."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        path = PurePosixPath(group)
        folders = [str(folder).lstrip("/") for folder in (path, *path.parents)]
        if "memory" in controllers.split(","):
            found += [cgroups / "memory" / folder / "memory.oom_control" for folder in folders]
        elif not controllers:
            found += [cgroups / folder / "memory.events" for folder in folders]
    return found


def _field(file: Path, name: str) -> int | None:
    try:
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        return None
    return None

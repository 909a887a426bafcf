"""How much memory this process may still take, and whether a cache fits into it. Allocates nothing.

Linux hands out memory that it does not have and kills the process when it is used: so the question is asked before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]  # the package ships no types

from engine.errors import EngineConfigError

_GIB: Final = 2**30
_CGROUP: Final = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """What the machine has free without swapping, or what the container's limit leaves of it."""
    free = int(psutil.virtual_memory().available)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    # Pages of files count as used there, and are given back at once when they are needed.
    return min(free, max(0, limit - used + _file_pages(cgroup / "memory.stat")))


def total_bytes(cgroup: Path = _CGROUP) -> int:
    """All memory of the machine, or the container's limit."""
    total = int(psutil.virtual_memory().total)
    return min(total, _number(cgroup / "memory.max") or total)


def check_memory(where: str, n_bytes: int, available: int) -> None:
    """Raise EngineConfigError when a KV cache of `n_bytes` cannot be there."""
    if n_bytes > available:
        raise EngineConfigError(
            f"{where}: the KV cache needs {n_bytes / _GIB:.1f} GiB and {available / _GIB:.1f} GiB of memory are free; "
            "use a smaller n_ctx, n_parallel or kv_tokens, or cache_type q8_0"
        )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return None


def _file_pages(path: Path) -> int:
    try:
        fields = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
        return int(fields.get("inactive_file", 0)) + int(fields.get("active_file", 0))
    except (OSError, ValueError):
        return 0

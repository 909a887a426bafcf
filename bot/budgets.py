"""Keeps each app's monthly call count in a small file, so that a restart does not forget what the month has cost.

The count is a soft cap: losing the last few calls in a crash is harmless, a slow disk on the way of a reply is not; so the
file is written now and then and at the end, and a fault is one log line.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import structlog

from bot.platforms.budget import MemoryBudget, MonthCount

log = structlog.get_logger()


class FileBudgets:
    """Owns the budgets of this process and their files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[Path, MemoryBudget] = {}

    def open(self, app_id: str, monthly_calls: int) -> MemoryBudget:
        """The budget of one app, going on with what was saved this month."""
        path = self._folder / f"calls-{hashlib.sha256(app_id.encode()).hexdigest()[:16]}.json"
        budget = MemoryBudget(
            monthly_calls, saved=_read(path), save=lambda count: _write(path, count)
        )
        self._open[path] = budget
        return budget

    def save(self) -> None:
        """Write every count."""
        for path, budget in self._open.items():
            _write(path, budget.used)


def _read(path: Path) -> MonthCount | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return MonthCount(str(data["month"]), int(data["calls"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("call_count_unreadable", path=str(path), error=str(error))
        return None


def _write(path: Path, count: MonthCount) -> None:
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(
            json.dumps({"month": count.month, "calls": count.calls}), encoding="utf-8"
        )
        partial.replace(path)
    except OSError as error:
        log.warning("call_count_not_saved", path=str(path), error=str(error))

"""What a check is. What it says: `bot.domain.findings`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from bot.doctor.patient import Patient
from bot.domain.findings import Finding, Level, error, ok, warning

__all__ = ["Check", "Finding", "Level", "Look", "error", "ok", "warning"]

# Sync checks run in a thread, async ones on the loop.
Look: TypeAlias = Callable[[Patient], Iterable[Finding] | Awaitable[Iterable[Finding]]]


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of check: `title` is the word in the first column, `look` finds."""

    title: str
    look: Look

"""The month's call budget of one app (feishu.md §4.5): a counter, a soft cap, and who keeps it between starts.

Counting is in memory; `save` is told now and then, so that whoever starts the bot can hand `saved` in again.
Nothing is ever refused here: replies only grow in larger steps when the budget runs short.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Protocol

# The platforms' months end at midnight in China.
_CHINA = timezone(timedelta(hours=8))
_SAVE_EVERY_CALLS = 200


class CallBudget(Protocol):
    """What an adapter asks. One owner per app."""

    def count(self) -> None:
        """One call that the platform counts was made."""
        ...

    def spend_all(self) -> None:
        """The platform says that nothing is left this month."""
        ...

    def calls_left(self) -> float:
        """The fraction of this month's calls that is left, 0 … 1; 1 without a cap."""
        ...

    def told(self) -> str:
        """The count for people, "1234 of 5000"."""
        ...

    def month_left(self) -> float:
        """The fraction of this month that is still to come, 0 … 1."""
        ...


@dataclass(frozen=True, slots=True)
class MonthCount:
    """Calls made in a month, written "2026-11"."""

    month: str = ""
    calls: int = 0


class MemoryBudget:
    """Counts in memory. `monthly_calls` = 0 means no cap. The count starts anew with each month in UTC+8."""

    def __init__(
        self,
        monthly_calls: int = 0,
        *,
        saved: MonthCount | None = None,
        save: Callable[[MonthCount], None] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._monthly_calls = monthly_calls
        self._count = saved or MonthCount()
        self._save = save
        self._now = now
        self._spent_month = ""

    def _month(self) -> str:
        return self._now().astimezone(_CHINA).strftime("%Y-%m")

    @property
    def used(self) -> MonthCount:
        """What was counted this month."""
        month = self._month()
        return self._count if self._count.month == month else MonthCount(month)

    def count(self) -> None:
        """One more call; a new month begins at zero."""
        used = self.used
        self._count = MonthCount(used.month, used.calls + 1)
        if self._save and (self._count.calls % _SAVE_EVERY_CALLS == 0 or self._count.calls == 1):
            self._save(self._count)

    def spend_all(self) -> None:
        """Nothing is left until the next month, whatever was counted here: other apps of the organisation call, too."""
        self._spent_month = self._month()

    def told(self) -> str:
        """The count for people."""
        cap = f" of {self._monthly_calls}" if self._monthly_calls else ""
        spent = ", and the platform says that none is left" if self._is_spent() else ""
        return f"{self.used.calls}{cap}{spent}"

    def _is_spent(self) -> bool:
        return self._spent_month == self._month()

    def calls_left(self) -> float:
        """The fraction that is left of the cap."""
        if self._is_spent():
            return 0.0
        if not self._monthly_calls:
            return 1.0
        return max(0.0, 1.0 - self.used.calls / self._monthly_calls)

    def month_left(self) -> float:
        """The fraction of the month that is still to come."""
        now = self._now().astimezone(_CHINA)
        days = monthrange(now.year, now.month)[1]
        gone = (now.day - 1) + (now.hour * 3600 + now.minute * 60 + now.second) / 86_400
        return 1.0 - gone / days

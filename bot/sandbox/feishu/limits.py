"""Sliding-window rate limits and the month's quota (feishu.md §4.5). Owned by the API pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.sandbox.feishu.errors import ApiError, rate_limited
from bot.sandbox.window import Window

if TYPE_CHECKING:
    from bot.sandbox.clock import Clock
    from bot.sandbox.feishu.config import Limits


class RateLimits:
    """Every rate of one app. `check_*` raises ApiError; what is let through is counted."""

    def __init__(self, limits: Limits, clock: Clock, *, enforce: bool) -> None:
        self._limits = limits if enforce else limits.without_rates()
        self._clock = clock
        self._windows: dict[tuple[str, str], Window] = {}
        self.month_calls = 0

    def check_api(self, api: str) -> None:
        """1000/min and 50/s for each API (429, 99991400), then the month's quota (429, 99991403)."""
        now = self._clock()
        pairs = (
            (self._limits.per_api_per_minute, 60.0, "minute"),
            (self._limits.per_api_per_second, 1.0, "second"),
        )
        windows = [
            self._window(name, api, limit, period)
            for limit, period, name in pairs
            if limit is not None
        ]
        wait = max((window.wait_s(now) for window in windows), default=0.0)
        if wait > 0:
            raise rate_limited(wait)
        for window in windows:
            window.add(now)
        quota = self._limits.monthly_calls
        if quota is not None and self.month_calls >= quota:
            raise ApiError(99991403, status=429)

    def count_success(self) -> None:
        """Only calls that succeed count against the month (feishu.md §4.5)."""
        self.month_calls += 1

    def check_chat(self, chat_id: str) -> None:
        """5 messages a second into one chat (230020)."""
        self._check("chat", chat_id, self._limits.per_chat_per_second, 230020)

    def check_patch(self, message_id: str) -> None:
        """5 updates a second of one card message (230020)."""
        self._check("patch", message_id, self._limits.patches_per_second, 230020)

    def check_card(self, card_id: str) -> None:
        """10 operations a second on one card entity; the code is not confirmed, 99991400 is expected."""
        self._check("card", card_id, self._limits.per_card_per_second, 99991400)

    def _check(self, kind: str, key: str, limit: int | None, code: int) -> None:
        if limit is None:
            return
        now = self._clock()
        window = self._window(kind, key, limit, 1.0)
        wait = window.wait_s(now)
        if wait > 0:
            raise rate_limited(wait) if code == 99991400 else ApiError(code)
        window.add(now)

    def _window(self, kind: str, key: str, limit: int, period_s: float) -> Window:
        window = self._windows.get((kind, key))
        if window is None:
            window = self._windows[kind, key] = Window(limit, period_s)
        return window

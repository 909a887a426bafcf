"""Rates, the month's two pools and the block of an IP (dingtalk.md §0, §3, §4.1). Owned by the API pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.sandbox.dingtalk.errors import ApiError, OldError, qps_limited
from bot.sandbox.window import Window

if TYPE_CHECKING:
    from bot.sandbox.clock import Clock
    from bot.sandbox.dingtalk.config import Limits


class RateLimits:
    """Counts calls and messages of one app. `month_calls` are the billed OpenAPI calls, `month_messages` the other pool."""

    def __init__(self, limits: Limits, clock: Clock, *, enforce: bool) -> None:
        self._limits = limits if enforce else limits.without_rates()
        self._clock = clock
        self._windows: dict[tuple[str, str], Window] = {}
        self._blocked_until = 0.0
        self.month_calls = 0
        self.month_messages = 0

    def block_ip(self, for_s: float) -> None:
        """Nothing but the block page from now on, for a while."""
        self._blocked_until = self._clock() + for_s

    def ip_is_blocked(self) -> bool:
        """10,000 calls in 20 s block the address for 5 minutes; counts this call."""
        now = self._clock()
        if now < self._blocked_until:
            return True
        limit = self._limits.ip_calls
        if limit is None:
            return False
        window = self._window("ip", "", limit, self._limits.ip_period_s)
        if window.wait_s(now) > 0:
            self.block_ip(self._limits.ip_block_s)
            return True
        window.add(now)
        return False

    def check_api(self, api: str) -> None:
        """20/s for each API over all chats, then the month. What passes is billed. Raises ApiError (403)."""
        now = self._clock()
        second, minute = self._limits.per_api_per_second, self._limits.per_api_per_minute
        windows = []
        if second is not None:
            windows.append(self._window("second", api, second, 1.0))
        if minute is not None:
            windows.append(self._window("minute", api, minute, 60.0))
        if any(window.wait_s(now) > 0 for window in windows):
            raise qps_limited()
        if (
            self._limits.monthly_calls is not None
            and self.month_calls >= self._limits.monthly_calls
        ):
            raise ApiError("Forbidden.AccessDenied.ApiCountLimitForOrg")
        for window in windows:
            window.add(now)
        self.month_calls += 1

    def check_session(self, token: str) -> None:
        """20 messages a minute through one sessionWebhook, then the month's message pool. Raises OldError."""
        now = self._clock()
        limit = self._limits.session_per_minute
        window = self._window("session", token, limit, 60.0) if limit is not None else None
        if window is not None and window.wait_s(now) > 0:
            raise OldError(130101)
        if self.messages_are_spent():
            raise OldError(90020)
        if window is not None:
            window.add(now)
        self.month_messages += 1

    def messages_are_spent(self) -> bool:
        """The month's webhook and stream messages are used up."""
        limit = self._limits.monthly_messages
        return limit is not None and self.month_messages >= limit

    def _window(self, kind: str, key: str, limit: int, period_s: float) -> Window:
        window = self._windows.get((kind, key))
        if window is None:
            window = self._windows[kind, key] = Window(limit, period_s)
        return window

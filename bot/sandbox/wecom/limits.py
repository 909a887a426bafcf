"""Sliding-window rate limits of WeCom (wecom.md §3.5, §4.3). Owned by the sandbox; each check counts what it lets through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.sandbox.wecom import errors
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.window import Window

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig

_MINUTE = 60.0
_HOUR = 3600.0


class Rates:
    """Every rate of one bot or app."""

    def __init__(self, config: WeComConfig) -> None:
        self._limits = config.effective_limits
        self._clock = config.clock
        self._windows: dict[tuple[str, str, float], Window] = {}
        self._in_flight = 0

    def check_api(self, api: str) -> None:
        """The calls of one API (45009)."""
        self._require("api", api, (self._limits.per_api_per_minute, None))

    def check_token(self) -> None:
        """gettoken is blocked when it is called all the time (45009)."""
        self._require("gettoken", "", (self._limits.tokens_per_minute, None))

    def check_subscribe(self) -> None:
        """Subscribing is rate-protected (45009)."""
        self._require("subscribe", "", (self._limits.subscribes_per_minute, None))

    def check_chat(self, chat_id: str) -> None:
        """Replies and pushes of an AI bot into one conversation (45009)."""
        limits = self._limits
        self._require("chat", chat_id, (limits.per_chat_per_minute, limits.per_chat_per_hour))

    def check_upload(self) -> None:
        """Uploads of one AI bot (45009)."""
        limits = self._limits
        self._require("upload", "", (limits.uploads_per_minute, limits.uploads_per_hour))

    def member_allows(self, userid: str) -> bool:
        """An app's messages to one person; what is too much is lost without a word."""
        limits = self._limits
        return self._take(
            "member", userid, (limits.per_member_per_minute, limits.per_member_per_hour)
        )

    def enter(self) -> bool:
        """A call begins; False when too many are under way (45033)."""
        self._in_flight += 1
        limit = self._limits.concurrent_calls
        return limit is None or self._in_flight <= limit

    def leave(self) -> None:
        """A call is over."""
        self._in_flight -= 1

    def _require(self, kind: str, key: str, limits: tuple[int | None, int | None]) -> None:
        if not self._take(kind, key, limits):
            raise ApiError(errors.TOO_OFTEN)

    def _take(self, kind: str, key: str, limits: tuple[int | None, int | None]) -> bool:
        now = self._clock()
        windows = [
            self._windows.setdefault((kind, key, period), Window(limit, period))
            for limit, period in zip(limits, (_MINUTE, _HOUR), strict=True)
            if limit is not None
        ]
        if any(window.wait_s(now) > 0 for window in windows):
            return False
        for window in windows:
            window.add(now)
        return True

"""Access tokens: issue, keep, revoke, judge (wecom.md §4.1). Owns the valid ones."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from bot.sandbox.wecom import errors
from bot.sandbox.wecom.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bot.sandbox.wecom.config import WeComConfig


class Tokens:
    """The token of one app. While one is valid, every call is given the same."""

    def __init__(self, config: WeComConfig) -> None:
        self._config = config
        self._expires: dict[str, float] = {}
        self._current = ""

    def issue(self, query: Mapping[str, str]) -> dict[str, object]:
        """The reply of gettoken. Raises ApiError."""
        corp, secret = query.get("corpid", ""), query.get("corpsecret", "")
        if corp != self._config.corp_id:
            raise ApiError(errors.BAD_CORP)
        if not hmac.compare_digest(secret.encode(), self._config.corp_secret.encode()):
            raise ApiError(errors.BAD_SECRET)
        now = self._config.clock()
        left = self._expires.get(self._current, 0.0) - now
        if left <= 0:
            self._current = secrets.token_urlsafe(160)
            left = self._config.token_ttl_s
            self._expires[self._current] = now + left
        return {"access_token": self._current, "expires_in": int(left)}

    def revoke(self) -> None:
        """The token becomes invalid before its time (40014 from now on)."""
        self._expires.pop(self._current, None)
        self._current = ""

    def check(self, token: str | None) -> None:
        """Raise what WeCom answers to a missing, unknown or expired token."""
        if not token:
            raise ApiError(errors.NO_TOKEN)
        expires = self._expires.get(token)
        if expires is None:
            raise ApiError(errors.BAD_TOKEN)
        if expires <= self._config.clock():
            raise ApiError(errors.EXPIRED_TOKEN)

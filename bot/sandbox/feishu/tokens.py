"""Tenant access tokens: issue, keep, judge (feishu.md §3). Owns the valid tokens."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Any

from bot.sandbox.feishu.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.feishu.config import SandboxConfig

_RENEW_BELOW_S = 1800.0


class Tokens:
    """The tokens of one app. With 30 minutes or more left the same token is given again; old ones stay valid."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._expires: dict[str, float] = {}
        self._newest = ""

    def issue(self, body: dict[str, Any]) -> dict[str, Any]:
        """The reply of tenant_access_token/internal: fields at the top level, no `data`."""
        app_id, secret = body.get("app_id"), body.get("app_secret")
        if not isinstance(app_id, str) or not isinstance(secret, str) or not app_id or not secret:
            raise ApiError(10003)
        if app_id != self._config.app_id:
            raise ApiError(10003, "app_id")
        if not hmac.compare_digest(secret, self._config.app_secret):
            raise ApiError(10015)
        now = self._config.clock()
        left = self._expires.get(self._newest, 0.0) - now
        if left < _RENEW_BELOW_S:
            self._newest = f"t-{secrets.token_hex(16)}"
            left = self._config.token_ttl_s
            self._expires[self._newest] = now + left
        return {"tenant_access_token": self._newest, "expire": int(left)}

    def check(self, authorization: str | None) -> None:
        """Raise what the gateway answers to a missing, malformed, unknown or expired token."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme != "Bearer" or not token:
            raise ApiError(99991661)
        if not token.startswith("t-"):
            raise ApiError(99991671)
        if self._expires.get(token, 0.0) <= self._config.clock():
            raise ApiError(99991663)

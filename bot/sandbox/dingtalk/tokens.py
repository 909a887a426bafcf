"""Access tokens: the three ways to get one, and judging one (dingtalk.md §3). Owns the valid tokens."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Any

from bot.sandbox.dingtalk.errors import ApiError, OldError

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.config import SandboxConfig

Json = dict[str, Any]


class Tokens:
    """One token at a time: asking while it is valid gives the same one and extends it."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._newest = ""
        self._expires: dict[str, float] = {}

    def by_app_key(self, body: Json) -> Json:
        """POST /v1.0/oauth2/accessToken."""
        self._judge(body.get("appKey"), body.get("appSecret"))
        return {"accessToken": self._issue(), "expireIn": int(self._config.token_ttl_s)}

    def by_corp(self, corp_id: str, body: Json) -> Json:
        """POST /v1.0/oauth2/{corpId}/token."""
        if body.get("grant_type") != "client_credentials":
            raise ApiError("invalidParameter", "grant_type")
        if corp_id != self._config.corp_id:
            raise ApiError("invalidParameter", "corpId")
        self._judge(body.get("client_id"), body.get("client_secret"))
        return {"access_token": self._issue(), "expires_in": int(self._config.token_ttl_s)}

    def by_query(self, query: Json) -> Json:
        """GET /gettoken of the old API."""
        if not self._right(query.get("appkey"), query.get("appsecret")):
            raise OldError(40089)
        return {"access_token": self._issue(), "expires_in": int(self._config.token_ttl_s)}

    def check(self, token: str | None) -> None:
        """Raise what the gateway answers to a missing, unknown or expired token."""
        if not token or self._expires.get(token, 0.0) <= self._config.clock():
            raise ApiError("InvalidAuthentication", status=self._config.bad_token_status)

    def revoke(self) -> None:
        """Every token stops being valid now, whatever was promised."""
        self._expires.clear()

    def right_pair(self, client_id: Any, secret: Any) -> bool:
        """The app's own credentials."""
        return self._right(client_id, secret)

    def _judge(self, client_id: Any, secret: Any) -> None:
        if not self._right(client_id, secret):
            raise ApiError("invalidClientIdOrSecret")

    def _right(self, client_id: Any, secret: Any) -> bool:
        if not isinstance(client_id, str) or not isinstance(secret, str):
            return False
        config = self._config
        same = hmac.compare_digest(secret.encode(), config.client_secret.encode())
        return same and client_id == config.client_id

    def _issue(self) -> str:
        now = self._config.clock()
        if self._expires.get(self._newest, 0.0) <= now:
            self._newest = secrets.token_hex(16)
        self._expires[self._newest] = now + self._config.token_ttl_s
        return self._newest

"""One DingTalk app's way out: addresses, token, limits, judgement, counting. No knowledge of what the calls mean."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import structlog

from bot.domain.pacing import Pressure
from bot.errors import Ambiguous, FallBack, GiveUp, PlatformError, RetryLater
from bot.platforms.budget import CallBudget
from bot.platforms.dingtalk.errors import (
    Blocked,
    MonthSpent,
    NotDingTalk,
    SessionEnded,
    SlowDown,
    TokenRefused,
    judge,
    judge_session,
)
from bot.platforms.http import HttpRequest, SharedHttp, Token, TokenSource
from bot.platforms.limits import Limit, RateLimiter

log = structlog.get_logger()

# 20 calls a second per app and API are allowed, for all its chats together; half of that is used (dingtalk.md §5.5).
_APP_LIMIT = Limit("app", 8.0, 2.0)
# This machine's address, which is shut out as a whole (§3): never full, only paused.
_ADDRESS = Limit("address", 1000.0, 1000.0)
# 20 messages a minute to one session (§4.1, §4.2): burst + rate × 60 s stays under it; and 1 s between two (§4.4).
_PER_MINUTE = (0.25, 5.0)
_PER_CHAT = (1.0, 1.0)
_TOKEN_EARLY_S = 300.0
_SESSION_WAIT_S = 10.0
_SAFE_URL = re.compile(r"[A-Za-z0-9:/?=&%._~+,;$*!()-]{1,2000}")


@dataclass(frozen=True, slots=True)
class Call:
    """One OpenAPI call. `limits` are the targets it is addressed to, beside the app itself."""

    api: str
    method: str
    path: str
    body: Mapping[str, Any] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    max_wait_s: float = 10.0
    # Whether DingTalk counts it against the month (everything but the token is, §3).
    counted: bool = True


def chat_limits(chat_id: str) -> tuple[Limit, ...]:
    """What one chat takes."""
    return Limit(f"chat:{chat_id}", *_PER_MINUTE), Limit(f"chat:{chat_id}", *_PER_CHAT)


def origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a plain URL; None for anything that two readers could read differently."""
    if not _SAFE_URL.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


class DingTalkClient:
    """Makes calls for one app. Owns its token, its limiter and the memory of recent refusals."""

    def __init__(
        self,
        bases: tuple[str, str],
        app_id: str,
        app_secret: str,
        http: SharedHttp,
        budget: CallBudget,
    ) -> None:
        self.api_base = bases[0]
        self._origins = {origin(base) for base in bases} - {None}
        self.app_id = app_id
        self._app_secret = app_secret
        self._http = http
        self.budget = budget
        self.tokens = TokenSource(self._fetch_token)
        self.limiter = RateLimiter()
        self.pressure = Pressure()
        self.on_call: list[Callable[[str, bool], None]] = []
        # Why the last call failed where that is no matter of one message; "" since a call was done.
        self.trouble = ""

    def may_post_to(self, webhook: str) -> bool:
        """Whether a sessionWebhook leads to DingTalk: the body that named it is not covered by any signature."""
        return origin(webhook) in self._origins

    async def call(self, call: Call) -> dict[str, Any]:
        """Make a call and return the whole answer. Raises PlatformError; an invalid token is replaced once."""
        for last in (False, True):
            token = await self.tokens.get()
            try:
                return await self._once(call, token)
            except TokenRefused as error:
                self.tokens.invalidate(token)
                if last:
                    raise RetryLater(str(error), code=error.code, after_s=5.0) from None
        raise AssertionError("unreachable: the second round returns or raises")

    async def _once(self, call: Call, token: str) -> dict[str, Any]:
        limits = (_ADDRESS, _APP_LIMIT, Limit(f"api:{call.api}", 8.0, 2.0), *call.limits)
        await self._wait(limits, call.max_wait_s)
        headers = {"x-acs-dingtalk-access-token": token}
        request = HttpRequest(call.method, f"{self.api_base}{call.path}", call.body, headers)
        try:
            answer = await self.exchange(call.api, request)
        except PlatformError as error:
            # Calls that are refused for their number are not counted (§3).
            if call.counted and not isinstance(error, (SlowDown, Blocked, MonthSpent)):
                self.budget.count()
            self._note(call.api, error)
            raise
        if call.counted:
            self.budget.count()
        self.trouble = ""
        self._tell(call.api, ok=True)
        return answer

    async def _wait(self, limits: tuple[Limit, ...], max_wait_s: float) -> None:
        """Until a call may go. That others are waiting is a matter of pace, not a failure of the call."""
        try:
            await self.limiter.acquire(limits, max_wait_s=max_wait_s)
        except RetryLater as error:
            raise SlowDown(str(error), after_s=error.after_s) from None

    async def post_session(self, webhook: str, body: Mapping[str, Any], chat_id: str) -> None:
        """Answer through a sessionWebhook: no token, not counted as a call (§0, §4.1)."""
        if not self.may_post_to(webhook):
            raise SessionEnded("session_send: the webhook does not lead to DingTalk")
        await self._wait((_ADDRESS, *chat_limits(chat_id)), _SESSION_WAIT_S)
        try:
            answer = await self._http.exchange(HttpRequest("POST", webhook, body))
            error = judge_session(answer.status, answer.json())
            if error is not None:
                raise error
        except PlatformError as error:
            self._tell("session_send", ok=False)
            if isinstance(error, Blocked):
                self.limiter.pause(_ADDRESS.target, error.after_s)
            elif isinstance(error, SlowDown):
                self.limiter.pause(f"chat:{chat_id}", 10.0)
            raise
        self._tell("session_send", ok=True)

    async def exchange(self, api: str, request: HttpRequest) -> dict[str, Any]:
        """One HTTP exchange without token, limits or counting. Raises PlatformError."""
        answer = await self._http.exchange(request)
        body = answer.json()
        error = judge(api, answer.status, body)
        if error is not None:
            request_id = str((body or {}).get("requestid", ""))[:80]
            log.debug("dingtalk_call_failed", api=api, http=answer.status, request_id=request_id)
            raise error
        return body or {}

    def _note(self, api: str, error: PlatformError) -> None:
        self._tell(api, ok=False)
        if isinstance(error, (RetryLater, Ambiguous, GiveUp, MonthSpent)):
            self.trouble = str(error)
        if isinstance(error, Blocked):
            self.limiter.pause(_ADDRESS.target, error.after_s)
        elif isinstance(error, SlowDown):
            self.pressure.hit(time.monotonic())
            self.limiter.pause(f"api:{api}", error.after_s)
        elif isinstance(error, MonthSpent):
            log.warning("dingtalk_month_spent", app_id=self.app_id)
            self.budget.spend_all()
        elif isinstance(error, GiveUp):
            log.warning("dingtalk_call_refused", api=api, reason=str(error))

    def _tell(self, api: str, *, ok: bool) -> None:
        for hook in self.on_call:
            hook(api, ok)

    async def _fetch_token(self) -> Token:
        """POST oauth2/accessToken (§3); not counted against the month."""
        body = {"appKey": self.app_id, "appSecret": self._app_secret}
        request = HttpRequest("POST", f"{self.api_base}/v1.0/oauth2/accessToken", body)
        try:
            answer = await self.exchange("token", request)
        except PlatformError as error:
            self._tell("token", ok=False)
            self.trouble = str(error)
            if isinstance(error, NotDingTalk):  # whoever answered there, it was not DingTalk
                raise RetryLater(str(error), after_s=5.0) from None
            if isinstance(error, (GiveUp, TokenRefused, FallBack)):
                log.warning("dingtalk_token_refused", reason=str(error))
                raise GiveUp(str(error), code=error.code) from None
            raise
        self._tell("token", ok=True)
        value, lifetime_s = answer.get("accessToken"), answer.get("expireIn")
        if not isinstance(value, str) or not value or not isinstance(lifetime_s, (int, float)):
            raise RetryLater("token: DingTalk's answer holds no token", after_s=5.0)
        early_s = _TOKEN_EARLY_S if lifetime_s > 2 * _TOKEN_EARLY_S else 0.0
        return Token(value, float(lifetime_s) - early_s)

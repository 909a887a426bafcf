"""One Feishu app's way to the API: address, token, limits, judgement, counting. No knowledge of what the calls mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import structlog

from bot.domain.pacing import Pressure
from bot.errors import Ambiguous, GiveUp, PlatformError, RetryLater
from bot.platforms.budget import CallBudget
from bot.platforms.feishu.errors import MonthSpent, SlowDown, TokenRefused, judge
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp, Token, TokenSource
from bot.platforms.limits import Limit, RateLimiter

log = structlog.get_logger()

# Per API and app 50/s and 1000/min (feishu.md §4.5): burst + rate × t stays under both, with room for jitter on the way.
_PER_SECOND = (32.0, 8.0)
_PER_MINUTE = (14.0, 80.0)
# A limit of the whole API, not of one chat or card.
_API_WIDE = {99991400, 11232, 11247}


@dataclass(frozen=True, slots=True)
class Call:
    """One API call. `limits` are the targets it is addressed to, beside the API itself."""

    api: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    max_wait_s: float = 10.0


def chat_limit(chat_id: str) -> Limit:
    """5 sends per second to one chat, shared by all bots in it."""
    return Limit(f"chat:{chat_id}", 3.5, 1.0)


def message_limit(message_id: str) -> Limit:
    """5 PATCH per second on one message."""
    return Limit(f"message:{message_id}", 3.5, 1.0)


def card_limit(card_id: str) -> Limit:
    """10 operations per second on one card entity."""
    return Limit(f"card:{card_id}", 5.0, 3.0)


class FeishuClient:
    """Makes calls for one app. Owns its token, its limiter and the memory of recent refusals."""

    def __init__(
        self, base_url: str, app_id: str, app_secret: str, http: SharedHttp, budget: CallBudget
    ) -> None:
        self._base_url = base_url
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

    async def download(self, call: Call, *, max_bytes: int) -> bytes:
        """GET a file. Raises PlatformError, TooLarge among them; an invalid token is replaced once."""
        for last in (False, True):
            token = await self.tokens.get()
            await self._wait(call)
            request = self._request(call, token, timeout_s=60.0, max_bytes=max_bytes)
            try:
                answer = await self._http.exchange(request)
                # A file may be JSON as well: it is the status that tells.
                if answer.status != 200:
                    self._judge(call.api, answer)
                    raise GiveUp(f"{call.api}: HTTP {answer.status}")
            except TokenRefused as error:
                self.tokens.invalidate(token)
                if last:
                    raise RetryLater(str(error), code=error.code, after_s=5.0) from None
            except PlatformError as error:
                self._note(call, error)
                raise
            else:
                self.budget.count()
                self._tell(call.api, ok=True)
                return answer.body
        raise AssertionError("unreachable: the second round returns or raises")

    async def _once(self, call: Call, token: str) -> dict[str, Any]:
        await self._wait(call)
        try:
            answer = await self._exchange(call.api, self._request(call, token))
        except PlatformError as error:
            self._note(call, error)
            raise
        self.budget.count()
        self.trouble = ""
        self._tell(call.api, ok=True)
        return answer

    async def _wait(self, call: Call) -> None:
        api = f"api:{call.api}"
        limits = (Limit(api, *_PER_SECOND), Limit(api, *_PER_MINUTE), *call.limits)
        await self.limiter.acquire(limits, max_wait_s=call.max_wait_s)

    def _request(
        self, call: Call, token: str, *, timeout_s: float = 15.0, max_bytes: int = 0
    ) -> HttpRequest:
        query = f"?{urlencode(call.query)}" if call.query else ""
        return HttpRequest(
            call.method,
            f"{self._base_url}{call.path}{query}",
            body=call.body,
            headers={"Authorization": f"Bearer {token}"},
            timeout_s=timeout_s,
            max_bytes=max_bytes,
        )

    async def _exchange(self, api: str, request: HttpRequest) -> dict[str, Any]:
        return self._judge(api, await self._http.exchange(request))

    def _judge(self, api: str, answer: HttpAnswer) -> dict[str, Any]:
        body = answer.json()
        error = judge(api, answer.status, answer.headers, body)
        if error is not None:
            log_id = answer.headers.get("x-tt-logid", "")
            log.debug(
                "feishu_call_failed", api=api, code=error.code, http=answer.status, log_id=log_id
            )
            raise error
        return body or {}

    def _note(self, call: Call, error: PlatformError) -> None:
        self._tell(call.api, ok=False)
        if isinstance(error, (RetryLater, Ambiguous, GiveUp)):
            self.trouble = str(error)
        if isinstance(error, SlowDown):
            self.pressure.hit(time.monotonic())
            api_wide = error.code in _API_WIDE or not call.limits
            targets = [f"api:{call.api}"] if api_wide else [limit.target for limit in call.limits]
            for target in targets:
                self.limiter.pause(target, error.after_s)
        elif isinstance(error, MonthSpent):
            log.warning("feishu_month_spent", app_id=self.app_id)
            self.budget.spend_all()
        elif isinstance(error, GiveUp):
            log.warning("feishu_call_refused", api=call.api, code=error.code, reason=str(error))

    def _tell(self, api: str, *, ok: bool) -> None:
        for hook in self.on_call:
            hook(api, ok)

    async def _fetch_token(self) -> Token:
        """POST auth/v3/tenant_access_token/internal (feishu.md §3); not counted against the month."""
        request = HttpRequest(
            "POST",
            f"{self._base_url}/open-apis/auth/v3/tenant_access_token/internal",
            body={"app_id": self.app_id, "app_secret": self._app_secret},
        )
        try:
            answer = await self._exchange("token", request)
        except PlatformError as error:
            self._tell("token", ok=False)
            self.trouble = str(error)
            if isinstance(error, GiveUp):
                log.warning("feishu_token_refused", code=error.code, reason=str(error))
            raise
        self._tell("token", ok=True)
        value, lifetime_s = answer.get("tenant_access_token"), answer.get("expire")
        if not isinstance(value, str) or not value or not isinstance(lifetime_s, (int, float)):
            raise RetryLater("token: Feishu's answer holds no token", after_s=5.0)
        return Token(value, float(lifetime_s))

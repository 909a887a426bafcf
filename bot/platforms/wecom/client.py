"""One self-built app's way to the API: token, limits, judgement (wecom.md §4). No knowledge of answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import structlog

from bot.domain.pacing import Pressure
from bot.errors import Ambiguous, GiveUp, PlatformError, RetryLater, TargetGone
from bot.platforms.budget import CallBudget
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp, Token, TokenSource
from bot.platforms.limits import Limit, RateLimiter
from bot.platforms.wecom.errors import SlowDown, TokenRefused, judge_http

log = structlog.get_logger()

# 30 messages a minute and 1000 an hour to one person (§4.3); what is above that vanishes without a word. In a minute a
# bucket lets through its burst and a minute's rate together.
_BURST = 3.0
_MOST_PER_MINUTE = 29.0
_PER_HOUR = (900 / 3600, 80.0)
_MAX_WAIT_S = 30.0


class WeComClient:
    """Makes calls for one app. Owns its token and its limiter. Addresses hold secrets: none of them is ever logged."""

    def __init__(
        self,
        base_url: str,
        credentials: tuple[str, str],
        http: SharedHttp,
        budget: CallBudget,
        *,
        per_minute: int = 20,
    ) -> None:
        self._base_url = base_url
        self._corp_id, self._corp_secret = credentials
        self._http = http
        self.budget = budget
        self._pace = (per_minute / 60, min(_BURST, _MOST_PER_MINUTE - per_minute))
        self.tokens = TokenSource(self._fetch_token)
        self.limiter = RateLimiter()
        self.pressure = Pressure()
        self.on_call: list[Callable[[str, bool], None]] = []
        # Why the last call failed where that is no matter of one message; "" since a call was done.
        self.trouble = ""

    async def turn_of(self, user_id: str) -> None:
        """Wait until one more message may go to a person, with a token at hand. Raises PlatformError."""
        await self.tokens.get()
        target = f"user:{user_id}"
        limits = (Limit(target, *self._pace), Limit(target, *_PER_HOUR))
        await self.limiter.acquire(limits, max_wait_s=_MAX_WAIT_S)

    async def send(self, user_id: str, agent_id: int, msgtype: str, content: str) -> str:
        """POST message/send to one person, whose turn it is; returns the message's id. Raises PlatformError."""
        body = {
            "touser": user_id,
            "agentid": agent_id,
            "msgtype": msgtype,
            msgtype: {"content": content},
        }
        answer = await self._call("message_send", "/cgi-bin/message/send", body, f"user:{user_id}")
        if answer.get("invaliduser") or answer.get("unlicenseduser"):
            raise TargetGone("message_send: the person cannot be reached by this app")
        message_id = answer.get("msgid")
        return message_id if isinstance(message_id, str) else ""

    async def media(self, media_id: str, *, max_bytes: int) -> HttpAnswer:
        """GET media/get: an attachment that somebody sent. Raises PlatformError, TooLarge among them."""
        for last in (False, True):
            token = await self.tokens.get()
            query = urlencode({"access_token": token, "media_id": media_id})
            url = f"{self._base_url}/cgi-bin/media/get?{query}"
            answer = await self._http.exchange(
                HttpRequest("GET", url, timeout_s=60.0, max_bytes=max_bytes)
            )
            # A file comes with its name; a refusal is bare JSON.
            has_name = "content-disposition" in answer.headers
            is_file = answer.status == 200 and (has_name or answer.json() is None)
            error = None if is_file else judge_http("media_get", answer, runs_out=True)
            if error is None:
                return answer
            if not isinstance(error, TokenRefused) or last:
                raise error
            self.tokens.invalidate(token)
        raise AssertionError("unreachable: the second round returns or raises")

    async def _call(
        self, api: str, path: str, body: Mapping[str, Any], target: str
    ) -> dict[str, Any]:
        """Make a call; an invalid token is replaced once."""
        for last in (False, True):
            token = await self.tokens.get()
            url = f"{self._base_url}{path}?{urlencode({'access_token': token})}"
            try:
                answer = await self._exchange(api, HttpRequest("POST", url, body=body))
            except TokenRefused as error:
                self.tokens.invalidate(token)
                if last:
                    raise RetryLater(str(error), code=error.code, after_s=5.0) from None
            except SlowDown as error:
                self.pressure.hit(time.monotonic())
                self.limiter.pause(target, error.after_s)
                raise
            else:
                self.budget.count()
                return answer
        raise AssertionError("unreachable: the second round returns or raises")

    async def _exchange(self, api: str, request: HttpRequest) -> dict[str, Any]:
        try:
            answer = await self._http.exchange(request)
            error = judge_http(api, answer)
            if error is not None:
                raise error
        except PlatformError as error:
            self._note(api, error)
            raise
        self.trouble = ""
        self._tell(api, ok=True)
        return answer.json() or {}

    def _note(self, api: str, error: PlatformError) -> None:
        self._tell(api, ok=False)
        if isinstance(error, (RetryLater, Ambiguous, GiveUp)):
            self.trouble = str(error)
        if isinstance(error, GiveUp):
            log.warning("wecom_call_refused", api=api, code=error.code, reason=str(error))

    def _tell(self, api: str, *, ok: bool) -> None:
        for hook in self.on_call:
            hook(api, ok)

    async def _fetch_token(self) -> Token:
        """GET gettoken (§4.1): one token per app's secret."""
        query = urlencode({"corpid": self._corp_id, "corpsecret": self._corp_secret})
        request = HttpRequest("GET", f"{self._base_url}/cgi-bin/gettoken?{query}")
        try:
            answer = await self._exchange("gettoken", request)
        except TokenRefused as error:
            raise GiveUp("gettoken: corp_secret is wrong", code=error.code) from None
        except Ambiguous as error:  # asking again does no harm, and the call behind it was not made
            raise RetryLater(str(error)) from None
        value, lifetime_s = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(value, str) or not value:
            raise RetryLater("gettoken: WeCom's answer holds no token", after_s=5.0)
        if not isinstance(lifetime_s, (int, float)) or lifetime_s <= 0:
            raise RetryLater("gettoken: WeCom does not say how long its token holds", after_s=5.0)
        return Token(value, float(lifetime_s))

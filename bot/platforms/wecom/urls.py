"""The second way to answer a callback: each message's `response_url`, one use within an hour (wecom.md §2.6).

Owns the unused URLs of this process by chat: a question asked again (/retry) has used its own and takes that of the
person's newest message there. No token, no encryption, plain JSON.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from bot.errors import GiveUp
from bot.platforms.http import HttpRequest, SharedHttp
from bot.platforms.wecom.errors import TokenRefused, judge_http

_LIFE_S = 3540.0
_PER_PLACE = 8
_MAX_PLACES = 5000


class ResponseUrls:
    """One per AI bot by callback."""

    def __init__(self, http: SharedHttp, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._http = http
        self._clock = clock
        self._unused: dict[tuple[str, str], deque[tuple[float, str]]] = {}

    def remember(self, place: tuple[str, str], url: str) -> None:
        """A message came with a URL."""
        known = self._unused.pop(place, None) or deque(maxlen=_PER_PLACE)
        if url and all(url != other for _, other in known):
            known.append((self._clock() + _LIFE_S, url))
        self._unused[place] = known  # the newest place last
        while len(self._unused) > _MAX_PLACES:
            self._unused.pop(next(iter(self._unused)))

    def newest(self, place: tuple[str, str], refused: set[str]) -> str:
        """An unused URL that leads to the same person in the same chat, "" when there is none."""
        for until, url in reversed(self._unused.get(place, ())):
            if url not in refused and until > self._clock():
                return url
        return ""

    async def post(self, place: tuple[str, str], url: str, markdown: str) -> None:
        """Use a URL. Raises PlatformError."""
        self._forget(place, url)
        body = {"msgtype": "markdown", "markdown": {"content": markdown}}
        answer = await self._http.exchange(HttpRequest("POST", url, body=body))
        error = judge_http("response_url", answer, runs_out=True)
        if isinstance(error, TokenRefused):  # it has no token: this URL is no good
            raise GiveUp(str(error), code=error.code)
        if error is not None:
            raise error

    def _forget(self, place: tuple[str, str], url: str) -> None:
        known = self._unused.get(place)
        if known:
            self._unused[place] = deque((e for e in known if e[1] != url), maxlen=_PER_PLACE)

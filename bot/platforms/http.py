"""Outgoing HTTP of all platforms: one connection pool, one mapping of transport faults to the error tree, access tokens.

Must not know a platform's codes: a caller gets status, headers and bytes and judges them itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import structlog

from bot.errors import Ambiguous, GiveUp, PlatformError, RetryLater

log = structlog.get_logger()

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_CONNECT_S = 5.0
_MAX_ANSWER_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One call. `body` is sent as JSON when given."""

    method: str
    url: str
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 15.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back: header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any] | None:
        """The body as a JSON object; None when it is anything else (a gateway's HTML page)."""
        try:
            parsed = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return parsed if isinstance(parsed, dict) else None


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL; NO_PROXY is honoured and loopback is always direct."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in _LOOPBACK:
        return None
    proxies = getproxies()
    if proxy_bypass(host):
        return None
    return proxies.get(parts.scheme) or proxies.get("all") or None


class SharedHttp:
    """The one aiohttp session for every REST call of every bot. Opened and closed by the composition root."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the connection pool."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=200, limit_per_host=64, keepalive_timeout=30),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
            )

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def exchange(self, request: HttpRequest) -> HttpAnswer:
        """Make a call. Raises RetryLater when it certainly did not arrive, Ambiguous when it may have."""
        where = f"{request.method} {request.url.partition('?')[0]}"
        try:
            return await self._move(request)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise RetryLater(f"{where}: no connection ({type(error).__name__})") from None
        except TimeoutError:
            raise Ambiguous(f"{where}: no answer within {request.timeout_s:g} s") from None
        except ValueError:  # aiohttp.InvalidURL is one, too
            raise GiveUp(f"{where}: the address is not a valid URL") from None
        except (aiohttp.ClientHttpProxyError, aiohttp.ClientProxyConnectionError):
            raise RetryLater(f"{where}: the proxy refused the connection") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Ambiguous(f"{where}: connection lost ({type(error).__name__})") from None

    async def _move(self, request: HttpRequest) -> HttpAnswer:
        """Move the bytes: the only method that a test double replaces."""
        if self._session is None:
            raise RuntimeError("SharedHttp.start() was not awaited")
        headers = dict(request.headers)
        data: bytes | None = None
        if request.body is not None:
            data = json.dumps(request.body, ensure_ascii=False).encode("utf-8", "replace")
            headers.setdefault("Content-Type", "application/json; charset=utf-8")
        timeout = aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=_CONNECT_S)
        async with self._session.request(
            request.method,
            request.url,
            data=data,
            headers=headers,
            timeout=timeout,
            proxy=proxy_for(request.url),
            allow_redirects=False,
        ) as response:
            body = await response.content.read(_MAX_ANSWER_BYTES)
            while not response.content.at_eof() and len(body) < _MAX_ANSWER_BYTES:
                body += await response.content.read(_MAX_ANSWER_BYTES)
            lowered = {key.lower(): value for key, value in response.headers.items()}
            return HttpAnswer(response.status, lowered, body)


@dataclass(frozen=True, slots=True)
class Token:
    """An access token as a platform issued it, with its lifetime in seconds."""

    value: str
    lifetime_s: float


class TokenSource:
    """Keeps one access token fresh so that no call waits for it.

    Owns the token and the task that renews it when a fifth of its life is left; callers that come at the same moment share
    one fetch. `fetch` raises PlatformError.
    """

    def __init__(
        self, fetch: Callable[[], Awaitable[Token]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._token: Token | None = None
        self._expires_s = 0.0
        self._flight: asyncio.Task[Token] | None = None
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin renewing in the background."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="token-keeper")

    async def close(self) -> None:
        """End the background work."""
        tasks = [task for task in (self._keeper, self._flight) if task]
        self._keeper = self._flight = None
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, PlatformError):
                await task

    @property
    def known(self) -> bool:
        """A token that has not run out is at hand."""
        return self._token is not None and self._clock() < self._expires_s

    async def get(self) -> str:
        """A valid token, at once when one is at hand. Raises PlatformError when none can be had."""
        if self._token is not None and self._clock() < self._expires_s:
            return self._token.value
        return (await self._renew()).value

    def invalidate(self, value: str) -> None:
        """The platform refused this token: forget it, unless a newer one has come meanwhile."""
        if self._token is not None and self._token.value == value:
            self._token = None

    async def _renew(self) -> Token:
        if self._flight is None or self._flight.done():
            self._flight = asyncio.create_task(self._fetch_once(), name="token-fetch")
            # Its failure is told to whoever waits; when all of them have left, it is nobody's.
            self._flight.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._flight)

    async def _fetch_once(self) -> Token:
        token = await self._fetch()
        self._token = token
        self._expires_s = self._clock() + token.lifetime_s
        return token

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                token = await self._renew()
                failures = 0
                pause_s = max(0.5, token.lifetime_s * 0.8)
            except PlatformError as error:
                failures += 1
                pause_s = min(60.0, 0.5 * 2 ** min(failures, 8))
                log.warning("token_not_renewed", error=str(error), retry_in_s=pause_s)
            await asyncio.sleep(pause_s)

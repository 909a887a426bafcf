"""Outgoing HTTP of all platforms: one connection pool, one mapping of transport faults to the error tree, access tokens.

Must not know a platform's codes: a caller gets status, headers and bytes and judges them itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver, ResolveResult

from bot.errors import Ambiguous, GiveUp, PlatformError, RetryLater, TooLarge

log = structlog.get_logger()

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_CONNECT_S = 5.0
_MAX_ANSWER_BYTES = 8 * 2**20
_PIECE_BYTES = 2**18
# A page with one of these is of something between us and the platform (a proxy, a portal): it says nothing of the call.
BETWEEN = frozenset({301, 302, 303, 307, 308, 403, 407, 408})
BETWEEN_PAUSE_S = 30.0
_WRONG_PROXY = (
    "the proxy that the environment names is no http:// proxy: name one that is in HTTPS_PROXY"
)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One call. `body` is sent as JSON when given.

    `max_bytes`: a larger answer raises TooLarge (0 = it is cut at 8 MiB). `public_only`: no private address is asked, even
    when the host's name leads there.
    """

    method: str
    url: str
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 15.0
    max_bytes: int = 0
    public_only: bool = False


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
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    # Many write it without a scheme, as curl allows.
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy or None


class PublicResolver(AbstractResolver):
    """Names as the system resolves them, without private, loopback and other special addresses."""

    def __init__(self) -> None:
        self._system = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError when no public address is left."""
        found = await self._system.resolve(host, port, family)
        public = [one for one in found if ipaddress.ip_address(one["host"]).is_global]
        if not public:
            raise OSError(f"{host} has no public address")
        return public

    async def close(self) -> None:
        """Nothing is held open."""


class SharedHttp:
    """The aiohttp sessions for every REST call of every bot: one, and one that asks public addresses only. Opened and closed
    by the composition root."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._public: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the connection pools."""
        if self._session is None:
            self._session = _open_session(200, None)
            self._public = _open_session(16, PublicResolver())

    async def close(self) -> None:
        """Close every connection."""
        sessions = (self._session, self._public)
        self._session = self._public = None
        for session in sessions:
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
        proxy = proxy_for(request.url)
        # Behind a proxy it is the proxy that resolves names, and it may well have a private address itself.
        session = self._public if request.public_only and not proxy else self._session
        if proxy and urlsplit(proxy).scheme not in {"http", "https"}:
            raise RetryLater(_WRONG_PROXY)
        if session is None:
            raise RuntimeError("SharedHttp.start() was not awaited")
        headers = dict(request.headers)
        data: bytes | None = None
        if request.body is not None:
            data = json.dumps(request.body, ensure_ascii=False).encode("utf-8", "replace")
            headers.setdefault("Content-Type", "application/json; charset=utf-8")
        timeout = aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=_CONNECT_S)
        async with session.request(
            request.method,
            request.url,
            data=data,
            headers=headers,
            timeout=timeout,
            proxy=proxy,
            allow_redirects=False,
        ) as response:
            body = await _read_body(response, request)
            lowered = {key.lower(): value for key, value in response.headers.items()}
            return HttpAnswer(response.status, lowered, body)


def _open_session(limit: int, resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=limit, limit_per_host=64, keepalive_timeout=30, resolver=resolver
    )
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True
    )


async def _read_body(response: aiohttp.ClientResponse, request: HttpRequest) -> bytes:
    """As much as the caller wants; TooLarge as soon as it is certain that there is more. A long answer is read in pieces."""
    # A refusal may be longer than the file that is wanted.
    is_wanted = bool(request.max_bytes) and response.status == 200
    limit = request.max_bytes if is_wanted else _MAX_ANSWER_BYTES
    too_large = TooLarge(f"{request.method} {request.url.partition('?')[0]}: more than {limit} bytes")  # fmt: skip
    if is_wanted and (response.content_length or 0) > limit:
        raise too_large
    body = bytearray()
    while not response.content.at_eof() and len(body) <= limit:
        body += await response.content.read(min(_PIECE_BYTES, limit + 1 - len(body)))
    if is_wanted and len(body) > limit:
        raise too_large
    return bytes(body[:limit])


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

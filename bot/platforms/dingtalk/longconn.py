"""Stream mode: how a bot without a public address hears (dingtalk.md §2). One live connection, always a fresh ticket.

Owns the loop that keeps the connection, and the knowledge since when it stands or fails. When DingTalk announces that it
will close a connection, the next one is opened first and the old one is read until it ends. What a socket itself does
is in `socket.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import quote_plus

import aiohttp
import structlog
from yarl import URL

from bot.errors import GiveUp, PlatformError, RetryLater
from bot.platforms.base import MayConnect, always, permission
from bot.platforms.dingtalk.client import origin
from bot.platforms.dingtalk.socket import CARD_TOPIC, ROBOT_TOPIC, Ended, StreamSocket, Taker
from bot.platforms.http import HttpRequest, proxy_for

log = structlog.get_logger()

_OPEN_PATH = "/v1.0/gateway/connections/open"
_CONNECT_S = 15.0
_MAX_FRAME_BYTES = 4 * 2**20
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
# A connection that ended sooner than this counts as a failed one: the pauses go on growing.
_STABLE_S = 30.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class Exchanger(Protocol):
    """The part of a client that opening needs."""

    @property
    def api_base(self) -> str: ...

    async def exchange(self, api: str, request: HttpRequest) -> dict[str, Any]: ...


class StreamListener:
    """Keeps one app connected. `start` once, `close` once; in between it never gives up."""

    def __init__(
        self,
        client: Exchanger,
        credentials: tuple[str, str],
        *,
        cards: bool,
        heartbeat_s: float = 25.0,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._topics = [ROBOT_TOPIC, CARD_TOPIC] if cards else [ROBOT_TOPIC]
        self._heartbeat_s = heartbeat_s
        self._first_pause_s = first_pause_s
        self._session: aiohttp.ClientSession | None = None
        self._keeper: asyncio.Task[None] | None = None
        # Sockets that are no longer the live one: all of them, and those that are still read.
        self._leftovers: set[asyncio.Task[None]] = set()
        self._draining: set[asyncio.Task[None]] = set()
        self._since = datetime.now(UTC)
        self._deaf_why = "not connected yet"

    # -- life --------------------------------------------------------------------------------------------------------
    async def start(self, take: Taker, may_connect: MayConnect = always) -> None:
        """Begin to listen, as long as this process may; frames go to `take`."""
        if self._keeper is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
            keep = self._keep(take, may_connect)
            self._keeper = asyncio.create_task(keep, name="dingtalk-stream")

    async def close(self) -> None:
        """Hang up. What has been heard is still stored; it may be started again."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        for task in self._draining:
            task.cancel()
        if self._leftovers:  # each ends within seconds
            await asyncio.wait(self._leftovers)
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        if not self._deaf_why:
            self._since, self._deaf_why = datetime.now(UTC), "hung up"

    def health(self) -> Mapping[str, str]:
        """Since when we hear, or do not and why."""
        since = self._since.isoformat(timespec="seconds")
        if self._deaf_why:
            return {"deaf_since": since, "reason": self._deaf_why}
        return {"connected_since": since}

    # -- the connection ----------------------------------------------------------------------------------------------
    async def _keep(self, take: Taker, may_connect: MayConnect) -> None:
        failures = 0
        while True:
            await permission(may_connect)
            try:
                socket = StreamSocket(await self._connect(), take)
            except Exception as error:  # noqa: BLE001 - whatever it was, being deaf for ever is worse
                failures += 1
                self._deaf(str(error) if isinstance(error, PlatformError) else type(error).__name__)
                await asyncio.sleep(self._pause_s(failures))
                continue
            self._hears()
            began = time.monotonic()
            try:
                ended = await socket.read()
            except asyncio.CancelledError:
                await socket.end()
                raise
            stable = time.monotonic() - began > _STABLE_S
            if ended is Ended.ANNOUNCED:
                # It is read on while the next one is opened, at once unless each is sent away as soon as it stands:
                # nothing falls into the gap.
                draining = self._later(socket.drain())
                self._draining.add(draining)
                draining.add_done_callback(self._draining.discard)
                if stable or not failures:
                    failures = 0 if stable else 1
                    continue
            else:
                _ = self._later(socket.end())
            self._deaf(f"the connection ended ({ended.value})")
            failures = 0 if stable else failures + 1
            await asyncio.sleep(self._pause_s(failures))

    def _pause_s(self, failures: int) -> float:
        pause_s = min(_MAX_PAUSE_S, self._first_pause_s * 2.0 ** min(failures, 10))
        return pause_s * random.uniform(0.7, 1.3)  # noqa: S311 - only spreads reconnects

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._leftovers.add(task)
        task.add_done_callback(self._leftovers.discard)
        return task

    def _hears(self) -> None:
        if self._deaf_why:
            self._since, self._deaf_why = datetime.now(UTC), ""
            log.info("dingtalk_stream_connected")

    def _deaf(self, why: str) -> None:
        if not self._deaf_why:
            self._since = datetime.now(UTC)
            log.warning("dingtalk_stream_deaf", reason=why)
        self._deaf_why = why

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        url = await self._fresh_url()
        where = f"stream: {url.host}"
        proxy = proxy_for(str(url.with_scheme("https" if url.scheme == "wss" else "http")))
        if self._session is None:
            raise GiveUp("stream: closed")
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._session.ws_connect(
                    url, heartbeat=self._heartbeat_s, max_msg_size=_MAX_FRAME_BYTES, proxy=proxy
                )
        except TimeoutError:
            raise RetryLater(f"{where} does not answer") from None
        except aiohttp.WSServerHandshakeError as error:
            raise RetryLater(f"{where} refuses the ticket (HTTP {error.status})") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RetryLater(f"{where} cannot be reached ({type(error).__name__})") from None

    async def _fresh_url(self) -> URL:
        """Ask for a ticket (single use, 90 s). Neither it nor the secret is ever logged."""
        client_id, client_secret = self._credentials
        body = {
            "clientId": client_id,
            "clientSecret": client_secret,
            "subscriptions": [{"type": "CALLBACK", "topic": topic} for topic in self._topics],
            "ua": "hearth",
            "localIp": "127.0.0.1",
        }
        request = HttpRequest("POST", f"{self._client.api_base}{_OPEN_PATH}", body)
        answer = await self._client.exchange("stream_open", request)
        endpoint, ticket = answer.get("endpoint"), answer.get("ticket")
        if not isinstance(endpoint, str) or not isinstance(ticket, str) or not ticket:
            raise RetryLater("stream_open: DingTalk's answer holds no ticket")
        where = origin(endpoint)
        if where is None:
            raise RetryLater("stream_open: DingTalk names an address that is none")
        if where[0] != "wss" and not (where[0] == "ws" and where[1] in _LOOPBACK):
            raise GiveUp("stream_open: DingTalk names an address that is not encrypted")
        return URL(f"{endpoint}?ticket={quote_plus(ticket)}", encoded=True)

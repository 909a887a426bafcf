"""Feishu's long connection, for bots without a public address (feishu.md §6): lark-oapi's client, supervised.

lark-oapi brings the wire (frames, fragments, control messages). What it lacks is done here: a thread and a loop of its own
that can be stopped; an endpoint request that cannot hang; a watchdog for sockets that are silent; quick reconnects; and an
acknowledgement that is sent only after our store has committed. Importing the package takes about 4 s and 170 MB, so it
happens in the thread, and only for bots in this mode.

Events are stored concurrently, each within `STORE_S`: many that wait at the same moment share one commit. An event that was
not stored is answered with 500, and Feishu delivers it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from bot.errors import HearthError
from bot.platforms.base import MayConnect, always, permission

log = structlog.get_logger()

STORE_S: Final = 2.0
_ENDPOINT_S: Final = 10.0
_OPEN_S: Final = 15.0
_PING_S: Final = 15.0
_SILENT_S: Final = 40.0
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 20.0
_STABLE_S: Final = 30.0
_JOIN_S: Final = 3.0

# Takes the plain event; returns the synchronous answer to a button, or None. Raises HearthError when it was not stored.
Store = Callable[[bytes], Awaitable[dict[str, Any] | None]]


class LongConnection:
    """One bot's connection. `start` and `close` once, on the main event loop; in between it never gives up."""

    def __init__(
        self, api_base: str, app_id: str, app_secret: str, *, ping_s: float = _PING_S
    ) -> None:
        """`ping_s`: seconds between pings; after about 2.7 of them without a sign the socket counts as dead."""
        self._credentials = (api_base, app_id, app_secret)
        self._ping_s = ping_s
        self._silent_s = _SILENT_S * ping_s / _PING_S
        self._main: asyncio.AbstractEventLoop | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._may_connect: MayConnect = always
        self._store: Store | None = None
        self._since = datetime.now(UTC)
        self._deaf_why = "not connected yet"
        self._last_sign = 0.0
        self.n_connected = 0

    def start(self, store: Store, may_connect: MayConnect = always) -> None:
        """Begin, as long as this process may; events go to `store` on the event loop this is called in."""
        self._store = store
        self._may_connect = may_connect
        self._main = asyncio.get_running_loop()
        # Of this start alone: a thread that an earlier `close` did not wait out keeps seeing that it is to end.
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._closing,), name="feishu-long", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """End the connection and its thread. It may be started again."""
        self._closing.set()
        if self._own is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._own.call_soon_threadsafe(self._cancel_all)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_S)
            self._thread = None
        if not self._deaf_why:
            self._since, self._deaf_why = datetime.now(UTC), "hung up"

    def health(self) -> Mapping[str, str]:
        """Since when it is connected or deaf, and why."""
        since = self._since.isoformat(timespec="seconds")
        if self._deaf_why:
            return {"deaf_since": since, "reason": self._deaf_why}
        return {"connected_since": since}

    # -- in the thread -----------------------------------------------------------------------------------------------
    def _run(self, closing: threading.Event) -> None:
        try:
            asyncio.run(self._keep(closing))
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - the library cannot be imported: nobody else would say so
            self._deaf(f"lark-oapi cannot be used ({type(error).__name__}): install Hearth again")

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._own):
            task.cancel()

    async def _keep(self, closing: threading.Event) -> None:
        """One connection after the other."""
        self._own = asyncio.get_running_loop()
        from bot.platforms.feishu.larkclient import open_client

        pause_s = _FIRST_PAUSE_S
        while not closing.is_set():
            await permission(self._may_connect)
            began = time.monotonic()
            client = open_client(*self._credentials, take=self._take, on_sign=self._sign)
            try:
                async with asyncio.timeout(_ENDPOINT_S + _OPEN_S):
                    await client.connect()
                self._connected()
                why = await self._watch(client)
            except asyncio.CancelledError:
                await client.disconnect()
                raise
            except Exception as error:  # noqa: BLE001 - whatever it was, it is tried again
                why = _reason(error)
            await client.disconnect()
            self._deaf(why)
            if time.monotonic() - began >= _STABLE_S:
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s * random.uniform(0.7, 1.3))  # noqa: S311 - only spreads reconnects
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def _watch(self, client: Any) -> str:
        """Ping, and look for signs of life, until the connection ends. Returns why it ended."""
        while True:
            done, _ = await asyncio.wait({client.receiving}, timeout=self._ping_s)
            if done:
                return _reason(
                    client.receiving.exception() or ConnectionError("the connection ended")
                )
            if time.monotonic() - self._last_sign > self._silent_s:
                return "the connection was silent"
            # A peer that does not read either fills the buffer, and a ping waits for room.
            async with asyncio.timeout(self._ping_s):
                await client.ping()

    async def _take(self, payload: bytes) -> dict[str, Any] | None:
        """Have an event stored on the main loop. Raises when it was not, in time."""
        if self._main is None or self._store is None:
            raise RuntimeError("not started")
        stored = asyncio.run_coroutine_threadsafe(_awaited(self._store, payload), self._main)
        async with asyncio.timeout(STORE_S):
            return await asyncio.wrap_future(stored)

    def _sign(self) -> None:
        self._last_sign = time.monotonic()

    def _connected(self) -> None:
        self._sign()
        self.n_connected += 1
        self._since, self._deaf_why = datetime.now(UTC), ""
        log.info("feishu_long_connection_open", app_id=self._credentials[1])

    def _deaf(self, why: str) -> None:
        if not self._deaf_why:
            self._since = datetime.now(UTC)
        self._deaf_why = why
        log.warning("feishu_long_connection_lost", app_id=self._credentials[1], reason=why)


async def _awaited(store: Store, payload: bytes) -> dict[str, Any] | None:
    return await store(payload)


# What `requests` and `websockets` raise, which only the thread imports.
_REASONS: Final[Mapping[str, str]] = {
    "ConnectionClosedError": "the connection was lost",
    "ConnectionClosedOK": "Feishu ended the connection",
    "ConnectionError": "Feishu cannot be reached: check the network, the DNS and the firewall",
    "ConnectTimeout": "Feishu cannot be reached: check the network, the DNS and the firewall",
    "ReadTimeout": "Feishu did not answer in time",
    "gaierror": "Feishu's name is not known: check the DNS",
    "SSLError": "Feishu's certificate is not trusted here: check the clock, and what stands in between",
    "ProxyError": "the proxy that the environment names (HTTPS_PROXY) does not answer or refuses",
    "InvalidProxyURL": "the proxy that the environment names (HTTPS_PROXY) is no address",
    "InvalidProxy": "the proxy that the environment names (HTTPS_PROXY) is no address",
    "InvalidSchema": "the proxy that the environment names is no http:// proxy: name one that is in HTTPS_PROXY",
    "ImportError": "the proxy that the environment names is no http:// proxy: name one that is in HTTPS_PROXY",
}


def _reason(error: BaseException) -> str:
    """One clause for an admin; never an address, which holds a ticket."""
    code = getattr(error, "code", None)
    if code in {403, 514, 1000040344}:
        return (
            f"Feishu refuses the app id and secret (code {code}): check them and publish a version"
        )
    if code == 1000040350:
        return "too many connections of this app (50): is another program using it?"
    if isinstance(error, TimeoutError):
        return "Feishu did not answer in time"
    if isinstance(error, HearthError):
        return str(error)
    if isinstance(error, (ConnectionError, EOFError)):
        return "the connection was lost"
    name = type(error).__name__
    return _REASONS.get(name) or f"{name}{f' (code {code})' if code else ''}"


def plain_event(payload: bytes) -> dict[str, Any]:
    """The event of a frame. Raises ValueError for anything that is no JSON object."""
    data = json.loads(payload)
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - as json raises for what is no JSON at all
    return data

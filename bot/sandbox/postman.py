"""Brings a platform's pushes to the bot's URL: one request with a deadline as a platform makes it, and work for later.

Owns the HTTP session and the tasks of later attempts; ends them at close.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping

import aiohttp
from yarl import URL

from bot.sandbox.records import Attempt

_CONNECT_S = 2.0
REPLY_BYTES = 256 * 1024


class Postman:
    """`clock`: seconds, as in the platform's records. `reply_bytes`: how much of an answer is read."""

    def __init__(self, clock: Callable[[], float], reply_bytes: int = REPLY_BYTES) -> None:
        self._clock = clock
        self._reply_bytes = reply_bytes
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the session."""
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)

    async def close(self) -> None:
        """Cancel what is still to be tried, close the session."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def later(self, work: Coroutine[None, None, None], name: str) -> None:
        """Go on with it in the background, until `close`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def request(
        self,
        method: str,
        url: str | URL,
        limit_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Attempt:
        """One request: no redirects, 2 s to connect, the whole answer within the deadline."""
        if self._session is None:
            raise RuntimeError("the sandbox is not started: await sandbox.start() first")
        at, begin = self._clock(), time.perf_counter()
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=_CONNECT_S)
        status, error, text = 0, "", b""
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                text = await self._read(response)
                status = response.status
        except TimeoutError:
            error = "timeout"
        except aiohttp.ClientConnectorError:
            error = "connect"
        except aiohttp.ClientError:
            error = "closed"
        return Attempt(at, status, (time.perf_counter() - begin) * 1000, error, text)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > self._reply_bytes:
                break
        return b"".join(parts)

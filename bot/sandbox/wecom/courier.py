"""Carries sealed callbacks to the bot's URL: one POST with a deadline, more attempts after a failure, copies on demand.

Owns the HTTP session and the tasks of later attempts; ends them at close.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from bot.sandbox.records import Attempt, Push

if TYPE_CHECKING:
    from bot.sandbox.faults import Faults
    from bot.sandbox.records import Records
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.judge import Judge

_CONNECT_S = 2.0
_REPLY_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Letter:
    """One sealed callback. `topic` names the fault rules that fit: callback.message, callback.poll, callback.event."""

    topic: str
    query: Mapping[str, str]
    body: bytes
    content_type: str
    tries: int = 1

    @property
    def nonce(self) -> str:
        """The nonce in the URL."""
        return self.query["nonce"]


OnReply = Callable[[Attempt, bool], None]


class Courier:
    """Delivers to one URL. `copies` is how many times each message or event is delivered at once."""

    def __init__(self, config: WeComConfig, records: Records, faults: Faults, judge: Judge) -> None:
        self._config = config
        self._records = records
        self._faults = faults
        self._judge = judge
        self._session: aiohttp.ClientSession | None = None
        self._later: set[asyncio.Task[None]] = set()
        self.event_url = ""
        self.copies = 1

    async def start(self) -> None:
        """Open the session."""
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)

    async def close(self) -> None:
        """Cancel what is still to be tried, close the session."""
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)
        self._later.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def push(self, push: Push, letter: Letter, on_reply: OnReply) -> Push:
        """Deliver: returns after the first attempt (and its copies); a failure is tried again in the background.

        `on_reply(attempt, lost)` is called for each answer with status 200; `lost` when the fault rules say that it never
        reached WeCom.
        """
        self._records.add_push(push)
        if not self.event_url:
            return push
        copies = 1 if letter.topic == "callback.poll" else self.copies
        await asyncio.gather(*(self._attempt(push, letter, on_reply) for _ in range(copies)))
        if not push.acked and letter.tries > 1 and self._tried_again(push.attempts[-1]):
            task = asyncio.create_task(
                self._ladder(push, letter, on_reply), name=f"redeliver {push.event_id}"
            )
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        return push

    def _tried_again(self, attempt: Attempt) -> bool:
        return attempt.status == 0 or self._config.retry_status

    async def _ladder(self, push: Push, letter: Letter, on_reply: OnReply) -> None:
        for wait_s in self._config.redelivery_s[: letter.tries - 1]:
            await asyncio.sleep(wait_s)
            attempt = await self._attempt(push, letter, on_reply)
            if attempt.ok or not self._tried_again(attempt):
                return

    async def _attempt(self, push: Push, letter: Letter, on_reply: OnReply) -> Attempt:
        fault = self._faults.take(letter.topic)
        wait_s = self._faults.extra_latency_s() + (fault.latency_s if fault is not None else 0.0)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        drop = fault.drop if fault is not None else ""
        if drop == "before" or self._faults.is_down():
            attempt = Attempt(self._config.clock(), 0, 0.0, "connect")
        else:
            attempt = await self.post(
                letter.body, letter.query, {"Content-Type": letter.content_type}
            )
        if attempt.error == "timeout":
            self._judge.note(
                "answer_too_slow", f"{letter.topic} {push.event_id} try {len(push.attempts) + 1}"
            )
        answered = attempt
        if drop == "after" and attempt.ok:
            attempt = replace(attempt, status=0, error="closed")
        self._records.add_attempt(push, attempt)
        if answered.ok:
            on_reply(answered, attempt is not answered)
        return attempt

    async def post(
        self, body: bytes, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Attempt:
        """One POST: no redirects, the whole answer within the deadline."""
        return await self._request("POST", URL(self.event_url).with_query(dict(query)), self._config.deadline_s,
                                   body, headers)  # fmt: skip

    async def check(self, raw_query: str) -> Attempt:
        """The console's GET, with the query exactly as given."""
        url = URL(f"{self.event_url}?{raw_query}", encoded=True)
        return await self._request("GET", url, self._config.url_check_s, None, {})

    async def _request(
        self, method: str, url: URL, limit_s: float, body: bytes | None, headers: Mapping[str, str]
    ) -> Attempt:
        if self._session is None:
            raise RuntimeError("the sandbox is not started: await sandbox.start() first")
        at, begin = self._config.clock(), time.perf_counter()
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=_CONNECT_S)
        status, error, text = 0, "", b""
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                text = await _read(response)
                status = response.status
        except TimeoutError:
            error = "timeout"
        except aiohttp.ClientConnectorError:
            error = "connect"
        except aiohttp.ClientError:
            error = "closed"
        return Attempt(at, status, (time.perf_counter() - begin) * 1000, error, text)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, at most what ten images take."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > _REPLY_BYTES * 4:
            break
    return b"".join(parts)

"""Carries pushes to the bot: signed HTTP or the Stream gateway, waits for the acknowledgement, tries again on the ladder.

The ladders are those of dingtalk.md §1.3 and §2.3.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from bot.sandbox.dingtalk import events
from bot.sandbox.dingtalk.sign import robot_sign
from bot.sandbox.postman import Postman
from bot.sandbox.records import Attempt, Push

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.gateway import Gateway
    from bot.sandbox.dingtalk.judge import Judge
    from bot.sandbox.records import Records

Json = dict[str, Any]


class Courier:
    """Robot messages go to `url` when there is one (HTTP mode), else through the gateway. `repeat` delivers each one again
    that many times, whatever the answer was."""

    def __init__(
        self, config: SandboxConfig, records: Records, gateway: Gateway, judge: Judge
    ) -> None:
        self._config = config
        self._records = records
        self._gateway = gateway
        self._judge = judge
        self._postman = Postman(config.clock)
        self.url = ""
        self.repeat = 0

    async def start(self) -> None:
        """Open the session."""
        await self._postman.start()

    async def close(self) -> None:
        """Cancel the retries, close the session."""
        await self._postman.close()

    def signed_headers(self) -> dict[str, str]:
        """`timestamp` and `sign`; the body is not part of it."""
        timestamp = str(int(self._config.clock() * 1000))
        return {
            "Content-Type": "application/json; charset=utf-8",
            "timestamp": timestamp,
            "sign": robot_sign(timestamp, self._config.client_secret),
        }

    async def push(self, payload: Json, *, retry: bool = True) -> Push:
        """A robot message: returns after the first attempt; one that failed is tried again in the background."""
        push = Push(
            str(payload.get("msgId", "")),
            events.ROBOT,
            payload,
            msgspec.json.encode(payload),
            False,
            way="webhook" if self.url else "stream",
        )
        self._records.add_push(push)
        headers = self.signed_headers()
        attempt = await self._attempt(push, headers)
        for _ in range(self.repeat):
            await self._attempt(push, headers)
        if retry and not attempt.ok and (attempt.error != "no connection" or self._keeps()):
            self._try_later(push, headers)
        return push

    async def event(
        self, event_type: str, event_id: str, data: Json, *, retry: bool = True
    ) -> Push:
        """An EVENT frame (Stream only)."""
        push = Push(event_id, event_type, data, msgspec.json.encode(data), False, way="stream")
        self._records.add_push(push)
        attempt = await self._attempt(push, {})
        if retry and not attempt.ok:
            self._try_later(push, {})
        return push

    def _keeps(self) -> bool:
        return self._config.stream_deaf == "retry"

    def _try_later(self, push: Push, headers: dict[str, str]) -> None:
        self._postman.later(self._ladder(push, headers), f"redeliver {push.event_id}")

    async def _ladder(self, push: Push, headers: dict[str, str]) -> None:
        for wait_s in self._config.redelivery_s:
            await asyncio.sleep(wait_s)
            if self._config.retry_fresh_timestamp:
                headers = self.signed_headers()
            if (await self._attempt(push, headers)).ok:
                return

    async def _attempt(self, push: Push, headers: dict[str, str]) -> Attempt:
        config = self._config
        if push.way == "webhook":
            attempt = await self.post(self.url, push.body, headers, config.http_ack_s)
            if attempt.ok and attempt.body.strip() not in {b"", b"{}"}:
                self._judge.note("body_in_robot_reply", f"message {push.event_id}")
        elif push.event_type == events.ROBOT:
            attempt = await self._gateway.send(
                "CALLBACK", events.ROBOT, push.payload, config.stream_ack_s
            )
        else:
            more = events.event_headers(config, push.event_type, push.event_id)
            attempt = await self._gateway.send(
                "EVENT", push.event_type, push.payload, config.stream_ack_s, more
            )
        self._records.add_attempt(push, attempt)
        return attempt

    async def post(
        self, url: str, body: bytes, headers: dict[str, str], deadline_s: float
    ) -> Attempt:
        """One POST, the whole answer within the deadline."""
        return await self._postman.request("POST", url, deadline_s, body, headers)

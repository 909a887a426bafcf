"""Carries sealed callbacks to the bot's URL: one POST with a deadline, more attempts after a failure, copies on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from yarl import URL

from bot.sandbox.postman import Postman
from bot.sandbox.records import Attempt, Push

if TYPE_CHECKING:
    from bot.sandbox.faults import Faults
    from bot.sandbox.records import Records
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.judge import Judge

# What ten images take.
_REPLY_BYTES = 4 * 32 * 1024 * 1024


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
        self._postman = Postman(config.clock, _REPLY_BYTES)
        self.event_url = ""
        self.copies = 1

    async def start(self) -> None:
        """Open the session."""
        await self._postman.start()

    async def close(self) -> None:
        """Cancel what is still to be tried, close the session."""
        await self._postman.close()

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
            ladder = self._ladder(push, letter, on_reply)
            self._postman.later(ladder, f"redeliver {push.event_id}")
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
        """One POST, the whole answer within the deadline."""
        url = URL(self.event_url).with_query(dict(query))
        return await self._postman.request("POST", url, self._config.deadline_s, body, headers)

    async def check(self, raw_query: str) -> Attempt:
        """The console's GET, with the query exactly as given."""
        url = URL(f"{self.event_url}?{raw_query}", encoded=True)
        return await self._postman.request("GET", url, self._config.url_check_s)

"""The AI bot by callback: delivers messages and events, takes the passive replies, polls open streams (wecom.md §2).

Owns the polling tasks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from bot.sandbox.records import Attempt, Push
from bot.sandbox.wecom import events
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.wecom.replies import PASSIVE

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.courier import Courier
    from bot.sandbox.wecom.exchanges import Bubble, Exchange
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.replies import Replies
    from bot.sandbox.wecom.sealing import Sealing
    from bot.sandbox.wecom.streams import Streams

Json = dict[str, Any]
_MESSAGE_TRIES = 3


class CallbackDoor:
    """How an AI bot hears by HTTP."""

    def __init__(
        self,
        config: WeComConfig,
        courier: Courier,
        sealing: Sealing,
        replies: Replies,
        streams: Streams,
        judge: Judge,
    ) -> None:
        self._config = config
        self._courier = courier
        self._sealing = sealing
        self._replies = replies
        self._streams = streams
        self._judge = judge
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._promised: dict[str, str] = {}
        self._sent: dict[str, tuple[Exchange, Json, str]] = {}

    async def close(self) -> None:
        """End the polls."""
        for task in self._polls.values():
            task.cancel()
        await asyncio.gather(*self._polls.values(), return_exceptions=True)
        self._polls.clear()

    async def message(self, exchange: Exchange, body: Json) -> Push:
        """A person's message: up to three attempts."""
        return await self._deliver(exchange, body, "message", _MESSAGE_TRIES)

    async def event(self, exchange: Exchange, body: Json) -> Push:
        """An event: sent once, never again."""
        return await self._deliver(exchange, body, exchange.kind, 1)

    async def again(self, push: Push) -> Push:
        """A callback that was delivered before, once more."""
        exchange, body, slot = self._sent[push.event_id]
        return await self._deliver(exchange, body, slot, 1)

    async def _deliver(self, exchange: Exchange, body: Json, slot: str, tries: int) -> Push:
        if slot != "poll":
            self._sent[str(body["msgid"])] = (exchange, body, slot)
        plain = msgspec.json.encode(body)
        topic = f"callback.{slot if slot in {'message', 'poll'} else 'event'}"
        letter = self._sealing.letter(topic, plain, tries)
        push = Push(str(body["msgid"]), _type_of(body), body, letter.body, encrypted=True)

        def on_reply(attempt: Attempt, lost: bool) -> None:
            reply = self._sealing.open_json(attempt.body, letter.nonce, f"{slot} {exchange.msgid}")
            if lost:
                self._remember(exchange, reply)
            else:
                self._take(exchange, reply, slot)

        return await self._courier.push(push, letter, on_reply)

    def _remember(self, exchange: Exchange, reply: Json | None) -> None:
        """An answer that was lost on the way: the next attempt must name the same stream."""
        stream = (reply or {}).get("stream")
        if isinstance(stream, dict):
            self._promised.setdefault(exchange.msgid, str(stream.get("id")))

    def _take(self, exchange: Exchange, reply: Json | None, slot: str) -> None:
        if reply is None:
            if slot == "poll":
                self._judge.note(
                    "poll_answer", f"question {exchange.question_id}: no stream in the answer"
                )
            return
        stream = reply.get("stream")
        promised = self._promised.get(exchange.msgid)
        if promised and isinstance(stream, dict) and stream.get("id") != promised:
            self._judge.note(
                "stream_id_changed", f"question {exchange.question_id}: {stream.get('id')}"
            )
        if exchange.gave_up:
            self._judge.note("stream_too_late", f"question {exchange.question_id}")
            return
        try:
            self._replies.apply(exchange, reply, PASSIVE[slot], f"{slot} {exchange.msgid}")
        except ApiError:
            return  # WeCom shows nothing and says nothing; the violation is noted
        bubble = exchange.open_bubble
        if bubble is not None and exchange.msgid not in self._polls:
            task = asyncio.create_task(self._poll(exchange, bubble), name=f"poll {bubble.id}")
            self._polls[exchange.msgid] = task
            task.add_done_callback(lambda _: self._polls.pop(exchange.msgid, None))

    async def _poll(self, exchange: Exchange, bubble: Bubble) -> None:
        """Ask for the newest snapshot until it is final or the time is over."""
        until = exchange.at + self._config.limits.stream_life_s
        while not bubble.finished:
            await asyncio.sleep(self._config.poll_interval_s)
            if self._config.clock() >= until:
                self._streams.give_up(exchange)
                return
            await self._deliver(exchange, events.poll(self._config, exchange, bubble.id), "poll", 1)


def _type_of(body: Json) -> str:
    event = body.get("event")
    return str(event["eventtype"]) if isinstance(event, dict) else str(body["msgtype"])

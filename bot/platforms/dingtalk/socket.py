"""One connection of the stream: reads frames, has them stored, acknowledges them (dingtalk.md §2.2, §2.3).

A frame is acknowledged on the socket it came on, after it was stored: DingTalk forgets what is acknowledged. Storing has a
task of its own, so that a slow disk never holds up the answer to a ping.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import aiohttp
import structlog

from bot.errors import HearthError
from bot.platforms.dingtalk.content import mapping, string

log = structlog.get_logger()

ROBOT_TOPIC = "/v1.0/im/bot/messages/get"
CARD_TOPIC = "/v1.0/card/instances/callback"
# DingTalk announces a disconnect, is silent for 10 s, and closes (§2.2).
_DRAIN_S = 15.0
_END_S = 5.0
_MAX_WAITING = 1000
_MAX_BATCH = 32
# Nothing is sure to be delivered again, so what cannot be stored is tried for a while before it is left to DingTalk.
_STORE_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Ended(Enum):
    """Why reading ended."""

    ANNOUNCED = "announced by DingTalk"
    CLOSED = "closed by DingTalk"
    LOST = "no sign of life"


@dataclass(frozen=True, slots=True)
class Frame:
    """A callback: its topic and what it carries."""

    topic: str
    message_id: str
    data: Mapping[str, Any]


# Stores frames of one topic in one go and returns the answer's body (a button's); raises HearthError when it could not.
Taker = Callable[[str, tuple[Mapping[str, Any], ...]], Awaitable[Mapping[str, Any] | None]]


class StreamSocket:
    """Owns a websocket and the task that stores what came over it."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse, take: Taker) -> None:
        self._websocket = websocket
        self._take = take
        self._waiting: asyncio.Queue[Frame | None] = asyncio.Queue(_MAX_WAITING)
        self._worker = asyncio.create_task(self._work(), name="dingtalk-stream-store")

    async def read(self) -> Ended:
        """Read until DingTalk announces the end, closes, or gives no sign of life."""
        while True:
            message = await self._websocket.receive()
            match message.type:
                case aiohttp.WSMsgType.TEXT | aiohttp.WSMsgType.BINARY:
                    if await self._heard(message.data):
                        return Ended.ANNOUNCED
                case aiohttp.WSMsgType.ERROR:
                    return Ended.LOST
                case aiohttp.WSMsgType.CLOSE | aiohttp.WSMsgType.CLOSING | aiohttp.WSMsgType.CLOSED:
                    return Ended.LOST if self._websocket.close_code == 1006 else Ended.CLOSED
                case _:
                    pass

    async def drain(self) -> None:
        """Read on until DingTalk closes, then end; when cancelled, end at once."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    while await self.read() is Ended.ANNOUNCED:
                        pass
        finally:
            await self.end()

    async def end(self) -> None:
        """Close, after everything that was heard is stored, or cannot be for some seconds."""
        try:
            async with asyncio.timeout(_END_S):
                await self._waiting.put(None)
                await self._worker
        except TimeoutError:
            log.warning("dingtalk_stream_left_behind", frames=self._waiting.qsize())
        finally:
            self._worker.cancel()
            await self._websocket.close()
            # aiohttp leaves the connection under a socket that was lost to the garbage collector.
            self._websocket._response.close()

    # -- frames ------------------------------------------------------------------------------------------------------
    async def _heard(self, raw: str | bytes) -> bool:
        """Take one frame; True when it announces the end. What cannot be read is left alone."""
        try:
            frame = json.loads(raw)
        except (ValueError, RecursionError):
            frame = None
        headers = mapping(frame.get("headers")) if isinstance(frame, dict) else {}
        message_id = string(headers, "messageId")
        if not isinstance(frame, dict) or not message_id:
            log.debug("dingtalk_frame_unreadable")
            return False
        kind, topic = string(frame, "type"), string(headers, "topic")
        data = mapping(frame.get("data"))
        if kind == "SYSTEM":
            if topic == "ping":
                await self._acknowledge(message_id, {"opaque": string(data, "opaque")})
            return topic == "disconnect"
        if kind == "CALLBACK" and topic in {ROBOT_TOPIC, CARD_TOPIC}:
            self._queue(Frame(topic, message_id, data))
        elif kind == "EVENT":
            await self._acknowledge(message_id, {"status": "SUCCESS"})
        else:
            await self._acknowledge(message_id, {}, code=404, text="not subscribed")
        return False

    def _queue(self, frame: Frame) -> None:
        try:
            self._waiting.put_nowait(frame)
        except asyncio.QueueFull:  # not acknowledged: DingTalk may bring it again
            log.warning("dingtalk_stream_overrun")

    async def _work(self) -> None:
        held: Frame | None = None
        while True:
            first = held or await self._waiting.get()
            held = None
            if first is None:
                return
            batch = [first]
            # All waiting messages share one commit; a button's answer is its own.
            while (
                first.topic == ROBOT_TOPIC and len(batch) < _MAX_BATCH and not self._waiting.empty()
            ):
                following = self._waiting.get_nowait()
                if following is None or following.topic != ROBOT_TOPIC:
                    held = following
                    if following is None:
                        self._waiting.put_nowait(None)
                    break
                batch.append(following)
            await self._store(batch)

    async def _store(self, batch: list[Frame]) -> None:
        """Store frames and acknowledge them. What cannot be stored is not: DingTalk may bring it again."""
        for pause_s in (*_STORE_PAUSES_S, 0.0):
            try:
                body = await self._take(batch[0].topic, tuple(frame.data for frame in batch))
            except HearthError as error:
                log.warning("dingtalk_stream_not_stored", error=str(error), retry_in_s=pause_s)
                await asyncio.sleep(pause_s)
            except Exception as error:  # noqa: BLE001 - one frame must not end the hearing of all others
                log.warning("dingtalk_stream_fault", error=type(error).__name__)
                break
            else:
                for frame in batch:
                    await self._acknowledge(frame.message_id, {"response": body})
                return
        if len(batch) > 1:  # perhaps it is one of them that cannot be
            for frame in batch:
                await self._store_alone(frame)

    async def _store_alone(self, frame: Frame) -> None:
        try:
            await self._take(frame.topic, (frame.data,))
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("dingtalk_frame_dropped", error=type(error).__name__)
        else:
            await self._acknowledge(frame.message_id, {"response": None})

    async def _acknowledge(
        self, message_id: str, data: Mapping[str, Any], *, code: int = 200, text: str = "OK"
    ) -> None:
        answer = {
            "code": code,
            "headers": {"messageId": message_id, "contentType": "application/json"},
            "message": text,
            "data": json.dumps(data, ensure_ascii=False),
        }
        # A socket that is gone brings the frame again; it is known by its msgId then.
        with contextlib.suppress(aiohttp.ClientError, ConnectionError, RuntimeError):
            await self._websocket.send_str(json.dumps(answer, ensure_ascii=False))

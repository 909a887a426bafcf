"""What all replies over one long connection share: the frames, the pace, and which streams are on screen.

Owned by the adapter. Must not cut texts or decide what a reply shows: that is `pushreply.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bot.config import WeComBotConfig
from bot.domain.pacing import Pressure
from bot.domain.types import ReplyTarget
from bot.errors import PlatformError, RetryLater
from bot.platforms.limits import Limit, RateLimiter
from bot.platforms.wecom import style
from bot.platforms.wecom.errors import SlowDown
from bot.platforms.wecom.longconn import LongConnection

# 30 messages a minute and 1000 an hour per chat (§3.5): burst + rate × t stays under both.
_PER_MINUTE = (22 / 60, 7.0)
_PER_HOUR = (900 / 3600, 80.0)
# How long a question's req_id takes replies (§3.3), with a margin.
WINDOW = timedelta(hours=23, minutes=50)
_MAX_STREAMS = 5000


@dataclass(slots=True)
class OnScreen:
    """A stream that was opened, `opened_s` by the clock that nobody sets. `owner` is the turn whose answer it shows, "" while
    it is only a sign of life."""

    opened_at: datetime
    opened_s: float
    owner: str = ""


class PushDesk:
    """One per bot with a long connection."""

    def __init__(
        self,
        connection: LongConnection,
        config: WeComBotConfig,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connection = connection
        self.config = config
        self.now = now
        self._started_at = now()
        self._clock = clock
        self._pressure = Pressure()
        self._limiter = RateLimiter(clock=clock)
        self._streams: dict[str, OnScreen] = {}

    @property
    def life(self) -> timedelta:
        """How long a stream is made to grow."""
        return timedelta(seconds=self.config.stream_cutoff_s)

    def interval_s(self) -> float:
        """Seconds between two frames of one stream now."""
        return self.config.update_interval_s * self._pressure.factor(self._clock())

    # -- streams -----------------------------------------------------------------------------------------------------
    def on_screen(self, stream_id: str) -> OnScreen | None:
        """What is known of a stream."""
        return self._streams.get(stream_id)

    def note(self, stream_id: str, opened_at: datetime, owner: str = "") -> OnScreen:
        """A stream is being opened, or taken over by a turn."""
        known = self._streams.get(stream_id)
        if known is None:
            opened_s = self._clock() - max(0.0, (self.now() - opened_at).total_seconds())
            known = self._streams[stream_id] = OnScreen(opened_at, opened_s)
        known.owner = known.owner or owner
        while len(self._streams) > _MAX_STREAMS:
            self._streams.pop(next(iter(self._streams)))
        return known

    def age(self, stream_id: str) -> timedelta:
        """How long ago a stream was opened; none for one that is not known."""
        known = self._streams.get(stream_id)
        return timedelta(seconds=self._clock() - known.opened_s) if known else timedelta()

    def forget(self, stream_id: str) -> None:
        """It was not opened after all."""
        self._streams.pop(stream_id, None)

    # -- frames ------------------------------------------------------------------------------------------------------
    async def new_message(self, chat_id: str, max_wait_s: float = 10.0) -> None:
        """Wait until one more message may be written to a chat. Raises RetryLater when that takes longer than `max_wait_s`."""
        target = f"chat:{chat_id}"
        limits = (Limit(target, *_PER_MINUTE), Limit(target, *_PER_HOUR))
        await self._limiter.acquire(limits, max_wait_s=max_wait_s)

    async def frame(
        self,
        target: ReplyTarget,
        stream_id: str,
        content: str,
        *,
        finish: bool,
        first: bool = False,
    ) -> None:
        """Show a snapshot of a stream; the first may ask for a judgement (§2.3). Raises PlatformError."""
        stream: dict[str, Any] = {"id": stream_id, "finish": finish, "content": content}
        if first and self.config.feedback:
            stream["feedback"] = {"id": stream_id}
        body = {"msgtype": "stream", "stream": stream}
        await self._call("aibot_respond_msg", body, target.opaque.get("req", ""))

    async def send(self, target: ReplyTarget, markdown: str) -> None:
        """Write a message of our own to the target's chat. Raises PlatformError."""
        chat_type = 2 if target.opaque.get("group") else 1
        body = {
            "chatid": target.chat_id,
            "chat_type": chat_type,
            "msgtype": "markdown",
            "markdown": {"content": markdown},
        }
        await self._call("aibot_send_msg", body)

    async def _call(self, command: str, body: dict[str, Any], req_id: str = "") -> None:
        try:
            await self.connection.call(command, body, req_id)
        except SlowDown:
            self._pressure.hit(self._clock())
            raise

    # -- signs of life -----------------------------------------------------------------------------------------------
    async def show_placeholder(self, target: ReplyTarget) -> str:
        """Open the answer's bubble with moving dots. Returns the stream's id, "" when nothing was shown."""
        stream_id = target.opaque.get("stream", "")
        if not stream_id or stream_id in self._streams or not self.in_window(target):
            return ""
        try:
            await self.new_message(target.chat_id, max_wait_s=0.0)
        except RetryLater:  # the answers need what this chat still takes
            return ""
        self.note(stream_id, self.now())
        try:
            await self.frame(target, stream_id, style.PLACEHOLDER, finish=False, first=True)
        except PlatformError:
            known = self._streams.get(stream_id)
            if known is not None and not known.owner:
                self.forget(stream_id)
            return ""
        return stream_id

    async def end_placeholder(self, target: ReplyTarget, stream_id: str) -> None:
        """A bubble that no answer goes into points to where it is. Raises PlatformError."""
        known = self._streams.get(stream_id)
        if (known is not None and known.owner) or not self.in_window(target):
            return
        self.note(stream_id, self.now(), owner="-")
        await self.frame(target, stream_id, style.SEE_BELOW, finish=True)

    def perhaps_opened_at(self, target: ReplyTarget) -> datetime:
        """When the stream of a question may have been opened, if not by this process: not before the question came."""
        sent_at = self._sent_at(target)
        return sent_at if sent_at is not None and sent_at < self._started_at else self.now()

    def in_window(self, target: ReplyTarget) -> bool:
        """Whether the question's req_id still takes replies."""
        sent_at = self._sent_at(target)
        has_frame = bool(target.opaque.get("req"))
        return has_frame and sent_at is not None and self.now() - sent_at < WINDOW

    @staticmethod
    def _sent_at(target: ReplyTarget) -> datetime | None:
        try:
            return datetime.fromisoformat(target.opaque.get("sent_at", ""))
        except ValueError:
            return None

"""The streams that WeCom asks for (wecom.md §2.4, §5): the newest snapshot of each, and what becomes of abandoned ones.

One shelf per AI bot by callback. `receive` reads it when a refresh poll comes, the replies' drivers write it; both run on
the event loop, so nothing here awaits. Every stream comes to an end: by its driver, by its age, or because nobody answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bot.platforms.wecom.style import CONTINUED, PLACEHOLDER, SEE_BELOW, UNANSWERED, joined

# WeCom asks about once a second; after 6 minutes it stops.
POLLING_S = 360.0
_KEEP_FINAL_S = 150.0
_KEEP_S = 900.0
_MAX_STREAMS = 20_000
# A question that becomes a turn has a sign of life within a moment; one that does not (a refused person) never has.
_ORPHAN_AFTER_S = 30.0
# After a restart nobody knows which questions are still waiting.
_STRANGER_AFTER_S = 120.0
_SWEEP_EVERY_S = 30.0


@dataclass(slots=True)
class Stream:
    """One bubble. `upto_chars` is how much of the answer `content` holds; `taken_…` what a poll has come for; `pause` tells
    where the bubble would best end now, as text and characters."""

    id: str
    place: tuple[str, str]
    born_s: float
    stranger: bool = False
    content: str = PLACEHOLDER
    upto_chars: int = 0
    pause: Callable[[], tuple[str, int]] | None = None
    final: bool = False
    owner: str = ""
    awaited: bool = False
    ended_s: float = 0.0
    polled_s: float | None = None
    taken_upto: int = 0
    taken_final: bool = False
    taken: asyncio.Event = field(default_factory=asyncio.Event)

    def first_message(self) -> dict[str, Any]:
        """The passive reply to the question itself, which may ask for thumbs (§2.3): also when it is delivered again,
        since the first answer may have been lost."""
        message = self.message()
        message["stream"]["feedback"] = {"id": self.id}
        return message

    def message(self) -> dict[str, Any]:
        """The passive reply that shows it."""
        stream = {"id": self.id, "finish": self.final, "content": self.content or PLACEHOLDER}
        return {"msgtype": "stream", "stream": stream}


class StreamShelf:
    """Owns the streams of one bot. `cutoff_s` is the age at which one is closed, while WeCom still asks."""

    def __init__(self, cutoff_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.cutoff_s = min(cutoff_s, POLLING_S - 20.0)
        self._clock = clock
        self._streams: dict[str, Stream] = {}
        self._swept_s = clock()

    # -- for receive -------------------------------------------------------------------------------------------------
    def open(self, stream_id: str, place: tuple[str, str]) -> Stream:
        """The stream of a message just delivered: a new one, or the one of its first delivery."""
        self._sweep()
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._add(Stream(stream_id, place, self._clock()))
        stream.stranger = False
        stream.place = place
        return self._handed_out(stream)

    def poll(self, stream_id: str) -> Stream:
        """What a refresh poll is answered with; unknown ones are of an earlier process."""
        self._sweep()
        now = self._clock()
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._add(Stream(stream_id, ("", ""), now, stranger=True))
        if not stream.final:
            self._age(stream, now)
        stream.polled_s = now
        return self._handed_out(stream)

    @staticmethod
    def _handed_out(stream: Stream) -> Stream:
        """WeCom gets this snapshot now; if it is lost on the way, WeCom asks or delivers again."""
        stream.taken_upto = max(stream.taken_upto, stream.upto_chars)
        stream.taken_final = stream.taken_final or stream.final
        stream.taken.set()
        return stream

    def _age(self, stream: Stream, now: float) -> None:
        age_s = now - stream.born_s
        if age_s >= self.cutoff_s:
            shown, upto_chars = stream.pause() if stream.pause else ("", 0)
            self._end(stream, joined(shown, CONTINUED), upto_chars)
        elif age_s >= (_STRANGER_AFTER_S if stream.stranger else _ORPHAN_AFTER_S):
            self._end_if_abandoned(stream)

    def _end_if_abandoned(self, stream: Stream) -> None:
        if not stream.owner and not stream.awaited and not self._has_awaited_sibling(stream):
            self._end(stream, SEE_BELOW if stream.stranger else UNANSWERED, 0)

    def _has_awaited_sibling(self, stream: Stream) -> bool:
        """A further message of a person joins the question that waits, and has no sign of life of its own."""
        return any(
            other.awaited and not other.owner and not other.final and other.place == stream.place
            for other in self._streams.values()
        )

    # -- for the replies ---------------------------------------------------------------------------------------------
    def expect(self, stream_id: str) -> bool:
        """A turn will answer here. False for an unknown or ended stream."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.final:
            return False
        stream.awaited = True
        return True

    def let_go(self, stream_id: str) -> None:
        """The turn that was to answer here answers elsewhere, or not at all."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.owner and not stream.final:
            self._end(stream, SEE_BELOW, 0)

    def claim(
        self, stream_id: str, owner: str, place: tuple[str, str], age_s: float
    ) -> Stream | None:
        """The stream for a driver (`owner` is its turn); None when it has ended or is another's."""
        stream = self._streams.get(stream_id)
        if stream is None:
            if age_s >= self.cutoff_s:
                return None
            stream = self._add(Stream(stream_id, place, self._clock(), stranger=True))
        if stream.stranger:
            # Of what came to this process its own clock knows better, however the other one is set.
            stream.born_s = min(stream.born_s, self._clock() - age_s)
        if stream.final or stream.owner not in {"", owner}:
            return None
        stream.owner, stream.stranger, stream.place = owner, False, place
        return stream

    def put(
        self,
        stream: Stream,
        content: str,
        upto_chars: int,
        *,
        final: bool = False,
        pause: Callable[[], tuple[str, int]] | None = None,
    ) -> bool:
        """The newest snapshot. A stream that has ended meanwhile (a poll may end it at any await) is not changed: False."""
        if stream.final:
            return False
        if final:
            self._end(stream, content, upto_chars)
        else:
            stream.content, stream.upto_chars, stream.pause = content, upto_chars, pause
        return True

    def take_back(self, stream: Stream, content: str, upto_chars: int) -> None:
        """Nobody came for the final snapshot: show another one to whoever still comes."""
        stream.final = False
        self._end(stream, content, upto_chars)

    def close_older(self, stream: Stream) -> None:
        """A person's earlier messages that nobody answers joined this question: their bubbles point here."""
        for other in self._streams.values():
            older = other.place == stream.place and other.born_s <= stream.born_s
            if older and other is not stream and not other.owner and not other.final:
                self._end(other, SEE_BELOW, 0)

    async def wait_taken(self, stream: Stream, timeout_s: float) -> bool:
        """Wait until a poll came for the final snapshot."""
        until = self._clock() + timeout_s
        while not stream.taken_final and (left := until - self._clock()) > 0:
            stream.taken.clear()
            try:
                async with asyncio.timeout(left):
                    await stream.taken.wait()
            except TimeoutError:
                break
        return stream.taken_final

    @property
    def n_open(self) -> int:
        """How many streams have not ended."""
        return sum(not stream.final for stream in self._streams.values())

    # -- inside ------------------------------------------------------------------------------------------------------
    def _add(self, stream: Stream) -> Stream:
        while len(self._streams) >= _MAX_STREAMS:
            self._streams.pop(next(iter(self._streams)))
        self._streams[stream.id] = stream
        return stream

    def _end(self, stream: Stream, content: str, upto_chars: int) -> None:
        stream.content, stream.upto_chars, stream.final = content, upto_chars, True
        stream.pause = None
        stream.ended_s = self._clock()

    def _sweep(self) -> None:
        now = self._clock()
        if now - self._swept_s < _SWEEP_EVERY_S:
            return
        self._swept_s = now
        self._streams = {
            key: stream
            for key, stream in self._streams.items()
            if now - stream.born_s < _KEEP_S
            and not (stream.final and now - stream.ended_s > _KEEP_FINAL_S)
        }

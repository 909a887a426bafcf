"""Bytes to text as they come, and stop strings in it. Pure; knows no token ids and no tags.

Both classes belong to one reply and are used by one thread. Neither ever holds back more than it must: the decoder at
most 3 bytes, the matcher at most the longest stop string less one character.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Utf8Stream:
    """Decodes UTF-8 that arrives in arbitrary cuts; owned by one reply.

    A character spread over several pushes comes out when its last byte is there. Bytes that can never become a
    character come out as U+FFFD, one per maximal broken sequence, as soon as that is certain.
    """

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = _new_decoder(errors="replace")

    def push(self, data: bytes) -> str:
        """The characters that `data` completes."""
        return self._decoder.decode(data)

    @property
    def pending(self) -> bool:
        """Whether a character has begun and waits for its other bytes."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> None:
        """Forget a character that was never completed: a reply cut at its length or stopped inside one ends before it."""
        self._decoder.reset()


class StopMatcher:
    """Finds stop strings in streamed text; owned by one reply.

    The result does not depend on how the text was cut: the stop string that is *complete* first wins, of two complete
    at the same character the longer one. Text before it is let through, the string itself and all behind it is not.
    """

    __slots__ = ("_firsts", "_held", "_longest", "_stops", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        """Empty stop strings are ignored: they would end every reply before it began."""
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self.stopped = False

    @property
    def has_any(self) -> bool:
        """Whether it looks for anything."""
        return bool(self._stops)

    def push(self, text: str) -> str:
        """The text that is certain to be before any stop string; sets `stopped` when one is complete."""
        if not self._stops or not text:
            return text
        if self.stopped:
            return ""
        buffer = self._held + text
        cut = self._find(buffer)
        if cut >= 0:
            self.stopped = True
            self._held = ""
            return buffer[:cut]
        keep = self._prefix_at_end(buffer)
        self._held = buffer[keep:]
        return buffer[:keep]

    def finish(self) -> str:
        """The held-back beginning of a stop string that never came: it was text after all."""
        held, self._held = self._held, ""
        return held

    def _find(self, buffer: str) -> int:
        """Where the winning stop string starts, or -1."""
        best_end = len(buffer) + 1
        best_start = -1
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0:
                end = start + len(stop)
                if end < best_end or (end == best_end and start < best_start):
                    best_start, best_end = start, end
        return best_start

    def _prefix_at_end(self, buffer: str) -> int:
        """Where the longest suffix of `buffer` that begins some stop string starts (its length if there is none)."""
        n_chars = len(buffer)
        for start in range(max(0, n_chars - self._longest + 1), n_chars):
            if buffer[start] in self._firsts:
                suffix = buffer[start:]
                if any(stop.startswith(suffix) for stop in self._stops):
                    return start
        return n_chars

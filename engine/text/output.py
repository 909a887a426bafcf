"""From the ids of one reply to what people see of it: decoding, thinking, stop strings, and which ids are the answer.

Runs inside the decode loop, so a push costs a few microseconds. It never looks at ids itself: `token_bytes` says what an
id stands for. Give it the real bytes of "<think>" and "</think>" also where these are control tokens (else thinking cannot
be told from the answer), and b"" for every other control token. The end-of-generation token is not pushed.

Which ids are the answer, exactly. Every id covers the characters that its bytes begin, continue or complete. The answer
covers the characters from the first visible one to the last one let through; then
- `answer_start` is the number of ids that end before the answer begins: tags and the white space behind them are not answer;
- ids[answer_start : answer_start + n_answer] ends with the last id that holds a character of the answer.
An id that holds the end of the closing tag *and* answer text belongs to the answer, and so does one that holds answer
text *and* the start of a stop string: leaving it out would lose text that people have seen. Ids that hold nothing but (a
part of) the stop string, and ids without bytes at the end, do not belong. A held-back beginning of a stop string that
never came is answer. Without a thinking block `answer_start` is 0; when thinking never ended it is the number of all ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from engine.text.detok import StopMatcher, Utf8Stream
from engine.text.thinking import ThinkingSplitter


class Piece(msgspec.Struct, frozen=True):
    """What one push made visible. `stopped`: a stop string is complete and generation must end."""

    text: str = ""
    thinking: str = ""
    stopped: bool = False


_NOTHING = Piece()
_STOPPED = Piece(stopped=True)


class ReplyText:
    """Turns the ids of one reply into text; owned by the request that generates it.

    Stop strings are looked for in the visible answer only: a stop of two newlines must not end a reply in the middle of
    its thoughts. After a stop, pushes are ignored and not counted. `answer_start` and `n_answer` are valid at any time for
    what has been pushed so far, final after `finish()`.
    """

    __slots__ = (
        "_begins",
        "_ends",
        "_n_chars",
        "_n_visible",
        "_splitter",
        "_stops",
        "_token_bytes",
        "_utf8",
    )

    def __init__(
        self, token_bytes: Callable[[int], bytes], stop: Sequence[str], thinking_open: bool
    ) -> None:
        self._token_bytes = token_bytes
        self._utf8 = Utf8Stream()
        self._splitter = ThinkingSplitter(thinking_open)
        self._stops = StopMatcher(stop)
        # Per id: the first character it holds a byte of, and one past the last. Characters are counted over the reply.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._n_chars = 0
        self._n_visible = 0

    @property
    def has_stops(self) -> bool:
        """Whether there are stop strings at all."""
        return self._stops.has_any

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been completed."""
        return self._stops.stopped

    def push(self, token_id: int) -> Piece:
        """The next id of the reply."""
        if self._stops.stopped:
            return _STOPPED
        data = self._token_bytes(token_id)
        text = self._utf8.push(data)
        self._note_span(data, len(text))
        if not text:
            return _NOTHING
        if self._splitter.in_answer:
            return self._show("", text)
        return self._show(*self._splitter.push(text))

    def finish(self) -> Piece:
        """The reply is over: everything held back comes out. A second call gives nothing."""
        if self._stops.stopped:
            return _STOPPED
        self._utf8.finish()
        thinking, answer = self._splitter.finish()
        visible = self._stops.push(answer)
        visible += self._stops.finish()
        self._n_visible += len(visible)
        return Piece(visible, thinking, self._stops.stopped)

    @property
    def answer_start(self) -> int:
        """How many ids from the reply's first belong to thinking, not to the answer."""
        if not self._splitter.in_answer:
            return len(self._ends)
        answer_at = self._splitter.answer_at
        if answer_at == 0:
            return 0
        return next((i for i, end in enumerate(self._ends) if end > answer_at), len(self._ends))

    @property
    def n_answer(self) -> int:
        """How many ids from `answer_start` on are the visible answer."""
        if not self._n_visible:
            return 0
        answer_end = self._splitter.answer_at + self._n_visible
        last = len(self._begins)
        while last and self._begins[last - 1] >= answer_end:
            last -= 1
        return last - self.answer_start

    def _note_span(self, data: bytes, n_new_chars: int) -> None:
        begin = self._n_chars
        self._n_chars += n_new_chars
        # Bytes of an unfinished character belong to the next character that will come out. Few ids end inside one.
        unfinished = (not n_new_chars or data[-1] >= 0x80) and self._utf8.pending
        if not data:
            begin += unfinished
        self._begins.append(begin)
        self._ends.append(self._n_chars + unfinished if data else begin)

    def _show(self, thinking: str, answer: str) -> Piece:
        if answer:
            answer = self._stops.push(answer)
            self._n_visible += len(answer)
        stopped = self._stops.stopped
        if not (answer or thinking or stopped):
            return _NOTHING
        return Piece(answer, thinking, stopped)

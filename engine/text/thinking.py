"""Splits a reply into its thinking and its visible answer, as it streams. Pure; knows no token ids.

The rules, chosen so that no answer is ever swallowed because it talks about the tag:
- An opening tag counts only at the very beginning of the reply, white space aside. Anywhere later, in code or in prose,
  both tags are plain answer text.
- When the template has opened the block already (`thinking_open`), everything up to the first closing tag is thinking;
  a model that repeats the opening tag there does no harm.
- A closing tag alone at the very beginning of a reply that nobody opened ends an empty block and is dropped. A lone closing
  tag after answer text stays text: what people have seen cannot be turned into thinking.
- White space behind the closing tag is dropped. A block that never ends leaves the answer empty.
"""

from __future__ import annotations

from enum import Enum

OPEN_TAG = "<think>"
CLOSE_TAG = "</think>"
# White space at the start of a reply is held while a tag may follow; beyond this many characters it is the answer.
MAX_LEADING_CHARS = 64


class _State(Enum):
    START = 0  # nothing decided yet
    OPENED = 1  # in thinking, before its first visible character
    THINKING = 2
    TRIMMING = 3  # behind the closing tag, before the first visible character
    ANSWER = 4


class ThinkingSplitter:
    """Streaming parser of one reply; owned by it.

    After the answer has begun (`in_answer`), every push is returned as it is.
    `answer_at` is the offset in characters, counted over all pushed text, of the answer's first character;
    it is valid once `in_answer` is True.
    """

    __slots__ = ("_buffer", "_consumed", "_state", "answer_at")

    def __init__(self, thinking_open: bool) -> None:
        self._state = _State.OPENED if thinking_open else _State.START
        self._buffer = ""
        self._consumed = 0
        self.answer_at = 0

    @property
    def in_answer(self) -> bool:
        """Whether the visible answer has begun."""
        return self._state is _State.ANSWER

    def push(self, text: str) -> tuple[str, str]:
        """What became certain by `text`: (thinking, answer)."""
        if self._state is _State.ANSWER or not text:
            return "", text
        self._consumed += len(text)
        self._buffer += text
        if self._state is _State.START:
            self._decide()
        thinking = ""
        if self._state is _State.OPENED:
            self._skip_opening()
        if self._state is _State.THINKING:
            thinking = self._take_thinking()
        if self._state is _State.TRIMMING:
            self._trim()
        return thinking, self._take_answer()

    def finish(self) -> tuple[str, str]:
        """What was held back at the end: an unfinished closing tag is thinking, an undecided beginning is answer."""
        rest, self._buffer = self._buffer, ""
        if self._state is _State.START:
            self._state = _State.ANSWER
            return "", rest
        return rest, ""

    def _decide(self) -> None:
        body = self._buffer.lstrip()
        if len(self._buffer) - len(body) > MAX_LEADING_CHARS:
            self._begin_answer()
        elif body.startswith(OPEN_TAG):
            self._buffer = body[len(OPEN_TAG) :]
            self._state = _State.OPENED
        elif body.startswith(CLOSE_TAG):
            self._buffer = body[len(CLOSE_TAG) :]
            self._state = _State.TRIMMING
        elif not (OPEN_TAG.startswith(body) or CLOSE_TAG.startswith(body)):
            self._begin_answer()

    def _skip_opening(self) -> None:
        body = self._buffer.lstrip()
        while body.startswith(OPEN_TAG):
            body = body[len(OPEN_TAG) :].lstrip()
        self._buffer = body
        if not OPEN_TAG.startswith(body):
            self._state = _State.THINKING

    def _take_thinking(self) -> str:
        end = self._buffer.find(CLOSE_TAG)
        if end >= 0:
            thinking = self._buffer[:end]
            self._buffer = self._buffer[end + len(CLOSE_TAG) :]
            self._state = _State.TRIMMING
            return thinking
        keep = _tag_prefix_at_end(self._buffer)
        thinking = self._buffer[:keep]
        self._buffer = self._buffer[keep:]
        return thinking

    def _trim(self) -> None:
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._begin_answer()

    def _begin_answer(self) -> None:
        self._state = _State.ANSWER
        self.answer_at = self._consumed - len(self._buffer)

    def _take_answer(self) -> str:
        if self._state is not _State.ANSWER:
            return ""
        answer, self._buffer = self._buffer, ""
        return answer


def strip_thinking(text: str) -> str:
    """The visible answer of a finished reply; a text whose block never ends is returned as it is."""
    body = text.lstrip()
    if not body.startswith(OPEN_TAG):
        return text
    _, closed, answer = body.partition(CLOSE_TAG)
    return answer.lstrip() if closed else text


def opens_thinking(generation_prompt: str) -> bool:
    """Whether a prompt ends inside a thinking block."""
    return generation_prompt.rfind(OPEN_TAG) > generation_prompt.rfind(CLOSE_TAG)


def _tag_prefix_at_end(buffer: str) -> int:
    """Where the longest suffix that begins a closing tag starts."""
    start = buffer.rfind("<", max(0, len(buffer) - len(CLOSE_TAG) + 1))
    if start >= 0 and CLOSE_TAG.startswith(buffer[start:]):
        return start
    return len(buffer)

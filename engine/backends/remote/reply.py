"""One streamed reply of a remote model, from chunks to engine events. Pure but for the clock.

Owns what has come so far: what was visible, why it ended, what it cost. Must not do I/O.
"""

from __future__ import annotations

import time
from typing import Final

from engine.backends.remote.protocol import Chunk, RemoteFailure
from engine.link.mailbox import Mailbox
from engine.text.thinking import ThinkingSplitter
from engine.types import (
    Delta,
    EngineRequest,
    FailureCode,
    Finished,
    FinishReason,
    Started,
    Usage,
)

# Few tokens are longer than 16 characters; runs of blanks may be, and servers that ignore `max_tokens` end somewhere.
_MAX_TOKEN_CHARS: Final = 32
_SPARE_CHARS: Final = 1024


class Reply:
    """What has come of one reply. Owner: its task."""

    def __init__(self, request: EngineRequest, box: Mailbox, accepted_at: float) -> None:
        self._request = request
        self._box = box
        self._splitter = ThinkingSplitter(request.thinking_open)
        self._accepted_at = accepted_at
        self._sent_at = accepted_at
        self._first_at: float | None = None
        self._finish_reason = ""
        self._done = False
        self._counts = Chunk()
        self._n_chunks = 0
        self._n_chars = 0

    def sent(self) -> None:
        """The request leaves the line."""
        self._sent_at = time.monotonic()

    @property
    def overdone(self) -> bool:
        """Whether the server goes on far beyond the tokens that it was asked for."""
        return self._n_chars > _SPARE_CHARS + _MAX_TOKEN_CHARS * self._request.max_new_tokens

    def take(self, chunk: Chunk) -> bool:
        """Turn a chunk into events. False = that was enough."""
        self._n_chars += len(chunk.text) + len(chunk.thinking)
        if self._n_chunks == 0:
            self._box.put(Started(request_id=self._request.id, cached_tokens=0))
        self._n_chunks += 1
        thought, answer = self._splitter.push(chunk.text)
        self._show(chunk.thinking + thought, answer)
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._done = self._done or chunk.done
        if (
            chunk.n_prompt is not None
            or chunk.n_generated is not None
            or chunk.n_cached is not None
        ):
            self._counts = chunk
        return not self.overdone

    def end(self) -> Finished:
        """The terminal event of a stream that ended. Raises RemoteFailure when it was cut off."""
        if self.overdone:
            self._finish_reason = "length"
        if not self._finish_reason and not self._done:
            message = "the server ended the stream in the middle of the reply"
            raise RemoteFailure(FailureCode.UPSTREAM, message, retryable=True, retry_after_s=2.0)
        self._show(*self._splitter.finish())
        length = self._finish_reason in {"length", "max_tokens"}
        return self.finished(FinishReason.LENGTH if length else FinishReason.STOP)

    def finished(self, reason: FinishReason) -> Finished:
        """A terminal event with what is known of the cost."""
        now = time.monotonic()
        first_at = self._first_at or now
        usage = Usage(
            n_prompt=self._counts.n_prompt or 0,
            n_cached=self._counts.n_cached or 0,
            n_generated=self._counts.n_generated or 0,
            queue_s=self._sent_at - self._accepted_at,
            prefill_s=first_at - self._sent_at,
            decode_s=now - first_at,
        )
        return Finished(request_id=self._request.id, reason=reason, usage=usage)

    def _show(self, thinking: str, text: str) -> None:
        if not thinking and not text:
            return
        if self._first_at is None:
            self._first_at = time.monotonic()
        self._box.put(
            Delta(request_id=self._request.id, token_ids=(), text=text, thinking=thinking)
        )

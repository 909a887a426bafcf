"""What the parent is waiting for: open requests and open questions of the current child.

Owns the mailboxes and futures. Must not talk to the child. Each request travels under a wire id that is used once, so
that late events of a request which its reader has left cannot end another one of the same id.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import msgspec

from engine.errors import EngineUnavailable
from engine.link.mailbox import Mailbox
from engine.types import EngineEvent, Failed, FailureCode


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request whose terminal event has not been read."""

    request_id: str
    wire_id: str
    mailbox: Mailbox


class Inflight:
    """Owner: the event loop, through one `EngineProcess`."""

    def __init__(self) -> None:
        self._by_id: dict[str, OpenRequest] = {}
        self._by_wire_id: dict[str, OpenRequest] = {}
        self._questions: dict[int, asyncio.Future[object]] = {}
        self._numbers = itertools.count(1)

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._by_id and not self._questions

    def open(self, request_id: str) -> OpenRequest | None:
        """Register a request; None when one of this id is open already."""
        if request_id in self._by_id:
            return None
        entry = OpenRequest(request_id, f"{request_id}#{next(self._numbers)}", Mailbox())
        self._by_id[request_id] = entry
        self._by_wire_id[entry.wire_id] = entry
        return entry

    def close(self, entry: OpenRequest) -> None:
        """Its reader is done with it or has left."""
        self._by_id.pop(entry.request_id, None)
        self._by_wire_id.pop(entry.wire_id, None)

    def wire_id(self, request_id: str) -> str | None:
        """What the child calls an open request."""
        entry = self._by_id.get(request_id)
        return entry.wire_id if entry else None

    def deliver(self, event: EngineEvent) -> None:
        """Hand an event of the child to its reader; dropped when the reader has left."""
        entry = self._by_wire_id.get(event.request_id)
        if entry is not None:
            entry.mailbox.put(msgspec.structs.replace(event, request_id=entry.request_id))

    def ask(self) -> tuple[int, asyncio.Future[object]]:
        """A number and the future of its answer; the asker calls `drop` when it is done."""
        seq = next(self._numbers)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._questions[seq] = future
        return seq, future

    def drop(self, seq: int) -> None:
        """The asker no longer waits."""
        self._questions.pop(seq, None)

    def answer(self, seq: int, value: object) -> None:
        """An answer has come; nobody may be waiting for it any more."""
        future = self._questions.pop(seq, None)
        if future is not None and not future.done():
            future.set_result(value)

    def refuse(self, seq: int, error: Exception) -> None:
        """A question has no answer."""
        future = self._questions.pop(seq, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def fail_all(self, message: str, retry_after_s: float) -> int:
        """The child is gone: end everything, as retryable. Returns how many requests were open."""
        open_requests = [entry for entry in self._by_id.values() if not entry.mailbox.ended]
        for entry in open_requests:
            entry.mailbox.put(
                Failed(
                    request_id=entry.request_id,
                    code=FailureCode.ENGINE_DIED,
                    retryable=True,
                    message=message,
                    retry_after_s=retry_after_s,
                )
            )
        for seq in list(self._questions):
            self.refuse(seq, EngineUnavailable(message))
        return len(open_requests)

"""What happened on the wire of a played platform: API calls and pushes. Owns both lists and tells whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Call:
    """One API call. `status` 0 = the connection was cut. `request` is the parsed body; `target` holds the path's ids.

    `code` is the platform's business code: a number or a word, falsy when all went well.
    """

    id: int
    at: float
    api: str
    method: str
    path: str
    status: int
    code: int | str
    ms: float
    request: dict[str, Any]
    response: dict[str, Any]
    target: dict[str, str]
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One delivery to the bot. `status` 0 = no answer; `error` says why ("timeout", "connect", "closed")."""

    at: float
    status: int
    ms: float
    error: str = ""
    body: bytes = b""

    @property
    def ok(self) -> bool:
        """The platform counts it as delivered: HTTP 200 in time."""
        return self.status == 200


@dataclass(slots=True, eq=False)
class Push:
    """One event on its way to the bot, with every attempt. `payload` is the plain event; `way` is how it travels."""

    event_id: str
    event_type: str
    payload: dict[str, Any]
    body: bytes
    encrypted: bool
    attempts: list[Attempt] = field(default_factory=list)
    way: Literal["webhook", "stream"] = "webhook"

    @property
    def acked(self) -> bool:
        """Delivered."""
        return any(attempt.ok for attempt in self.attempts)


class Records:
    """Owner of the lists of calls and pushes. The oldest half of the calls goes when there are too many."""

    def __init__(self, keep_calls: int) -> None:
        self.calls: list[Call] = []
        self.pushes: list[Push] = []
        self._keep = keep_calls
        self._next_id = 0
        self.on_push: list[Callable[[Push], None]] = []
        self.on_call: list[Callable[[Call], None]] = []
        self.on_attempt: list[Callable[[Push, Attempt], None]] = []

    def next_id(self) -> int:
        """A running number for a call."""
        self._next_id += 1
        return self._next_id

    def add_call(self, call: Call) -> None:
        """Keep a finished call."""
        self.calls.append(call)
        if len(self.calls) > self._keep:
            del self.calls[: self._keep // 2]
        for listener in self.on_call:
            listener(call)

    def add_push(self, push: Push) -> None:
        """Keep a push before its first attempt."""
        self.pushes.append(push)
        if len(self.pushes) > self._keep:
            del self.pushes[: self._keep // 2]
        for listener in self.on_push:
            listener(push)

    def add_attempt(self, push: Push, attempt: Attempt) -> None:
        """Keep the outcome of one POST."""
        push.attempts.append(attempt)
        for listener in self.on_attempt:
            listener(push, attempt)

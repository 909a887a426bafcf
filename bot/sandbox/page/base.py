"""What every platform's side of the page shares: telling it of changes, looking things up, taking back, delivering twice.

Owns the last push and the page's ear. What a sentence becomes and how things are drawn is the platform's (its page.py and
views.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from bot.sandbox.faults import Faults
    from bot.sandbox.page.server import Json, Send
    from bot.sandbox.records import Attempt, Push, Records


class Person(Protocol):
    """Somebody who writes."""

    @property
    def bot(self) -> bool:
        """The bot itself."""
        ...


class Written(Protocol):
    """A message."""

    @property
    def sender(self) -> Person:
        """Who wrote it."""
        ...


C = TypeVar("C")
U = TypeVar("U", bound=Person)
M = TypeVar("M", bound=Written)
C_co = TypeVar("C_co", covariant=True)
U_co = TypeVar("U_co", bound=Person, covariant=True)
M_co = TypeVar("M_co", bound=Written, covariant=True)


class PlayedWorld(Protocol[C_co, U_co, M_co]):
    """Where a sandbox keeps its chats, people and messages, by id."""

    @property
    def chats(self) -> Mapping[str, C_co]:
        """Chats."""
        ...

    @property
    def users(self) -> Mapping[str, U_co]:
        """People."""
        ...

    @property
    def messages(self) -> Mapping[str, M_co]:
        """Messages."""
        ...

    def listen(self, listener: Callable[[str, Any], None]) -> None:
        """Call `listener(kind, thing)` after each change."""
        ...


class PlayedConfig(Protocol):
    """What the page needs of a sandbox's config."""

    @property
    def page_hosts(self) -> Collection[str]:
        """Further host names of the page."""
        ...

    @property
    def notes(self) -> Mapping[str, Any]:
        """What the page says about the demo."""
        ...


class Played(Protocol[C_co, U_co, M_co]):
    """A sandbox, as far as its page is alike on all platforms."""

    @property
    def config(self) -> PlayedConfig:
        """How it is set up."""
        ...

    @property
    def world(self) -> PlayedWorld[C_co, U_co, M_co]:
        """What is in it."""
        ...

    @property
    def records(self) -> Records:
        """Calls and pushes."""
        ...

    @property
    def faults(self) -> Faults:
        """Bad days."""
        ...

    async def redeliver(self, sent: Push, /) -> Push:
        """The same event once more."""
        ...


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a platform draws what changed, by the kind of change its world tells of, and its API calls."""

    changes: Mapping[str, Callable[[Any], Json]]
    call: Callable[[Any], Json]


class BasePage(Generic[C, U, M]):
    """The half of a PageHost that knows no platform."""

    def __init__(self, played: Played[C, U, M], drawing: Drawing) -> None:
        self._played = played
        self._drawing = drawing
        self._last_push: Push | None = None
        self._send: Send = _nobody

    @property
    def hosts(self) -> Collection[str]:
        """From the config."""
        return self._played.config.page_hosts

    @property
    def faults(self) -> Faults:
        """The sandbox's."""
        return self._played.faults

    @property
    def notes(self) -> Json:
        """What the page says about the demo."""
        return dict(self._played.config.notes)

    def attach(self, send: Send) -> None:
        """Tell the page of changes, calls and pushes."""
        self._send = send
        records = self._played.records
        self._played.world.listen(self._on_change)
        records.on_call.append(lambda call: send("trace", self._drawing.call(call)))
        records.on_attempt.append(self._on_attempt)

    def _on_change(self, kind: str, thing: Any) -> None:
        draw = self._drawing.changes.get(kind)
        if draw is not None:
            self._send(kind, draw(thing))

    def _on_attempt(self, push: Push, attempt: Attempt) -> None:
        if self.is_worth_repeating(push):
            self._last_push = push
        self._send("trace", self.draw_push(push, attempt))

    def is_worth_repeating(self, push: Push) -> bool:
        """Whether "deliver it twice" means this one."""
        del push
        return True

    def draw_push(self, push: Push, attempt: Attempt) -> Json:
        """A delivery for the side panel."""
        raise NotImplementedError

    async def duplicate(self) -> None:
        """The last event again."""
        if self._last_push is None:
            raise LookupError("nothing was delivered yet")
        await self._played.redeliver(self._last_push)

    # -- looking things up -------------------------------------------------------------------------------------------
    def chat(self, chat_id: str) -> C:
        """Raises LookupError."""
        return _found(self._played.world.chats, chat_id, "chat")

    def person(self, user_id: str) -> U:
        """Anybody but the bot. Raises LookupError."""
        user = _found(self._played.world.users, user_id, "person")
        if user.bot:
            raise LookupError("no such person")
        return user

    def message(self, message_id: str) -> M:
        """Raises LookupError."""
        return _found(self._played.world.messages, message_id, "message")

    def own_message(self, message_id: str) -> M:
        """One that a person may take back. Raises LookupError, ValueError."""
        message = self.message(message_id)
        if message.sender.bot:
            raise ValueError("only a person's own message can be recalled here")
        return message


V = TypeVar("V")


def _found(things: Mapping[str, V], thing_id: str, what: str) -> V:
    found = things.get(thing_id)
    if found is None:
        raise LookupError(f"no such {what}")
    return found


def _nobody(_kind: str, _data: Json) -> None:
    """No page is attached."""

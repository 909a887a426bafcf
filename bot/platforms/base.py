"""The contract of a platform adapter. Every adapter passes the same contract suite (tests/contract).

An adapter sees our own request and response types, never aiohttp.web's; it verifies, parses, and knows how a reply grows
on its platform. It never touches the database: it commits through the `PartLedger` it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from bot.domain.types import Attachment, InboundEvent, Outcome, Quoted, ReplyPart, ReplyTarget


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """An inbound HTTP request: header names lower-cased, the body's raw bytes read once."""

    method: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class WebhookReply:
    """What to answer. `body` is JSON when it is a dict."""

    status: int = 200
    body: dict[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Received:
    """A verified request: either it needs no work (`reply` alone) or it carries events to store before `reply` is sent."""

    reply: WebhookReply
    events: tuple[InboundEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Button:
    """A control under a reply: `action` is stop, regenerate, continue or new_topic."""

    action: str
    label: str


@dataclass(frozen=True, slots=True)
class ReplyView:
    """What a person is to see now.

    `text` is the model's Markdown, whole and only ever growing while `outcome` is GROWING. `status` is shown instead of
    text while there is none ("3rd in line", "reading … 40 %"). `notice` is one sentence under the text (why it ended).
    `rev` rises with every change. `summary` is the chat-list preview. `possible_repeat` is the localized mark to put
    before a part that is sent again although it may already have arrived. `refused` is the sentence for an answer that
    the platform does not take (sensitive content, data loss prevention): nobody is left in silence.
    """

    rev: int
    text: str
    status: str = ""
    outcome: Outcome = Outcome.GROWING
    notice: str = ""
    summary: str = ""
    buttons: tuple[Button, ...] = ()
    possible_repeat: str = ""
    refused: str = ""


class PartLedger(Protocol):
    """The durable record of one reply's parts. Each `save` is committed, together with the newest snapshot of the
    reply's text, when it returns: call it before every platform call, so that the disk is never behind the screen."""

    @property
    def turn_id(self) -> str: ...

    def parts(self) -> tuple[ReplyPart, ...]:
        """What was saved, in order of `n` (also by an earlier process)."""
        ...

    async def save(self, part: ReplyPart) -> None:
        """Insert or replace the part with this `n`."""
        ...


class ReplyDriver(Protocol):
    """How one reply grows. One owner task calls it; it never has two calls on one message in flight.

    Both verbs raise only `RetryLater` and `Ambiguous` (call again with the newest view), `TargetGone` and `GiveUp`
    (nothing more can be shown; before it is raised, `refused` was shown where that was possible and nothing is left
    moving). Falling back from cards to plain messages happens inside.
    """

    async def prepare(self) -> None:
        """Do ahead what shortens the way to the first text (nothing a person sees). Never raises PlatformError."""
        ...

    async def show(self, view: ReplyView) -> None:
        """Show the newest view; opens the reply on the first call. A platform that cannot edit does nothing here."""
        ...

    async def finish(self, view: ReplyView) -> None:
        """Show the final view and close. Repeating it after any failure or crash never shows an answer twice."""
        ...

    def interval_s(self) -> float:
        """Seconds to leave between the start of one `show` and the next, right now."""
        ...


class EventSink(Protocol):
    """What takes the events of a long connection. A platform is told that an event has arrived only after this returned."""

    async def __call__(self, events: tuple[InboundEvent, ...]) -> WebhookReply | None:
        """Store events in one transaction; returns after the commit. The reply is the synchronous answer to a button.

        Raises HearthError when they were not stored: then the platform must deliver them again.
        """
        ...


class Link(Enum):
    """What of a bot depends on a long connection, which only one process may hold."""

    NONE = auto()  # nothing: events come by webhook
    HEARS = auto()  # events come over it, answers go by HTTP from any process
    SPEAKS = auto()  # events and answers go over it


# Whether this process may hold the bot's connection at this moment. Cheap, and safe to ask from any thread.
MayConnect = Callable[[], bool]
_ASK_AGAIN_S = 0.5


def always() -> bool:
    """No other process is near."""
    return True


async def permission(may_connect: MayConnect) -> None:
    """Wait until this process may connect: connecting before would throw out the one that may."""
    while not may_connect():  # noqa: ASYNC110 - it is a clock that changes the answer
        await asyncio.sleep(_ASK_AGAIN_S)


class PlatformAdapter(Protocol):
    """One configured bot on its platform."""

    @property
    def name(self) -> str:
        """The bot's name in the config."""
        ...

    @property
    def display_name(self) -> str:
        """The name people know the bot by; the config's name until the platform has told it."""
        ...

    @property
    def platform(self) -> str: ...

    @property
    def app_id(self) -> str: ...

    @property
    def link(self) -> Link:
        """What depends on a long connection; fixed by the config."""
        ...

    async def start(self) -> None:
        """Begin whatever runs in the background (own identity, token). A platform that is down does not stop the start."""
        ...

    async def close(self) -> None: ...

    async def listen(self, sink: EventSink, may_connect: MayConnect = always) -> None:
        """Receive by a long connection from now on, where the bot's mode is one. Returns at once; called when events can be
        stored, and again only after `hang_up`. `may_connect` is asked before every connecting. `close` ends it, too."""
        ...

    async def hang_up(self) -> None:
        """End the long connection, because another process may take it. What was heard is still stored; harmless when
        there is none."""
        ...

    def receive(self, request: WebhookRequest) -> Received:
        """Verify, decrypt, parse: pure computing. Raises Rejected for anything that is not genuine."""
        ...

    def button_reply(self, toast: str, *, kind: str = "info") -> WebhookReply:
        """The synchronous answer to a button callback."""
        ...

    async def welcome(self, target: ReplyTarget, text: str) -> WebhookReply | None:
        """Greet who just opened the chat: by the synchronous answer to that event, or (None) in a way of its own. Once, and
        not again when it fails. Never raises PlatformError."""
        ...

    def open_reply(self, target: ReplyTarget, ledger: PartLedger) -> ReplyDriver:
        """A driver for one reply, fresh or resumed from the ledger's parts."""
        ...

    async def show_alive(self, target: ReplyTarget) -> str:
        """A sign of life at once (a reaction on the question). Returns a token for `clear_alive`, "" when none. Never raises PlatformError."""
        ...

    async def find_alive(self, target: ReplyTarget) -> str:
        """The token of a sign of life that was perhaps shown before a crash, "" when there is none. Never raises PlatformError."""
        ...

    async def clear_alive(self, target: ReplyTarget, token: str) -> None:
        """Take the sign of life away. Never raises PlatformError."""
        ...

    async def fetch(self, attachment: Attachment, target: ReplyTarget, *, max_bytes: int) -> bytes:
        """The bytes of an attachment, decrypted; `target` is that of the message that brought it.

        Only the configured addresses and media hosts are asked, whatever a payload says. Raises PlatformError: TooLarge for
        more than `max_bytes`, RetryLater and Ambiguous when it may be asked for again, else it cannot be had.
        """
        ...

    async def look_up(self, quoted: Quoted, target: ReplyTarget) -> Quoted | None:
        """The words and files of an earlier message of the target's chat, of which only the id is known.

        None where the platform does not tell or cannot be asked now. Never raises PlatformError.
        """
        ...

    def health(self) -> Mapping[str, str]:
        """Facts for /readyz and the start-up block, e.g. {"identity": "known"}. A long connection tells here since when it
        is connected ("connected_since") or deaf ("deaf_since", "reason")."""
        ...

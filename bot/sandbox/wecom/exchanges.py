"""Exchanges: one question of a person and everything the bot may still do with it. Owns them, by msgid, by response code, by req_id."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bot.sandbox.clock import Clock
    from bot.sandbox.wecom.world import Chat, Message, User

ExchangeKind = Literal["message", "enter_chat", "template_card_event", "feedback_event", "disconnected_event"]  # fmt: skip


@dataclass(slots=True, eq=False)
class Bubble:
    """One stream: the message that grows."""

    id: str
    message: Message
    opened_at: float
    finished: bool = False


@dataclass(slots=True, eq=False)
class Exchange:
    """A callback and its answers. `msgid` is the callback's; `message` the question, or the card that was clicked.

    `response_body`: what the response_url was used for. `answered`: a reply that is not a stream was taken. `card_sent`:
    the one template card of this question is out. `gave_up`: the stream's time is over.
    """

    msgid: str
    kind: ExchangeKind
    chat: Chat
    user: User
    at: float
    message: Message | None = None
    task_id: str = ""
    response_code: str = ""
    response_body: dict[str, Any] | None = None
    bubbles: dict[str, Bubble] = field(default_factory=dict)
    req_ids: list[str] = field(default_factory=list)
    answered: bool = False
    card_sent: bool = False
    gave_up: bool = False

    @property
    def open_bubble(self) -> Bubble | None:
        """The stream that is not finished."""
        return next((bubble for bubble in self.bubbles.values() if not bubble.finished), None)

    @property
    def question_id(self) -> str:
        """What the bot's messages answer."""
        return self.message.id if self.message else ""


class Exchanges:
    """Every exchange so far."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.by_msgid: dict[str, Exchange] = {}
        self.by_code: dict[str, Exchange] = {}
        self.by_req_id: dict[str, Exchange] = {}
        self.stream_owner: dict[str, Exchange] = {}
        self._by_user: dict[str, list[Exchange]] = {}

    def open(
        self,
        msgid: str,
        kind: ExchangeKind,
        chat: Chat,
        user: User,
        *,
        message: Message | None = None,
        with_code: bool = False,
    ) -> Exchange:
        """A new exchange; `with_code` when its callback carries a response_url."""
        exchange = Exchange(msgid, kind, chat, user, self._clock(), message)
        self.by_msgid[msgid] = exchange
        self._by_user.setdefault(user.id, []).append(exchange)
        if with_code:
            exchange.response_code = secrets.token_urlsafe(32)
            self.by_code[exchange.response_code] = exchange
        return exchange

    def new_req_id(self, exchange: Exchange) -> str:
        """The req_id of one delivery by WebSocket."""
        req_id = secrets.token_hex(12)
        exchange.req_ids.append(req_id)
        self.by_req_id[req_id] = exchange
        return req_id

    def in_flight(self, user: User) -> int:
        """Streams of one person that are not finished."""
        exchanges = self._by_user.get(user.id, [])
        return sum(1 for exchange in exchanges if exchange.open_bubble is not None)

"""What people do: write, quote, send files, open the chat, click, rate. Each act changes the world and is delivered as WeCom would.

Owns what is held back while deliveries are on hold, and who opened the chat today.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bot.sandbox.records import Attempt, Push
from bot.sandbox.wecom import cards, events
from bot.sandbox.wecom.compose import Composer
from bot.sandbox.wecom.world import Message, new_id, new_number

if TYPE_CHECKING:
    from bot.sandbox.wecom.appxml import Fields
    from bot.sandbox.wecom.compose import SayOptions
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.doors import Doors
    from bot.sandbox.wecom.exchanges import Exchange, ExchangeKind, Exchanges
    from bot.sandbox.wecom.media import Media
    from bot.sandbox.wecom.world import Chat, User, World

Json = dict[str, Any]
_DAY_S = 86_400.0
_IN_GROUPS = frozenset({"text", "mixed"})


@dataclass(slots=True, eq=False)
class SentMessage:
    """A message a person wrote and how its callback fared. `push` is None while on hold and when the bot does not get it;
    `busy`: this person has too many open questions."""

    message: Message
    push: Push | None = None
    busy: bool = False

    @property
    def id(self) -> str:
        """msgid."""
        return self.message.id

    @property
    def chat(self) -> Chat:
        """Where it was written."""
        return self.message.chat

    @property
    def event_id(self) -> str:
        """ "" when it was not delivered."""
        return self.push.event_id if self.push else ""

    @property
    def acked(self) -> bool:
        """The bot took it."""
        return self.push is not None and self.push.acked

    @property
    def attempts(self) -> list[Attempt]:
        """Every delivery so far."""
        return self.push.attempts if self.push else []


@dataclass(frozen=True, slots=True)
class PressResult:
    """A click: how its event fared, and whether the card has another face now. `toast` is empty: WeCom shows none."""

    push: Push
    updated: bool
    toast: str = ""
    code: int = 0


class People:
    """The acts of people."""

    def __init__(
        self, config: WeComConfig, world: World, exchanges: Exchanges, media: Media, doors: Doors
    ) -> None:
        self._config = config
        self._world = world
        self._exchanges = exchanges
        self._composer = Composer(config, media)
        self._doors = doors
        self._entered: dict[str, int] = {}
        self._held: list[Callable[[], Awaitable[None]]] | None = None
        self.on_card_click: Callable[[Message], str] = lambda _message: ""

    # -- writing -----------------------------------------------------------------------------------------------------
    async def say(
        self, chat: Chat, user: User, text: str, options: SayOptions, *, mention_bot: bool
    ) -> SentMessage:
        """Write a message; it is delivered when the bot may hear it."""
        is_app = self._config.mode == "app"
        message = Message(
            new_number() if is_app else new_id(), chat, user, self._world.now_ms(),
            options.get("kind", "text"), quote=options.get("quote"),
        )  # fmt: skip
        if is_app:
            self._composer.compose_for_app(message, text, options)
        else:
            self._composer.compose(message, text, options, mention_bot=mention_bot)
        self._world.add_message(message)
        sent = SentMessage(message)
        if not options.get("deliver", self._is_heard(message, mention_bot=mention_bot)):
            return sent
        if self._is_busy(user):
            sent.busy = True
            return sent
        chat.spoken = True
        await self._now_or_later(lambda: self._deliver(sent))
        return sent

    def _is_busy(self, user: User) -> bool:
        """Three open streams are the most (documented for callbacks only, wecom.md §2.4)."""
        limit = self._config.effective_limits.in_flight_per_user
        if limit is None or self._config.mode != "callback":
            return False
        return self._exchanges.in_flight(user) >= limit

    def hold(self) -> None:
        """Keep messages back from now on."""
        self._held = self._held or []

    async def release(self, *, reverse: bool) -> None:
        """Deliver what was held back, the other way round with `reverse`."""
        held, self._held = self._held or [], None
        for deliver in reversed(held) if reverse else held:
            await deliver()

    async def _now_or_later(self, deliver: Callable[[], Awaitable[None]]) -> None:
        if self._held is None:
            await deliver()
        else:
            self._held.append(deliver)

    async def _deliver(self, sent: SentMessage) -> None:
        message = sent.message
        if self._config.mode == "app":
            fields: Fields = {"MsgType": message.kind, **message.data, "MsgId": message.id}
            sent.push = await self._doors.app_callback(
                message.chat, message.sender, fields, message
            )
            return
        exchange = self._exchanges.open(
            message.id, "message", message.chat, message.sender, message=message,
            with_code=self._config.mode == "callback",
        )  # fmt: skip
        body = events.message(
            self._config, exchange, message, self._doors.response_url(exchange.response_code)
        )
        if message.quote is not None:
            body["quote"] = self._composer.quote(message.quote)
        sent.push = await self._doors.message(exchange, body)

    def _is_heard(self, message: Message, *, mention_bot: bool) -> bool:
        chat = message.chat
        if not chat.has_bot or chat.kind == "single":
            return chat.has_bot
        if self._config.mode == "app" or message.kind not in _IN_GROUPS:
            return False
        quoted = message.quote
        return mention_bot or (quoted is not None and quoted.sender is self._world.bot)

    # -- opening, clicking, rating -----------------------------------------------------------------------------------
    async def enter_chat(self, user: User) -> Push | None:
        """The person opens the direct chat: told to an app every time, to an AI bot once a day (None later that day)."""
        chat = self._world.direct_chat(user)
        if self._config.mode == "app":
            fields: Fields = {"MsgType": "event", "Event": "enter_agent", "EventKey": ""}
            return await self._doors.app_callback(chat, user, fields, None)
        today = int(self._config.clock() // _DAY_S)
        if self._entered.get(user.id) == today:
            return None
        self._entered[user.id] = today
        exchange = self._exchanges.open(new_id(), "enter_chat", chat, user)
        return await self._doors.event(exchange, events.event(self._config, exchange))

    async def press(
        self, message: Message, key: str, user: User, selected: dict[str, list[str]] | None = None
    ) -> PressResult:
        """Click the button with this key (or label). Raises LookupError when the card has none."""
        card = message.card or {}
        found = next((k for k, label in cards.buttons(card) if key in {k, label}), None)
        if found is None:
            raise LookupError(f"this message has no button {key!r}")
        before = message.updates
        if self._config.mode == "app":
            fields: Fields = {
                "MsgType": "event", "Event": "template_card_event", "EventKey": found,
                "TaskId": str(card.get("task_id", "")), "CardType": str(card["card_type"]),
                "ResponseCode": self.on_card_click(message),
            }  # fmt: skip
            push = await self._doors.app_callback(message.chat, user, fields, None)
        else:
            exchange = self._click(message, user)
            detail = events.card_event(card, found, selected or {})
            url = self._doors.response_url(exchange.response_code)
            push = await self._doors.event(
                exchange, events.event(self._config, exchange, detail, url)
            )
        return PressResult(push, message.updates > before)

    def _click(self, message: Message, user: User) -> Exchange:
        exchange = self._exchanges.open(
            new_id(), "template_card_event", message.chat, user, message=message,
            with_code=self._config.mode == "callback",
        )  # fmt: skip
        exchange.task_id = str((message.card or {}).get("task_id", ""))
        return exchange

    async def rate(
        self, message: Message, user: User, kind: int, words: str, reasons: Sequence[int]
    ) -> Push:
        """Thumb up (1), down (2) or taken back (3). Raises LookupError when the bot asked for no feedback."""
        if not message.feedback_id:
            raise LookupError("this message has no feedback id")
        exchange = self._exchanges.open(new_id(), "feedback_event", message.chat, user)
        detail: Json = {"id": message.feedback_id, "type": kind}
        if kind == 2:
            detail |= {"content": words, "inaccurate_reason_list": list(reasons)}
        return await self._doors.event(exchange, events.event(self._config, exchange, detail))

    async def send_raw(self, chat: Chat, user: User, payload: Json) -> Push:
        """Any callback: fields of an app's XML, or the body of an AI bot's (its head is filled in)."""
        if self._config.mode == "app":
            return await self._doors.app_callback(chat, user, payload, None)
        is_event = payload.get("msgtype") == "event"
        kind: ExchangeKind = "feedback_event" if is_event else "message"
        exchange = self._exchanges.open(str(payload.get("msgid") or new_id()), kind, chat, user)
        body = {**events.head(self._config, exchange), **payload}
        if is_event:
            return await self._doors.event(exchange, body)
        return await self._doors.message(exchange, body)

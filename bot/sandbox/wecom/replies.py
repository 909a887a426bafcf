"""What a bot may answer: kinds per callback, sizes, and the message that appears (wecom.md §2.3, §2.6, §3.3).

Used by passive replies, response_url and the WebSocket commands. Owns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bot.sandbox.wecom import cards as card_rules
from bot.sandbox.wecom import errors
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.wecom.world import Message, new_id

if TYPE_CHECKING:
    from bot.sandbox.wecom.cards import Cards
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.exchanges import Exchange
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.media import Media
    from bot.sandbox.wecom.streams import Streams
    from bot.sandbox.wecom.world import Chat, World

Json = dict[str, Any]
UPDATE = "update_template_card"
PASSIVE: dict[str, frozenset[str]] = {
    "message": frozenset({"stream", "template_card", "stream_with_template_card"}),
    "poll": frozenset({"stream", "stream_with_template_card"}),
    "enter_chat": frozenset({"text", "template_card"}),
    "template_card_event": frozenset({UPDATE}),
    "feedback_event": frozenset(),
}
RESPONSE_URL = frozenset({"markdown", "template_card"})
RESPOND_MSG = frozenset({"stream", "stream_with_template_card", "markdown", "template_card", "file", "image", "voice", "video"})  # fmt: skip
SEND_MSG = frozenset({"markdown", "template_card", "file", "image", "voice", "video"})


class Replies:
    """Turns a reply's body into what people see."""

    def __init__(
        self,
        config: WeComConfig,
        world: World,
        judge: Judge,
        streams: Streams,
        cards: Cards,
        media: Media,
    ) -> None:
        self._config = config
        self._world = world
        self._judge = judge
        self._streams = streams
        self._cards = cards
        self._media = media

    def kind_of(self, body: Json, allowed: frozenset[str], where: str) -> str:
        """The reply's kind. Raises ApiError and notes `reply_kind` when it has no place here."""
        kind = str(body.get("response_type") or body.get("msgtype") or "")
        if kind not in allowed:
            self._judge.note("reply_kind", f"{where}: {kind or 'no msgtype'}")
            raise ApiError(errors.BAD_MSGTYPE, kind)
        return kind

    def apply(self, exchange: Exchange, body: Json, allowed: frozenset[str], where: str) -> str:
        """Show a reply to a callback. Returns its kind; raises ApiError."""
        kind = self.kind_of(body, allowed, where)
        if kind == UPDATE:
            self.update_card(exchange, body, where)
        elif kind in {"stream", "stream_with_template_card"}:
            self._streams.apply(exchange, body.get("stream"))
            if kind != "stream" and body.get("template_card") is not None:
                self._card_of(exchange, body, where)
        elif kind == "template_card":
            self._card_of(exchange, body, where)
        else:
            self.post(exchange.chat, body, kind, where, answers=exchange.question_id)
            exchange.answered = True
        return kind

    def post(self, chat: Chat, body: Json, kind: str, where: str, *, answers: str = "") -> Message:
        """A finished message: text, markdown, a card or a file. Raises ApiError."""
        message = Message(
            new_id(), chat, self._world.bot, self._world.now_ms(), kind, answers=answers
        )
        if kind == "template_card":
            message.card = self._cards.check(body.get("template_card"), where)
            message.text = card_rules.card_text(message.card)
            message.feedback_id = self._streams.feedback_id(message.card, where)
        elif kind in {"text", "markdown"}:
            message.text = self._content(body, kind, where)
            message.feedback_id = self._streams.feedback_id(body.get(kind, {}), where)
        else:
            holder = body.get(kind)
            media_id = holder.get("media_id") if isinstance(holder, dict) else None
            stored = self._media.get(media_id)
            message.data = {"name": stored.name, "size": len(stored.body)}
            message.text = f"[{kind}] {stored.name}".strip()
        return self._world.add_message(message)

    def _content(self, body: Json, kind: str, where: str) -> str:
        holder = body.get(kind)
        content = holder.get("content") if isinstance(holder, dict) else None
        if not isinstance(content, str) or not content.strip():
            self._judge.note("empty_message", where)
            raise ApiError(errors.EMPTY_CONTENT)
        limits = self._config.limits
        most = limits.push_markdown_bytes if where.startswith("ws.send") else limits.markdown_bytes
        if (size := len(content.encode())) > most:
            self._judge.note("message_too_big", f"{where}: {size} bytes")
            raise ApiError(errors.TOO_LONG, f"{size} bytes")
        self._judge.look_at_text(content, where)
        return content

    def _card_of(self, exchange: Exchange, body: Json, where: str) -> None:
        if exchange.card_sent:
            self._judge.note("second_card", where)
            raise ApiError(errors.BAD_PARAMETER, "the card of this message was already sent")
        self.post(exchange.chat, body, "template_card", where, answers=exchange.question_id)
        exchange.card_sent = True
        exchange.answered = True

    def update_card(self, exchange: Exchange, body: Json, where: str) -> None:
        """The card that was clicked gets a new face. Raises ApiError."""
        card = self._cards.check(body.get("template_card"), where, update_of=exchange.task_id)
        message = exchange.message
        if message is not None:
            message.card = card
            message.text = card_rules.card_text(card)
            message.updates += 1
            self._world.changed(message)
        exchange.answered = True

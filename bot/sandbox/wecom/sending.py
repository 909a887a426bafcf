"""The app's message/send, recall and card update: what is checked, what is cut or lost without a word (wecom.md §4.2–§4.4).

Owns the response codes of cards and what was sent for the duplicate check.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from bot.sandbox.wecom import cards as card_rules
from bot.sandbox.wecom import errors
from bot.sandbox.wecom import text as reading
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.wecom.media import MEDIA_TYPES
from bot.sandbox.wecom.world import Message, User, new_id

if TYPE_CHECKING:
    from bot.sandbox.wecom.cards import Cards
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.limits import Rates
    from bot.sandbox.wecom.media import Media
    from bot.sandbox.wecom.world import World

Json = dict[str, Any]
_KINDS = frozenset({"text", "markdown", "textcard", "template_card"}) | MEDIA_TYPES
_TEXTCARD = {"title": 128, "description": 512}
_DUPLICATE_S = 1800.0


class Sending:
    """What an app may send to its people."""

    def __init__(
        self,
        config: WeComConfig,
        world: World,
        judge: Judge,
        cards: Cards,
        rates: Rates,
        media: Media,
    ) -> None:
        self._config = config
        self._world = world
        self._judge = judge
        self._cards = cards
        self._rates = rates
        self._media = media
        self._sent: dict[tuple[str, str], float] = {}
        self._by_msgid: dict[str, list[Message]] = {}
        self._codes: dict[str, tuple[list[Message], float]] = {}

    def send(self, body: Json) -> Json:
        """POST message/send. Raises ApiError; `invaliduser` names those who did not get it."""
        if str(body.get("agentid")) != str(self._config.agent_id):
            raise ApiError(errors.BAD_AGENT)
        kind = body.get("msgtype")
        if kind not in _KINDS:
            self._judge.note("reply_kind", f"message.send: {kind}")
            raise ApiError(errors.BAD_MSGTYPE)
        people, unknown = self._receivers(body)
        text, data, card = self._content(str(kind), body)
        msgid, sent = new_id(), []
        for user in people:
            if self._is_lost(user, text, body):
                continue
            message = Message(
                new_id(), self._world.direct_chat(user), self._world.bot, self._world.now_ms(),
                str(kind), text, data, card=card,
            )  # fmt: skip
            sent.append(self._world.add_message(message))
        self._by_msgid[msgid] = sent
        reply: Json = {"msgid": msgid}
        if unknown:
            reply["invaliduser"] = "|".join(unknown)
        if card is not None and card.get("task_id"):
            reply["response_code"] = self.new_code(sent)
        return reply

    def new_code(self, messages: list[Message]) -> str:
        """A response_code for one update of a card."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = (messages, self._config.clock() + self._config.limits.response_code_s)
        return code

    def recall(self, body: Json) -> Json:
        """POST message/recall. Raises ApiError."""
        messages = self._by_msgid.get(str(body.get("msgid")))
        if messages is None:
            raise ApiError(errors.BAD_PARAMETER, "msgid")
        age_ms = self._world.now_ms() - min((m.at_ms for m in messages), default=0)
        if messages and age_ms > self._config.limits.recall_s * 1000:
            raise ApiError(errors.WINDOW_OVER, "a message can be recalled for 24 hours")
        for message in messages:
            message.recalled = True
            self._world.changed(message)
        return {}

    def update_card(self, body: Json) -> Json:
        """POST message/update_template_card: one use of each response_code. Raises ApiError."""
        messages, expires = self._codes.pop(str(body.get("response_code")), ([], 0.0))
        if expires <= self._config.clock():
            self._judge.note(
                "response_code_reused", "message.update_template_card: used, expired or unknown"
            )
            raise ApiError(errors.BAD_RESPONSE_CODE)
        button = body.get("button")
        if isinstance(button, dict) and button.get("replace_name"):
            for message in messages:
                message.data = {**message.data, "replaced": str(button["replace_name"])}
                self._world.changed(message)
            return {}
        task_id = str((messages[0].card or {}).get("task_id", "")) if messages else ""
        card = self._cards.check(
            body.get("template_card"), "message.update_template_card", update_of=task_id
        )
        for message in messages:
            message.card, message.text = card, card_rules.card_text(card)
            self._world.changed(message)
        return {}

    # -- the checks --------------------------------------------------------------------------------------------------
    def _receivers(self, body: Json) -> tuple[list[User], list[str]]:
        names = [name for name in str(body.get("touser") or "").split("|") if name]
        if names == ["@all"]:
            return list(self._world.users.values()), []
        people = [self._world.users[name] for name in names if name in self._world.users]
        unknown = [name for name in names if name not in self._world.users]
        if not people:
            raise ApiError(errors.NOBODY)
        return people, unknown

    def _content(self, kind: str, body: Json) -> tuple[str, Json, Json | None]:
        holder = body.get(kind)
        if not isinstance(holder, dict):
            raise ApiError(errors.EMPTY_CONTENT, kind)
        if kind == "template_card":
            card = self._cards.check(holder, "message.send")
            return card_rules.card_text(card), {}, card
        if kind in MEDIA_TYPES:
            stored = self._media.get(holder.get("media_id"))
            return f"[{kind}] {stored.name}".strip(), {"name": stored.name}, None
        if kind == "textcard":
            return self._textcard(holder), {"textcard": holder}, None
        return self._text(kind, holder), {}, None

    def _text(self, kind: str, holder: Json) -> str:
        content = holder.get("content")
        if not isinstance(content, str) or not content.strip():
            self._judge.note("empty_message", "message.send")
            raise ApiError(errors.EMPTY_CONTENT)
        size = len(content.encode())
        if kind == "markdown":
            if size > self._config.limits.app_markdown_bytes:
                self._judge.note("message_too_big", f"message.send: {size} bytes of markdown")
                raise ApiError(errors.TOO_LONG)
            for construct in reading.beyond_app_markdown(content):
                self._judge.note("markdown_unsupported", f"message.send: {construct}")
            self._judge.look_at_text(content, "message.send")
        elif size > self._config.limits.app_text_bytes:
            self._judge.note("text_cut", f"message.send: {size} bytes")
            content = reading.cut_bytes(content, self._config.limits.app_text_bytes)
        return content

    def _textcard(self, holder: Json) -> str:
        for name, most in _TEXTCARD.items():
            value = holder.get(name)
            if not isinstance(value, str) or not value:
                raise ApiError(errors.EMPTY_CONTENT, name)
            if len(value.encode()) > most:
                self._judge.note("text_cut", f"message.send: {name} of a textcard")
        if not holder.get("url"):
            raise ApiError(errors.BAD_PARAMETER, "url")
        return f"{holder['title']}\n{holder['description']}"

    def _is_lost(self, user: User, text: str, body: Json) -> bool:
        """Too many for this person, or a repeat that the caller asked to have checked: neither is told to the caller."""
        if not self._rates.member_allows(user.id):
            self._judge.note(
                "rate_dropped", f"message.send to {user.id}: over 30 a minute or 1000 an hour"
            )
            return True
        if body.get("enable_duplicate_check") != 1:
            return False
        now = self._config.clock()
        wait_s = float(body.get("duplicate_check_interval") or _DUPLICATE_S)
        before = self._sent.get((user.id, text))
        self._sent[user.id, text] = now
        if before is not None and now < before + wait_s:
            self._judge.note("duplicate_dropped", f"message.send to {user.id}")
            return True
        return False

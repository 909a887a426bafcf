"""The bodies of an AI bot's callbacks, the same by HTTP and by WebSocket (wecom.md §2.2, §2.7). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bot.sandbox.wecom.world import new_id

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.exchanges import Exchange
    from bot.sandbox.wecom.world import Message

Json = dict[str, Any]
_QUOTABLE = frozenset({"text", "image", "mixed", "voice", "file", "video"})


def message(config: WeComConfig, exchange: Exchange, asked: Message, response_url: str) -> Json:
    """A person's message. `response_url` is "" by WebSocket."""
    body = {**head(config, exchange), "msgtype": asked.kind, **asked.data}
    if response_url:
        body["response_url"] = response_url
    return body


def quote(quoted: Message) -> Json:
    """What was quoted; an answer of the bot is quoted as text."""
    if quoted.kind in _QUOTABLE and quoted.kind in quoted.data:
        return {"msgtype": quoted.kind, quoted.kind: quoted.data[quoted.kind]}
    return {"msgtype": "text", "text": {"content": quoted.text}}


def poll(config: WeComConfig, exchange: Exchange, stream_id: str) -> Json:
    """A refresh: a msgid of its own, no response_url."""
    fresh = {**head(config, exchange), "msgid": new_id()}
    return {**fresh, "msgtype": "stream", "stream": {"id": stream_id}}


def event(
    config: WeComConfig, exchange: Exchange, detail: Json | None = None, response_url: str = ""
) -> Json:
    """enter_chat, template_card_event, feedback_event or disconnected_event."""
    inner: Json = {"eventtype": exchange.kind}
    if detail is not None:
        inner[exchange.kind] = detail
    body = {
        **head(config, exchange),
        "create_time": int(config.clock()),
        "msgtype": "event",
        "event": inner,
    }
    if response_url:
        body["response_url"] = response_url
    return body


def card_event(card: Json, key: str, selected: dict[str, list[str]]) -> Json:
    """The inside of template_card_event."""
    items = [
        {"question_key": question, "option_ids": {"option_id": options}}
        for question, options in selected.items()
    ]
    detail: Json = {
        "card_type": card["card_type"],
        "event_key": key,
        "task_id": card.get("task_id", ""),
    }
    if items:
        detail["selected_items"] = {"selected_item": items}
    return detail


def head(config: WeComConfig, exchange: Exchange) -> Json:
    """Who, where, which bot: the start of every body."""
    found: Json = {
        "msgid": exchange.msgid,
        "aibotid": config.bot_id,
        "chattype": exchange.chat.kind,
        "from": {"userid": exchange.user.id},
    }
    if exchange.chat.kind == "group":
        found["chatid"] = exchange.chat.id
    return found

"""Builds the plain events as the platform words them (feishu.md §1.3–1.6). Pure."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from bot.sandbox.feishu.cardschema import Json
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.world import Chat, Mention, Message, User

CARD_ACTION = "card.action.trigger"


def new_event_id() -> str:
    """32 hex digits."""
    return secrets.token_hex(16)


def envelope(config: SandboxConfig, event_type: str, event: Json, event_id: str = "") -> Json:
    """Schema 2.0. create_time is in ms, in µs for card.action.trigger."""
    per_second = 1_000_000 if event_type == CARD_ACTION else 1000
    return {
        "schema": "2.0",
        "header": {
            "event_id": event_id or new_event_id(),
            "event_type": event_type,
            "create_time": str(int(config.clock() * per_second)),
            "token": config.verification_token,
            "app_id": config.app_id,
            "tenant_key": config.tenant_key,
        },
        "event": event,
    }


def envelope_v1(config: SandboxConfig, event_type: str, event: Json, event_id: str = "") -> Json:
    """Schema 1.0: no `schema`; uuid, token, ts, type and event.type."""
    return {
        "uuid": event_id or new_event_id(),
        "token": config.verification_token,
        "ts": f"{config.clock():.6f}",
        "type": "event_callback",
        "event": {
            "type": event_type,
            "app_id": config.app_id,
            "tenant_key": config.tenant_key,
            **event,
        },
    }


def event_id_of(payload: Json) -> str:
    """header.event_id, or uuid of schema 1.0."""
    header = payload.get("header")
    return (
        str(header.get("event_id", ""))
        if isinstance(header, dict)
        else str(payload.get("uuid", ""))
    )


def event_type_of(payload: Json) -> str:
    """header.event_type, or event.type of schema 1.0."""
    header = payload.get("header")
    if isinstance(header, dict):
        return str(header.get("event_type", ""))
    event = payload.get("event")
    return str(event.get("type", "")) if isinstance(event, dict) else str(payload.get("type", ""))


def message_received(config: SandboxConfig, message: Message) -> Json:
    """im.message.receive_v1 → `event`. Topic groups also say chat_type "group"."""
    body: Json = {
        "message_id": message.id,
        "create_time": str(message.at_ms),
        "update_time": str(message.updated_ms),
        "chat_id": message.chat.id,
        "chat_type": "p2p" if message.chat.kind == "p2p" else "group",
        "message_type": message.kind,
        "content": msgspec.json.encode(message.content).decode(),
    }
    for name in ("root_id", "parent_id", "thread_id"):
        if getattr(message, name):
            body[name] = getattr(message, name)
    if message.mentions:
        body["mentions"] = [_mention(entry, config.tenant_key) for entry in message.mentions]
    return {
        "sender": {
            "sender_id": _ids(message.sender),
            "sender_type": "bot" if message.sender.bot else "user",
            "tenant_key": config.tenant_key,
        },
        "message": body,
    }


def message_recalled(message: Message, at_ms: int) -> Json:
    """im.message.recalled_v1 → `event`."""
    return {
        "message_id": message.id,
        "chat_id": message.chat.id,
        "recall_time": str(at_ms),
        "recall_type": "message_owner",
    }


def bot_membership(config: SandboxConfig, chat: Chat, operator: User) -> Json:
    """im.chat.member.bot.added_v1 / deleted_v1 → `event`."""
    return {
        "chat_id": chat.id,
        "operator_id": _ids(operator),
        "external": False,
        "operator_tenant_key": config.tenant_key,
        "name": chat.name,
        "i18n_names": {"zh_cn": chat.name, "en_us": chat.name, "ja_jp": chat.name},
    }


def card_action(
    config: SandboxConfig, message: Message, user: User, value: Any, token: str
) -> Json:
    """card.action.trigger → `event`."""
    return {
        "operator": {**_ids(user), "tenant_key": config.tenant_key},
        "token": token,
        "action": {"tag": "button", "value": value, "timezone": "Asia/Shanghai"},
        "host": "im_message",
        "context": {"open_message_id": message.id, "open_chat_id": message.chat.id},
    }


def _ids(user: User) -> Json:
    return {"open_id": user.id, "union_id": user.union_id}


def _mention(entry: Mention, tenant_key: str) -> Json:
    if entry.user is None:
        return {
            "key": entry.key,
            "id": {"open_id": "", "union_id": "", "user_id": ""},
            "name": entry.name,
        }
    return {
        "key": entry.key,
        "id": _ids(entry.user),
        "mentioned_type": "bot" if entry.user.bot else "user",
        "name": entry.name,
        "tenant_key": tenant_key,
    }

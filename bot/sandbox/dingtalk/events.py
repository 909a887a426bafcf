"""What the platform sends: robot messages, card clicks, and the frames of the Stream gateway (dingtalk.md §1.2, §2, §5.8). Pure."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.card import Button, Card
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.world import Message, Session, User, World

Json = dict[str, Any]
ROBOT = "/v1.0/im/bot/messages/get"
CARD = "/v1.0/card/instances/callback"


def robot_message(
    config: SandboxConfig,
    world: World,
    message: Message,
    session: Session,
    url: str,
    *,
    spent: bool,
) -> Json:
    """A person's message as the robot gets it; `spent`: the month's messages are used up, its content is kept back."""
    sender, chat = message.sender, message.chat
    found: Json = {
        "conversationId": chat.id,
        "conversationType": "2" if chat.kind == "group" else "1",
        "chatbotCorpId": config.corp_id,
        "chatbotUserId": world.bot.id,
        "robotCode": config.robot,
        "msgId": message.id,
        "senderNick": sender.name,
        "senderId": sender.id,
        "senderUnionId": sender.union_id,
        "senderPlatform": "Win",
        "isAdmin": sender.admin,
        "createAt": message.at_ms,
        "msgtype": message.kind,
    }
    if sender.staff_id:
        found |= {"senderStaffId": sender.staff_id, "senderCorpId": config.corp_id}
    if chat.kind == "group":
        mentioned = [world.bot, *(user for user in message.mentions if user is not world.bot)]
        found |= {
            "conversationTitle": chat.name,
            "isInAtList": True,
            "atUsers": [_at(user) for user in mentioned],
        }
    found |= {"sessionWebhook": url, "sessionWebhookExpiredTime": session.expires_ms}
    if spent:
        return found | {"errorCode": 20001, "errorMessage": "本月消息次数已用完"}
    if message.quoted is not None:
        found["originalMsgId"] = message.quoted.id
    return found | _content(message)


def _at(user: User) -> Json:
    return {"dingtalkId": user.id} | ({"staffId": user.staff_id} if user.staff_id else {})


def _content(message: Message) -> Json:
    if message.kind != "text":
        return {"content": dict(message.content)}
    text: Json = {"content": str(message.content.get("text", ""))}
    # "@Hearth" is taken out of the text and leaves its blank.
    if message.chat.kind == "group":
        text["content"] = f" {text['content']}"
    if message.quoted is not None:
        text |= {"isReplyMsg": True, "repliedMsg": _quoted(message.quoted)}
    return {"text": text}


def _quoted(message: Message) -> Json:
    found: Json = {
        "msgId": message.id,
        "msgType": "interactiveCard" if message.card else message.kind,
        "senderId": message.sender.id,
        "createdAt": message.at_ms,
    }
    # A quoted card of the bot carries no content.
    if message.card is not None:
        return found
    if message.kind in {"text", "markdown"}:
        text = str(message.content.get("text") or message.content.get("content") or "")
        return found | {"content": {"text": text}}
    if message.kind == "richText":
        items = [
            {"msgType": "text" if "text" in item else "picture", "content": item.get("text", "")}
            for item in message.content.get("richText", [])
        ]
        return found | {"content": {"richText": items}}
    return found | {"content": dict(message.content)}


def card_click(
    config: SandboxConfig, card: Card, message: Message, user: User, button: Button
) -> Json:
    """A click on a card's button; `content` and `value` are the same JSON string."""
    private = {"cardPrivateData": {"actionIds": [button.action_id], "params": button.params}}
    content = msgspec.json.encode(private).decode()
    group = message.chat.kind == "group"
    return {
        "type": "actionCallback",
        "outTrackId": card.track_id,
        "corpId": config.corp_id,
        "userId": user.staff_id or user.id,
        "userIdType": 1,
        "spaceType": "IM_GROUP" if group else "IM_ROBOT",
        "spaceId": message.chat.id if group else user.staff_id,
        "extension": "{}",
        "content": content,
        "value": content,
    }


def frame(
    config: SandboxConfig, kind: str, topic: str, data: Json, more: Json | None = None
) -> tuple[str, str]:
    """(messageId, JSON text) of one frame to a Stream client. `data` goes as a JSON string."""
    message_id = secrets.token_hex(12)
    headers: Json = {
        "topic": topic,
        "messageId": message_id,
        "contentType": "application/json",
        "time": str(int(config.clock() * 1000)),
    }
    if kind == "CALLBACK":
        headers["appId"] = config.client_id
    text = msgspec.json.encode(
        {
            "specVersion": "1.0",
            "type": kind,
            "headers": headers | (more or {}),
            "data": msgspec.json.encode(data).decode(),
        }
    ).decode()
    return message_id, text


def event_headers(config: SandboxConfig, event_type: str, event_id: str) -> Json:
    """The further headers of an EVENT frame."""
    return {
        "eventType": event_type,
        "eventId": event_id,
        "eventCorpId": config.corp_id,
        "eventBornTime": str(int(config.clock() * 1000)),
        "eventUnifiedAppId": config.client_id,
    }

"""From DingTalk's message and card callbacks to our own events (dingtalk.md §1.2, §5.8). Pure.

The same JSON comes in a webhook's body and in a frame of the stream. Must not verify: whoever calls has done that. What
cannot be read becomes Unreadable, because a refusal would only bring it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bot.domain.types import (
    ButtonPressed,
    ChatKind,
    InboundEvent,
    InboundMessage,
    ReplyTarget,
    Sender,
    Unreadable,
)
from bot.platforms.dingtalk.content import (
    items,
    mapping,
    read_content,
    read_quote,
    string,
    without_name,
)
from bot.platforms.dingtalk.track import turn_of

ACTIONS = {"stop", "regenerate", "continue", "new_topic"}
QUOTA_REASON = "the organisation's monthly quota of robot messages is used up"
_QUOTA_CODE = "20001"
_MAX_NICK_CHARS = 40


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are: the app's client id, and the name people see ("" when it is not configured)."""

    client_id: str
    robot_name: str = ""


class _Missing(ValueError):
    """A field that the event cannot do without."""


def _need(data: Mapping[str, Any], key: str) -> str:
    value = string(data, key)
    if not value:
        raise _Missing(f"{key} is missing")
    return value


def read_message(data: Mapping[str, Any], identity: Identity, now: datetime) -> InboundEvent:
    """Our event for a robot callback; Unreadable when there is none."""
    try:
        return _message(data, identity, now)
    except _Missing as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - a shape nobody foresaw must not be delivered again and again
        reason = f"an unforeseen shape ({type(error).__name__})"
    return Unreadable(identity.client_id, string(data, "msgId"), reason)


def _message(data: Mapping[str, Any], identity: Identity, now: datetime) -> InboundEvent:
    message_id, chat_id = _need(data, "msgId"), _need(data, "conversationId")
    if string(data, "errorCode") == _QUOTA_CODE:
        return Unreadable(identity.client_id, message_id, QUOTA_REASON)
    # senderStaffId is the organisation's own id; people from outside have only the encrypted one.
    user_id = string(data, "senderStaffId") or _need(data, "senderId")
    own_id = string(data, "chatbotUserId")
    if own_id and own_id == string(data, "senderId"):
        return Unreadable(identity.client_id, message_id, "from the robot itself")
    kind = ChatKind.GROUP if string(data, "conversationType") == "2" else ChatKind.DIRECT
    content = read_content(data)
    return InboundMessage(
        app_id=identity.client_id,
        dedupe_key=f"{identity.client_id}:message:{message_id}",
        event_id=message_id,
        message_id=message_id,
        chat_id=chat_id,
        chat_kind=kind,
        topic_id=None,
        sender=Sender(user_id, string(data, "senderNick")[:_MAX_NICK_CHARS]),
        text=without_name(content.text, identity.robot_name).strip(),
        mentions_bot=kind is ChatKind.GROUP and _is_addressed(data, own_id),
        sent_at=_time(data.get("createAt")) or now,
        target=_target(data, identity, kind),
        attachments=content.attachments,
        quoted=read_quote(data),
    )  # fmt: skip


def _is_addressed(data: Mapping[str, Any], own_id: str) -> bool:
    """DingTalk says so; where it does not, the robot must be among those who were mentioned."""
    said = data.get("isInAtList")
    if isinstance(said, bool):
        return said
    mentioned = {string(mapping(entry), "dingtalkId") for entry in items(data.get("atUsers"))}
    return bool(own_id) and own_id in mentioned


def _target(data: Mapping[str, Any], identity: Identity, kind: ChatKind) -> ReplyTarget:
    opaque = {
        "kind": kind.value,
        "user": string(data, "senderStaffId"),
        "nick": string(data, "senderNick")[:_MAX_NICK_CHARS],
        "robot": string(data, "robotCode"),
    }
    ends_at = _time(data.get("sessionWebhookExpiredTime"))
    if (webhook := string(data, "sessionWebhook")) and ends_at:
        opaque |= {"webhook": webhook, "webhook_until": ends_at.isoformat()}
    return ReplyTarget(
        identity.client_id, string(data, "conversationId"), string(data, "msgId"), opaque
    )


def _time(value: object) -> datetime | None:
    """Milliseconds since 1970, a number or a string of digits."""
    try:
        return datetime.fromtimestamp(int(str(value)) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def read_click(data: Mapping[str, Any], identity: Identity) -> InboundEvent:
    """Our event for a card callback. The turn is told by the card's own id, the action by the button."""
    out_track_id = string(data, "outTrackId")
    pressed = mapping(mapping(data.get("content") or data.get("value")).get("cardPrivateData"))
    params = mapping(pressed.get("params"))
    named = [string(params, key) for key in ("action", "id", "actionId")]
    named += [name for name in items(pressed.get("actionIds")) if isinstance(name, str)]
    action = next((name for name in named if name in ACTIONS), "")
    turn_id, user_id = turn_of(out_track_id), string(data, "userId")
    if not action or not turn_id or not user_id:
        return Unreadable(identity.client_id, out_track_id, "the button is not one of ours")
    return ButtonPressed(
        app_id=identity.client_id,
        # A card is asked again once, stopped once and left once: pressing a button twice is no second wish.
        dedupe_key=f"{identity.client_id}:click:{out_track_id}:{action}:{user_id}",
        event_id=f"{out_track_id}:{action}",
        chat_id=string(data, "spaceId").rpartition("//")[2].partition(".")[2] or string(data, "spaceId"),
        message_id=out_track_id,
        operator_id=user_id,
        action=action,
        turn_id=turn_id,
    )  # fmt: skip

"""DingTalk's webhooks: signatures with the document's vectors, every kind of message read tolerantly, clicks on cards."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dingtalk_stream.card_callback import CardCallbackMessage
from dingtalk_stream.chatbot import ChatbotMessage
from hypothesis import given
from hypothesis import strategies as st

from bot.domain.types import (
    Attachment,
    ButtonPressed,
    ChatKind,
    InboundMessage,
    Quoted,
    Unreadable,
)
from bot.errors import Rejected
from bot.platforms.base import WebhookRequest
from bot.platforms.dingtalk import crypto
from bot.platforms.dingtalk.parse import QUOTA_REASON, Identity, read_click, read_message
from bot.platforms.dingtalk.receive import Secrets, receive
from bot.platforms.dingtalk.track import track_id, turn_of

SECRET = "demo-app-secret-0123456789"
CARD_SECRET = "demo-card-api-secret"
SIGNED_MS = "1764403200000"
SIGN = "5j6KV+a1M9CG3RmVj6af5X9ElT3R3yUWSJeSBkHnGqg="
CARD_SIGN = "no0EzTbksGAg+u0WwCaCPlwiz7ROS2p0z0HCusKRl54="
NOW = datetime.fromtimestamp(1764403200, UTC)
ME = Identity("ding1", "小助手")
SECRETS = Secrets(SECRET, CARD_SECRET, 300.0)


def message(**fields: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "msgId": "msg1", "msgtype": "text", "conversationId": "cidAbC=", "conversationType": "2",
        "conversationTitle": "群", "chatbotCorpId": "corp", "chatbotUserId": "$:LWCP_v1:$bot", "robotCode": "ding1",
        "senderId": "$:LWCP_v1:$ann", "senderStaffId": "ann", "senderNick": "安", "senderCorpId": "corp",
        "sessionWebhook": "https://oapi.dingtalk.com/robot/sendBySession?session=s1",
        "sessionWebhookExpiredTime": 1764408600000, "createAt": 1764403199000, "isInAtList": True,
        "atUsers": [{"dingtalkId": "$:LWCP_v1:$bot"}], "text": {"content": " 你好"},
    }  # fmt: skip
    data.update(fields)
    return {key: value for key, value in data.items() if value is not None}


def read(**fields: Any) -> InboundMessage:
    event = read_message(message(**fields), ME, NOW)
    assert isinstance(event, InboundMessage)
    return event


def post(body: Any, **headers: str) -> WebhookRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return WebhookRequest("POST", named, {}, raw)


# -- signatures ---------------------------------------------------------------------------------------------------------
def test_the_documents_vectors() -> None:
    assert (
        crypto.robot_signature("1577262236757", "this is a secret")
        == "DJrE6qdyVGCQz9z5r2MDuNcNAhwYnuAkyj13cx169CA="
    )
    assert crypto.robot_signature(SIGNED_MS, SECRET) == SIGN
    assert crypto.card_signature(SIGNED_MS, CARD_SECRET) == CARD_SIGN


def test_a_genuine_message_is_answered_with_nothing() -> None:
    received = receive(post(message(), timestamp=f" {SIGNED_MS} ", sign=f"{SIGN} "), SECRETS, ME, NOW)  # fmt: skip
    assert (received.reply.status, received.reply.body) == (200, "")
    assert isinstance(received.events[0], InboundMessage)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"timestamp": SIGNED_MS}, 401),
        ({"sign": SIGN}, 401),
        ({"timestamp": SIGNED_MS, "sign": ""}, 401),
        ({"timestamp": "", "sign": SIGN}, 401),
        ({"timestamp": "soon", "sign": SIGN}, 401),
        ({"timestamp": "１７６４４０３２００000", "sign": SIGN}, 401),
        ({"timestamp": "-" + SIGNED_MS, "sign": SIGN}, 401),
        ({"timestamp": "9" * 400, "sign": SIGN}, 401),
        ({"timestamp": SIGNED_MS, "sign": SIGN[:-2] + "x="}, 401),
        ({"timestamp": SIGNED_MS, "sign": "\udcff"}, 401),
        # a robot's signature is none for a card, and the other way round
        ({"x_ddpaas_signature_timestamp": SIGNED_MS, "x_ddpaas_signature": SIGN}, 401),
        ({"timestamp": SIGNED_MS, "sign": CARD_SIGN}, 401),
        ({"x_ddpaas_signature": CARD_SIGN}, 401),
        ({"x_ddpaas_signature": "", "x_ddpaas_signature_timestamp": SIGNED_MS}, 401),
    ],
)
def test_what_is_not_signed_is_refused(headers: dict[str, str], status: int) -> None:
    with pytest.raises(Rejected) as refusal:
        receive(post(message(), **headers), SECRETS, ME, NOW)
    assert refusal.value.status == status


@pytest.mark.parametrize("seconds", [-3600, -301, 301, 3600])
def test_the_window(seconds: int) -> None:
    request = post(message(), timestamp=SIGNED_MS, sign=SIGN)
    later = NOW + timedelta(seconds=seconds)
    with pytest.raises(Rejected, match="too old"):
        receive(request, SECRETS, ME, later)
    wide = replace(SECRETS, window_s=3600.0)
    assert receive(request, wide, ME, later).events


def test_an_empty_secret_opens_nothing() -> None:
    empty = Secrets("", "", 300.0)
    sign = crypto.robot_signature(SIGNED_MS, "")
    with pytest.raises(Rejected):
        receive(post(message(), timestamp=SIGNED_MS, sign=sign), empty, ME, NOW)
    card = crypto.card_signature(SIGNED_MS, "")
    with pytest.raises(Rejected):
        receive(
            post({}, x_ddpaas_signature=card, x_ddpaas_signature_timestamp=SIGNED_MS),
            empty, ME, NOW,
        )  # fmt: skip


@pytest.mark.parametrize(("body", "status"), [(b"junk", 400), (b"[1]", 400), (b"\xff", 400), (b" " * 2**21, 413), (b"[" * 90_000, 400)])  # fmt: skip
def test_bodies_that_are_none(body: bytes, status: int) -> None:
    with pytest.raises(Rejected) as refusal:
        receive(post(body, timestamp=SIGNED_MS, sign=SIGN), SECRETS, ME, NOW)
    assert refusal.value.status == status


def test_only_post() -> None:
    with pytest.raises(Rejected) as refusal:
        receive(WebhookRequest("GET", {}, {}, b""), SECRETS, ME, NOW)
    assert refusal.value.status == 405


# -- messages -----------------------------------------------------------------------------------------------------------
def test_a_text_in_a_group() -> None:
    event = read()
    assert (event.text, event.chat_kind, event.mentions_bot) == ("你好", ChatKind.GROUP, True)
    assert (event.message_id, event.chat_id, event.sender.user_id) == ("msg1", "cidAbC=", "ann")
    assert event.dedupe_key == "ding1:message:msg1"
    assert event.sent_at == datetime.fromtimestamp(1764403199, UTC)
    assert event.target.opaque["webhook"].startswith("https://oapi.dingtalk.com/")
    assert event.target.opaque["user"] == "ann"


def test_a_text_in_a_chat_of_two() -> None:
    event = read(conversationType="1", isInAtList=None, createAt="1764403199000")
    assert (event.chat_kind, event.mentions_bot) == (ChatKind.DIRECT, False)
    assert event.sent_at == datetime.fromtimestamp(1764403199, UTC)


def test_people_from_outside_have_only_an_encrypted_id() -> None:
    event = read(senderStaffId=None)
    assert (event.sender.user_id, event.target.opaque["user"]) == ("$:LWCP_v1:$ann", "")


@pytest.mark.parametrize(
    ("fields", "addressed"),
    [
        ({}, True),
        ({"isInAtList": False}, False),
        ({"isInAtList": None}, True),
        ({"isInAtList": None, "atUsers": [{"dingtalkId": "$:LWCP_v1:$bob"}]}, False),
        ({"isInAtList": None, "atUsers": "x"}, False),
        ({"isInAtList": None, "atUsers": None, "chatbotUserId": None}, False),
    ],
)
def test_only_when_addressed(fields: dict[str, Any], addressed: bool) -> None:
    assert read(**fields).mentions_bot is addressed


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("  hi ", "hi"),
        ("@小助手 hi", "hi"),
        ("@小助手hi", "@小助手hi"),
        ("@小助手", ""),
        ("@小助手　你好", "你好"),
        ("@Bob hi", "@Bob hi"),
        ("\ud83d", "\ufffd"),
    ],
)
def test_the_own_name_is_stripped(said: str, text: str) -> None:
    assert read(text={"content": said}).text == text


CONTENTS: list[tuple[dict[str, Any], str, list[tuple[str, str, str]]]] = [
    ({"text": None, "content": "plain"}, "plain", []),
    ({"text": None, "content": {"content": "x"}}, "", []),
    ({"text": None}, "", []),
    ({"text": "x"}, "", []),
    ({"msgtype": "richText", "content": {"richText": [{"text": "a"}, {"text": "\n"}, {"text": "b"}, {"content": "c"},
      {"type": "picture", "downloadCode": "d1", "pictureDownloadCode": "p1"}, {"msgType": "emoji", "text": "[笑]"}, 7, {}]}},
     "a\nbc[笑]", [("image", "", "d1")]),
    ({"msgtype": "richText", "content": {"richText": "x"}}, "", []),
    ({"msgtype": "richText"}, "", []),
    ({"msgtype": "picture", "content": {"pictureDownloadCode": "p"}}, "", [("image", "", "p")]),
    ({"msgtype": "audio", "content": {"recognition": "你说", "downloadCode": "d", "duration": 3}}, "你说", []),
    ({"msgtype": "audio", "content": {"recognition": "", "downloadCode": "d"}}, "", [("audio", "", "d")]),
    ({"msgtype": "video", "content": {"downloadCode": "d", "videoType": "mp4"}}, "", [("video", "", "d")]),
    ({"msgtype": "file", "content": {"downloadCode": "d", "fileName": "a.txt"}}, "", [("file", "a.txt", "d")]),
    ({"msgtype": "file", "content": json.dumps({"downloadCode": "d", "fileName": "a.txt"})}, "", [("file", "a.txt", "d")]),
    ({"msgtype": "unknownMsgType", "content": {"unknownMsgType": "不支持"}}, "", [("other", "不支持", "")]),
    ({"msgtype": "hologram"}, "", [("other", "hologram", "")]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "text", "files"), CONTENTS)
def test_every_kind_of_content(
    fields: dict[str, Any], text: str, files: list[tuple[str, str, str]]
) -> None:
    event = read(**fields)
    assert event.text == text
    assert [(a.kind, a.name, a.remote_key) for a in event.attachments] == files


@pytest.mark.parametrize(
    ("kind", "content", "quote"),
    [
        ("text", {"text": "两\n行"}, Quoted("m0", "两\n行")),
        ("richText", {"richText": [{"msgType": "text", "content": "a"}, {"msgType": "picture", "downloadCode": "d"}]},
         Quoted("m0", "a", (Attachment("image", "", "d", "m0"),))),
        ("file", {"fileName": "x.pdf", "downloadCode": "d"}, Quoted("m0", "", (Attachment("file", "x.pdf", "d", "m0"),))),
        ("picture", {"downloadCode": "d"}, Quoted("m0", "", (Attachment("image", "", "d", "m0"),))),
        ("interactiveCard", {}, Quoted("m0")),
        ("text", "said so", Quoted("m0", "said so")),
        ("text", {"text": "x" * 9000}, Quoted("m0", "x" * 2000 + "…")),
    ],
)  # fmt: skip
def test_what_is_quoted_is_no_part_of_the_question(kind: str, content: Any, quote: Quoted) -> None:
    replied = {"msgId": "m0", "msgType": kind, "senderId": "x", "createdAt": 1, "content": content}
    event = read(text={"content": "问", "isReplyMsg": True, "repliedMsg": replied})
    assert (event.text, event.quoted) == ("问", quote)


def test_a_quote_does_not_hide_a_command() -> None:
    replied = {"msgId": "m0", "content": {"text": "x"}}
    assert read(text={"content": "/new", "repliedMsg": replied}).text == "/new"
    assert read(originalMsgId="m7").quoted == Quoted("m7")
    assert read().quoted is None


def test_no_quota_left() -> None:
    event = read_message(message(errorCode=20001, errorMessage="x", text=None), ME, NOW)
    assert event == Unreadable("ding1", "msg1", QUOTA_REASON)
    assert read_message(message(errorCode="20001", text=None), ME, NOW) == event


@pytest.mark.parametrize("missing", ["msgId", "conversationId"])
def test_what_is_missing(missing: str) -> None:
    assert isinstance(read_message(message(**{missing: None}), ME, NOW), Unreadable)


def test_the_own_messages_are_not_answered() -> None:
    assert isinstance(read_message(message(senderId="$:LWCP_v1:$bot"), ME, NOW), Unreadable)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["content", "text", "richText", "repliedMsg", "downloadCode", "cardPrivateData", "actionIds", "params"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([*message(), "content", "errorCode"]), JSON, max_size=6))
def test_no_message_breaks_the_parser(fields: dict[str, Any]) -> None:
    event = read_message({**message(), **fields}, ME, NOW)
    assert isinstance(event, (InboundMessage, Unreadable))
    if isinstance(event, InboundMessage):
        event.text.encode()


def test_the_official_client_reads_the_same_message() -> None:
    data = message(msgtype="richText", content={"richText": [{"text": "看"}, {"type": "picture", "downloadCode": "d"}]})  # fmt: skip
    theirs, ours = ChatbotMessage.from_dict(data), read_message(data, ME, NOW)
    assert isinstance(ours, InboundMessage)
    assert theirs.get_text_list() == [ours.text]
    assert theirs.get_image_list() == [ours.attachments[0].remote_key]
    assert (theirs.message_id, theirs.conversation_id) == (ours.message_id, ours.chat_id)
    assert (theirs.sender_staff_id, theirs.is_in_at_list) == (ours.sender.user_id, True)


# -- clicks -------------------------------------------------------------------------------------------------------------
def click(pressed: Any, **fields: Any) -> dict[str, Any]:
    return {
        "type": "actionCallback", "outTrackId": track_id("turn1", 0, "ding1"), "corpId": "corp", "userId": "ann", "userIdType": 1,
        "spaceType": "IM_GROUP", "spaceId": "dtv1.card//IM_GROUP.cidAbC=", "extension": "{}",
        "content": json.dumps({"cardPrivateData": pressed}), "value": "{}", **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    "pressed",
    [
        {"actionIds": ["stop"], "params": {}},
        {"actionIds": ["btn"], "params": {"action": "stop", "turn_id": "turn1"}},
        {"actionIds": [], "params": {"id": "stop"}},
        {"params": '{"actionId": "stop"}'},
    ],
)
def test_a_click(pressed: Any) -> None:
    data = click(pressed)
    event = read_click(data, ME)
    assert isinstance(event, ButtonPressed)
    assert (event.action, event.turn_id, event.operator_id) == ("stop", "turn1", "ann")
    assert (event.chat_id, event.message_id) == ("cidAbC=", data["outTrackId"])
    theirs = CardCallbackMessage.from_dict(data)
    assert (theirs.card_instance_id, theirs.user_id) == (event.message_id, event.operator_id)


@pytest.mark.parametrize(
    "data",
    [
        click({"actionIds": ["explode"]}),
        click({"actionIds": ["stop"]}, outTrackId="someone-elses"),
        click({"actionIds": ["stop"]}, userId=""),
        click({}, content="junk"),
        click({}, content=None, value=None),
        {},
    ],
)
def test_clicks_that_are_not_ours(data: dict[str, Any]) -> None:
    assert isinstance(read_click(data, ME), Unreadable)


@given(JSON, JSON)
def test_no_click_breaks_the_parser(content: Any, space: Any) -> None:
    read_click(click({}, content=content, spaceId=space), ME)


def test_a_click_by_webhook() -> None:
    data = click({"actionIds": ["regenerate"]})
    request = post(data, x_ddpaas_signature=CARD_SIGN, x_ddpaas_signature_timestamp=SIGNED_MS)
    received = receive(request, SECRETS, ME, NOW)
    assert received.reply.body == {}
    assert isinstance(received.events[0], ButtonPressed)


@given(st.text(alphabet="0123456789abcdef-", min_size=1), st.integers(0, 99))
def test_a_card_knows_its_turn(turn_id: str, n: int) -> None:
    assert turn_of(track_id(turn_id, n, "ding1")) == turn_id
    assert track_id(turn_id, n, "ding1") != track_id(turn_id, n + 1, "ding1")

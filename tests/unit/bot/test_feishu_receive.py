"""Webhooks: what is refused, what is acknowledged, and what our events say (feishu.md §1, §2, §8)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.types import (
    Attachment,
    BotAdded,
    ButtonPressed,
    ChatKind,
    InboundEvent,
    InboundMessage,
    MessageRecalled,
    Quoted,
    Unreadable,
)
from bot.errors import Rejected
from bot.platforms.base import Received, WebhookRequest
from bot.platforms.feishu.crypto import sign
from bot.platforms.feishu.names import Names
from bot.platforms.feishu.parse import Identity, read_quoted
from bot.platforms.feishu.receive import MAX_BODY_BYTES, Secrets, receive

KEY, TOKEN, APP, BOT = "kudryavka", "vtoken-123", "cli_1", "ou_bot"
SECRETS = Secrets(KEY, TOKEN)
NOW = datetime(2026, 11, 29, tzinfo=UTC)
ME = Identity(APP, BOT)


def encrypt(plain: bytes) -> str:
    iv, pad = os.urandom(16), 16 - len(plain) % 16
    cipher = Cipher(
        algorithms.AES(hashlib.sha256(KEY.encode()).digest()), modes.CBC(iv)
    ).encryptor()
    return base64.b64encode(
        iv + cipher.update(plain + bytes([pad]) * pad) + cipher.finalize()
    ).decode()


def request(
    data: Any, *, signed: bool = True, encrypted: bool = True, method: str = "POST"
) -> WebhookRequest:
    raw = data if isinstance(data, bytes) else json.dumps(data, ensure_ascii=False).encode()
    body = json.dumps({"encrypt": encrypt(raw)}).encode() if encrypted else raw
    headers = {
        "x-lark-request-timestamp": "1700000000",
        "x-lark-request-nonce": "n",
        "x-lark-signature": sign(KEY, "1700000000", "n", body),
    }
    return WebhookRequest(method, headers if signed else {}, {}, body)


def take(data: Any, *, own: str = BOT, **how: Any) -> Received:
    return receive(request(data, **how), SECRETS, Identity(APP, own), NOW)


def refused(data: Any, **how: Any) -> int:
    with pytest.raises(Rejected) as caught:
        take(data, **how)
    return caught.value.status


def envelope(event_type: str, event: Any, **header: Any) -> dict[str, Any]:
    full = {
        "event_id": "e1",
        "event_type": event_type,
        "token": TOKEN,
        "app_id": APP,
        "create_time": "1",
        **header,
    }
    return {"schema": "2.0", "header": full, "event": event}


def message(
    content: Any, kind: str = "text", *, sender: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    event = {
        "sender": {"sender_id": {"open_id": "ou_ann"}, "sender_type": "user", **(sender or {})},
        "message": {
            "message_id": "om_1", "chat_id": "oc_1", "chat_type": "group", "message_type": kind,
            "create_time": "1764374400000", "content": content if isinstance(content, str) else json.dumps(content),
            **fields,
        },
    }  # fmt: skip
    return envelope("im.message.receive_v1", event)


def mention(n: int, open_id: str, name: str) -> dict[str, Any]:
    return {
        "key": f"@_user_{n}",
        "id": {"open_id": open_id},
        "name": name,
        "mentioned_type": "user",
    }


def event_of(data: Any, **how: Any) -> InboundEvent:
    received = take(data, **how)
    assert received.reply.status == 200
    return received.events[0]


def message_of(data: Any, **how: Any) -> InboundMessage:
    event = event_of(data, **how)
    assert isinstance(event, InboundMessage)
    return event


# -- who wrote --------------------------------------------------------------------------------------------------------
def test_people_are_called_as_others_have_mentioned_them() -> None:
    names = Names(max_people=2)

    def said_by(open_id: str, *mentions: Any) -> str:
        data = message(
            {"text": "hi"}, sender={"sender_id": {"open_id": open_id}}, mentions=list(mentions)
        )
        (event,) = receive(request(data), SECRETS, ME, NOW, names).events
        assert isinstance(event, InboundMessage)
        return event.sender.name

    everyone = {"key": "@_all", "id": {"open_id": ""}, "name": "所有人"}
    assert said_by("ou_ann", mention(1, "ou_bob", "Bob"), everyone, "odd", {"id": []}) == ""
    assert said_by("ou_bob", mention(1, "ou_ann", "Ann")) == "Bob"
    assert said_by("ou_ann", mention(1, "ou_carl", "Carl")) == "Ann"
    assert (said_by("ou_bob"), said_by("ou_carl")) == ("", "Carl"), "as many as there is room for"


# -- who may come in --------------------------------------------------------------------------------------------------
CHALLENGE = {"challenge": "ch-42", "token": TOKEN, "type": "url_verification"}


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("encrypted", [True, False])
def test_the_check_of_the_url_comes_signed_or_not(signed: bool, encrypted: bool) -> None:
    received = take(CHALLENGE, signed=signed, encrypted=encrypted)
    assert received.reply.body == {"challenge": "ch-42"}
    assert received.events == ()


@pytest.mark.parametrize("how", [{}, {"signed": False}, {"signed": False, "encrypted": False}])
def test_the_check_of_the_url_needs_the_token(how: dict[str, bool]) -> None:
    assert refused({**CHALLENGE, "token": "wrong"}, **how) == 401
    assert refused({"challenge": "x", "type": "url_verification"}, **how) == 401
    assert refused({"token": TOKEN, "type": "url_verification"}, **how) == 400


def test_everything_else_unsigned_is_refused() -> None:
    assert refused(message({"text": "hi"}), signed=False) == 401
    assert refused(message({"text": "hi"}), signed=False, encrypted=False) == 401
    assert refused({"type": "event_callback", "token": TOKEN}, signed=False) == 401
    assert refused({**CHALLENGE, "pad": "x" * 20_000}, signed=False) == 401


def test_a_wrong_signature_is_refused_before_anything_is_read() -> None:
    good = request(message({"text": "hi"}))
    for headers in (
        {**good.headers, "x-lark-signature": "0" * 64},
        {**good.headers, "x-lark-signature": "é"},
        {**good.headers, "x-lark-request-timestamp": "1"},
        {**good.headers, "x-lark-request-nonce": ""},
    ):
        with pytest.raises(Rejected) as caught:
            receive(
                WebhookRequest("POST", headers, {}, good.body), SECRETS, Identity(APP, BOT), NOW
            )
        assert caught.value.status == 401
    changed = WebhookRequest("POST", good.headers, {}, good.body + b" ")
    with pytest.raises(Rejected):
        receive(changed, SECRETS, Identity(APP, BOT), NOW)


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"encrypt": 1}',
        b'{"a": 1}',
        b'{"header": {}}',
    ],
)
def test_junk_is_refused(junk: bytes) -> None:
    assert refused(junk, encrypted=False) == 400
    assert refused(junk, encrypted=False, signed=False) in {400, 401}


def test_big_bodies_and_other_methods_are_refused() -> None:
    assert refused(b" " * (MAX_BODY_BYTES + 1), encrypted=False) == 413
    assert refused(message({"text": "hi"}), method="GET") == 405
    with pytest.raises(Rejected) as caught:
        receive(request(CHALLENGE), Secrets("", ""), Identity(APP), NOW)
    assert caught.value.status == 404


def test_wrong_or_missing_token_is_refused() -> None:
    assert refused(envelope("im.message.receive_v1", {}, token="wrong")) == 401
    data = message({"text": "hi"})
    del data["header"]["token"]
    assert refused(data) == 401


@pytest.mark.parametrize("field", ["event_id", "event_type"])
def test_missing_envelope_fields_are_refused(field: str) -> None:
    data = message({"text": "hi"})
    del data["header"][field]
    assert refused(data) == 400
    assert refused({"schema": "2.0", "header": data["header"]}) == 400


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_no_bytes_make_it_fail(raw: bytes, signed: bool, encrypted: bool) -> None:
    with pytest.raises(Rejected):
        take(raw, signed=signed, encrypted=encrypted)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["message", "sender", "sender_id", "open_id", "content", "mentions", "key", "id", "chat_id", "message_id",
         "action", "value", "operator", "context", "chat_type", "message_type", "create_time"]), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["message", "sender", "action", "operator", "chat_id", "message_id"]),
        json_values,
    ),
    st.sampled_from(
        [
            "im.message.receive_v1",
            "im.message.recalled_v1",
            "card.action.trigger",
            "im.chat.member.bot.added_v1",
        ]
    ),
)
def test_a_verified_event_of_any_shape_is_acknowledged(
    event: dict[str, Any], event_type: str
) -> None:
    assert take(envelope(event_type, event)).reply.status == 200


# -- messages ---------------------------------------------------------------------------------------------------------
def test_a_direct_message() -> None:
    event = message_of(message({"text": "hello"}, chat_type="p2p"))
    assert (event.app_id, event.chat_kind, event.text) == (APP, ChatKind.DIRECT, "hello")
    assert event.dedupe_key == "cli_1:message:om_1"
    assert event.sender.user_id == "ou_ann"
    assert event.sent_at == datetime(2025, 11, 29, tzinfo=UTC)
    assert (event.target.reply_to, event.target.chat_id) == ("om_1", "oc_1")
    assert all(isinstance(value, str) for value in event.target.opaque.values())
    assert event.topic_id is None


def test_redelivery_under_a_new_event_id_has_the_same_key() -> None:
    first = message_of(message({"text": "hi"}))
    again = message({"text": "hi"})
    again["header"]["event_id"] = "e2"
    assert message_of(again).dedupe_key == first.dedupe_key


def test_only_thread_id_makes_a_topic() -> None:
    reply = message_of(message({"text": "x"}, root_id="om_0", parent_id="om_0"))
    assert (reply.topic_id, reply.quoted) == (None, Quoted("om_0"))
    topic = message_of(message({"text": "x"}, root_id="om_0", parent_id="om_0", thread_id="omt_1"))
    assert (topic.topic_id, topic.quoted) == ("omt_1", Quoted("om_0", is_topic_root=True))
    assert topic.target.opaque["thread"] == "1"


def said(**changes: Any) -> dict[str, Any]:
    """A message as GET messages/:id returns it."""
    item = {
        "message_id": "om_0",
        "chat_id": "oc_1",
        "msg_type": "text",
        "body": {"content": json.dumps({"text": "@_user_1 the budget is 7"})},
        "mentions": [{"key": "@_user_1", "id": "ou_bob", "id_type": "open_id", "name": "Bob"}],
    }
    return {**item, **changes}


def test_a_message_that_is_referred_to() -> None:
    assert read_quoted(said(), "oc_1", ME) == Quoted("om_0", "@Bob the budget is 7")
    file = {"file_key": "file_1", "file_name": "a.txt"}
    found = read_quoted(said(msg_type="file", body={"content": json.dumps(file)}), "oc_1", ME)
    assert found == Quoted("om_0", "", (Attachment("file", "a.txt", "file_1", "om_0"),))
    card = {"title": "T", "elements": [[{"tag": "text", "text": "said "}, {"tag": "text", "text": "by a card"}]]}  # fmt: skip
    found = read_quoted(
        said(msg_type="interactive", body={"content": json.dumps(card)}), "oc_1", ME
    )
    assert found == Quoted("om_0", "T\nsaid by a card")
    long = read_quoted(said(body={"content": json.dumps({"text": "x" * 9000})}), "oc_1", ME)
    assert long is not None
    assert long.text == "x" * 2000 + "…"
    for changes in ({"deleted": True}, {"chat_id": "oc_other"}, {"body": {"content": "{}"}}):
        assert read_quoted(said(**changes), "oc_1", ME) is None


@pytest.mark.parametrize(
    ("text", "shown", "mentioned"),
    [
        ("@_user_1 hi", "hi", True),
        ("@_user_1 /reset", "/reset", True),
        ("/reset @_user_1", "/reset", True),
        ("@_user_1\u3000/RESET", "/RESET", True),
        ("remind @_user_2 to @_user_1 eat", "remind @Bob to eat", True),
        ("remind @_user_10 and @_user_2", "remind @Joe and @Bob", False),
        ("@_user_1@_user_10", "@Joe", True),
        ("a\n@_user_1 b", "a\nb", True),
        ("@_all dinner", "@all dinner", False),
        ("@_all", "@all", False),
        ("@_user_7 who", "@? who", False),
        ("mail me@_user_1x", "mail me x", True),
    ],
)
def test_mentions(text: str, shown: str, mentioned: bool) -> None:
    present = [mention(2, "ou_bob", "Bob"), mention(10, "ou_joe", "Joe")]
    if "@_user_1" in text.replace("@_user_10", ""):
        present.append(mention(1, BOT, "Hearth"))
    event = message_of(message({"text": text}, mentions=present))
    assert (event.text, event.mentions_bot) == (shown, mentioned)


@pytest.mark.parametrize(
    "everyone",
    [
        {"key": "@_all", "id": {"open_id": "", "union_id": ""}, "name": "所有人"},
        {"key": "@_all", "id": {"user_id": "all"}, "name": "所有人"},
        {"key": "@_all", "id": {"open_id": BOT}, "name": "所有人"},
    ],
)
def test_everybody_is_not_the_bot(everyone: dict[str, Any]) -> None:
    event = message_of(message({"text": "@_all hi"}, mentions=[everyone]))
    assert (event.text, event.mentions_bot) == ("@所有人 hi", False)


def test_an_unknown_identity_fails_closed_and_asks_again() -> None:
    plain = message_of(message({"text": "hi"}), own="")
    assert not plain.mentions_bot
    assert (
        refused(message({"text": "@_user_1 hi"}, mentions=[mention(1, BOT, "Hearth")]), own="")
        == 503
    )
    direct = message({"text": "@_user_1 hi"}, mentions=[mention(1, BOT, "H")], chat_type="p2p")
    assert not message_of(direct, own="").mentions_bot


@pytest.mark.parametrize(
    "sender", [{"sender_type": "bot"}, {"sender_type": "app"}, {"sender_id": {"open_id": BOT}}]
)
def test_bots_are_not_answered(sender: dict[str, Any]) -> None:
    event = event_of(message({"text": "hi"}, sender=sender))
    assert isinstance(event, Unreadable)
    assert event.reason == "from a bot"


POST = [
    [{"tag": "at", "user_id": "@_user_1", "user_name": "Hearth"}, {"tag": "text", "text": " look at "},
     {"tag": "a", "text": "this", "href": "https://x.test"}],
    [{"tag": "img", "image_key": "img_1"}, {"tag": "emotion", "emoji_type": "SMILE"}],
    [{"tag": "hr"}],
    [{"tag": "code_block", "language": "PYTHON", "text": "print(1)\n"}],
    [{"tag": "media", "file_key": "f1", "image_key": "i"}],
]  # fmt: skip
POST_TEXT = "Title\n look at [this](https://x.test)\n[SMILE]\n---\n```python\nprint(1)\n```"


@pytest.mark.parametrize(
    "content", [{"title": "Title", "content": POST}, {"zh_cn": {"title": "Title", "content": POST}}]
)
def test_a_post_keeps_links_code_and_images(content: dict[str, Any]) -> None:
    event = message_of(message(content, "post", mentions=[mention(1, BOT, "Hearth")]))
    assert event.text == POST_TEXT.replace("\n look", "\nlook")
    assert event.mentions_bot
    assert [(a.kind, a.remote_key) for a in event.attachments] == [
        ("image", "img_1"),
        ("video", "f1"),
    ]


def test_odd_posts() -> None:
    flat = {"content": [{"tag": "text", "text": "a"}, {"tag": "text", "text": "b"}]}
    assert message_of(message(flat, "post")).text == "ab"
    second = {"content": [[]], "content_v2": [[{"tag": "md", "text": "**hi**"}]]}
    assert message_of(message(second, "post")).text == "**hi**"
    both = {
        "content": [[{"tag": "text", "text": "once"}]],
        "content_v2": [[{"tag": "md", "text": "once"}]],
    }
    assert message_of(message(both, "post")).text == "once"
    files = {
        "content": [[{"tag": "text", "text": "see"}]],
        "files": [{"file_key": "k", "file_name": "a.pdf"}],
    }
    event = message_of(message(files, "post"))
    assert [(a.kind, a.name) for a in event.attachments] == [("file", "a.pdf")]


@pytest.mark.parametrize(
    ("kind", "content", "attachment"),
    [
        ("image", {"image_key": "img_1"}, ("image", "", "img_1")),
        ("file", {"file_key": "f", "file_name": "a.pdf"}, ("file", "a.pdf", "f")),
        ("folder", {"file_key": "f", "file_name": "dir"}, ("file", "dir", "f")),
        ("audio", {"file_key": "f", "duration": 1}, ("audio", "", "f")),
        (
            "media",
            {"file_key": "f", "image_key": "i", "file_name": "v.mp4"},
            ("video", "v.mp4", "f"),
        ),
        ("sticker", {"file_key": "f"}, ("sticker", "", "f")),
        ("interactive", {"title": "", "elements": [[]]}, ("other", "interactive", "")),
        ("merge_forward", "Merged and Forwarded Message", ("other", "merge_forward", "")),
        ("location", {"name": "x"}, ("other", "location", "")),
        ("something_new", {}, ("other", "something_new", "")),
    ],
)
def test_what_is_not_text_is_named(
    kind: str, content: Any, attachment: tuple[str, str, str]
) -> None:
    event = message_of(message(content, kind))
    assert event.text == ""
    assert [(a.kind, a.name, a.remote_key) for a in event.attachments] == [attachment]


@pytest.mark.parametrize("content", ["{", "[]", '{"text": 1}', "{}", ""])
def test_an_unreadable_text_is_acknowledged(content: str) -> None:
    assert isinstance(event_of(message(content)), Unreadable)


# -- other events -----------------------------------------------------------------------------------------------------
def test_recalled_and_added() -> None:
    recalled = event_of(
        envelope("im.message.recalled_v1", {"message_id": "om_1", "chat_id": "oc_1"})
    )
    assert recalled == MessageRecalled(APP, "cli_1:event:e1", "e1", "om_1", "oc_1")
    added = event_of(envelope("im.chat.member.bot.added_v1", {"chat_id": "oc_1"}))
    assert isinstance(added, BotAdded)
    assert (added.chat_id, added.target.chat_id, added.target.reply_to) == ("oc_1", "oc_1", "")


@pytest.mark.parametrize("as_text", [True, False])
def test_buttons(as_text: bool) -> None:
    value: Any = {"action": "stop", "turn_id": "t1"}
    event = {
        "operator": {"open_id": "ou_ann"}, "token": "c-1", "host": "im_message",
        "action": {"tag": "button", "value": json.dumps(value) if as_text else value},
        "context": {"open_message_id": "om_9", "open_chat_id": "oc_1"},
    }  # fmt: skip
    pressed = event_of(envelope("card.action.trigger", event))
    assert pressed == ButtonPressed(
        APP, "cli_1:event:e1", "e1", "oc_1", "om_9", "ou_ann", "stop", "t1"
    )


@pytest.mark.parametrize(
    "value", ["stop", {"action": "explode", "turn_id": "t"}, {"action": "stop"}, [], None]
)
def test_foreign_buttons_are_acknowledged(value: Any) -> None:
    event = {"operator": {"open_id": "ou_ann"}, "action": {"value": value}, "context": {}}
    assert isinstance(event_of(envelope("card.action.trigger", event)), Unreadable)


def test_unknown_events_and_other_apps_are_acknowledged() -> None:
    assert isinstance(
        event_of(envelope("im.chat.access_event.bot_p2p_chat_entered_v1", {})), Unreadable
    )
    data = message({"text": "hi"})
    data["header"]["app_id"] = "cli_other"
    assert isinstance(event_of(data), Unreadable)


def test_schema_1_events() -> None:
    old = {"uuid": "u1", "token": TOKEN, "ts": "1", "type": "event_callback",
           "event": {"type": "im.message.recalled_v1", "app_id": APP, "message_id": "om_1", "chat_id": "oc_1"}}  # fmt: skip
    assert event_of(old) == MessageRecalled(APP, "cli_1:event:u1", "u1", "om_1", "oc_1")
    unknown = {"uuid": "u1", "token": TOKEN, "type": "event_callback", "event": {"type": "message"}}
    assert isinstance(event_of(unknown), Unreadable)
    assert refused({**unknown, "token": "wrong"}) == 401

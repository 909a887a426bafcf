"""WeCom webhooks in: what is genuine, what it says, and what is answered at once."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import pytest

from bot.config import WeComAppConfig, WeComBotConfig
from bot.domain.types import (
    AnswerRated,
    Attachment,
    BotAdded,
    ChatEntered,
    ChatKind,
    InboundMessage,
    Quoted,
    Unreadable,
)
from bot.errors import GiveUp, Rejected
from bot.platforms.base import Received, WebhookRequest
from bot.platforms.budget import MemoryBudget
from bot.platforms.downloads import Sources
from bot.platforms.http import SharedHttp
from bot.platforms.wecom import WeComAppAdapter, WeComCallbackAdapter, crypto, media, open_adapter
from bot.platforms.wecom.parse import without_mention

TOKEN, STAMP, NONCE = "QDG6eK", "1764374400", "1372623149"
ENCODING_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
KEY = bytes(range(32))
CORP = "ww0123456789abcdef"
ECHO = "4j/AuRx71kQlxVlzbpsMWFHe92iq4VdHki6B+j5nrtgcS54Mj3xQTtZ/FUl+1TNkgHFEtNbC6UD+fm58bt1m+w=="
ECHO_SIGNATURE = "4a4e1cd10fe34c011713125baa6f5d1a3cc60b43"
URL = "https://qyapi.weixin.qq.com/cgi-bin/aibot/response?response_code=1"


@pytest.fixture
def bot() -> WeComCallbackAdapter:
    config = WeComBotConfig(platform="wecom_bot", token=TOKEN, encoding_aes_key=ENCODING_KEY, bot_id="aib1", bot_name="小 助手")  # fmt: skip
    adapter = open_adapter("wecom", config, SharedHttp(), MemoryBudget())
    assert isinstance(adapter, WeComCallbackAdapter)
    return adapter


@pytest.fixture
def app() -> WeComAppAdapter:
    config = WeComAppConfig(platform="wecom_app", corp_id=CORP, corp_secret="s", agent_id=1000003, token=TOKEN, encoding_aes_key=ENCODING_KEY)  # fmt: skip
    adapter = open_adapter("app", config, SharedHttp(), MemoryBudget())
    assert isinstance(adapter, WeComAppAdapter)
    return adapter


def signed(encrypted: str, **changes: str) -> dict[str, str]:
    signature = crypto.sign(TOKEN, STAMP, NONCE, encrypted)
    return {"msg_signature": signature, "timestamp": STAMP, "nonce": NONCE, **changes}


def post(data: object, **changes: str) -> WebhookRequest:
    encrypted = crypto.encrypt(KEY, json.dumps(data).encode())
    body = json.dumps({"encrypt": encrypted}).encode()
    return WebhookRequest("POST", {}, signed(encrypted, **changes), body)


def post_xml(fields: str, receive_id: str = CORP) -> WebhookRequest:
    encrypted = crypto.encrypt(KEY, f"<xml>{fields}</xml>".encode(), receive_id)
    body = f"<xml><ToUserName>{CORP}</ToUserName><Encrypt><![CDATA[{encrypted}]]></Encrypt></xml>"
    return WebhookRequest("POST", {}, signed(encrypted), body.encode())


def opened(received: Received, request: WebhookRequest) -> dict[str, Any]:
    """The passive reply, verified as WeCom would."""
    body = received.reply.body
    assert isinstance(body, dict)
    assert set(body) == {"encrypt", "msgsignature", "timestamp", "nonce"}
    assert body["nonce"] == request.query["nonce"]
    assert isinstance(body["timestamp"], int)
    expected = crypto.sign(TOKEN, str(body["timestamp"]), body["nonce"], body["encrypt"])
    assert body["msgsignature"] == expected
    message: dict[str, Any] = json.loads(crypto.decrypt(KEY, body["encrypt"]))
    return message


def message(**changes: Any) -> dict[str, Any]:
    return {
        "msgid": "m1", "aibotid": "aib1", "chatid": "c1", "chattype": "group", "from": {"userid": "zhang"},
        "response_url": URL, "msgtype": "text", "text": {"content": "@小 助手 你好"}, **changes,
    }  # fmt: skip


def read(bot: WeComCallbackAdapter, **changes: Any) -> InboundMessage:
    event = bot.receive(post(message(**changes))).events[0]
    assert isinstance(event, InboundMessage)
    return event


# -- the check of the URL ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("encode", [True, False], ids=["escaped", "raw plus"])
def test_the_url_check_gives_the_clear_text(app: WeComAppAdapter, encode: bool) -> None:
    query = {"msg_signature": ECHO_SIGNATURE, "timestamp": STAMP, "nonce": NONCE}
    echo = quote(ECHO, safe="") if encode else ECHO
    decoded_once = dict(parse_qsl(f"{urlencode(query)}&echostr={echo}"))
    received = app.receive(WebhookRequest("GET", {}, decoded_once, b""))
    assert (received.reply.status, received.reply.body) == (200, "1616140317555161061")
    assert received.events == ()


def test_what_cannot_even_be_hashed_is_refused(
    bot: WeComCallbackAdapter, app: WeComAppAdapter
) -> None:
    """Half a character where base64 should be: anybody may send it, nobody gets a traceback for it."""
    query = {"msg_signature": "x", "timestamp": STAMP, "nonce": NONCE, "echostr": "\ud83d"}
    for request in (
        WebhookRequest("POST", {}, query, b'{"encrypt": "\\ud800"}'),
        WebhookRequest("POST", {}, query, '{"encrypt": "字"}'.encode()),
        WebhookRequest("GET", {}, query, b""),
    ):
        with pytest.raises(Rejected) as caught:
            bot.receive(request)
        assert caught.value.status == 400
    with pytest.raises(Rejected):
        app.receive(WebhookRequest("POST", {}, query, "<xml><Encrypt>字</Encrypt></xml>".encode()))


def test_a_bot_does_not_compare_the_receive_id(bot: WeComCallbackAdapter) -> None:
    query = {"msg_signature": ECHO_SIGNATURE, "timestamp": STAMP, "nonce": NONCE, "echostr": ECHO}
    assert bot.receive(WebhookRequest("GET", {}, query, b"")).reply.body == "1616140317555161061"


def test_a_forged_url_check(app: WeComAppAdapter) -> None:
    query = {"msg_signature": "0" * 40, "timestamp": STAMP, "nonce": NONCE, "echostr": ECHO}
    with pytest.raises(Rejected) as caught:
        app.receive(WebhookRequest("GET", {}, query, b""))
    assert caught.value.status == 401
    with pytest.raises(Rejected):
        app.receive(WebhookRequest("GET", {}, {}, b""))


# -- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"[]", 400), (b"{}", 400), (b'{"encrypt": 1}', 400), (b"\xff", 400), (b"[" * 60_000, 400),
     (b'{"encrypt": "AAAA"}', 401), (b" " * 1_048_577, 413)],
)  # fmt: skip
def test_junk_for_a_bot(bot: WeComCallbackAdapter, body: bytes, status: int) -> None:
    with pytest.raises(Rejected) as caught:
        bot.receive(WebhookRequest("POST", {}, signed("x"), body))
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"<xml>", 400), (b"<xml/>", 400), (b"<xml><Encrypt>AAAA</Encrypt></xml>", 401), (b" " * 262_145, 413),
     (b'<!DOCTYPE x [<!ENTITY a "b">]><xml><Encrypt>&a;</Encrypt></xml>', 400),
     (b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><xml><Encrypt>&a;</Encrypt></xml>', 400)],
)  # fmt: skip
def test_junk_for_an_app(app: WeComAppAdapter, body: bytes, status: int) -> None:
    with pytest.raises(Rejected) as caught:
        app.receive(WebhookRequest("POST", {}, signed("x"), body))
    assert caught.value.status == status


def test_the_signature_is_checked_before_anything_is_decrypted(
    bot: WeComCallbackAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> bytes:
        raise AssertionError("decrypted")

    request = post(message(), msg_signature="0" * 40)
    monkeypatch.setattr(crypto, "decrypt", never)
    with pytest.raises(Rejected, match="signature") as caught:
        bot.receive(request)
    assert caught.value.status == 401
    with pytest.raises(Rejected):
        bot.receive(WebhookRequest("PUT", {}, request.query, request.body))


def test_another_company_is_refused(app: WeComAppAdapter) -> None:
    with pytest.raises(Rejected, match="another company"):
        app.receive(post_xml("<MsgType>text</MsgType>", "ww_other"))


# -- messages to an AI bot --------------------------------------------------------------------------------------------
def test_a_group_message(bot: WeComCallbackAdapter) -> None:
    event = read(bot)
    assert (event.app_id, event.chat_id, event.chat_kind) == ("aib1", "c1", ChatKind.GROUP)
    assert (event.sender.user_id, event.text, event.mentions_bot) == ("zhang", "你好", True)
    assert event.dedupe_key == "aib1:message:m1"
    assert event.target.opaque["url"] == URL
    assert event.target.expires_at is not None


def test_a_direct_message(bot: WeComCallbackAdapter) -> None:
    event = read(bot, chattype="single", chatid=None, text={"content": "@小 助手 hi"})
    assert (event.chat_id, event.chat_kind, event.text) == ("zhang", ChatKind.DIRECT, "@小 助手 hi")
    assert not event.mentions_bot


@pytest.mark.parametrize(
    ("text", "name", "left"),
    [
        ("@Bot hi @Bob", "", "hi @Bob"),
        ("@小 助手 hi", "小 助手", "hi"),
        ("@小 助手", "小 助手", ""),
        ("@Bot\nhi", "", "\nhi"),
        ("hi @Bot", "", "hi @Bot"),
        ("@Bot\u2005hi", "", "hi"),
        ("a@b.c hi", "", "a@b.c hi"),
        ("@", "", "@"),
    ],
)
def test_only_the_mention_in_front_is_taken_away(text: str, name: str, left: str) -> None:
    assert without_mention(text, name) == left


def test_kinds_of_messages(bot: WeComCallbackAdapter) -> None:
    voice = read(bot, msgtype="voice", voice={"content": "说的话"})
    assert (voice.text, voice.attachments) == ("说的话", ())
    mixed = read(bot, msgtype="mixed", mixed={"msg_item": [
        {"msgtype": "text", "text": {"content": "@小 助手 看图"}},
        {"msgtype": "image", "image": {"url": "https://x.myqcloud.com/1", "aeskey": "k"}}, 7]})  # fmt: skip
    assert mixed.text == "看图"
    assert [item.kind for item in mixed.attachments] == ["image"]
    assert media.keys_of(mixed.attachments[0]) == {"url": "https://x.myqcloud.com/1", "aeskey": "k", "media_id": ""}  # fmt: skip
    file = read(bot, msgtype="file", file={"url": "https://h/f", "filename": "a.pdf"})
    assert [(item.kind, item.name) for item in file.attachments] == [("file", "a.pdf")]
    strange = read(bot, msgtype="hologram", hologram={})
    assert [(item.kind, item.name) for item in strange.attachments] == [("other", "hologram")]
    with pytest.raises(GiveUp):
        media.keys_of(strange.attachments[0])


def test_what_is_quoted_is_no_part_of_the_question(bot: WeComCallbackAdapter) -> None:
    quote = {"msgtype": "text", "text": {"content": "one\ntwo"}}
    asked = read(bot, quote=quote)
    assert (asked.text, asked.quoted) == ("你好", Quoted("", "one\ntwo"))
    picture = read(bot, quote={"msgtype": "image", "image": {"url": "https://h/i"}}).quoted
    assert picture is not None
    assert (picture.text, [item.kind for item in picture.attachments]) == ("", ["image"])
    file = read(bot, quote={"msgtype": "file", "file": {"url": "https://h/f", "filename": "a.md"}}).quoted  # fmt: skip
    assert file is not None
    assert media.keys_of(file.attachments[0])["url"] == "https://h/f"
    command = read(bot, quote=quote, text={"content": "@小 助手 /stop"})
    assert (command.text, command.quoted) == ("/stop", Quoted("", "one\ntwo"))
    long = read(bot, quote={"msgtype": "text", "text": {"content": "x" * 9000}}).quoted
    assert long == Quoted("", "x" * 2000 + "…")
    assert read(bot, quote="junk").quoted is None


async def test_a_file_that_nothing_can_decrypt() -> None:
    """Over the long connection no key of our own is needed, so there may be none."""
    file = Attachment("file", "a.txt", json.dumps({"url": "https://x.myqcloud.com/1"}))
    sources = Sources(("https://qyapi.weixin.qq.com",), (".myqcloud.com",))
    with pytest.raises(GiveUp, match="without a key"):
        await media.fetch(SharedHttp(), file, b"", sources, max_bytes=99)


@pytest.mark.parametrize(
    "changes",
    [{"msgid": None}, {"from": None}, {"from": {"userid": 7}}, {"chatid": ""}, {"aibotid": "other"}, {"msgtype": "event"},
     {"msgtype": "event", "event": {"eventtype": "disconnected_event"}}, {"msgtype": "event", "event": "feedback_event"}],
)  # fmt: skip
def test_what_cannot_be_read_is_acknowledged_in_silence(
    bot: WeComCallbackAdapter, changes: dict[str, Any]
) -> None:
    received = bot.receive(post(message(**changes)))
    assert isinstance(received.events[0], Unreadable)
    assert (received.reply.status, received.reply.body) == (200, "")


def test_openings_and_judgements(bot: WeComCallbackAdapter) -> None:
    def take(event: dict[str, Any]) -> Any:
        return bot.receive(post(message(msgtype="event", event=event))).events[0]

    entered = take({"eventtype": "enter_chat"})
    assert isinstance(entered, ChatEntered)
    assert entered.target.opaque["nonce"] == NONCE
    bad = {"id": "s1", "type": 2, "content": "my words", "inaccurate_reason_list": [1, 4, 9]}
    rated = take({"eventtype": "feedback_event", "feedback_event": bad})
    assert isinstance(rated, AnswerRated)
    assert (rated.verdict, rated.reasons) == ("bad", ("off_topic", "bad_analysis"))
    assert "my words" not in repr(rated)
    strange = take({"eventtype": "feedback_event", "feedback_event": {"id": "s1", "type": [2]}})
    assert isinstance(strange, Unreadable)


def test_the_own_messages_are_not_answered(bot: WeComCallbackAdapter) -> None:
    """WeCom delivers none of them by the document; a loop would be endless."""
    own = bot.receive(post(message(**{"from": {"userid": bot.config.bot_id}})))
    assert isinstance(own.events[0], Unreadable)
    system = bot.receive(post(message(**{"from": {"userid": "sys"}})))
    assert isinstance(system.events[0], Unreadable)


@pytest.mark.parametrize("url", ["https://evil.example/x", "http://qyapi.weixin.qq.com/x", "https://qyapi.weixin.qq.com:8443/x", "https://[", ""])  # fmt: skip
def test_a_response_url_that_leads_elsewhere_is_not_kept(
    bot: WeComCallbackAdapter, url: str
) -> None:
    assert read(bot, response_url=url).target.opaque["url"] == ""


def test_half_an_emoji_can_be_stored(bot: WeComCallbackAdapter) -> None:
    assert read(bot, text={"content": "a\ud83d"}).text == "a\ufffd"


# -- streams ----------------------------------------------------------------------------------------------------------
def test_a_message_is_answered_with_its_stream_and_a_redelivery_with_the_same(
    bot: WeComCallbackAdapter,
) -> None:
    first = post(message())
    stream = opened(bot.receive(first), first)["stream"]
    feedback = {"id": stream["id"]}
    assert stream == {"id": stream["id"], "finish": False, "content": "<think></think>", "feedback": feedback}  # fmt: skip
    again = post(message(), nonce=NONCE)
    assert opened(bot.receive(again), again)["stream"] == stream
    other = post(message(msgid="m2"))
    assert opened(bot.receive(other), other)["stream"]["id"] != stream["id"]


def test_a_poll_is_answered_from_the_snapshot_and_is_no_event(bot: WeComCallbackAdapter) -> None:
    event = read(bot)
    stream_id = event.target.opaque["stream"]
    stream = bot.shelf.claim(stream_id, "turn", ("c1", "zhang"), 0.0)
    assert stream is not None
    bot.shelf.put(stream, "半个答案", 4)
    poll = post({"msgid": "p1", "msgtype": "stream", "stream": {"id": stream_id}, "from": {"userid": "zhang"}})  # fmt: skip
    received = bot.receive(poll)
    assert received.events == ()
    assert opened(received, poll)["stream"] == {"id": stream_id, "finish": False, "content": "半个答案"}  # fmt: skip
    assert bot.receive(post({"msgtype": "stream"})).reply.body == ""


# -- messages to an app -----------------------------------------------------------------------------------------------
HEAD = "<FromUserName>zhang</FromUserName><CreateTime>1764374400</CreateTime>"


def test_an_app_text(app: WeComAppAdapter) -> None:
    received = app.receive(post_xml(f"{HEAD}<MsgType><![CDATA[text]]></MsgType><Content><![CDATA[ a <b> ]]></Content><MsgId>74</MsgId><AgentID>1000003</AgentID>"))  # fmt: skip
    assert (received.reply.status, received.reply.body) == (200, "")
    event = received.events[0]
    assert isinstance(event, InboundMessage)
    assert (event.text, event.chat_id, event.chat_kind) == (" a <b> ", "zhang", ChatKind.DIRECT)
    assert event.dedupe_key == f"{CORP}:1000003:message:74"
    assert event.sent_at.year == 2025


@pytest.mark.parametrize(
    ("fields", "text", "kinds"),
    [
        ("<MsgType>image</MsgType><MediaId>id</MediaId>", "", ["image"]),
        ("<MsgType>voice</MsgType><MediaId>id</MediaId>", "", ["audio"]),
        ("<MsgType>file</MsgType><MediaId>id</MediaId><FileName>a.txt</FileName>", "", ["file"]),
        ("<MsgType>location</MsgType><Location_X>1.5</Location_X><Location_Y>2</Location_Y><Label>街</Label>", "街 (1.5, 2)", []),
        ("<MsgType>link</MsgType><Title>T</Title><Url>https://x</Url>", "T\nhttps://x", []),
        ("<MsgType>new</MsgType>", "", ["other"]),
    ],
)  # fmt: skip
def test_kinds_of_app_messages(
    app: WeComAppAdapter, fields: str, text: str, kinds: list[str]
) -> None:
    event = app.receive(post_xml(f"{HEAD}<MsgId>1</MsgId>{fields}")).events[0]
    assert isinstance(event, InboundMessage)
    assert event.text == text
    assert [item.kind for item in event.attachments] == kinds


def test_app_events_have_keys_of_their_own(app: WeComAppAdapter) -> None:
    def event(kind: str, key: str) -> Any:
        fields = f"<MsgType>event</MsgType><Event>{kind}</Event><EventKey>{key}</EventKey>"
        return app.receive(post_xml(HEAD + fields)).events[0]

    new, help_ = event("click", "/new"), event("click", "/help")
    assert (new.text, help_.text) == ("/new", "/help")
    assert new.dedupe_key == f"{CORP}:1000003:message:zhang+1764374400+click+/new"
    assert new.dedupe_key != help_.dedupe_key
    joined = event("subscribe", "")
    assert isinstance(joined, BotAdded)
    assert joined.chat_id == "zhang"
    for kind, key in [("enter_agent", ""), ("click", "menu_1"), ("LOCATION", ""), ("", "")]:
        assert isinstance(event(kind, key), Unreadable)


def test_messages_for_others_are_acknowledged(app: WeComAppAdapter) -> None:
    for fields in [
        f"{HEAD}<MsgType>text</MsgType><AgentID>7</AgentID>",
        "<FromUserName>sys</FromUserName><MsgType>text</MsgType>",
        "<MsgType>text</MsgType>",
        HEAD,
    ]:
        received = app.receive(post_xml(fields))
        assert isinstance(received.events[0], Unreadable)
        assert received.reply.status == 200

"""The self-built app: XML callbacks (wechatpy opens them), tokens, message/send with its silent losses, media, faults."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from bot.sandbox.wecom import Limits, ManualClock, WeComSandbox, crypto, visible_text
from tests.support.wecomkit import HookBot, button_card, hooked, rules

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # wechatpy's own, at import
    from wechatpy.enterprise import parse_message
    from wechatpy.enterprise.crypto import WeChatCrypto


class Wire:
    """A client of the API that keeps the token it was given first."""

    def __init__(self, sandbox: WeComSandbox, session: aiohttp.ClientSession) -> None:
        self.sandbox = sandbox
        self.session = session
        self.token = ""

    async def get(self, path: str, **query: str) -> Any:
        url = f"{self.sandbox.base_url}/cgi-bin{path}"
        async with self.session.get(url, params=query) as response:
            return await response.json(content_type=None)

    async def login(self) -> Any:
        config = self.sandbox.config
        reply = await self.get("/gettoken", corpid=config.corp_id, corpsecret=config.corp_secret)
        self.token = reply.get("access_token", "")
        return reply

    async def post(self, path: str, body: Any, token: str | None = None) -> Any:
        url = f"{self.sandbox.base_url}/cgi-bin{path}"
        params = {"access_token": self.token if token is None else token}
        async with self.session.post(url, params=params, json=body) as response:
            return await response.json(content_type=None)

    async def send(self, userid: str, content: str, kind: str = "text", **more: Any) -> Any:
        return await self.post(
            "/message/send",
            {
                "touser": userid, "msgtype": kind, "agentid": self.sandbox.config.agent_id,
                kind: {"content": content}, **more,
            },
        )  # fmt: skip


@asynccontextmanager
async def app(**config: Any) -> AsyncIterator[tuple[WeComSandbox, HookBot, Wire]]:
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        hooked(mode="app", **config) as (sandbox, bot),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        wire = Wire(sandbox, session)
        await wire.login()
        yield sandbox, bot, wire


async def test_wechatpy_reads_the_callbacks() -> None:
    async with app() as (sandbox, bot, _):
        config = sandbox.config
        judge = WeChatCrypto(config.token, config.encoding_aes_key, config.corp_id)
        user = sandbox.add_user("小林", "zhangsan")
        chat = sandbox.direct_chat(user)
        sent = await sandbox.say(chat, user, "你好 <b> ]]> &amp;")
        await sandbox.say(chat, user, kind="image", data=b"\x89PNG" + b"x" * 20)
        await sandbox.enter_chat(user)
        opened = [
            parse_message(
                judge.decrypt_message(
                    raw, query["msg_signature"], query["timestamp"], query["nonce"]
                )
            )
            for query, raw in bot.requests
        ]
        text, image, event = opened
        assert (text.type, text.content) == ("text", "你好 <b> ]]> &amp;")
        assert (str(text.id), text.source, text.target) == (sent.id, "zhangsan", config.corp_id)
        assert str(text.agent) == str(config.agent_id)
        assert (image.type, bool(image.media_id)) == ("image", True)
        assert (event.type, event.event) == ("event", "enter_agent")
        assert sandbox.violations == []


async def test_a_passive_reply_in_xml_and_the_word_success() -> None:
    async with app() as (sandbox, bot, _):
        config = sandbox.config
        judge = WeChatCrypto(config.token, config.encoding_aes_key, config.corp_id)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        xml = "<xml><MsgType><![CDATA[text]]></MsgType><Content><![CDATA[at once]]></Content></xml>"
        bot.answer = lambda _body: judge.encrypt_message(xml, "1", "1764374400").encode()
        sent = await sandbox.say(chat, user, "hi")
        assert [visible_text(m) for m in sandbox.replies(sent)] == ["at once"]
        bot.answer = lambda _body: b"success"
        assert (await sandbox.say(chat, user, "hi")).acked
        assert sandbox.violations == []
        bot.answer = lambda _body: xml.encode()
        await sandbox.say(chat, user, "hi")
        assert rules(sandbox) == ["plain_reply"]


async def test_groups_are_never_delivered_to_an_app() -> None:
    async with app() as (sandbox, _, _wire):
        user = sandbox.add_user("a")
        assert (await sandbox.say(sandbox.add_group("g", [user]), user, "hi")).push is None


async def test_the_same_callback_again() -> None:
    clock = ManualClock()
    async with app(clock=clock) as (sandbox, bot, _):
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        await sandbox.redeliver(sent)
        entered = await sandbox.enter_chat(user)
        assert entered is not None
        clock.advance(3)
        await sandbox.redeliver(entered)
        assert bot.seen[0] == bot.seen[1]
        assert bot.seen[2] == bot.seen[3]
        system = {"FromUserName": "sys", "MsgType": "text", "Content": "notice"}
        await sandbox.send_event(sandbox.direct_chat(user), user, system)
        assert "<FromUserName><![CDATA[sys]]></FromUserName>" in bot.seen[4]
        assert f"<MsgId><![CDATA[{sent.id}]]></MsgId>" in bot.seen[0]


async def test_tokens() -> None:
    clock = ManualClock()
    async with app(clock=clock, limits=Limits(tokens_per_minute=4)) as (sandbox, _, wire):
        config = sandbox.config
        user = sandbox.add_user("a")
        token = wire.token
        reply = await wire.login()
        assert (reply["errcode"], reply["expires_in"], wire.token) == (0, 7200, token)
        assert (await wire.get("/gettoken", corpid="x", corpsecret="y"))["errcode"] == 40013
        wrong = await wire.get("/gettoken", corpid=config.corp_id, corpsecret="y")
        assert wrong["errcode"] == 40001
        assert (await wire.login())["errcode"] == 45009
        wire.token = token
        assert (await wire.send(user.id, "hi"))["errcode"] == 0
        assert (await wire.post("/message/send", {}, ""))["errcode"] == 41001
        assert (await wire.post("/message/send", {}, "nonsense"))["errcode"] == 40014
        clock.advance(7201)
        assert (await wire.send(user.id, "hi"))["errcode"] == 42001
        fresh = await wire.login()
        assert (fresh["errcode"], wire.token != token) == (0, True)
        assert (await wire.send(user.id, "again"))["errcode"] == 0
        sandbox.tokens.revoke()
        assert (await wire.send(user.id, "hi"))["errcode"] == 40014
        assert rules(sandbox) == ["token_storm"]
        assert token not in str(sandbox.calls)
        assert config.corp_secret not in str(sandbox.calls)


async def test_an_address_that_is_not_trusted() -> None:
    async with app(trusted_ips=("10.0.0.1",)) as (sandbox, _, wire):
        user = sandbox.add_user("a")
        refused = await wire.send(user.id, "hi")
        assert refused["errcode"] == 60020
        assert "from ip: 127.0.0.1" in refused["errmsg"]
        sandbox.trust_ips("127.0.0.1")
        assert (await wire.send(user.id, "hi"))["errcode"] == 0


async def test_text_is_cut_and_markdown_refused_when_too_long() -> None:
    async with app() as (sandbox, _, wire):
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        sent = await sandbox.say(chat, user, "hi")
        assert (await wire.send(user.id, "字" * 683))["errcode"] == 0
        assert visible_text(sandbox.replies(sent)[0]) == "字" * 682
        assert (await wire.send(user.id, "x" * 2049, "markdown"))["errcode"] == 45002
        assert (await wire.send(user.id, "- a\n\n```\nx\n```", "markdown"))["errcode"] == 0
        assert (await wire.send(user.id, "  "))["errcode"] == 44004
        assert rules(sandbox) == [
            "text_cut", "message_too_big", "markdown_unsupported", "markdown_unsupported", "empty_message",
        ]  # fmt: skip


async def test_what_is_too_much_for_one_person_is_lost_without_a_word() -> None:
    clock = ManualClock()
    async with app(clock=clock) as (sandbox, _, wire):
        user = sandbox.add_user("a")
        codes = [(await wire.send(user.id, f"part {i}"))["errcode"] for i in range(31)]
        assert codes == [0] * 31
        assert len(sandbox.messages(sandbox.direct_chat(user))) == 30
        assert rules(sandbox) == ["rate_dropped"]
        clock.advance(61)
        await wire.send(user.id, "later")
        assert len(sandbox.messages(sandbox.direct_chat(user))) == 31


async def test_receivers_agents_and_kinds() -> None:
    async with app() as (sandbox, _, wire):
        user = sandbox.add_user("a")
        partly = await wire.send(f"{user.id}|ghost", "hi")
        assert (partly["errcode"], partly["invaliduser"]) == (0, "ghost")
        assert (await wire.send("ghost", "hi"))["errcode"] == 81013
        assert (await wire.send(user.id, "hi", agentid=7))["errcode"] == 40056
        assert (await wire.send(user.id, "hi", "poem"))["errcode"] == 40008
        twice = [await wire.send(user.id, "same", enable_duplicate_check=1) for _ in range(2)]
        assert [reply["errcode"] for reply in twice] == [0, 0]
        texts = [m.text for m in sandbox.messages(sandbox.direct_chat(user))]
        assert texts == ["hi", "same"]
        await wire.get("/nothing/here")
        assert rules(sandbox) == ["reply_kind", "duplicate_dropped", "unknown_api"]


async def test_sends_that_are_under_way_together() -> None:
    async with app(latency_s=0.05, limits=Limits(concurrent_calls=2)) as (sandbox, _, wire):
        user, other = sandbox.add_user("a"), sandbox.add_user("b")
        replies = await asyncio.gather(wire.send(user.id, "1"), wire.send(other.id, "2"))
        assert [reply["errcode"] for reply in replies] == [0, 0]
        assert sandbox.violations == []
        replies = await asyncio.gather(*(wire.send(user.id, f"{i}") for i in range(3)))
        assert sorted(reply["errcode"] for reply in replies) == [0, 0, 45033]
        assert rules(sandbox) == ["parallel_sends"]


async def test_media_there_and_back() -> None:
    clock = ManualClock()
    async with app(clock=clock, token_ttl_s=1e9) as (sandbox, bot, wire):
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, kind="file", data=b"contents", filename="表.txt")  # fmt: skip
        assert "<FileName><![CDATA[表.txt]]></FileName>" in bot.seen[0]
        media_id = bot.seen[0].split("<MediaId><![CDATA[")[1].split("]]>")[0]
        url = f"{sandbox.base_url}/cgi-bin/media/get"
        params = {"access_token": wire.token, "media_id": media_id}
        async with wire.session.get(url, params=params) as response:
            assert await response.read() == b"contents"
            assert "UTF-8''%E8%A1%A8.txt" in response.headers["Content-Disposition"]
        form = aiohttp.FormData()
        form.add_field("media", b"0123456789", filename="a.txt")
        upload = f"{sandbox.base_url}/cgi-bin/media/upload"
        async with wire.session.post(
            upload, params={"access_token": wire.token, "type": "file"}, data=form
        ) as response:
            own_id = (await response.json())["media_id"]
        body = {
            "touser": user.id, "agentid": sandbox.config.agent_id, "msgtype": "file", "file": {"media_id": own_id},
        }  # fmt: skip
        assert (await wire.post("/message/send", body))["errcode"] == 0
        assert sandbox.messages(sandbox.direct_chat(user))[-1].text == "[file] a.txt"
        clock.advance(3 * 86_400)
        assert (await wire.get("/media/get", **params))["errcode"] == 40007


async def test_cards_clicks_and_one_update() -> None:
    async with app() as (sandbox, bot, wire):
        user = sandbox.add_user("a")
        card = button_card("task-1", "Stop")
        reply = await wire.send(user.id, "", "template_card", template_card=card)
        shown = sandbox.messages(sandbox.direct_chat(user))[0]
        await sandbox.press(shown, "Stop", user)
        code = bot.seen[0].split("<ResponseCode><![CDATA[")[1].split("]]>")[0]
        assert "<EventKey><![CDATA[key-Stop]]></EventKey>" in bot.seen[0]
        update = {"response_code": code, "button": {"replace_name": "Stopped"}}
        assert (await wire.post("/message/update_template_card", update))["errcode"] == 0
        assert shown.data == {"replaced": "Stopped"}
        assert (await wire.post("/message/update_template_card", update))["errcode"] == 93000
        whole = {"response_code": reply["response_code"], "template_card": button_card("task-1")}
        assert (await wire.post("/message/update_template_card", whole))["errcode"] == 0
        recalled = await wire.post("/message/recall", {"msgid": reply["msgid"]})
        assert (recalled["errcode"], shown.recalled) == (0, True)
        assert rules(sandbox) == ["response_code_reused"]


async def test_faults() -> None:
    async with app() as (sandbox, _, wire):
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        sandbox.faults.refuse("message.send", -1)
        assert (await wire.send(user.id, "busy"))["errcode"] == -1
        sandbox.faults.rate_limit("message.send")
        assert (await wire.send(user.id, "often"))["errcode"] == 45009
        sandbox.faults.bad_gateway("message.send")
        with pytest.raises(ValueError, match="Expecting value"):
            await wire.send(user.id, "page")
        sandbox.faults.drop("message.send")
        with pytest.raises(aiohttp.ClientError):
            await wire.send(user.id, "lost before")
        assert sandbox.messages(chat) == []
        sandbox.faults.drop("message.send", after=True)
        with pytest.raises(aiohttp.ClientError):
            await wire.send(user.id, "lost after")
        assert [m.text for m in sandbox.messages(chat)] == ["lost after"]
        sandbox.faults.down()
        with pytest.raises(aiohttp.ClientError):
            await wire.send(user.id, "down")
        sandbox.faults.up()
        outcomes = [
            (call.code, call.status, call.dropped) for call in sandbox.calls_of("message.send")
        ]
        assert outcomes == [
            (-1, 200, ""), (45009, 200, ""), (0, 502, ""), (0, 0, "before"), (0, 200, "after"), (0, 0, "before"),
        ]  # fmt: skip


def test_a_key_is_43_letters_and_digits() -> None:
    key = crypto.new_encoding_aes_key()
    assert len(crypto.key_of(key)) == 32
    for wrong in (key[:42], key + "=", key[:42] + "+"):
        with pytest.raises(ValueError, match="43"):
            crypto.key_of(wrong)

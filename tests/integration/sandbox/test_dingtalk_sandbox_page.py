"""The chat page on the DingTalk sandbox: the same verbs as on Feishu's, with DingTalk's ways behind them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from bot.sandbox import DingTalkSandbox, build_stage, dingtalk_stage_config
from tests.support.dingtalkkit import StreamClient, Wire, streaming


class Browser:
    """The page without a browser."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def post(self, verb: str, body: dict[str, Any], status: int = 200) -> Any:
        async with self.session.post(f"/sandbox/{verb}", json=body) as reply:
            assert reply.status == status, await reply.text()
            return await reply.json()

    async def state(self) -> dict[str, Any]:
        async with self.session.get("/sandbox/state") as reply:
            return await reply.json()


@pytest.fixture
async def scene() -> AsyncIterator[tuple[Any, Browser, Wire, StreamClient]]:
    stage = build_stage(DingTalkSandbox(dingtalk_stage_config(notes={"model": "demo"})))
    async with (
        stage.sandbox as sandbox,
        aiohttp.ClientSession(sandbox.base_url) as session,
        aiohttp.ClientSession() as calls,
    ):
        wire = Wire(sandbox, calls)
        await wire.login()
        async with streaming(wire) as client:
            yield stage, Browser(session), wire, client


async def test_a_conversation_on_the_page(scene: tuple[Any, Browser, Wire, StreamClient]) -> None:
    stage, browser, wire, client = scene
    first = await browser.state()
    assert (first["platform"], first["bot"]["name"], first["notes"]) == (
        "dingtalk",
        "Hearth",
        {"model": "demo"},
    )
    assert [chat["kind"] for chat in first["chats"]] == ["group", "p2p"]
    sentence = {
        "chat_id": stage.group.id,
        "user_id": stage.people[0].id,
        "text": "@Hearth hello @Alex",
        "mention_bot": False,
    }
    await browser.post("say", sentence)
    await stage.sandbox.wait_for(lambda: client.frames)
    (message,) = client.robot()
    assert message["text"] == {"content": " hello @Alex"}
    assert len(message["atUsers"]) == 2
    button = {"text": "Stop", "id": "b1", "params": {"action": "stop"}}
    params = {"content": "", "buttons": json.dumps([button])}
    await wire.new_card(stage.group, "t1", callbackType="STREAM", cardData={"cardParamMap": params})
    await wire.frame("t1", "growing")
    question, card = (await browser.state())["messages"]
    assert question["text"] == "@Hearth hello @Alex"
    assert (card["kind"], card["card"]["streaming"], card["reply_to"]) == (
        "card",
        True,
        question["id"],
    )
    text, row = card["card"]["elements"]
    assert (text["content"], text["glue"]) == ("growing", True)
    shown = row["elements"][0]["buttons"][0]
    assert (shown["text"], shown["type"]) == ("Stop", "danger")
    press = {"message_id": card["id"], "value": shown["value"], "user_id": stage.people[1].id}
    client.answer = lambda _frame: {"response": {}}
    assert await browser.post("press", press) == {"toast": None, "code": ""}
    client.answer = lambda _frame: {"wrong": 1}
    assert (await browser.post("press", press))["toast"]["type"] == "error"
    url = message["sessionWebhook"]
    body = {"title": "t", "text": f"@{stage.people[0].staff_id} **done**"}
    await wire.call(
        "POST",
        url,
        {"msgtype": "markdown", "markdown": body, "at": {"atUserIds": [stage.people[0].staff_id]}},
    )
    plain = (await browser.state())["messages"][-1]
    assert plain["card"]["elements"][0]["content"] == "@小林 **done**"
    async with browser.session.get("/sandbox/events", headers={"Last-Event-ID": "0"}) as stream:
        newest = (await browser.state())["last_event_id"]
        told = ""
        while f"id: {newest}\n" not in told:
            told += (await stream.content.readuntil(b"\n\n")).decode()
    assert "card.stream · 7 chars" in told
    assert wire.token not in told
    assert url not in told
    assert stage.sandbox.config.client_secret not in told


async def test_recall_new_chat_and_faults(scene: tuple[Any, Browser, Wire, StreamClient]) -> None:
    stage, browser, _, client = scene
    say = {
        "chat_id": stage.direct.id,
        "user_id": stage.people[0].id,
        "text": "hi",
        "mention_bot": False,
    }
    await browser.post("fault", {"kind": "duplicate"}, 400)
    await browser.post("say", say)
    await stage.sandbox.wait_for(lambda: client.frames)
    await browser.post("fault", {"kind": "duplicate"})
    assert len({message["msgId"] for message in client.robot()}) == 1
    assert len(client.robot()) == 2
    (message,) = stage.sandbox.messages(stage.direct)
    await browser.post("say", say | {"text": "again", "reply_to": message.id})
    await stage.sandbox.wait_for(lambda: len(client.robot()) == 3)
    assert client.robot()[2]["originalMsgId"] == message.id
    await browser.post("recall", {"message_id": message.id})
    assert message.recalled
    made = await browser.post("new_chat", {"name": "新群"})
    assert (made["chat"]["name"], len(made["chat"]["members"])) == ("新群", 2)
    for verb, body in (
        ("say", say | {"chat_id": "x"}),
        ("say", say | {"user_id": stage.sandbox.bot.id}),
        ("say", say | {"reply_to": "x"}),
        ("recall", {"message_id": "x"}),
        ("press", {"message_id": message.id, "value": "x", "user_id": stage.people[0].id}),
    ):
        await browser.post(verb, body, 400)
    await browser.post("fault", {"kind": "down"})
    assert stage.sandbox.faults.is_down()
    assert await browser.state()

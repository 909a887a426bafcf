"""The chat page on WeCom: a bubble that grows, a template card with buttons, quotes, the switches that break things."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from bot.sandbox.wecom import WeComSandbox
from tests.support.wecomkit import button_card, hooked, stream


class Browser:
    """What the page does."""

    def __init__(self, sandbox: WeComSandbox, session: aiohttp.ClientSession) -> None:
        self.base = sandbox.base_url
        self.session = session

    async def state(self) -> Any:
        async with self.session.get(f"{self.base}/sandbox/state") as response:
            return await response.json()

    async def post(self, verb: str, body: Any) -> tuple[int, Any]:
        async with self.session.post(f"{self.base}/sandbox/{verb}", json=body) as response:
            return response.status, await response.json()

    async def events(self, until: str) -> list[tuple[str, Any]]:
        """The stream from its beginning, up to the first event whose data contains `until`."""
        found: list[tuple[str, Any]] = []
        url, headers = f"{self.base}/sandbox/events", {"Last-Event-ID": "0"}
        async with self.session.get(url, headers=headers) as response:
            kind = ""
            async for raw in response.content:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    found.append((kind, json.loads(line[6:])))
                    if until in line:
                        break
        return found


async def test_the_same_conversation_on_the_page() -> None:
    async with (
        hooked(page=True, notes={"model": "m"}) as (sandbox, bot),
        aiohttp.ClientSession() as s,
    ):
        page = Browser(sandbox, s)
        user = sandbox.add_user("小林")
        chat = sandbox.direct_chat(user)
        shown: list[str] = []

        def answer(body: Any) -> Any:
            if body["msgtype"] == "event":
                return None
            if body["msgtype"] == "text":
                return stream("s-" + body["msgid"], "<think>reading</think>")
            shown.append("x")
            done = len(shown) > 1
            return stream(body["stream"]["id"], "<think>hm</think>\nan answer", finish=done)

        bot.answer = answer
        state = await page.state()
        assert state["platform"] == "wecom"
        assert state["notes"] == {"model": "m"}
        assert [c["kind"] for c in state["chats"]] == ["p2p"]
        asked = {"chat_id": chat.id, "user_id": user.id, "text": "hi"}
        assert (await page.post("say", asked))[0] == 200
        events = await page.events('"streaming":false')
        cards = [data["card"] for kind, data in events if kind == "message" and "card" in data]
        assert cards[0]["elements"] == [
            {"tag": "note", "element_id": "thinking", "content": "reading"},
            {"tag": "markdown", "element_id": "answer", "content": ""},
        ]
        assert cards[-1]["elements"][1]["content"] == "an answer"
        traces = [data for kind, data in events if kind == "trace"]
        assert [t["title"] for t in traces][:2] == ["text", "refresh poll"]
        assert "an answer" in traces[1]["detail"]["reply"]
        assert "response_code=" not in json.dumps(traces)
        # The last message again, not the last poll.
        assert (await page.post("fault", {"kind": "duplicate"}))[0] == 200
        assert [body["msgtype"] for body in bot.seen].count("text") == 2
        question = sandbox.messages(chat)[0]
        await page.post("say", {**asked, "text": "and this?", "reply_to": question.id})
        await sandbox.wait_for(lambda: bot.seen[-1].get("quote"))
        assert (await page.post("recall", {"message_id": question.id}))[0] == 200
        assert question.recalled
        assert (await page.post("recall", {"message_id": sandbox.messages(chat)[1].id}))[0] == 400


async def test_a_template_card_and_a_group() -> None:
    async with hooked(page=True) as (sandbox, bot), aiohttp.ClientSession() as s:
        page = Browser(sandbox, s)
        user = sandbox.add_user("Alex")
        status, made = await page.post("new_chat", {"name": "team"})
        assert (status, made["chat"]["kind"]) == (200, "group")
        bot.answer = lambda _body: {"msgtype": "template_card", "template_card": button_card("t1")}
        chat_id = made["chat"]["id"]
        text = {"chat_id": chat_id, "user_id": user.id, "text": "@Hearth a card", "mention_bot": False}  # fmt: skip
        await page.post("say", text)
        await sandbox.wait_for(lambda: len(sandbox.world.messages) == 2)
        message = (await page.state())["messages"][1]
        assert message["card"]["title"] == "Choose"
        button = message["card"]["elements"][-1]
        assert (button["text"], button["value"]) == ("Stop", "key-Stop")
        bot.answer = lambda _body: {
            "response_type": "update_template_card",
            "template_card": {**button_card("t1"), "main_title": {"title": "Stopped"}},
        }
        press = {"message_id": message["id"], "value": button["value"], "user_id": user.id}
        assert await page.post("press", press) == (200, {"toast": "", "code": 0})
        assert (await page.state())["messages"][1]["card"]["title"] == "Stopped"


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("say", {"chat_id": "none", "user_id": "none", "text": "x"}),
        ("press", {"message_id": "none", "value": "x", "user_id": "none"}),
        ("fault", {"kind": "duplicate"}),
        ("new_chat", {"name": "an app is in no groups"}),
    ],
)
async def test_what_is_not_there(verb: str, body: Any) -> None:
    async with hooked(page=True, mode="app") as (sandbox, _), aiohttp.ClientSession() as s:
        assert (await Browser(sandbox, s).post(verb, body))[0] == 400


async def test_without_the_page_nothing_is_served() -> None:
    async with hooked() as (sandbox, _), aiohttp.ClientSession() as session:
        response = await session.get(sandbox.base_url + "/sandbox/state")
        assert response.status == 404

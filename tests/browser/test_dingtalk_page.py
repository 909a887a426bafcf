"""The demo page on a played DingTalk in a real browser: its own words, a card that grows, its buttons, its Markdown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from bot.sandbox import DingTalkSandbox, build_stage, dingtalk_stage_config
from tests.support.dingtalkkit import ROBOT, StreamClient, Wire, streaming

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
OpenPage = Callable[..., Awaitable[Page]]
ANSWER = "Water **boils**\nearlier.<br>Ask <a atId={staff}>小林</a> &lt;b&gt;<img src=x onerror=window.pwned=1>"


def buttons(*names: str) -> str:
    return json.dumps([{"text": n.title(), "id": n, "params": {"action": n}} for n in names])


class Bot:
    """A scripted bot behind the Stream gateway: one card per question, which grows in three steps."""

    def __init__(self, sandbox: DingTalkSandbox, wire: Wire) -> None:
        self.sandbox = sandbox
        self.wire = wire
        self.tasks: set[asyncio.Task[None]] = set()
        self.pressed: list[Any] = []
        self.may_finish = asyncio.Event()

    def take(self, frame: dict[str, Any]) -> dict[str, Any]:
        data = json.loads(frame["data"])
        if frame["headers"]["topic"] != ROBOT:
            self.pressed.append(json.loads(data["value"])["cardPrivateData"]["params"]["action"])
            return {"response": {}}
        self.tasks.add(asyncio.create_task(self.answer(data)))
        return {"response": None}

    async def answer(self, data: dict[str, Any]) -> None:
        track, text = data["msgId"], ANSWER.format(staff=data["senderStaffId"])
        chat = self.sandbox.world.chats[data["conversationId"]]
        params = {"content": "", "buttons": buttons("stop")}
        await self.wire.new_card(
            chat, track, callbackType="STREAM", cardData={"cardParamMap": params}
        )
        await self.wire.frame(track, text[:8])
        await self.may_finish.wait()
        await self.wire.frame(track, text, isFinalize=True)
        await self.wire.put(track, {"content": text, "buttons": buttons("regenerate")})


@pytest_asyncio.fixture(loop_scope="module")
async def played() -> AsyncIterator[Bot]:
    notes = {"model": "scripted", "language": "en", "sample_questions": ["Why?"]}
    stage = build_stage(DingTalkSandbox(dingtalk_stage_config(notes=notes)))
    async with stage.sandbox as sandbox, aiohttp.ClientSession() as session:
        wire = Wire(sandbox, session)
        await wire.login()
        bot = Bot(sandbox, wire)
        async with streaming(wire) as client:
            assert isinstance(client, StreamClient)
            client.answer = bot.take
            yield bot
        await asyncio.gather(*bot.tasks)


@pytest_asyncio.fixture(loop_scope="module")
async def address(played: Bot) -> str:
    """The page's address (takes the place of the scripted Feishu's)."""
    return played.sandbox.base_url


async def test_a_question_on_dingtalk(open_page: OpenPage, played: Bot) -> None:
    page = await open_page()
    assert await page.title() == "Hearth · simulated DingTalk"
    await expect(page.locator(".wire-node.is-platform")).to_contain_text("DingTalk")
    await page.get_by_test_id("composer").fill("Why does water boil?")
    await page.get_by_test_id("composer").press("Enter")
    await expect(page.get_by_test_id("card-streaming")).to_be_visible()
    await page.get_by_test_id("button-stop").click()
    await played.sandbox.wait_for(lambda: played.pressed)
    played.may_finish.set()
    await expect(page.get_by_test_id("button-regenerate")).to_be_visible()
    await expect(page.get_by_test_id("card-streaming")).to_have_count(0)
    text = page.get_by_test_id("card").locator(".md").first
    # A single line feed is no line break in a card of DingTalk, `<br>` is one, a name is a name, and tags stay text.
    await expect(text.locator("strong")).to_have_text("boils")
    await expect(text).to_contain_text("boilsearlier.")
    await expect(text.locator("br")).to_have_count(1)
    await expect(text.locator(".at")).to_have_text("@小林")
    assert await page.evaluate("window.pwned") is None
    await expect(page.get_by_test_id("traces")).to_contain_text("card.stream")
    await page.get_by_test_id("lang-switch").click()
    assert await page.title() == "Hearth · 模拟钉钉"
    assert played.pressed == ["stop"]


async def test_both_languages_name_every_platform(open_page: OpenPage) -> None:
    page = await open_page()
    tables = await page.evaluate(
        "import('/static/js/platforms.js').then((m) => Object.values(m.PLATFORMS).map((p) => [p.en, p.zh]))"
    )
    for en, zh in tables:
        assert en["name"]
        assert zh["pushed"]
        assert en["texts"].keys() == zh["texts"].keys()

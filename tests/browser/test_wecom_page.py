"""The demo page on a played WeCom in a real browser: its own words, a bubble that grows with the polls, thoughts, a card."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from bot.sandbox import build_stage
from bot.sandbox.wecom import WeComSandbox
from tests.support.wecomkit import HookBot, button_card, hooked, stream

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
OpenPage = Callable[..., Awaitable[Page]]
ANSWER = "Water **boils**\nearlier. <b>tag</b> <img src=x onerror=window.pwned=1>\n\n|a|b|\n|-|-|\n|1|2|"  # fmt: skip


class Script:
    """Thinks, shows half, and ends when it may; a card comes with the last words."""

    def __init__(self, sandbox: WeComSandbox, hook: HookBot) -> None:
        self.sandbox = sandbox
        self.may_finish = asyncio.Event()
        self.pressed: list[str] = []
        hook.answer = self.answer

    def answer(self, body: Any) -> Any:
        if body["msgtype"] == "event":
            self.pressed.append(body["event"]["template_card_event"]["event_key"])
            return None
        if body["msgtype"] != "stream":
            return stream(f"s-{body['msgid']}", "<think>considering water</think>")
        stream_id = body["stream"]["id"]
        if not self.may_finish.is_set():
            return stream(stream_id, "Water **boils**")
        final = stream(stream_id, ANSWER, finish=True)
        card = button_card(stream_id, "Again")
        return {**final, "msgtype": "stream_with_template_card", "template_card": card}


@pytest_asyncio.fixture(loop_scope="module")
async def played() -> AsyncIterator[Script]:
    notes = {"model": "scripted", "language": "en", "sample_questions": ["Why?"]}
    async with hooked(page=True, notes=notes, poll_interval_s=0.2) as (sandbox, hook):
        build_stage(sandbox)
        yield Script(sandbox, hook)


@pytest_asyncio.fixture(loop_scope="module")
async def address(played: Script) -> str:
    """The page's address (takes the place of the scripted Feishu's)."""
    return played.sandbox.base_url


async def test_a_question_on_wecom(open_page: OpenPage, played: Script) -> None:
    page = await open_page()
    assert await page.title() == "Hearth · simulated WeCom"
    await expect(page.locator(".wire-node.is-platform")).to_contain_text("WeCom")
    await page.get_by_test_id("composer").fill("Why does water boil?")
    await page.get_by_test_id("composer").press("Enter")
    await expect(page.get_by_test_id("card-streaming")).to_be_visible()
    text = page.get_by_test_id("card").first.locator(".md").last
    await expect(text.locator("strong")).to_have_text("boils")
    played.may_finish.set()
    await expect(page.get_by_test_id("card-streaming")).to_have_count(0)
    await expect(text.locator("table")).to_have_count(1)
    await expect(text.locator("br")).to_have_count(1)
    await expect(text).to_contain_text("<b>tag</b>")
    assert await page.evaluate("window.pwned") is None
    await page.get_by_test_id("button-key_again").click()
    await played.sandbox.wait_for(lambda: played.pressed)
    assert played.pressed == ["key-Again"]
    await expect(page.get_by_test_id("traces")).to_contain_text("refresh poll")
    notes = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"some text"}
    await page.get_by_test_id("file-input").set_input_files([notes])
    await expect(page.get_by_test_id("messages").get_by_text("[file] notes.txt")).to_be_visible()
    empty = {"name": "empty.txt", "mimeType": "text/plain", "buffer": b""}
    await page.get_by_test_id("file-input").set_input_files([empty])
    await expect(page.get_by_text("“empty.txt” cannot be sent")).to_be_visible()
    await page.get_by_test_id("lang-switch").click()
    assert await page.title() == "Hearth · 模拟企业微信"
    assert played.sandbox.violations == []

"""`hearth demo --platform …`: the same conversation on every played platform, through the page's own API."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bot.app import Hearth
from bot.cli.demo import DemoOptions, choose_port, demo_config, page_notes
from bot.cli.playing import PLATFORMS, choose_play
from bot.errors import ConfigError


async def state_of(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(f"{url}/sandbox/state") as response:
        return await response.json()


def text_of(message: Any) -> str:
    card = message.get("card")
    return message["text"] if card is None else "".join(e.get("content", "") for e in card["elements"])  # fmt: skip


async def send_file(session: aiohttp.ClientSession, url: str, chat: Any) -> None:
    """A person sends a file, which Hearth reads and says so."""
    data = base64.b64encode(b"Water boils earlier on a mountain.").decode()
    body = {"chat_id": chat["id"], "user_id": chat["user_id"], "name": "notes.txt", "data": data}
    async with session.post(f"{url}/sandbox/send_file", json=body) as response:
        assert response.status == 200
    for wrong in ({"data": "?"}, {"data": ""}, {"name": ""}, {"chat_id": "nowhere"}):
        async with session.post(f"{url}/sandbox/send_file", json=body | wrong) as response:
            assert response.status == 400


async def answered(session: aiohttp.ClientSession, url: str, n: int = 1) -> list[Any]:
    """The bot's messages, when there are `n` and nothing grows any more."""
    async with asyncio.timeout(30):
        while True:
            messages = (await state_of(session, url))["messages"]
            answers = [m for m in messages if m["sender"]["bot"]]
            growing = any((m.get("card") or {}).get("streaming") for m in answers)
            if len(answers) >= n and text_of(answers[-1]) and not growing:
                return answers
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_question_on_the_page_is_answered(tmp_path: Path, platform: str) -> None:
    options = DemoOptions(0, False, "demo", "en", tmp_path, "fake", platform)
    play = choose_play(platform, page_notes(options))
    port = choose_port(0)
    if play.subscribe is not None:
        play.subscribe(f"http://127.0.0.1:{port}/webhook/{platform}")
    await play.sandbox.start()
    url = play.sandbox.base_url
    hearth = Hearth(demo_config(options, tmp_path, play, url, port))
    try:
        await hearth.start()
        assert await play.ready()
        async with aiohttp.ClientSession() as session:
            state = await state_of(session, url)
            assert platform.startswith(state["platform"])
            chat = next(c for c in state["chats"] if c["kind"] == "p2p")
            body = {"chat_id": chat["id"], "user_id": chat["user_id"], "text": "Hello there"}
            async with session.post(f"{url}/sandbox/say", json=body) as response:
                assert response.status == 200
            assert len(await answered(session, url)) == 1
            await send_file(session, url, chat)
            answers = await answered(session, url, n=2)
            assert "I have read" in text_of(answers[-1])
            messages = (await state_of(session, url))["messages"]
            assert "[file] notes.txt" in [m["text"] for m in messages]
    finally:
        await hearth.close()
        await play.sandbox.close()


def test_a_platform_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="one of feishu, feishu-websocket, dingtalk, wecom"):
        choose_play("smoke-signals", {})

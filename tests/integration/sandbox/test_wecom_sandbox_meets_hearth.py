"""The whole of Hearth in front of the strict WeCom sandbox, in each of its three modes: nothing to frown on, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bot.app import Hearth
from bot.config import parse_config
from bot.sandbox.wecom import SentMessage, WeComConfig, WeComSandbox, visible_text

BOT = "wecom"
REPLY = "The first paragraph of an answer, with **bold** words.\n\n- one\n- two\n\n" + "And so on. " * 12 + "END"  # fmt: skip
MODES = ("callback", "websocket", "app")


def bot_table(sandbox: WeComSandbox) -> dict[str, Any]:
    config = sandbox.config
    keys = {"token": config.token, "encoding_aes_key": config.encoding_aes_key}
    match config.mode:
        case "callback":
            own = {"platform": "wecom_bot", "bot_id": config.bot_id, **keys}
        case "websocket":
            own = {
                "platform": "wecom_bot", "mode": "websocket", "bot_id": config.bot_id, "secret": config.bot_secret,
                "ws_url": sandbox.ws_url, "update_interval_s": 0.5,
            }  # fmt: skip
        case "app":
            own = {
                "platform": "wecom_app", "corp_id": config.corp_id, "corp_secret": config.corp_secret,
                "agent_id": config.agent_id, "messages_per_minute": 28, **keys,
            }  # fmt: skip
    if config.mode != "app":
        own["bot_name"] = config.bot_name
    return {**own, "api_base": sandbox.base_url}


@asynccontextmanager
async def together(folder: Path, mode: str, **fake: str) -> AsyncIterator[WeComSandbox]:
    """A sandbox and the service, connected."""
    settings: Any = {"mode": mode, "poll_interval_s": 0.05, "redelivery_s": (0.3, 0.6)}
    async with WeComSandbox(WeComConfig(**settings)) as sandbox:
        config = parse_config(
            {
                "server": {"port": 0},
                "storage": {"url": "sqlite:///hearth.db"},
                "models": {"main": {"backend": "fake", "n_ctx": 4096, "fake": {"reply": REPLY, **fake}}},
                "chat": {"language": "en", "show_date": False},
                "access": {"per_user_per_minute": 0},
                "bots": {BOT: bot_table(sandbox)},
            },
            folder,
        )  # fmt: skip
        hearth = Hearth(config)
        await hearth.start()
        try:
            assert hearth.web is not None
            sandbox.subscribe(f"{hearth.web.url}/webhook/{BOT}")
            if mode == "websocket":
                await sandbox.wait_for(lambda: sandbox.gateway.live)
            else:
                assert await sandbox.url_check()
                assert await sandbox.url_check(raw_plus=True)
            yield sandbox
        finally:
            await hearth.close()


async def settled(sandbox: WeComSandbox, sent: SentMessage) -> str:
    """The answer, all of its messages, when nothing is open any more."""

    def done() -> bool:
        replies = sandbox.replies(sent)
        text = "".join(visible_text(m) for m in replies)
        return "END" in text and not any(m.streaming for m in replies)

    await sandbox.wait_for(done, timeout=20)
    return "\n".join(visible_text(message) for message in sandbox.replies(sent))


def bad_day(sandbox: WeComSandbox) -> None:
    """What goes wrong while the next question is answered."""
    faults = sandbox.faults
    match sandbox.config.mode:
        case "callback":
            faults.drop("callback.message", after=True)
            faults.drop("callback.poll", 2, after=True)
            faults.drop("callback.poll", 2)
        case "websocket":
            faults.drop("ws.respond", after=True)
        case "app":
            sandbox.tokens.revoke()
            faults.refuse("message.send", -1)
            faults.refuse("message.send", 45033)


@pytest.mark.parametrize("mode", MODES)
async def test_good_days_and_bad_ones(tmp_path: Path, mode: str) -> None:
    async with together(tmp_path, mode, token_delay_s="0.002") as sandbox:
        user = sandbox.add_user("小林")
        chat = sandbox.direct_chat(user)
        for text in ("hi", "and more?"):
            sent = await sandbox.say(chat, user, text)
            assert (await settled(sandbox, sent)).count("END") == 1
            assert len(sandbox.replies(sent)) == 1
            sandbox.duplicate(3)
            bad_day(sandbox)
        sandbox.faults.clear()
        await sandbox.redeliver(sent)
        await asyncio.sleep(0.2)
        assert len(sandbox.replies(sent)) == 1
        if mode != "app":
            group = sandbox.add_group("g", [user])
            sent = await sandbox.say(group, user, "in a group")
            assert (await settled(sandbox, sent)).count("END") == 1
            assert (await sandbox.say(group, user, "aside", mention_bot=False)).push is None
        assert sandbox.violations == []


@pytest.mark.parametrize("mode", ["callback", "websocket"])
async def test_who_opens_the_chat_is_greeted(tmp_path: Path, mode: str) -> None:
    async with together(tmp_path, mode) as sandbox:
        user = sandbox.add_user("小林")
        chat = sandbox.direct_chat(user)
        push = await sandbox.enter_chat(user)
        assert push is not None
        await sandbox.wait_for(lambda: sandbox.messages(chat))
        assert "Just write your question" in visible_text(sandbox.messages(chat)[0])
        await sandbox.redeliver(push)
        sent = await sandbox.say(chat, user, "hi")
        await settled(sandbox, sent)
        assert len(sandbox.messages(chat)) == 3, "one greeting, the question, its answer"
        (answer,) = sandbox.replies(sent)
        assert (await sandbox.rate(answer, user, 2, "wrong", [3])).acked or mode == "websocket"
        assert sandbox.violations == []

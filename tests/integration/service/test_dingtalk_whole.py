"""The whole of Hearth on DingTalk: stopped in the middle of an answer and started again, buttons, duplicates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bot.app import Hearth
from bot.config import parse_config
from bot.sandbox.dingtalk import (
    DEFAULT_TEMPLATE,
    DingTalkSandbox,
    SandboxConfig,
    SentMessage,
    visible_text,
)
from tests.support.stand import free_port

BOT = "ding"
PARAGRAPHS = "The first paragraph of an answer.\n\n- one\n- two\n\n" + "And so on. " * 40
REPLY = PARAGRAPHS + "END"
CARDS = {"card_template": DEFAULT_TEMPLATE, "card_buttons_key": "buttons"}


@asynccontextmanager
async def service(
    folder: Path, sandbox: DingTalkSandbox, port: int, mode: str, delay_s: str = "0.01", **bot: Any
) -> AsyncIterator[Hearth]:
    webhook = f"http://127.0.0.1:{port}/webhook/{BOT}"
    if mode == "webhook":
        bot["card_callback_url"] = f"{webhook}/card"
    table = {
        "platform": "dingtalk", "mode": mode, "client_id": sandbox.config.client_id,
        "client_secret": sandbox.config.client_secret, "api_base": sandbox.base_url, "oapi_base": sandbox.base_url, **bot,
    }  # fmt: skip
    config = parse_config(
        {
            "server": {"port": port, "shutdown_s": 0.2},
            "storage": {"url": "sqlite:///hearth.db"},
            "models": {"main": {"backend": "fake", "n_ctx": 65_536, "fake": {"reply": REPLY, "token_delay_s": delay_s}}},
            "chat": {"language": "en", "show_date": False},
            "bots": {BOT: table},
        },
        folder,
    )  # fmt: skip
    hearth = Hearth(config)
    await hearth.start()
    try:
        if mode == "webhook":
            sandbox.subscribe(webhook)
        else:
            await sandbox.wait_for(lambda: [c for c in sandbox.gateway.connections if not c.draining])  # fmt: skip
        yield hearth
    finally:
        await hearth.close()


def shown(sandbox: DingTalkSandbox, sent: SentMessage) -> str:
    return "".join(visible_text(message) for message in sandbox.replies(sent))


def ended(sandbox: DingTalkSandbox, sent: SentMessage) -> bool:
    """Every card has its last text, also as its data, with the controls of an answer that has ended."""
    cards = [message.card for message in sandbox.replies(sent) if message.card]
    return bool(sandbox.replies(sent)) and all(
        not card.growing and [button.action_id for button in card.buttons][:1] == ["regenerate"] for card in cards
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "bot"), [("stream", CARDS), ("webhook", CARDS), ("stream", {})])
async def test_stopped_in_the_middle_of_an_answer(
    tmp_path: Path, mode: str, bot: dict[str, Any]
) -> None:
    async with DingTalkSandbox(replace(SandboxConfig(), redelivery_s=(0.5, 1.0))) as sandbox:
        port = free_port()
        ann = sandbox.add_user("Ann")
        group = sandbox.add_group("G", [ann])
        async with service(tmp_path, sandbox, port, mode, **bot):
            sent = await sandbox.say(group, ann, "hi")
            assert sent.acked
            if bot:
                await sandbox.wait_for(lambda: "first paragraph" in shown(sandbox, sent))
        assert "END" not in shown(sandbox, sent)
        async with service(tmp_path, sandbox, port, mode, delay_s="0.001", **bot) as hearth:
            await sandbox.wait_for(lambda: "END" in shown(sandbox, sent) and ended(sandbox, sent), 20)  # fmt: skip
            _, facts = await hearth.readiness()
            assert facts["bots"][BOT]["cards"] == ("streaming" if bot else "no card_template is configured")  # fmt: skip
            assert ("connected_since" in facts["bots"][BOT]) is (mode == "stream")
        (message,) = sandbox.replies(sent)
        assert visible_text(message).count("The first paragraph") == 1
        assert message.by == ("card" if bot else "session")
        assert sandbox.violations == []


async def test_buttons(tmp_path: Path) -> None:
    async with DingTalkSandbox() as sandbox:
        ann, bob = sandbox.add_user("Ann"), sandbox.add_user("Bob")
        group = sandbox.add_group("G", [ann, bob])
        async with service(tmp_path, sandbox, free_port(), "stream", **CARDS):
            sent = await sandbox.say(group, ann, "hi")
            await sandbox.wait_for(lambda: "first paragraph" in shown(sandbox, sent))
            (message,) = sandbox.replies(sent)
            assert (await sandbox.press(message, "stop", bob)).error == ""
            assert not ended(sandbox, sent)
            assert (await sandbox.press(message, "stop", ann)).error == ""
            await sandbox.wait_for(lambda: ended(sandbox, sent))
            assert "END" not in shown(sandbox, sent)
            async with asyncio.timeout(30):
                # The card is whole a moment before its turn is over; no person presses that soon.
                while len(sandbox.replies(sent)) < 2:
                    assert (await sandbox.press(message, "regenerate", ann)).error == ""
                    await asyncio.sleep(0.2)
            again = sandbox.replies(sent)[-1]
            await sandbox.wait_for(lambda: "first paragraph" in visible_text(again))
            assert (await sandbox.press(again, "stop", ann)).error == ""
            await sandbox.wait_for(lambda: ended(sandbox, sent))
        rules = {violation.rule for violation in sandbox.violations}
        assert rules <= {"two_answers"}  # the same scripted answer was asked for twice


async def test_duplicates_are_answered_once(tmp_path: Path) -> None:
    async with DingTalkSandbox() as sandbox:
        sandbox.repeat_pushes(2)
        ann = sandbox.add_user("Ann")
        chat = sandbox.direct_chat(ann)
        async with service(tmp_path, sandbox, free_port(), "webhook", delay_s="0.0005", **CARDS):
            sent = await sandbox.say(chat, ann, "hi")
            assert len(sent.attempts) == 3
            await sandbox.wait_for(lambda: "END" in shown(sandbox, sent) and ended(sandbox, sent))
            assert len(sandbox.replies(sent)) == 1
        assert sandbox.violations == []

"""The whole of Hearth on WeCom, stopped in the middle of an answer and started again: one whole answer in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bot.app import Hearth
from bot.config import parse_config
from bot.sandbox.wecom import SentMessage, WeComConfig, WeComSandbox, visible_text

BOT = "wecom"
REPLY = "The first paragraph of an answer.\n\n- one\n- two\n\n" + "And so on. " * 40 + "END"


def bot_table(sandbox: WeComSandbox) -> dict[str, Any]:
    config = sandbox.config
    keys = {"token": config.token, "encoding_aes_key": config.encoding_aes_key, "api_base": sandbox.base_url}  # fmt: skip
    if config.mode == "app":
        return {"platform": "wecom_app", "corp_id": config.corp_id, "corp_secret": config.corp_secret, "agent_id": config.agent_id, **keys}  # fmt: skip
    mode = "webhook" if config.mode == "callback" else "websocket"
    return {"platform": "wecom_bot", "mode": mode, "bot_id": config.bot_id, "secret": config.bot_secret, "ws_url": sandbox.ws_url, **keys}  # fmt: skip


async def start(
    folder: Path, sandbox: WeComSandbox, port: int = 0, delay_s: str = "0.005"
) -> tuple[Hearth, int]:
    config = parse_config(
        {
            "server": {"port": port, "shutdown_s": 0.2},
            "storage": {"url": "sqlite:///hearth.db"},
            "models": {"main": {"backend": "fake", "n_ctx": 65_536, "fake": {"reply": REPLY, "token_delay_s": delay_s}}},
            "chat": {"language": "en", "show_date": False},
            "bots": {BOT: bot_table(sandbox)},
        },
        folder,
    )  # fmt: skip
    hearth = Hearth(config)
    await hearth.start()
    assert hearth.web is not None
    sandbox.subscribe(f"{hearth.web.url}/webhook/{BOT}")
    if sandbox.config.mode == "websocket":
        await sandbox.wait_for(lambda: sandbox.gateway.live)
    return hearth, int(hearth.web.url.rpartition(":")[2])


def answer(sandbox: WeComSandbox, sent: SentMessage) -> str:
    return "".join(visible_text(message) for message in sandbox.replies(sent))


@pytest.mark.parametrize("mode", ["callback", "websocket", "app"])
async def test_stopped_in_the_middle_of_an_answer(tmp_path: Path, mode: str) -> None:
    settings: Any = {"mode": mode, "poll_interval_s": 0.1}
    async with WeComSandbox(WeComConfig(**settings)) as sandbox:
        hearth, port = await start(tmp_path, sandbox)
        try:
            user = sandbox.add_user("a")
            sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
            if mode == "app":
                await asyncio.sleep(0.5)
            else:
                await sandbox.wait_for(lambda: "And so" in answer(sandbox, sent))
        finally:
            await hearth.close()
        assert "END" not in answer(sandbox, sent)
        hearth, _ = await start(tmp_path, sandbox, port)
        try:
            await sandbox.wait_for(
                lambda: "END" in answer(sandbox, sent) and not any(m.streaming for m in sandbox.replies(sent)), timeout=20
            )  # fmt: skip
            await asyncio.sleep(0.3)
        finally:
            await hearth.close()
        assert answer(sandbox, sent).count("END") == 1
        assert answer(sandbox, sent).count("The first paragraph") == 1
        assert len(sandbox.replies(sent)) == 1
        assert sandbox.violations == []


async def test_messages_that_joined_a_waiting_question_end(tmp_path: Path) -> None:
    settings: Any = {"mode": "callback", "poll_interval_s": 0.1}
    async with WeComSandbox(WeComConfig(**settings)) as sandbox:
        hearth, _ = await start(tmp_path, sandbox)
        try:
            user = sandbox.add_user("a")
            chat = sandbox.direct_chat(user)
            asked = [await sandbox.say(chat, user, f"question {n}") for n in range(3)]
            await sandbox.wait_for(
                lambda: answer(sandbox, asked[-1]).endswith("END") and not any(m.streaming for m in sandbox.messages(chat)), timeout=30
            )  # fmt: skip
        finally:
            await hearth.close()
        assert sandbox.violations == []
        assert all(len(sandbox.replies(sent)) == 1 for sent in asked)


async def test_a_long_paste_is_one_question_and_each_of_its_bubbles_ends(tmp_path: Path) -> None:
    settings: Any = {"mode": "callback", "poll_interval_s": 0.1}
    async with WeComSandbox(WeComConfig(**settings)) as sandbox:
        hearth, _ = await start(tmp_path, sandbox, delay_s="0.001")
        try:
            user = sandbox.add_user("a")
            chat = sandbox.direct_chat(user)
            parts = await sandbox.paste(chat, user, "a long story " * 800)
            assert len(parts) == 3
            await sandbox.wait_for(
                lambda: answer(sandbox, parts[-1]).endswith("END") and not any(m.streaming for m in sandbox.messages(chat)), timeout=30
            )  # fmt: skip
            turn = await hearth.store.turn_of_message(sandbox.config.bot_id, parts[0].id)
        finally:
            await hearth.close()
        assert turn is not None
        assert turn.message_ids == tuple(part.id for part in parts)
        assert sum("END" in visible_text(m) for m in sandbox.messages(chat)) == 1
        assert all(len(sandbox.replies(part)) == 1 and answer(sandbox, part) for part in parts)
        assert sandbox.violations == []


async def test_a_question_is_asked_again(tmp_path: Path) -> None:
    """/retry answers under a bubble that has ended: by the newest response_url of the person."""
    settings: Any = {"mode": "callback", "poll_interval_s": 0.1}
    async with WeComSandbox(WeComConfig(**settings)) as sandbox:
        hearth, _ = await start(tmp_path, sandbox, delay_s="0.001")
        try:
            user = sandbox.add_user("a")
            chat = sandbox.direct_chat(user)
            await sandbox.say(chat, user, "hi")
            for n_answers in (2, 3):
                await sandbox.wait_for(lambda: not any(m.streaming for m in sandbox.messages(chat)), timeout=20)  # fmt: skip
                await asyncio.sleep(
                    0.5
                )  # the turn before it is closed a moment after its answer was taken
                await sandbox.say(chat, user, "/retry")
                await sandbox.wait_for(
                    lambda n=n_answers: sum("END" in visible_text(m) for m in sandbox.messages(chat)) == n, timeout=20
                )  # fmt: skip
        finally:
            await hearth.close()

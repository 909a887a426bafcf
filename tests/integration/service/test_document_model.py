"""With the real model: a long file beside a question fits exactly, and the next turn computes as little as ever."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from bot.config import parse_config
from bot.config_engine import engine_settings
from bot.domain.types import Attachment, ReplyTarget
from bot.platforms.terminal import TerminalAdapter, terminal_message
from bot.service.app import Service
from bot.store import Store
from engine.client import open_engine
from tests.support import filekit

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

N_CTX = 640
MODEL = {"path": "demo", "n_ctx": N_CTX, "kv_ram": "0", "kv_disk": "0", "sampling": {"temperature": 0.0}}  # fmt: skip
PAGES = ["Nothing but the weather stands on this page.\n" * 12 for _ in range(30)]
PAGES[20] = "The combination of the safe is 4711.\nThe owner keeps it to himself.\n"


class WithFiles(TerminalAdapter):
    """A terminal to which files can be sent."""

    data = b""

    async def fetch(self, attachment: Attachment, target: ReplyTarget, *, max_bytes: int) -> bytes:
        return self.data


async def test_a_long_file_beside_a_question(tmp_path: Path) -> None:
    chat = {"language": "en", "show_date": False, "max_new_tokens": 24}
    config = parse_config({"models": {"main": MODEL}, "chat": chat}, tmp_path)
    store = Store(f"sqlite:///{tmp_path}/hearth.db")
    await store.open()
    engine = open_engine(engine_settings("main", config.models["main"], config))
    await engine.start()
    adapter = WithFiles("terminal", io.StringIO())
    adapter.data = filekit.pdf(PAGES)
    running = Service(config, store, {"terminal": adapter}, {"main": engine})
    await running.start()

    async def ask(text: str, *attachments: Attachment) -> Any:
        adapter.answered.clear()
        message = replace(terminal_message(text, "me"), attachments=attachments)
        await running.inbox.accept("terminal", adapter, (message,))
        async with asyncio.timeout(50):
            await adapter.answered.wait()
            while True:
                turn = await store.turn_of_message(message.app_id, message.message_id)
                if turn is not None and turn.state == "done":
                    return (await store.reply(turn.id))[0]
                await asyncio.sleep(0.02)

    try:
        with structlog.testing.capture_logs() as lines:
            reply = await ask("What is the combination of the safe?", Attachment("file", "book.pdf", "k"))  # fmt: skip
            await ask("Is it true that cats sleep a lot and dogs run?")
            await ask("And what do birds do all day?")
    finally:
        await running.close(5.0)
        await engine.close()
        await store.close()
    assert reply.notice.startswith("Of the 30 pages of “book.pdf” this answer used: 1")
    assert reply.notice.endswith(", 21.")
    shown = [line["n_pieces"] for line in lines if line["event"] == "documents_shown"]
    assert shown[0] >= 2
    assert shown[2] == 0, "nothing of it bears on birds"
    asked = [line for line in lines if line["event"] == "generated"]
    assert len(asked) == 3
    # Half of the window at most, of which the frame is a little; all of it beside the reserve.
    assert N_CTX // 3 < asked[0]["n_prompt"] <= N_CTX - 24
    assert asked[2]["n_prompt"] < asked[0]["n_prompt"], "later prompts do not hold the file"
    assert asked[2]["n_prompt"] - asked[2]["n_cached"] < 60, "and only the new message is computed"

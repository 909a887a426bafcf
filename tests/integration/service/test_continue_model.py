"""With the real model: an answer that was cut and went on is the very answer that it would have been in one piece."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from bot.config import parse_config
from bot.config_engine import engine_settings
from bot.domain.sessions import session_key
from bot.domain.types import SessionPolicy
from bot.platforms.terminal import TerminalAdapter, terminal_message
from bot.service.app import Service
from bot.store import Store
from engine.client import open_engine

pytestmark = pytest.mark.model

QUESTION = "Write a story about a boy, his dog and a storm at sea."
MODEL = {
    "path": "demo",
    "n_ctx": 1024,
    "kv_ram": "0",
    "kv_disk": "0",
    "sampling": {"temperature": 0.0},
}


@asynccontextmanager
async def service(folder: Path, max_new_tokens: int) -> AsyncIterator[Any]:
    """A way to ask, and the store."""
    folder.mkdir()
    chat = {"language": "en", "show_date": False, "max_new_tokens": max_new_tokens}
    config = parse_config({"models": {"main": MODEL}, "chat": chat}, folder)
    store = Store(f"sqlite:///{folder}/hearth.db")
    await store.open()
    engine = open_engine(engine_settings("main", config.models["main"], config))
    await engine.start()
    adapter = TerminalAdapter("terminal", io.StringIO())
    running = Service(config, store, {"terminal": adapter}, {"main": engine})
    await running.start()

    async def ask(text: str) -> None:
        adapter.answered.clear()
        message = terminal_message(text, "me")
        await running.inbox.accept("terminal", adapter, (message,))
        async with asyncio.timeout(120):
            await adapter.answered.wait()
        async with asyncio.timeout(20):  # shown; now remembered, too
            while (await store.turn_of_message(message.app_id, message.message_id)).state != "done":
                await asyncio.sleep(0.02)

    async def past() -> Any:
        key = session_key(terminal_message("", "me"), SessionPolicy.PER_USER)
        return await store.past_turns((await store.session(key)).id)

    try:
        yield ask, past
    finally:
        await running.close()
        await engine.close()
        await store.close()


async def test_three_pieces_make_the_whole(tmp_path: Path) -> None:
    async with service(tmp_path / "whole", 96) as (ask, past):
        await ask(QUESTION)
        (whole,) = await past()
    with structlog.testing.capture_logs() as lines:
        async with service(tmp_path / "pieces", 32) as (ask, past):
            await ask(QUESTION)
            await ask("/continue")
            await ask("/continue")
            (pieces,) = await past()
            assert pieces.answer_token_ids == whole.answer_token_ids
            assert pieces.answer == whole.answer
            assert len(pieces.more_turn_ids) == 2
            await ask("And what became of the dog?")
    runs = [line for line in lines if line["event"] == "generated"]
    first, *more, last = runs
    assert [run["n_generated"] for run in (first, *more)] == [32, 64, 96]
    # Nothing of what was said is computed again, neither to go on nor for the next question.
    assert all(run["n_cached"] == run["n_prompt"] == first["n_prompt"] for run in more)
    assert last["n_cached"] >= first["n_prompt"] + 95

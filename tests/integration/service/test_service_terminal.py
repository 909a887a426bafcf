"""The same conversation without any platform: nothing in the service may assume Feishu."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bot.config import parse_config
from bot.platforms.terminal import TerminalAdapter, terminal_message
from bot.service.app import Service
from bot.store import Store
from engine.client import open_engine
from engine.config import EngineConfig


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Any]:
    config = parse_config({"chat": {"language": "en", "show_date": False}}, tmp_path)
    store = Store(f"sqlite:///{tmp_path}/hearth.db")
    await store.open()
    engine = open_engine(EngineConfig(name="main", backend="fake", fake={"reply": "好的 🙂 done"}))
    await engine.start()
    out = io.StringIO()
    adapter = TerminalAdapter("terminal", out)
    service = Service(config, store, {"terminal": adapter}, {"main": engine})
    await service.start()

    async def ask(text: str) -> str:
        out.seek(0)
        out.truncate()
        adapter.answered.clear()
        message = terminal_message(text, "me")
        await service.inbox.accept("terminal", adapter, (message,))
        async with asyncio.timeout(30):
            await adapter.answered.wait()
        return out.getvalue()

    yield ask
    await service.close()
    await engine.close()
    await store.close()


async def test_a_talk_in_the_terminal(ask):
    assert await ask("hello") == "好的 🙂 done\n"
    assert await ask("and again") == "好的 🙂 done\n"
    assert "/reset" in await ask("/help")
    assert "2 turns" in await ask("/status")
    assert "terminal:me" in await ask("/whoami")
    assert "Reset" in await ask("/reset")
    assert "0 turns" in await ask("／STATUS")

"""A chat of several people with the real model, in this process: for proofs of what a long talk costs and keeps."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from bot.config import parse_config
from bot.config_engine import engine_settings
from bot.domain.types import ChatKind, InboundMessage, Sender, Snapshot, Turn, TurnState
from bot.platforms.terminal import TerminalAdapter, terminal_message
from bot.service.app import Service
from bot.store import Store
from engine.client import open_engine

_ENDED = {TurnState.DONE, TurnState.FAILED, TurnState.CANCELLED}


@dataclass
class Room:
    """One service with the demo model. `lines` are its log events in order, since it was entered."""

    folder: Path
    n_ctx: int
    tables: Mapping[str, Mapping[str, Any]]
    n_parallel: int = 1

    async def __aenter__(self) -> Room:
        model = {
            "path": "demo",
            "n_ctx": self.n_ctx,
            "n_parallel": self.n_parallel,
            "sampling": {"temperature": 0.0, "repeat_penalty": 1.1},
        }
        chat = {"language": "en", "show_date": False, "max_new_tokens": 48, "session": "shared"}
        tables = {name: dict(table) for name, table in self.tables.items()}
        tables["chat"] = chat | tables.get("chat", {})
        self._data = data = {
            "models": {"main": model},
            "access": {"per_user_per_minute": 0},
            **tables,
        }
        config = parse_config(data, self.folder)
        self._log = structlog.testing.capture_logs()
        self.lines = self._log.__enter__()
        self.store = Store(f"sqlite:///{self.folder}/hearth.db")
        await self.store.open()
        self.engine = open_engine(engine_settings("main", config.models["main"], config))
        await self.engine.start()
        await self.engine.wait_ready(120)
        self.adapter = TerminalAdapter("terminal", io.StringIO())
        self.adapter.display_name = "Ember"
        adapters = {"terminal": self.adapter}
        self.service = Service(config, self.store, adapters, {"main": self.engine})
        await self.service.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.close(5.0)
        await self.engine.close()
        await self.store.close()
        self._log.__exit__(None, None, None)

    def reply_tokens(self, n: int) -> None:
        """From now on replies may be so long."""
        self._data["chat"] = {**self._data["chat"], "max_new_tokens": n}
        self.service.reload(parse_config(self._data, self.folder))

    async def say(self, text: str, who: str = "Ann", chat: str = "room") -> InboundMessage:
        """Say something to the bot; returns when it is stored."""
        said = replace(
            terminal_message(text, who),
            sender=Sender(who, who),
            chat_id=chat,
            chat_kind=ChatKind.GROUP,
        )
        await self.service.inbox.accept("terminal", self.adapter, (said,))
        return said

    async def turn(self, said: InboundMessage) -> Turn:
        """The turn of a message."""
        turn = await self.store.turn_of_message(said.app_id, said.message_id)
        assert turn is not None
        return turn

    async def ended(self, said: InboundMessage, timeout_s: float = 120.0) -> Snapshot:
        """The reply to a message, once its turn has ended."""
        async with asyncio.timeout(timeout_s):
            while (await self.turn(said)).state not in _ENDED:
                await asyncio.sleep(0.02)
        snapshot, _ = await self.store.reply((await self.turn(said)).id)
        assert snapshot is not None
        return snapshot

    async def ask(self, text: str, who: str = "Ann", chat: str = "room") -> Snapshot:
        """Say something and wait for the answer."""
        return await self.ended(await self.say(text, who, chat))

    async def idle(self) -> None:
        """Until the engine has nothing to do, a compression in several requests included."""
        n_quiet = 0
        while n_quiet < 10:
            stats = await self.engine.stats()
            busy = stats.n_running or stats.n_waiting
            n_quiet = 0 if busy else n_quiet + 1
            await asyncio.sleep(0.05)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Log events of these names, in order."""
        return [line for line in self.lines if line["event"] in names]

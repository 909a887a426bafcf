"""The whole bot in one process: strict Feishu sandbox, real adapter, webhook server, service, database, scripted engine child.

`kill` drops the service as kill -9 would (its database stays open, since the lock belongs to this process).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bot.config import Config, parse_config
from bot.config_engine import engine_settings
from bot.platforms.budget import MemoryBudget
from bot.platforms.feishu import FeishuAdapter, open_adapter
from bot.platforms.http import SharedHttp
from bot.sandbox.feishu import FeishuSandbox, SandboxConfig, SentMessage, visible_text
from bot.service.app import Service
from bot.store import Store
from bot.web.openai_api import OpenAIApi
from bot.web.ops import OpsHandler
from bot.web.server import WebServer, build_app
from bot.web.webhook import WebhookHandler
from engine.client import open_engine
from engine.face import Engine

BOT = "feishu"


@dataclass
class Rig:
    """Everything, started by `open`. `fake` scripts the engine; the other tables go into the configuration."""

    folder: Path
    fake: dict[str, str] = field(default_factory=dict)
    chat: dict[str, Any] = field(default_factory=dict)
    access: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    n_ctx: int = 4096
    sandbox: FeishuSandbox = field(init=False)
    store: Store = field(init=False)
    engine: Engine = field(init=False)
    service: Service | None = field(init=False, default=None)
    adapter: FeishuAdapter | None = field(init=False, default=None)
    http: SharedHttp = field(init=False)
    web: WebServer | None = field(init=False, default=None)
    lost: list[Any] = field(init=False, default_factory=list)

    async def open(self) -> Rig:
        self.sandbox = FeishuSandbox(SandboxConfig(redelivery_s=(0.3, 0.6, 1.2)))
        await self.sandbox.start()
        self.store = Store(f"sqlite:///{self.folder}/hearth.db")
        await self.store.open()
        config = self.config
        self.engine = open_engine(engine_settings("main", config.models["main"], config))
        await self.engine.start()
        self.http = SharedHttp()
        await self.http.start()
        await self.start()
        await self.engine.wait_ready(30)
        return self

    @property
    def config(self) -> Config:
        settings = self.sandbox.config
        model = {"backend": "fake", "n_ctx": self.n_ctx, "fake": self.fake}
        return parse_config(
            {
                "server": self.server,
                "models": {"main": self.model | model},
                "chat": {"language": "en", "show_date": False, **self.chat},
                "access": {"per_user_per_minute": 0, **self.access},
                "bots": {
                    BOT: {
                        "platform": "feishu",
                        "app_id": settings.app_id,
                        "app_secret": settings.app_secret,
                        "encrypt_key": settings.encrypt_key,
                        "verification_token": settings.verification_token,
                        "api_base": self.sandbox.base_url,
                        "update_interval_s": 0.35,
                    }
                },
            },
            self.folder,
        )

    async def start(self) -> None:
        config = self.config
        bot = config.bots[BOT]
        self.adapter = open_adapter(BOT, bot, self.http, MemoryBudget())
        await self.adapter.start()
        registry = CollectorRegistry()
        self.service = Service(
            config, self.store, {BOT: self.adapter}, {"main": self.engine}, registry=registry
        )
        await self.service.start()
        webhook = WebhookHandler({BOT: self.adapter}, self.service.inbox, 1_048_576)

        async def ready() -> tuple[bool, dict[str, Any]]:
            return True, {}

        api = OpenAIApi(self.service.settings, {"main": self.engine}, registry)
        app = build_app(webhook, OpsHandler(ready, registry), api, max_body_bytes=1_048_576)
        self.web = WebServer(app, "127.0.0.1", 0)
        await self.web.start()
        self.sandbox.subscribe(f"{self.web.url}/webhook/{BOT}")

    async def kill(self) -> None:
        """No task of the service gets to do anything more; open calls are cut off."""
        assert self.service is not None
        assert self.web is not None
        assert self.adapter is not None
        dispatcher = self.service.dispatcher
        tasks = [*dispatcher._loops, *dispatcher._tasks.values()]
        dispatcher._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.lost += [self.service]
        await self.web.close()
        await self.adapter.close()
        self.service = self.web = self.adapter = None

    async def stop(self) -> None:
        """The orderly end of the service."""
        if self.web is not None:
            await self.web.close()
        if self.service is not None:
            await self.service.close(5.0)
        if self.adapter is not None:
            await self.adapter.close()
        self.service = self.web = self.adapter = None

    async def close(self) -> None:
        await self.stop()
        await self.engine.close()
        await self.http.close()
        await self.store.close()
        await self.sandbox.close()

    # -- what can be seen --------------------------------------------------------------------------------------------
    def answers(self, question: SentMessage) -> list[str]:
        return [visible_text(message) for message in self.sandbox.replies(question)]

    def cards(self, question: SentMessage) -> list[Any]:
        return [m.card for m in self.sandbox.replies(question) if m.card is not None]

    def is_settled(self, question: SentMessage) -> bool:
        replies = self.sandbox.replies(question)
        return bool(replies) and all(not m.card or not m.card.streaming for m in replies)

    async def settled(self, question: SentMessage, timeout_s: float = 30.0) -> list[str]:
        """The answers to a question once none of them is growing and its turn has ended."""
        await self.sandbox.wait_for(lambda: self.is_settled(question), timeout_s)
        await self.ended(question)
        return self.answers(question)

    async def ended(self, question: SentMessage) -> Any:
        async with asyncio.timeout(30):
            while True:
                turn = await self.turn(question)
                if turn is not None and turn.state.value in {"done", "failed", "cancelled"}:
                    return turn
                await asyncio.sleep(0.02)

    async def turn(self, question: SentMessage) -> Any:
        return await self.store.turn_of_message(self.sandbox.config.app_id, question.id)

    async def growing(self, question: SentMessage, n_chars: int = 1) -> None:
        """Until some of the answer is visible and it is not over."""

        def check() -> bool:
            return any(c.streaming and len(c.text) >= n_chars for c in self.cards(question))

        await self.sandbox.wait_for(check, 30.0)


@pytest.fixture
async def make_rig(tmp_path: Path) -> AsyncIterator[Any]:
    rigs: list[Rig] = []

    async def make(**options: Any) -> Rig:
        rig = Rig(tmp_path, **options)
        rigs.append(rig)
        return await rig.open()

    yield make
    for rig in rigs:
        await rig.close()

"""A long connection is given up and taken again, on every platform that has one: what a change of the leader needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bot.config import parse_config
from bot.domain.types import InboundEvent
from bot.platforms.base import Link
from bot.platforms.budget import MemoryBudget
from bot.platforms.feishu import longconn
from bot.platforms.http import SharedHttp
from bot.platforms.opening import open_adapter
from bot.sandbox import dingtalk, feishu, wecom


@dataclass
class Stand:
    """A sandbox, an adapter, and how many connections the sandbox sees."""

    sandbox: Any
    adapter: Any
    n_open: Callable[[], int]
    n_ever: Callable[[], int]
    events: list[InboundEvent] = field(default_factory=list)

    async def sink(self, events: tuple[InboundEvent, ...]) -> None:
        self.events.extend(events)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(50):  # importing lark-oapi takes seconds
            while not holds():
                await asyncio.sleep(0.01)

    async def connected(self) -> None:
        await self.until(lambda: self.n_open() == 1 and "connected_since" in self.adapter.health())

    async def say(self, text: str) -> None:
        user = next((u for u in self.sandbox.world.users.values() if u is not self.sandbox.bot), None)  # fmt: skip
        user = user or self.sandbox.add_user("Lin")
        await self.sandbox.say(self.sandbox.direct_chat(user), user, text)

    @property
    def texts(self) -> list[str]:
        return [getattr(event, "text", "?") for event in self.events]


def _feishu() -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    sandbox = feishu.FeishuSandbox(feishu.SandboxConfig(redelivery_s=(0.2, 0.4, 0.8, 1.6)))
    sandbox.use_long_connection()
    return sandbox, lambda c: {
        "platform": "feishu", "mode": "websocket", "app_id": c.app_id, "app_secret": c.app_secret,
        "api_base": sandbox.base_url,
    }  # fmt: skip


def _dingtalk() -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    sandbox = dingtalk.DingTalkSandbox(dingtalk.SandboxConfig(redelivery_s=(0.2, 0.4, 0.8, 1.6)))
    return sandbox, lambda c: {
        "platform": "dingtalk", "mode": "stream", "client_id": c.client_id, "client_secret": c.client_secret,
        "api_base": sandbox.base_url, "oapi_base": sandbox.base_url,
    }  # fmt: skip


def _wecom() -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    sandbox = wecom.WeComSandbox(wecom.WeComConfig(mode="websocket"))
    return sandbox, lambda c: {
        "platform": "wecom_bot", "mode": "websocket", "bot_id": c.bot_id, "secret": c.bot_secret,
        "api_base": sandbox.base_url, "ws_url": sandbox.ws_url,
    }  # fmt: skip


_OPEN = {
    "feishu": (_feishu, lambda g: len(g.sockets), lambda g: g.n_opened),
    "dingtalk": (_dingtalk, lambda g: len(g.connections), lambda g: g.opened),
    "wecom": (_wecom, lambda g: int(g.live is not None), lambda g: g.subscriptions),
}


@asynccontextmanager
async def standing(platform: str) -> AsyncIterator[Stand]:
    make, n_open, n_ever = _OPEN[platform]
    sandbox, table = make()
    http = SharedHttp()
    await http.start()
    async with sandbox:
        bots = {"bots": {"bot": table(sandbox.config)}}
        bot = parse_config(bots, Path()).bots["bot"]
        adapter = open_adapter("bot", bot, http, MemoryBudget())
        gateway = sandbox.gateway
        stand = Stand(sandbox, adapter, lambda: n_open(gateway), lambda: n_ever(gateway))
        await adapter.start()
        try:
            yield stand
        finally:
            await adapter.close()
    await http.close()


@pytest.fixture(params=list(_OPEN))
async def stand(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:  # fmt: skip
    monkeypatch.setattr(longconn, "_FIRST_PAUSE_S", 0.05)
    async with standing(request.param) as made:
        yield made


async def test_it_connects_only_when_it_may(stand: Stand) -> None:
    allowed: list[int] = []
    assert stand.adapter.link in {Link.HEARS, Link.SPEAKS}
    await stand.adapter.listen(stand.sink, lambda: bool(allowed))
    await asyncio.sleep(0.3)
    assert stand.n_ever() == 0
    assert "deaf_since" in stand.adapter.health()
    allowed.append(1)
    await stand.connected()


async def test_it_hangs_up_and_listens_again(stand: Stand) -> None:
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    await stand.say("first")
    await stand.until(lambda: stand.texts == ["first"])

    await stand.adapter.hang_up()
    await stand.until(lambda: stand.n_open() == 0)
    assert "deaf_since" in stand.adapter.health()
    await asyncio.sleep(0.3)
    assert stand.n_ever() == 1, "it stays away"
    await stand.say("nobody listens")

    await stand.adapter.listen(stand.sink)
    await stand.connected()
    await stand.until(lambda: stand.texts == ["first", "nobody listens"])
    assert stand.n_ever() == 2
    await stand.adapter.hang_up()
    await stand.adapter.hang_up()  # harmless
    assert stand.sandbox.violations == []

"""Which platform `hearth demo` plays: the sandbox for each name, and the [bots.*] table that points at it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bot.errors import ConfigError
from bot.sandbox import (
    DingTalkSandbox,
    FeishuSandbox,
    WeComSandbox,
    build_stage,
    dingtalk_stage_config,
    stage_config,
    wecom_stage_config,
)
from bot.sandbox.dingtalk import DEFAULT_TEMPLATE
from bot.sandbox.tables import dingtalk_table, feishu_table, wecom_table
from bot.sandbox.wecom import Mode

Json = dict[str, Any]
_CONNECT_S = 45.0


class Played(Protocol):
    """What the demo asks of a sandbox."""

    base_url: str

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; `base_url` is known afterwards."""
        ...

    async def close(self) -> None:
        """The end."""
        ...


@dataclass(frozen=True, slots=True)
class Play:
    """One played platform with people on its stage.

    `table(base)` is the bot's [bots.*] table for a sandbox at that address. `subscribe` tells the sandbox the webhook's
    URL; None where the bot holds a long connection. `ready` does what the platform's console does when a URL is saved, or
    waits for the long connection: False when it did not come about.
    """

    title: str
    sandbox: Played
    table: Callable[[str], Json]
    ready: Callable[[], Awaitable[bool]]
    subscribe: Callable[[str], None] | None = None


async def _comes(waiting: Awaitable[Any]) -> bool:
    """Whether what is waited for happens in time."""
    try:
        return bool(await waiting)
    except TimeoutError:
        return False


def _feishu(notes: Mapping[str, Any]) -> Play:
    sandbox = FeishuSandbox(stage_config(notes=notes))
    build_stage(sandbox)

    def table(base: str) -> Json:
        return feishu_table(sandbox.config, base) | {"update_interval_s": 1.0}

    return Play("Feishu", sandbox, table, sandbox.url_check, sandbox.subscribe)


def _feishu_socket(notes: Mapping[str, Any]) -> Play:
    sandbox = FeishuSandbox(stage_config(notes=notes))
    build_stage(sandbox)
    sandbox.use_long_connection()

    def table(base: str) -> Json:
        return feishu_table(sandbox.config, base, "websocket") | {"update_interval_s": 1.0}

    async def ready() -> bool:
        # Feishu's own client takes seconds to be imported.
        return await _comes(asyncio.wait_for(sandbox.gateway.connected.wait(), _CONNECT_S))

    return Play("Feishu (long connection)", sandbox, table, ready)


def _dingtalk(notes: Mapping[str, Any]) -> Play:
    sandbox = DingTalkSandbox(dingtalk_stage_config(notes=notes))
    build_stage(sandbox)

    def table(base: str) -> Json:
        card = {"card_template": DEFAULT_TEMPLATE, "card_buttons_key": "buttons"}
        return dingtalk_table(sandbox.config, base) | card

    async def ready() -> bool:
        return await _comes(sandbox.wait_for(lambda: sandbox.gateway.connections))

    return Play("DingTalk", sandbox, table, ready)


def _wecom(mode: Mode, title: str) -> Callable[[Mapping[str, Any]], Play]:
    def play(notes: Mapping[str, Any]) -> Play:
        sandbox = WeComSandbox(wecom_stage_config(mode, notes=notes))
        build_stage(sandbox)

        def table(base: str) -> Json:
            return wecom_table(sandbox.config, base)

        async def connected() -> bool:
            return await _comes(sandbox.wait_for(lambda: sandbox.gateway.live))

        if mode == "websocket":
            return Play(title, sandbox, table, connected)
        return Play(title, sandbox, table, sandbox.url_check, sandbox.subscribe)

    return play


_PLAYS: Mapping[str, Callable[[Mapping[str, Any]], Play]] = {
    "feishu": _feishu,
    "feishu-websocket": _feishu_socket,
    "dingtalk": _dingtalk,
    "wecom": _wecom("callback", "WeCom"),
    "wecom-websocket": _wecom("websocket", "WeCom (long connection)"),
    "wecom-app": _wecom("app", "WeCom (self-built app)"),
}
PLATFORMS = tuple(_PLAYS)


def choose_play(name: str, notes: Mapping[str, Any]) -> Play:
    """The platform of this name, set up but not started. Raises ConfigError for an unknown one."""
    if name not in _PLAYS:
        raise ConfigError(f"--platform {name}: it is one of {', '.join(PLATFORMS)}")
    return _PLAYS[name](notes)

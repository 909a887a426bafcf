"""The composition root: builds everything from a Config and ends it in reverse order. Imported only by the command line.

`Hearth` owns every long-lived object; nothing below it reaches for a global.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from bot.budgets import FileBudgets
from bot.config import Config
from bot.config_engine import engine_settings
from bot.engine_metrics import EngineMetrics
from bot.errors import ConfigError
from bot.machine_metrics import MachineMetrics
from bot.platforms.base import PlatformAdapter
from bot.platforms.http import SharedHttp
from bot.platforms.opening import open_adapter
from bot.service.app import Service
from bot.store import Store
from bot.web.openai_api import OpenAIApi
from bot.web.ops import OpsHandler
from bot.web.server import WebServer, build_app
from bot.web.webhook import WebhookHandler
from engine.client import EngineProcess, open_engine
from engine.face import Engine
from engine.machine.margins import Surroundings
from engine.machine.watch import MachineWatch
from engine.types import EngineState
from engine.vram.auto import PlanListener
from engine.vram.claims import Claims

log = structlog.get_logger()


def store_url(config: Config) -> str:
    """The database URL with a relative SQLite path made absolute."""
    url = config.storage.url.get_secret_value()
    if not url.startswith("sqlite"):
        return url
    scheme, _, path = url.partition("///")
    if not path:
        raise ConfigError('storage.url: a SQLite URL is "sqlite:///path/to/file.db"')
    return f"{scheme}///{config.path(path)}"


def state_folder(config: Config) -> Path:
    """Where small files beside the database live: the SQLite file's folder, else `data` beside the config."""
    url = store_url(config)
    return Path(url.partition("///")[2]).parent if url.startswith("sqlite") else config.path("data")


class Hearth:
    """A running Hearth. `start` opens everything in order; `close` ends it in reverse, letting replies reach a safe point."""

    def __init__(
        self,
        config: Config,
        *,
        extra_adapters: Mapping[str, PlatformAdapter] | None = None,
        on_plan: PlanListener | None = None,
    ) -> None:
        self.config = config
        self.registry = CollectorRegistry()
        self._engine_metrics = EngineMetrics()
        self.registry.register(self._engine_metrics)
        self.store = Store(
            store_url(config),
            dedupe_hours=config.storage.dedupe_hours,
            backups=config.storage.backups,
        )
        claims = Claims()
        margins = config.watch.margins
        self.watch = MachineWatch(margins, self._children, every_s=config.watch.every_s)
        self.registry.register(MachineMetrics(self.watch))
        machine = Surroundings(lambda: self.watch.latest, margins)
        self.engines: dict[str, Engine] = {
            name: open_engine(engine_settings(name, model, config), claims, on_plan, machine)
            for name, model in config.models.items()
        }
        self.http = SharedHttp()
        self.adapters: dict[str, PlatformAdapter] = dict(extra_adapters or {})
        self._stack = AsyncExitStack()
        self._started_at = time.monotonic()
        self.service: Service | None = None
        self.web: WebServer | None = None

    async def start(self, *, listen: bool = True) -> None:
        """Open the database, start the engines (loading goes on in the background), the bots, and the web server."""
        try:
            await self._start(listen=listen)
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self, *, listen: bool) -> None:
        await self.store.open()
        self._stack.push_async_callback(self.store.close)
        for engine in self.engines.values():
            self._stack.push_async_callback(engine.close)
            await engine.start()
        self.watch.start()
        self._stack.push_async_callback(self.watch.close)
        await self.http.start()
        self._stack.push_async_callback(self.http.close)
        budgets = FileBudgets(state_folder(self.config))
        self._stack.callback(budgets.save)
        for name, bot in self.config.bots.items():
            self.adapters[name] = open_adapter(
                name, bot, self.http, budgets.open(bot.app_id, bot.monthly_calls)
            )
        for adapter in self.adapters.values():
            self._stack.push_async_callback(adapter.close)
            await adapter.start()
        service = Service(
            self.config,
            self.store,
            self.adapters,
            self.engines,
            registry=self.registry,
            machine=self.watch,
        )
        self.service = service
        self._stack.push_async_callback(service.close, self.config.server.shutdown_s)
        await service.start()
        if listen:
            await self._listen(service)

    async def _listen(self, service: Service) -> None:
        cap = self.config.server.max_body_bytes
        webhook = WebhookHandler(self.adapters, service.inbox, cap)
        app = build_app(
            webhook,
            OpsHandler(self.readiness, self.registry, self._refresh_metrics),
            OpenAIApi(service.settings, self.engines, self.registry),
            max_body_bytes=cap,
        )
        self.web = WebServer(app, self.config.server.host, self.config.server.port)
        await self.web.start()
        self._stack.push_async_callback(self.web.close)

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether questions are answered now, and the facts behind it."""
        models: dict[str, Any] = {}
        ready = True
        for name, engine in self.engines.items():
            stats = await engine.stats()
            models[name] = {"state": stats.state.value, "restarts": stats.n_restarts}
            if stats.detail:
                models[name]["detail"] = stats.detail
            if stats.step_back:
                models[name]["step_back"] = stats.step_back
            if stats.lacks:
                models[name]["lacks"] = stats.lacks
            if stats.plan:
                models[name]["plan"] = stats.plan
            ready = ready and stats.state is EngineState.READY
        bots = {name: dict(self._health(adapter)) for name, adapter in self.adapters.items()}
        facts = {
            "models": models,
            "bots": bots,
            "machine": [alarm.sentence for alarm in self.watch.alarms],
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            "now": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return ready, facts

    def _children(self) -> dict[str, int]:
        """The engine children of the moment."""
        local = {n: e.child_pid for n, e in self.engines.items() if isinstance(e, EngineProcess)}
        return {name: pid for name, pid in local.items() if pid}

    def _health(self, adapter: PlatformAdapter) -> Mapping[str, str]:
        return adapter.health() if self.service is None else self.service.leading.health(adapter)

    async def _refresh_metrics(self) -> None:
        stats = {name: await engine.stats() for name, engine in self.engines.items()}
        self._engine_metrics.update(stats)

    async def close(self) -> None:
        """Stop listening, bring running replies to a safe point, end the children, close the database."""
        await self._stack.aclose()

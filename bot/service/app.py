"""The service as one thing: builds its parts, starts and ends them. Adapters, engines and the store are handed in."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from bot.config import Config
from bot.domain.ports import Store
from bot.domain.records import StoreFacts
from bot.platforms.base import PlatformAdapter
from bot.service.access import Gate
from bot.service.board import Board
from bot.service.buttons import Buttons
from bot.service.clock import Clock, SystemClock
from bot.service.commands import CommandExecutor
from bot.service.context import Context
from bot.service.dispatcher import Dispatcher
from bot.service.inbox import Inbox
from bot.service.metrics import ServiceMetrics
from bot.service.settings import Settings
from bot.service.signs import SignsOfLife
from bot.service.slots import Slots
from bot.service.turn import TurnRunner
from engine.face import Engine
from engine.types import EngineStats

# Turns of one model with the engine at once, beyond those it decodes: they wait there, and it tells their places.
WAITING_WITH_ENGINE = 64
SIGNS_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Figures for /readyz, /metrics and the command line."""

    held_turns: int
    store: StoreFacts
    engines: dict[str, EngineStats]


class Service:
    """Everything between the platforms and the engine. Owner: the application, which starts and closes the store,
    the adapters and the engines itself (the service first to end, the store last)."""

    def __init__(
        self,
        config: Config,
        store: Store,
        adapters: Mapping[str, PlatformAdapter],
        engines: Mapping[str, Engine],
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.settings = Settings(config)
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._context = Context(
            settings=self.settings,
            store=store,
            adapters=adapters,
            engines=engines,
            slots={name: Slots(_n_slots(config, name)) for name in engines},
            board=Board(),
            signs=SignsOfLife(store),
            clock=clock,
            metrics=ServiceMetrics(registry or CollectorRegistry()),
            work=asyncio.Event(),
        )
        gate = Gate(self.settings, clock)
        self._commands = CommandExecutor(self._context)
        buttons = Buttons(self._context, gate, self._commands)
        self.inbox = Inbox(self._context, gate, self._commands, buttons)
        self.dispatcher = Dispatcher(
            self._context, TurnRunner(self._context, self._commands, self.owner), self.owner
        )

    async def start(self) -> None:
        """Take up what an earlier process left and begin to work. Raises StoreError."""
        await self.dispatcher.start()

    async def close(self, grace_s: float = 10.0) -> None:
        """Release what runs, so that the next start goes on with it; at most about `grace_s`."""
        await self.dispatcher.close(grace_s)
        await self._commands.close()
        await self._context.signs.close(min(SIGNS_GRACE_S, grace_s))

    def reload(self, config: Config) -> None:
        """Use another configuration for everything that is read at the time of use (people, texts, chat settings)."""
        self.settings.replace(config)

    async def status(self) -> ServiceStatus:
        """How things stand. Raises StoreError."""
        engines = {name: await engine.stats() for name, engine in self._context.engines.items()}
        return ServiceStatus(self.dispatcher.n_held, await self._context.store.facts(), engines)


def _n_slots(config: Config, model_name: str) -> int:
    return config.models[model_name].n_parallel + WAITING_WITH_ENGINE

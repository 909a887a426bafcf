"""The service as one thing: builds its parts, starts and ends them. Adapters, engines and the store are handed in."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from bot.config import Config
from bot.domain.ports import Store
from bot.domain.records import StoreFacts
from bot.domain.types import Turn
from bot.platforms.base import PlatformAdapter
from bot.service.access import Gate
from bot.service.board import Board
from bot.service.buttons import Buttons
from bot.service.clock import Clock, SystemClock
from bot.service.commands import CommandExecutor
from bot.service.context import Context
from bot.service.dispatcher import Dispatcher
from bot.service.documents import DocumentReader
from bot.service.inbox import Inbox
from bot.service.leading import Leading
from bot.service.listening import Listening
from bot.service.metrics import ServiceMetrics
from bot.service.pastes import Pastes
from bot.service.recall import RecallIndex
from bot.service.settings import Settings
from bot.service.signs import SignsOfLife
from bot.service.slots import WAITING_WITH_ENGINE, Slots
from bot.service.summarizer import Summarizer
from bot.service.timers import Timers
from bot.service.turn import TurnRunner
from engine.face import Engine
from engine.machine.watch import MachineWatch
from engine.types import EngineStats

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

    def __init__(  # noqa: PLR0913 - as many as there are parts from outside
        self,
        config: Config,
        store: Store,
        adapters: Mapping[str, PlatformAdapter],
        engines: Mapping[str, Engine],
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
        machine: MachineWatch | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.settings = Settings(config)
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._context = Context(
            settings=self.settings,
            store=store,
            adapters=adapters,
            engines=engines,
            slots={name: _slots(config, name) for name in engines},
            board=Board(),
            signs=SignsOfLife(store),
            documents=DocumentReader(store, self.settings, clock),
            pastes=Pastes(clock),
            digesting={name: asyncio.Lock() for name in engines},
            clock=clock,
            metrics=ServiceMetrics(registry or CollectorRegistry()),
            started_s=clock.monotonic(),
            work=asyncio.Event(),
            machine=machine,
        )
        gate = Gate(self.settings, clock)
        self.summarizer = Summarizer(self._context)
        listening = Listening(self._context)
        self.timers = Timers(self._context, self.summarizer.notice, listening.sweep)
        self.leading = Leading(store, adapters, self.owner, self._context.work.set)
        self._commands = CommandExecutor(
            self._context,
            functools.partial(self.summarizer.compress, at_once=True),
            self.timers.changed,
            listening,
            self.leading,
        )
        buttons = Buttons(self._context, gate, self._commands)
        self.inbox = Inbox(self._context, gate, self._commands, buttons, listening)
        self.recall_index = RecallIndex(self._context)
        runner = TurnRunner(
            self._context,
            self._commands,
            self.owner,
            on_answered=self._answered,
            on_untold=listening.untold,
        )
        self.dispatcher = Dispatcher(self._context, runner, self.owner, self.leading.elsewhere)

    async def start(self) -> None:
        """Take up what an earlier process left, begin to work, and listen where bots have long connections.

        Raises StoreError.
        """
        self.summarizer.start()
        self.recall_index.start()
        await self.dispatcher.start()
        self.timers.start()
        self.leading.start(lambda name, bot: functools.partial(self.inbox.accept, name, bot))

    async def close(self, grace_s: float = 10.0) -> None:
        """Release what runs, so that the next start goes on with it; at most about `grace_s`."""
        await self.timers.close()
        await self.dispatcher.close(grace_s)
        await self.summarizer.close()
        await self.recall_index.close()
        await self._commands.close()
        await self._context.documents.close()
        await self._context.signs.close(min(SIGNS_GRACE_S, grace_s))
        await self.leading.close()  # last: until here something may still go over a connection

    def _answered(self, turn: Turn, bot_name: str) -> None:
        self.summarizer.notice(turn, bot_name)
        self.recall_index.notice(turn)

    def reload(self, config: Config) -> None:
        """Use another configuration for everything that is read at the time of use (people, texts, chat settings)."""
        self.settings.replace(config)

    async def status(self) -> ServiceStatus:
        """How things stand. Raises StoreError."""
        engines = {name: await engine.stats() for name, engine in self._context.engines.items()}
        return ServiceStatus(self.dispatcher.n_held, await self._context.store.facts(), engines)


def _slots(config: Config, model_name: str) -> Slots:
    model = config.models[model_name]
    return Slots(
        model.n_parallel,
        WAITING_WITH_ENGINE,
        max_waiting=model.max_waiting,
        max_waiting_per_person=model.max_waiting_per_person,
    )

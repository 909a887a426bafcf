"""What the parts of the service share: handed in once, never replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from bot.domain.access import Role
from bot.domain.ports import Store
from bot.platforms.base import PlatformAdapter
from bot.service.board import Board
from bot.service.clock import Clock
from bot.service.documents import DocumentReader
from bot.service.metrics import ServiceMetrics
from bot.service.pastes import Pastes
from bot.service.settings import Settings
from bot.service.signs import SignsOfLife
from bot.service.slots import Slots
from engine.face import Engine
from engine.machine.watch import MachineWatch


@dataclass(frozen=True, slots=True)
class Context:
    """The store, the clock, the outside (adapters by bot name, engines by model name) and the small shared owners."""

    settings: Settings
    store: Store
    adapters: Mapping[str, PlatformAdapter]
    engines: Mapping[str, Engine]
    slots: Mapping[str, Slots]
    board: Board
    signs: SignsOfLife
    documents: DocumentReader
    pastes: Pastes
    # Held by whoever reads a long text through; one per model.
    digesting: Mapping[str, asyncio.Lock]
    clock: Clock
    metrics: ServiceMetrics
    # When this process began to serve, on the clock's monotonic scale.
    started_s: float
    # Set when a turn may be ready to be claimed. A hint: the dispatcher's slow poll is the truth.
    work: asyncio.Event
    # Looks at this machine's memory and cards; None = nobody does.
    machine: MachineWatch | None = None

    def adapter_of(self, app_id: str) -> PlatformAdapter | None:
        """The configured bot behind a platform's app id."""
        return next((a for a in self.adapters.values() if a.app_id == app_id), None)

    def is_admin(self, bot_name: str, user_id: str) -> bool:
        """Whether a person may do what is for admins."""
        return self.settings.access.role(bot_name, user_id) is Role.ADMIN

    def model_of(self, bot_name: str) -> str:
        """Name of the model that answers for a bot."""
        return self.settings.config.model_of(bot_name)

"""Which size an engine is started with: planned before its first child, again after it has FAILED, and when there is more room.

Owns the newest plan. The plan itself (`engine.vram.auto`) is made in a thread, one engine at a time, and never ends anything: a
fault of ours in it is logged, and the engine starts with its settings as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec
import structlog

from engine.errors import EngineConfigError
from engine.vram.auto import plan_start
from engine.vram.claims import Claims, Held

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.vram.auto import PlanListener, StartPlan

log = structlog.get_logger()


class Sizing:
    """Owner: a supervisor. `taken` says how much memory of its own the child has now, and whether it is ready."""

    def __init__(
        self,
        config: EngineConfig,
        claims: Claims,
        taken: Callable[[], tuple[int, bool]],
        on_plan: PlanListener | None = None,
    ) -> None:
        self._config = config
        self._claims = claims
        self._taken = taken
        self._on_plan = on_plan
        self._is_due = config.is_fitted
        self._rpc: tuple[str, ...] = ()
        self._is_try = False
        self._looked_at = float("-inf")
        self._plan: StartPlan | None = None

    @property
    def sentence(self) -> str:
        """What was chosen and why; "" = the settings are taken as they are."""
        return self._plan.sentence if self._plan else ""

    def renew(self) -> None:
        """Plan anew before the next child."""
        self._is_due = self._config.is_fitted

    def without(self, absent: Collection[str]) -> None:
        """The child came to be without these RPC workers: with them it is another plan."""
        self._rpc = tuple(name for name in self._rpc if name not in absent)

    def try_more(self) -> None:
        """The same, because there seems to be more room; where the new plan finds none, the old one stays."""
        self._is_due = self._is_try = True

    def close(self) -> None:
        """Nothing will be taken any more."""
        self._claims.drop(self._config.name)

    async def settle(self, rpc: tuple[str, ...] = ()) -> EngineConfig | None:
        """The settings of a new plan, None when none is due. `rpc`: workers that will be used; others than last time are a reason
        for another plan. Raises EngineConfigError when nothing fits."""
        if not self._is_due and not (self._config.is_fitted and rpc != self._rpc):
            return None
        self._rpc = rpc
        is_try, self._is_try = self._is_try, False
        async with self._claims.turn:
            if not is_try:
                self._plan = None
            plan = await self._made(self._claims.of_others(self._config.name), is_try=is_try)
            if plan is not None:
                self._plan = plan
                self._claims.put(self._config.name, self._held)
        self._is_due = False
        if plan is None:
            return None
        self._tell(plan)
        # Who is left out for now is not forgotten: that is `engine.link.outside`'s to add and take away.
        return msgspec.structs.replace(plan.config, rpc=self._config.rpc)

    async def has_room(self, quiet_s: float, every_s: float, now: float) -> bool:
        """Whether everything that was asked for would fit now, where less was planned; looked for after `quiet_s` ≥ `every_s`
        seconds without a request, and then every `every_s`."""
        plan = self._plan
        if plan is None or not plan.given_up or min(quiet_s, now - self._looked_at) < every_s:
            return False
        self._looked_at = now
        others = self._claims.of_others(self._config.name)
        n_bytes, _ = self._taken()
        # What a worker lends is known from before we took it; a driver tells what is free beside us.
        on_card = plan.ledger.card.used if plan.ledger.card and not self._rpc else 0
        without_us = Held(others.ram - n_bytes, others.card - on_card)
        better = await self._made(without_us, is_try=True)
        return better is not None and not better.given_up

    async def _made(self, held: Held, *, is_try: bool) -> StartPlan | None:
        """A plan; None = none could be made, and the settings that there are stand."""
        try:
            wish = msgspec.structs.replace(self._config, rpc=self._rpc)
            return await asyncio.to_thread(plan_start, wish, held)
        except EngineConfigError:
            if not is_try:
                raise
        except Exception:  # a plan that fails must not keep the engine from starting
            log.exception("engine_plan_failed", model=self._config.name)
        return None

    def _held(self) -> Held:
        """What is planned and not taken yet. A driver tells what a loaded model has of its card, so nothing is held there then."""
        if self._plan is None:
            return Held()
        ledger = self._plan.ledger
        n_bytes, is_ready = self._taken()
        on_card = ledger.card.used if ledger.card and not is_ready else 0
        return Held(max(0, ledger.ram.used - n_bytes), on_card)

    def _tell(self, plan: StartPlan) -> None:
        say = log.warning if plan.given_up else log.info
        say("engine_planned", model=self._config.name, plan=plan.sentence)
        if self._on_plan is not None:
            self._on_plan(plan)

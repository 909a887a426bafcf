"""The dispatcher: claims turns, holds one task for each, keeps their leases alive, and gives them back at the end.

A wake-up is only a hint; the slow poll is the truth. A turn whose lease was lost is dropped without another visible step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from bot.domain.types import Turn, TurnState
from bot.errors import HearthError
from bot.service.board import ActiveTurn, StopReason
from bot.service.context import Context
from bot.service.turn import TurnRunner

log = structlog.get_logger()

MAX_HELD = 512
# Claims are cheap and wait for a slot; some room is always left so that commands of others are claimed too.
MIN_CLAIM = 8
# Turns begun at once; between two such batches the event loop is given the time to take what platforms push.
CLAIM_BATCH = 16
MAX_ATTEMPTS = 5
LEASE_S = 15.0
# A pass of the event loop that takes longer than this means that more work is at hand than is done.
CROWDED_PASS_S = 0.02
LONGEST_PAUSE_S = 0.5
POLL_S = 2.0


class Dispatcher:
    """Owns every turn task and the two loops; adds to and removes from the board."""

    def __init__(
        self,
        context: Context,
        runner: TurnRunner,
        owner: str,
        elsewhere: Callable[[], frozenset[str]],
    ) -> None:
        """`elsewhere` names the apps whose turns another process must answer, now."""
        self._context = context
        self._runner = runner
        self._owner = owner
        self._elsewhere = elsewhere
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loops: list[asyncio.Task[None]] = []
        # Held while the database and `_tasks` are brought to agree about who holds what.
        self._books = asyncio.Lock()

    async def start(self) -> None:
        """Take back what an earlier process left, then begin to claim. Raises StoreError."""
        recovered = await self._context.store.recover(self._owner)
        if recovered:
            log.info("turns_recovered", n=recovered)
        self._loops = [
            asyncio.create_task(self._claim_loop()),
            asyncio.create_task(self._lease_loop()),
        ]
        self.wake()

    def wake(self) -> None:
        """Something may be ready to be claimed."""
        self._context.work.set()

    @property
    def n_held(self) -> int:
        """Turns held by this process."""
        return len(self._tasks)

    async def close(self, grace_s: float) -> None:
        """Release every turn: what is shown is committed, the turn is QUEUED again, the next start goes on with it."""
        await _cancel(self._loops[:1])
        for active in self._context.board.all():
            active.stop(StopReason.RELEASED)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        left = list(self._tasks.items())
        await _cancel([task for _, task in left])
        for turn_id, _ in left:
            with contextlib.suppress(HearthError):
                await self._context.store.release(turn_id, self._owner)
        await _cancel(self._loops)

    # -- claiming ----------------------------------------------------------------------------------------------------
    async def _claim_loop(self) -> None:
        while True:
            self._context.work.clear()
            self._give_back()
            try:
                await self._claim()
            except HearthError as error:
                log.warning("claim_failed", error=str(error))
            except Exception:
                log.exception("claim_crashed")
            pause_s = self._context.pastes.next_end_s(at_most=POLL_S)
            await self._context.clock.wait(self._context.work, pause_s)

    async def _claim(self) -> None:
        while True:
            await _let_others_run()
            limit = min(CLAIM_BATCH, max(MIN_CLAIM, MAX_HELD - len(self._tasks)))
            async with self._books:
                turns = await self._context.store.claim(
                    self._owner, LEASE_S, limit, without=self._elsewhere()
                )
                for turn in turns:
                    self._begin(turn)
            if len(turns) < limit or len(self._tasks) >= MAX_HELD:
                return

    def _give_back(self) -> None:
        """Release the turns of bots that another process answers for: it goes on where this one stopped."""
        away = self._elsewhere()
        for active in self._context.board.all():
            if active.turn.session.app_id in away and not active.released.is_set():
                log.info("turn_given_back", turn_id=active.turn.id)
                active.stop(StopReason.RELEASED)

    def _begin(self, turn: Turn) -> None:
        active = self._context.board.add(turn)
        task = self._tasks[turn.id] = asyncio.create_task(self._run(active))
        self._context.metrics.active.set(len(self._tasks))
        task.add_done_callback(lambda done: self._ended(turn.id, done))

    def _ended(self, turn_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(turn_id, None)
        self._context.board.remove(turn_id)
        self._context.metrics.active.set(len(self._tasks))
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("turn_task_died", turn_id=turn_id, error=type(error).__name__)
        self.wake()

    async def _run(self, active: ActiveTurn) -> None:
        turn = active.turn
        structlog.contextvars.clear_contextvars()
        with structlog.contextvars.bound_contextvars(turn_id=turn.id, session_id=turn.session_id):
            try:
                await self._runner.run(active)
            except HearthError as error:  # not the code's fault: no traceback
                log.warning("turn_failed", attempt=turn.attempt, error=str(error))
                await self._after_fault(active)
            except Exception:
                log.exception("turn_failed", attempt=turn.attempt)
                await self._after_fault(active)

    async def _after_fault(self, active: ActiveTurn) -> None:
        """Our own fault or the database's: try again a little later; after some tries end it with a sentence.

        What fails here too leaves the turn to the lease loop, which gives it back.
        """
        turn = active.turn
        if turn.attempt < MAX_ATTEMPTS or active.released.is_set():
            await self._context.clock.wait(active.released, min(30.0, 0.5 * 2**turn.attempt))
            await self._context.store.release(turn.id, self._owner)
            return
        try:
            await self._runner.give_up(active)
        except Exception:
            log.exception("turn_given_up")
            self._context.signs.clear(turn.id)
            await self._context.store.finish_turn(
                turn.id, self._owner, TurnState.FAILED, error="it failed again and again"
            )

    # -- leases ------------------------------------------------------------------------------------------------------
    async def _lease_loop(self) -> None:
        clock = self._context.clock
        while True:
            await clock.sleep(LEASE_S / 3)
            try:
                await self._renew()
                if await self._context.store.recover(self._owner):
                    self.wake()
            except HearthError as error:
                log.warning("lease_renewal_failed", error=str(error))
            except Exception:
                log.exception("lease_loop_fault")

    async def _renew(self) -> None:
        async with self._books:
            before = self._context.board.all()
            held = await self._context.store.heartbeat(self._owner, LEASE_S)
            for active in before:
                task = self._tasks.get(active.turn.id)
                if active.turn.id in held or active.finishing or task is None:
                    continue
                log.warning("lease_lost", turn_id=active.turn.id)
                task.cancel()
            for turn_id in held - self._tasks.keys() - {active.turn.id for active in before}:
                log.warning("turn_without_task", turn_id=turn_id)
                await self._context.store.release(turn_id, self._owner)


async def _let_others_run() -> None:
    """Pause in proportion to how crowded the event loop is.

    Accepting what platforms push has a deadline of seconds; beginning one more answer has none.
    """
    clock = asyncio.get_running_loop().time
    before = clock()
    await asyncio.sleep(0)
    pass_s = clock() - before
    if pass_s > CROWDED_PASS_S:
        await asyncio.sleep(min(LONGEST_PAUSE_S, 10 * pass_s))


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""One claimed turn from its claim to its end: make the reply (or take up what is there), show it, close the books.

The order is what makes it safe (DESIGN §4): the final reply is on disk before its last edit, and the turn is finished only
after the platform acknowledged it. Whatever is cut off between is taken up by the next claim without a second answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from bot.domain.catalogue import say
from bot.domain.turns import Work, state_of, work_of
from bot.domain.types import Lane, Outcome, ReplyPart, Turn, TurnKind, TurnState
from bot.errors import HearthError
from bot.platforms.base import PlatformAdapter
from bot.service.board import ActiveTurn, StopReason
from bot.service.commands import CommandExecutor
from bot.service.context import Context
from bot.service.digest import Digest
from bot.service.generation import Generation
from bot.service.ledger import ReplyLedger
from bot.service.streamer import Delivery, Streamer
from bot.service.views import ViewMaker

log = structlog.get_logger()

CHAT_GIVE_UP_S = 24 * 3600.0
NOTICE_GIVE_UP_S = 600.0
CANCEL_GRACE_S = 5.0
# A sign of life on an old question tells nobody anything (feishu.md §4.7).
SIGN_MAX_AGE_S = 120.0


class TurnRunner:
    """Runs claimed turns for one owner id. Holds no state of a turn: that is in `_Running`."""

    def __init__(
        self,
        context: Context,
        commands: CommandExecutor,
        owner: str,
        on_answered: Callable[[Turn, str], None] = lambda _turn, _bot: None,
        on_untold: Callable[[Turn], Awaitable[None]] | None = None,
    ) -> None:
        """`on_answered` is told of every question that was answered, with the bot's name; `on_untold` of what the bot had to say
        of its own accord and could not."""
        self._context = context
        self._commands = commands
        self._owner = owner
        self._on_answered = on_answered
        self._on_untold = on_untold

    async def run(self, active: ActiveTurn) -> None:
        """Bring a turn to its end, or release it. Raises what a store or adapter should not raise."""
        turn, store = active.turn, self._context.store
        adapter = self._context.adapter_of(turn.target.app_id)
        if adapter is None:
            log.warning("turn_without_bot", app_id=turn.target.app_id)
            await store.finish_turn(
                turn.id, self._owner, TurnState.FAILED, error="its bot is no longer configured"
            )
            return
        snapshot, parts = await store.reply(turn.id)
        ledger = ReplyLedger(store, turn.id, snapshot, parts, keeps_edges=bool(turn.continues))
        running = _Running(self._context, active, adapter, ledger, parts)
        work = work_of(turn, snapshot)
        log.info("turn_begun", kind=turn.kind.value, work=work.value, attempt=turn.attempt)
        if work is Work.EXECUTE:
            ledger.end(Outcome.COMPLETE, text=await self._commands.execute(turn, adapter.name))
        elif work is Work.CANCEL:
            running.end_stopped(silent=turn.silent)
        answering = work is Work.GENERATE
        delivery = await (running.answer() if answering else running.deliver())
        await self._close(active, ledger, delivery)
        if answering and ledger.final:
            self._on_answered(turn, adapter.name)

    async def give_up(self, active: ActiveTurn) -> None:
        """A turn that failed again and again by our own fault ends with a friendly sentence."""
        turn, store = active.turn, self._context.store
        snapshot, parts = await store.reply(turn.id)
        ledger = ReplyLedger(store, turn.id, snapshot, parts)
        delivery = Delivery.GAVE_UP
        adapter = self._context.adapter_of(turn.target.app_id)
        if adapter is not None:
            if not ledger.final:
                ledger.end(Outcome.FAILED, say(self._context.settings.language, "end.failed"))
            delivery = await _Running(self._context, active, adapter, ledger, parts).deliver()
        await self._close(active, ledger, delivery)

    async def _close(self, active: ActiveTurn, ledger: ReplyLedger, delivery: Delivery) -> None:
        turn, store = active.turn, self._context.store
        if delivery is Delivery.DETACHED:
            if await store.holds(turn.id, self._owner):  # else another process goes on with it
                await ledger.commit()
                await store.release(turn.id, self._owner)
            log.info("turn_released")
            return
        outcome = ledger.snapshot.outcome
        gave_up = delivery is Delivery.GAVE_UP
        state = TurnState.FAILED if gave_up else state_of(outcome)
        active.finishing = True
        held = await store.finish_turn(
            turn.id, self._owner, state, error="the reply could not be delivered" if gave_up else ""
        )
        self._context.signs.clear(turn.id)
        if delivery is not Delivery.DELIVERED and self._on_untold and _is_announcement(turn):
            await self._on_untold(turn)
        self._commands.collected(turn.id)
        self._context.metrics.turns.labels(turn.kind.value, outcome.value).inc()
        log.info("turn_finished", state=state.value, outcome=outcome.value, held=held)


def _is_announcement(turn: Turn) -> bool:
    """What the bot says of its own accord: nobody asked."""
    return turn.kind is TurnKind.NOTICE and not turn.asker.user_id


class _Running:
    """A turn while it runs: its ledger, its streamer and the tasks that make and show the reply."""

    def __init__(
        self,
        context: Context,
        active: ActiveTurn,
        adapter: PlatformAdapter,
        ledger: ReplyLedger,
        parts: Sequence[ReplyPart],
    ) -> None:
        self._context = context
        self._active = active
        self._turn: Turn = active.turn
        self._adapter = adapter
        self._ledger = ledger
        self._had_parts = bool(ledger.parts())
        self._language = context.settings.language
        is_chat = self._turn.kind is TurnKind.CHAT
        self._give_up_s = CHAT_GIVE_UP_S if is_chat else NOTICE_GIVE_UP_S
        self._streamer = Streamer(
            adapter.open_reply(self._turn.target, ledger),
            ledger,
            ViewMaker(self._language, interactive=is_chat),
            context.clock,
            context.metrics,
        )
        self._streamer.on_open = self._opened
        self._streamer.on_text = self._first_text
        self._has_sign = context.signs.adopt(self._turn.id, adapter, self._turn.target, parts)

    async def answer(self) -> Delivery:
        """Generate and show at the same time."""
        self._sign()
        maker = Digest if self._turn.lane is Lane.BACKGROUND else Generation
        generation = maker(
            self._context, self._active, self._adapter.name, self._ledger, self._streamer
        )
        make = asyncio.create_task(generation.run())
        show = asyncio.create_task(self._streamer.run(prepare=True, give_up_s=self._give_up_s))
        stop = asyncio.create_task(self._active.stopped.wait())
        try:
            await asyncio.wait({make, show, stop}, return_when=asyncio.FIRST_COMPLETED)
            if show.done() and not self._ledger.final:
                show.result()  # a fault of showing is not the person's doing: raise it, the turn is tried again
                self._active.stop(StopReason.GONE)
            await self._end_making(make, generation)
            if not self._ledger.final:
                self._end_by_reason()
            if not self._ledger.final:
                self._streamer.detach()
                return await show
            await self._ledger.commit()
            if self._nothing_to_show():
                return Delivery.DELIVERED
            self._streamer.poke()
            await self._remember(generation)
            return await self._until_shown(show)
        finally:
            await _cancel_all(make, show, stop)

    async def deliver(self) -> Delivery:
        """Show a reply that is final already."""
        await self._ledger.commit()
        if self._nothing_to_show():
            return Delivery.DELIVERED
        show = asyncio.create_task(self._streamer.run(prepare=False, give_up_s=self._give_up_s))
        try:
            return await self._until_shown(show)
        finally:
            await _cancel_all(show)

    def end_stopped(self, *, silent: bool) -> None:
        """A person ended it: what was said so far is the reply."""
        if silent:
            self._ledger.end(Outcome.SILENT)
        else:
            self._ledger.end(Outcome.STOPPED, say(self._language, "end.stopped"))

    # -- inside ------------------------------------------------------------------------------------------------------
    async def _end_making(self, make: asyncio.Task[None], generation: Generation | Digest) -> None:
        """Wait for the generation; when it is to end early, politely first."""
        polite = self._active.reason in {StopReason.CANCELLED, StopReason.SILENT}
        if not make.done() and polite and await generation.stop():
            await asyncio.wait({make}, timeout=CANCEL_GRACE_S)
        if not make.done():
            make.cancel()
            await asyncio.wait({make})
        if not make.cancelled():
            make.result()

    def _end_by_reason(self) -> None:
        """The reply of a turn that was stopped before the engine said how it ended; a released one stays open."""
        match self._active.reason:
            case StopReason.CANCELLED:
                self.end_stopped(silent=False)
            case StopReason.SILENT | StopReason.GONE:
                self.end_stopped(silent=True)
            case _:
                pass

    async def _remember(self, generation: Generation | Digest) -> None:
        try:
            await generation.remember()
        except HearthError as error:  # the next prompt is rendered whole instead
            log.warning("canonical_not_stored", error=str(error))

    async def _until_shown(self, show: asyncio.Task[Delivery]) -> Delivery:
        """Wait for the acknowledgement, but not longer than this process may."""
        released = asyncio.create_task(self._active.released.wait())
        try:
            await asyncio.wait({show, released}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel_all(released)
        if not show.done():
            self._streamer.detach()
        delivery = await show
        self._context.metrics.updates.observe(self._streamer.n_updates)
        return delivery

    def _nothing_to_show(self) -> bool:
        """A reply that was stopped before anything of it was seen leaves nothing behind."""
        snapshot = self._ledger.snapshot
        seen = self._streamer.attempted or self._had_parts
        return (snapshot.outcome is Outcome.SILENT and not seen) or (
            snapshot.outcome is Outcome.STOPPED and not snapshot.text and not seen
        )

    def _sign(self) -> None:
        age_s = (self._context.clock.now() - self._turn.created_at).total_seconds()
        if not self._has_sign and not self._had_parts and age_s <= SIGN_MAX_AGE_S:
            self._context.signs.show(self._turn.id, self._adapter, self._turn.target)

    def _opened(self) -> None:
        self._context.signs.clear(self._turn.id)

    def _first_text(self) -> None:
        if not self._had_parts and self._turn.kind is TurnKind.CHAT:
            waited = self._context.clock.now() - self._turn.created_at
            self._context.metrics.first_text_s.observe(waited.total_seconds())


async def _cancel_all(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

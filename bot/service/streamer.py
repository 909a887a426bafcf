"""The streamer: shows one growing reply, newest snapshot first, at the platform's pace, until it is acknowledged.

One task per reply and never two calls in flight. What is shown was committed before. Platform trouble while the reply
grows is waited out silently (the next view is newer anyway); only the final view is insisted on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum

import structlog

from bot.errors import Ambiguous, GiveUp, HearthError, RetryLater, StoreError, TargetGone
from bot.platforms.base import ReplyDriver, ReplyView
from bot.service.clock import Clock
from bot.service.ledger import ReplyLedger
from bot.service.metrics import ServiceMetrics
from bot.service.views import ViewMaker

log = structlog.get_logger()

# A person waits: a storm that is over must not be waited out for another minute.
MAX_BACKOFF_S = 15.0
MAX_FAULTS = 6
GROWTH_COMMIT_S = 2.0


class Delivery(StrEnum):
    """How showing a reply ended."""

    DELIVERED = "delivered"
    GONE = "gone"
    GAVE_UP = "gave_up"
    DETACHED = "detached"  # stopped before the end; another process goes on


class Streamer:
    """Owns the driver of one reply. `poke`, `status` and `detach` are called by the turn on the same loop."""

    def __init__(
        self,
        driver: ReplyDriver,
        ledger: ReplyLedger,
        views: ViewMaker,
        clock: Clock,
        metrics: ServiceMetrics,
    ) -> None:
        self._driver = driver
        self._ledger = ledger
        self._views = views
        self._clock = clock
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._detached = False
        self._status = ""
        self._status_due = 0.0
        self._next_at = 0.0
        self._committed_at = clock.monotonic()
        self._failures = 0
        self._shown: tuple[int, str] | None = None
        self.text_shown = False
        self.attempted = False
        self.n_updates = 0
        self.on_open: Callable[[], None] = lambda: None
        self.on_text: Callable[[], None] = lambda: None

    @property
    def opened(self) -> bool:
        """Something of this reply was shown by this process."""
        return self._shown is not None

    def poke(self) -> None:
        """The ledger's snapshot has changed."""
        self._changed.set()

    def status(self, text: str, after_s: float = 0.0) -> None:
        """What to show instead of text while there is none, if that is still so `after_s` from now."""
        if text != self._status:
            self._status = text
            self._status_due = self._clock.monotonic() + after_s
            self._changed.set()

    def detach(self) -> None:
        """Stop after the call in flight, without closing the reply."""
        self._detached = True
        self._changed.set()

    async def run(self, *, prepare: bool, give_up_s: float) -> Delivery:
        """Show until final and acknowledged. Raises what a driver or the store should not raise, after several tries."""
        try:
            if prepare:
                await self._prepare()
            while not self._ledger.final and not self._detached:
                await self._step()
            if self._detached and not self._ledger.final:
                return Delivery.DETACHED
            return await self._finish(give_up_s)
        except TargetGone as error:
            log.info("reply_target_gone", error=str(error), code=error.code)
            return Delivery.GONE
        except GiveUp as error:
            log.warning("reply_given_up", error=str(error), code=error.code)
            return Delivery.GAVE_UP

    async def _prepare(self) -> None:
        try:
            await self._driver.prepare()
        except HearthError as error:  # only a head start is lost
            log.info("reply_not_prepared", error=str(error))

    # -- while it grows ----------------------------------------------------------------------------------------------
    async def _step(self) -> None:
        self._changed.clear()
        due_in = self._due_in()
        if due_in is None or due_in > 0:
            await self._clock.wait(self._changed, self._patience(due_in))
            await self._commit_hidden()
            return
        await self._show()

    def _due_in(self) -> float | None:
        """Seconds until something is to be shown; None when there is nothing new."""
        now = self._clock.monotonic()
        if self._ledger.has_text:
            if self._shown == (self._ledger.rev, ""):
                return None
            at_once = not self.text_shown and not self._failures
            return 0.0 if at_once else self._next_at - now
        if not self._status or (self._shown is not None and self._shown[1] == self._status):
            return None
        return max(self._status_due, self._next_at) - now

    def _patience(self, due_in: float | None) -> float | None:
        if self._ledger.n_ids and not self._ledger.has_text:
            return GROWTH_COMMIT_S if due_in is None else min(due_in, GROWTH_COMMIT_S)
        return due_in

    async def _commit_hidden(self) -> None:
        """Thinking is not shown, but a crash should not lose minutes of it."""
        now = self._clock.monotonic()
        if self._ledger.n_ids and now - self._committed_at >= GROWTH_COMMIT_S:
            self._committed_at = now
            await self._ledger.commit()

    async def _show(self) -> None:
        view = self._views.make(self._ledger.snapshot, self._status)
        started = self._clock.monotonic()
        self.attempted = True
        try:
            await self._ledger.commit()
            self._committed_at = started
            await self._driver.show(view)
        except (TargetGone, GiveUp):
            raise
        except Exception as error:  # noqa: BLE001 - _after raises a fault that keeps coming back
            self._next_at = self._clock.monotonic() + self._after(error)
            return
        self._failures = 0
        self._next_at = started + max(0.0, self._driver.interval_s())
        self._remember(view)

    def _remember(self, view: ReplyView) -> None:
        if self._shown is None:
            self.on_open()
        self._shown = (view.rev, view.status)
        self.n_updates += 1
        if view.text and not self.text_shown:
            self.text_shown = True
            self.on_text()

    # -- the end -----------------------------------------------------------------------------------------------------
    async def _finish(self, give_up_s: float) -> Delivery:
        started = self._clock.monotonic()
        self._failures = 0
        while True:
            self._changed.clear()
            view = self._views.make(self._ledger.snapshot)
            self.attempted = True
            try:
                await self._ledger.commit()
                await self._driver.finish(view)
            except (TargetGone, GiveUp):
                raise
            except Exception as error:  # noqa: BLE001 - _after raises a fault that keeps coming back
                wait_s = self._after(error)
                if self._clock.monotonic() + wait_s - started > give_up_s:
                    log.warning("reply_undeliverable", give_up_s=give_up_s)
                    return Delivery.GAVE_UP
                if await self._pause(wait_s):
                    return Delivery.DETACHED
                continue
            self._remember(view)
            self._metrics.delivery_s.observe(self._clock.monotonic() - started)
            return Delivery.DELIVERED

    async def _pause(self, wait_s: float) -> bool:
        """Wait before the next try; True when detached meanwhile."""
        until = self._clock.monotonic() + wait_s
        while not self._detached and self._clock.monotonic() < until:
            await self._clock.wait(self._changed, until - self._clock.monotonic())
            self._changed.clear()
        return self._detached

    def _after(self, error: Exception) -> float:
        """Seconds to leave before the next try after a failed one. Re-raises a fault that keeps coming back."""
        self._failures += 1
        self._metrics.show_errors.labels(type(error).__name__).inc()
        backoff_s: float = min(MAX_BACKOFF_S, 0.5 * 2.0 ** min(self._failures, 10))
        if isinstance(error, RetryLater):
            log.info("reply_retry_later", code=error.code, after_s=error.after_s)
            return max(error.after_s, backoff_s if self._failures > 1 else 0.0)
        if isinstance(error, Ambiguous):
            log.info("reply_ambiguous", code=error.code)
            return backoff_s
        if isinstance(error, StoreError):  # it heals or does not; an answer is not dropped for it
            log.warning("reply_not_stored", error=str(error))
            return backoff_s
        if self._failures >= MAX_FAULTS:
            raise error
        log.warning("reply_fault", error=type(error).__name__)
        return backoff_s

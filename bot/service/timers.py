"""What happens at its time: reminders, scheduled questions, and the housekeeping of the store.

Owner: the Service. Owns the APScheduler (its memory store only says when to look) and the works begun by it. What is to
happen stands in our tables, so that a crash loses none of it: at the start whatever is due is done once, late, and the rest
is registered anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from bot.domain.access import Role
from bot.domain.catalogue import say
from bot.domain.commands import Command, command_text, parse_command
from bot.domain.prompt import reserve_tokens, speaker_name
from bot.domain.records import Acceptance, Timer, TimerKind, TurnDraft
from bot.domain.sessions import is_shared
from bot.domain.timing import parse_rule
from bot.domain.types import Lane, Turn, TurnKind, WhileBusy
from bot.errors import HearthError
from bot.service.context import Context
from bot.service.forgetting import forget_kv
from engine.errors import EngineError

log = structlog.get_logger()

LOOK_EVERY_S = 60
SWEEP_EVERY_S = 600
PRUNE_EVERY_S = 3600
RETENTION_EVERY_S = 6 * 3600
KV_EVERY_S = 24 * 3600
# Erased conversations of which the engine is told once more.
KV_SWEEP = 100
KV_PAUSE_S = 0.1
KV_WAIT_S = 600.0
# A reminder that comes so much later than asked for says so.
LATE = timedelta(minutes=2)
# A clock that moved by so much more than the time that passed may be wrong.
CLOCK_JUMP = timedelta(days=1)
BATCH = 50
# Old conversations deleted in one transaction, behind which others wait.
EXPIRE_AT_ONCE = 5


class Timers:
    """`start` begins, `changed` may be called at any time, `close` ends what runs. `summarize` queues a conversation for the
    summarizer, `sweep_heard` erases what was heard in groups and may be kept no longer."""

    def __init__(
        self,
        context: Context,
        summarize: Callable[[Turn, str], None],
        sweep_heard: Callable[[], Awaitable[None]],
    ) -> None:
        self._context = context
        self._summarize = summarize
        self._sweep_heard = sweep_heard
        self._scheduler: AsyncIOScheduler | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._looked_at: tuple[datetime, float] | None = None

    def start(self) -> None:
        """Register everything; what is overdue runs at once."""
        scheduler = AsyncIOScheduler(
            timezone=UTC,
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        soon = datetime.now(UTC)
        for name, every_s, work in (
            ("due", LOOK_EVERY_S, self.run_due),
            ("sweep", SWEEP_EVERY_S, self.sweep),
            ("heard", SWEEP_EVERY_S, self._sweep_heard),
            ("prune", PRUNE_EVERY_S, self.prune),
            ("retention", RETENTION_EVERY_S, self.expire),
            ("kv", KV_EVERY_S, self.sweep_kv),
        ):
            scheduler.add_job(
                self._job,
                IntervalTrigger(seconds=every_s, timezone=UTC),
                args=(name, work),
                id=name,
                next_run_time=soon,
            )
        scheduler.start()
        self._scheduler = scheduler

    async def close(self) -> None:
        """End it. Works under way may be cut off anywhere: each of their transactions is whole."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None
            await asyncio.sleep(0)  # the scheduler leaves in the loop's next pass
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def changed(self) -> None:
        """There may be an earlier timer now."""
        self._begin("due", self.run_due)

    async def _job(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """What the scheduler runs in the loop: done at once, since the work itself is a task of ours."""
        self._begin(name, work)

    def _begin(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        if self._scheduler is not None:
            task = asyncio.create_task(self._guarded(name, work), name=f"timers_{name}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _guarded(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HearthError as error:  # the next look makes up for it
            log.warning("timer_work_put_off", work=name, error=str(error))
        except Exception:  # one work's fault must not end the others
            log.exception("timer_work_failed", work=name)

    # -- reminders and scheduled questions ---------------------------------------------------------------------------
    async def run_due(self) -> None:
        """Do what is due, then be woken for what is due next. Raises StoreError."""
        store = self._context.store
        while timers := await store.due_timers(self._context.clock.now(), BATCH):
            for timer in timers:
                await self._fire(timer)
        next_due = await store.next_due()
        if self._scheduler is None:
            return
        if next_due is None:
            return
        # The interval's look is the truth; this one only makes it be in time.
        wait_s = (next_due - self._context.clock.now()).total_seconds()
        self._scheduler.add_job(
            self._job,
            DateTrigger(datetime.now(UTC) + timedelta(seconds=max(0.0, wait_s)), timezone=UTC),
            args=("due", self.run_due),
            id="next",
            replace_existing=True,
        )

    async def _fire(self, timer: Timer) -> None:
        context = self._context
        now = context.clock.now()
        next_due = self._next(timer, now)
        adapter = context.adapter_of(timer.session.app_id)
        acceptance = None
        if adapter is not None and self._may_still(timer, adapter.name):
            draft = self._draft(timer, now)
            key = f"timer:{timer.id}:{timer.due_at.isoformat()}"
            acceptance = Acceptance(timer.session.app_id, key, key, draft)
        accepted = await context.store.fire_timer(timer, acceptance, next_due)
        late_s = round((now - timer.due_at).total_seconds())
        log.info("timer", kind=timer.kind.value, made=accepted is not None, late_s=late_s)
        context.work.set()

    def _next(self, timer: Timer, now: datetime) -> datetime | None:
        """A schedule that slept through several of its times makes up for one."""
        parsed = parse_rule(timer.rule) if timer.kind is TimerKind.SCHEDULE else None
        return parsed[0].next_after(now, self._context.settings.zone) if parsed else None

    def _may_still(self, timer: Timer, bot_name: str) -> bool:
        role = self._context.settings.access.role(bot_name, timer.asker.user_id)
        wanted = {Role.ADMIN} if timer.kind is TimerKind.SCHEDULE else {Role.ADMIN, Role.MEMBER}
        return role in wanted

    def _draft(self, timer: Timer, now: datetime) -> TurnDraft:
        asks = timer.kind is TimerKind.SCHEDULE
        digests = asks and parse_command(timer.text) is Command.SUMMARY
        return TurnDraft(
            session=timer.session,
            kind=TurnKind.CHAT if asks else TurnKind.NOTICE,
            lane=Lane.BACKGROUND if digests else Lane.CHAT if asks else Lane.CONTROL,
            asker=timer.asker,
            question=self._question(timer),
            target=timer.target,
            message_id="",
            chat_kind=timer.chat_kind,
            while_busy=WhileBusy.QUEUE,
            answer="" if asks else self._reminder(timer, now),
        )

    def _question(self, timer: Timer) -> str:
        if timer.kind is not TimerKind.SCHEDULE:
            return ""
        command = parse_command(timer.text)
        return command_text(command, timer.text) if command is Command.SUMMARY else timer.text

    def _reminder(self, timer: Timer, now: datetime) -> str:
        settings = self._context.settings
        if now - timer.due_at > LATE:
            when = timer.due_at.astimezone(settings.zone).strftime("%Y-%m-%d %H:%M")
            return say(settings.language, "remind.late", when=when, text=timer.text)
        if is_shared(timer.session):
            name = speaker_name(settings.language, timer.asker)
            return say(settings.language, "remind.due_for", name=name, text=timer.text)
        return say(settings.language, "remind.due", text=timer.text)

    # -- housekeeping ------------------------------------------------------------------------------------------------
    async def sweep(self) -> None:
        """Queue for the summarizer what is too long and had no turn since. Raises StoreError."""
        config, context = self._context.settings.config, self._context
        marks = {}
        for name, engine in context.engines.items():
            if engine.info is not None:
                window = engine.info.n_ctx_tokens
                room = window - reserve_tokens(config.chat.max_new_tokens, window)
                marks[name] = int(config.summarizer.high * room)
        if not marks or not config.summarizer.enabled:
            return
        for turn in await context.store.long_conversations(min(marks.values()), 4 * BATCH):
            adapter = context.adapter_of(turn.session.app_id)
            if adapter is not None:
                self._summarize(turn, adapter.name)

    async def prune(self) -> None:
        """Old dedupe keys go, what turns wrote that ended after their conversation was forgotten, and what the database's log
        still holds of erased words. Raises StoreError."""
        n_keys = await self._context.store.prune()
        n_late = await self._context.store.erase_leftovers()
        log_is_empty = await self._context.store.empty_log()
        log.info("pruned", dedupe_keys=n_keys, leftovers=n_late, log_is_empty=log_is_empty)

    async def sweep_kv(self) -> None:
        """Have the engines drop, once more, what was erased: a crash may have come between the database and them. How much of
        the rest they keep in RAM and on disk they see to themselves. Raises StoreError."""
        context = self._context
        # What is erased while there is no engine, it is told as soon as there is one.
        with contextlib.suppress(EngineError):
            for engine in context.engines.values():
                await engine.wait_ready(KV_WAIT_S)
        erased = await context.store.erased_sessions(KV_SWEEP)
        for one in erased:
            await forget_kv(context, one)
            await context.clock.sleep(KV_PAUSE_S)
        log.info("kv_swept", n=len(erased))

    async def expire(self) -> None:
        """Delete conversations whose last turn is older than configured. Raises StoreError."""
        days = self._context.settings.config.storage.retention_days
        if not days or self._has_clock_jumped():
            return
        before = self._context.clock.now() - timedelta(days=days)
        n_deleted = 0
        while erased := await self._context.store.delete_older(before, EXPIRE_AT_ONCE):
            n_deleted += len(erased)
            for one in erased:
                await forget_kv(self._context, one)
        if n_deleted:
            await self._context.store.empty_log()
            log.info("conversations_expired", n=n_deleted, days=days)

    def _has_clock_jumped(self) -> bool:
        """Whether the clock went another way than time since the last look: a wrong year must not delete what people said.
        The next look, hours later, takes the clock's word."""
        clock, before = self._context.clock, self._looked_at
        now, passed_s = clock.now(), clock.monotonic()
        self._looked_at = now, passed_s
        if before is None:
            return False
        jump = now - before[0] - timedelta(seconds=passed_s - before[1])
        if abs(jump) <= CLOCK_JUMP:
            return False
        log.warning("clock_jumped", by_s=round(jump.total_seconds()), put_off="retention")
        return True

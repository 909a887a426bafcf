"""What each command does. The table of names is `bot.domain.commands`; the texts are in the catalogue.

`/new`: the next epoch; what was said stays on record. `/reset`: also gone from prompts and every KV copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog

from bot.domain.catalogue import say
from bot.domain.commands import Command, parse_command
from bot.domain.records import Acceptance, Canonical, PastTurn, TurnDraft
from bot.domain.sessions import is_shared, policy_of
from bot.domain.turns import answering, is_terminal, may_control
from bot.domain.types import Turn, TurnKind, TurnState, WhileBusy
from bot.service.connections import budget_lines, connection_lines
from bot.service.context import Context
from bot.service.conversation import (
    cache_keys,
    first_verbatim,
    forget_canonical,
    tokens_used,
)
from bot.service.forgetting import Forgetting
from bot.service.leading import Leading
from bot.service.listening import Listening
from bot.service.machine import machine_lines
from bot.service.memory_commands import Compress, MemoryCommands
from bot.service.timer_commands import TimerCommands
from engine.errors import EngineError
from engine.face import Engine
from engine.types import EngineStats, KvReuse

log = structlog.get_logger()

# These take effect before the next message is let in: a question sent right behind "/new" belongs to the new topic.
AT_ONCE = frozenset({Command.STOP, Command.NEW, Command.RESET, Command.FORGET})


class CommandExecutor:
    """Executes commands; owns the executions begun but not yet collected by their turns, and what it tells engines.

    Everything here may be repeated by a turn that is taken up after a crash without a second effect that matters.
    """

    def __init__(
        self,
        context: Context,
        compress: Compress,
        timers_changed: Callable[[], None],
        listening: Listening,
        leading: Leading,
    ) -> None:
        self._context = context
        self._leading = leading
        self._listening = listening
        memory = MemoryCommands(context, compress)
        timing = TimerCommands(context, timers_changed)
        self._words = Forgetting(context, self.cancel)
        self._begun: dict[str, asyncio.Task[str]] = {}
        self._forgetting: set[asyncio.Task[None]] = set()
        self._actions: dict[Command, Callable[[Turn, str], Awaitable[str]]] = {
            Command.HELP: self._help,
            Command.NEW: self._new,
            Command.RESET: self._reset,
            Command.STOP: self._stop,
            Command.RETRY: self._retry,
            Command.STATUS: self._status,
            Command.WHOAMI: self._whoami,
            Command.CONTEXT: memory.context,
            Command.COMPACT: memory.compact,
            Command.HISTORY: memory.history,
            Command.EXPORT: memory.export,
            Command.SYSTEM: memory.system,
            Command.FORGET: self._words.forget,
            Command.REMIND: timing.remind,
            Command.SCHEDULE: timing.schedule,
            Command.IGNORE: listening.ignore,
        }

    async def at_once(self, turn_id: str, command: Command, bot_name: str) -> None:
        """Let a just stored `/stop`, `/new` or `/reset` take effect now; its own turn then only says so.

        Of `/forget` only the new topic begins now: erasing waits for what runs, which the platform's deadline does not.
        """
        if command not in AT_ONCE:
            return
        turn = await self._context.store.turn(turn_id)
        if command is Command.FORGET:
            if turn is not None:
                await self._words.leave(turn, bot_name)
            return
        task = self._begun.get(turn_id)
        if task is None:
            if turn is None or turn.state is not TurnState.QUEUED:  # its own turn was quicker
                return
            task = self._begin(turn, bot_name)
        await asyncio.wait({task})
        turn = await self._context.store.turn(turn_id)
        if turn is None or is_terminal(turn.state):
            self.collected(turn_id)

    async def execute(self, turn: Turn, bot_name: str) -> str:
        """Run a command turn (once) and return what to answer."""
        task = self._begun.get(turn.id) or self._begin(turn, bot_name)
        try:
            return await asyncio.shield(task)
        finally:
            self.collected(turn.id)

    def collected(self, turn_id: str) -> None:
        """The turn has what it needs. An execution that is not over stays: `close` or the turn's next claim collects it."""
        task = self._begun.get(turn_id)
        if task is not None and task.done():
            del self._begun[turn_id]
            if not task.cancelled():
                task.exception()  # its own turn was told of it, or was quicker

    async def close(self) -> None:
        """End what is still under way."""
        tasks = [*self._begun.values(), *self._forgetting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, turn: Turn, bot_name: str) -> asyncio.Task[str]:
        task = self._begun[turn.id] = asyncio.create_task(self._run(turn, bot_name))
        return task

    async def _run(self, turn: Turn, bot_name: str) -> str:
        command = parse_command(turn.question)
        if not isinstance(command, Command):
            raise TypeError(f"turn {turn.id} is a command turn without a known command")
        log.info("command", command=command.value)
        return await self._actions[command](turn, bot_name)

    def _say(self, key: str, **values: object) -> str:
        return say(self._context.settings.language, key, **values)

    def _is_admin(self, turn: Turn, bot_name: str) -> bool:
        return self._context.is_admin(bot_name, turn.asker.user_id)

    # -- the commands ------------------------------------------------------------------------------------------------
    async def _help(self, _turn: Turn, _bot_name: str) -> str:
        return self._say("help")

    async def _whoami(self, turn: Turn, bot_name: str) -> str:
        role = self._context.settings.access.role(bot_name, turn.asker.user_id)
        person = f"{bot_name}:{turn.asker.user_id}"
        return self._say("whoami", person=person, role=self._say(f"role.{role.value}"))

    async def _new(self, turn: Turn, _bot_name: str) -> str:
        await self._next_epoch(turn, erase=False)
        return self._say("new.done")

    async def _reset(self, turn: Turn, _bot_name: str) -> str:
        keys = cache_keys(turn.session_id, await self._context.store.summary(turn.session_id))
        await self._next_epoch(turn, erase=True)
        for other in await self._context.store.unfinished_turns(turn.session_id):
            await self.cancel(other.id)
        for engine in self._context.engines.values():
            for key in keys:
                self._forget(engine, key)
        if is_shared(turn.session):
            await self._context.store.unhear(turn.session.app_id, chat_id=turn.session.chat_id)
        return self._say("reset.done")

    async def _next_epoch(self, turn: Turn, *, erase: bool) -> None:
        """Once only: a command taken up again after a crash finds its epoch over and leaves the newer talk alone."""
        current = await self._context.store.session(turn.session)
        if current.id == turn.session_id:
            await self._context.store.next_epoch(turn.session, erase_from_prompt=erase)

    async def _stop(self, turn: Turn, bot_name: str) -> str:
        unfinished = await self._context.store.unfinished_turns(turn.session_id)
        is_admin = self._is_admin(turn, bot_name)
        mine = [t for t in unfinished if may_control(t, turn.asker.user_id, is_admin=is_admin)]
        # Repeated after a crash it must not stop what was asked later.
        mine = [t for t in mine if t.turn_no < turn.turn_no]
        for other in mine:
            await self.cancel(other.id)
        if mine:
            return self._say("stop.done")
        return self._say("stop.not_yours" if unfinished else "stop.nothing")

    async def _retry(self, turn: Turn, bot_name: str) -> str:
        store = self._context.store
        if answering(await store.unfinished_turns(turn.session_id)):
            return self._say("retry.running")
        last = await store.last_chat_turn(turn.session_id)
        if last is None:
            return self._say("retry.nothing")
        is_admin = self._is_admin(turn, bot_name)
        if not may_control(last, turn.asker.user_id, is_admin=is_admin):
            return self._say("retry.not_yours")
        again = replace(last, target=turn.target)
        await self.ask_again(again, event_id=turn.id, message_id=next(iter(turn.message_ids), ""))
        return self._say("retry.done")

    async def _status(self, turn: Turn, bot_name: str) -> str:
        model = self._context.model_of(bot_name)
        stats = await self._context.engines[model].stats()
        canonical = await self._context.store.canonical(turn.session_id)
        past = await self._context.store.past_turns(turn.session_id)
        policy = self._say(f"status.policy.{policy_of(turn.session).value}")
        lines = [
            self._say(
                "status.model", model=model, state=self._say(f"status.state.{stats.state.value}")
            ),
            self._queue_line(turn),
            await self._token_line(model, canonical, past),
            self._say("status.policy", policy=policy, turns=len(past)),
        ]
        if stats.step_back:
            lines.insert(1, self._say("status.step_back", what=stats.step_back))
        if self._is_admin(turn, bot_name):
            lines += self._admin_lines(model, stats)
        info = self._context.engines[model].info
        if info and info.kv_reuse in (KvReuse.WINDOW, KvReuse.TURN_ENDS):
            lines.append(self._say(f"status.reuse.{info.kv_reuse.value}"))
        if self._listening.is_on_in(bot_name, turn.chat_kind, turn.session.chat_id):
            lines.append(self._say("status.listening"))
        summary = await self._context.store.summary(turn.session_id)
        first = first_verbatim(canonical, None)
        covered = summary.covers_turn_no if summary is not None else 0
        n_dropped = sum(1 for one in past if covered < one.turn_no < first)
        if n_dropped:
            lines.append(self._say("status.dropped", n=n_dropped))
        return "\n".join(lines)

    def _admin_lines(self, model: str, stats: EngineStats) -> list[str]:
        lines = [self._say("status.plan", plan=stats.plan)] if stats.plan else []
        if stats.lacks:
            lines.append(self._say("status.lacks", what=stats.lacks))
        if self._context.machine is not None:
            language = self._context.settings.language
            lines += machine_lines(language, self._context.machine, model)
        lines += connection_lines(self._context.settings, self._leading)
        return lines + budget_lines(self._context.settings.language, self._context.adapters)

    # -- their parts -------------------------------------------------------------------------------------------------
    def _queue_line(self, turn: Turn) -> str:
        """Where this conversation's question stands; the person's own one first, in a shared conversation."""
        here = [
            active
            for active in self._context.board.all()
            if active.turn.session_id == turn.session_id and active.turn.kind is TurnKind.CHAT
        ]
        if not here:
            return self._say("status.idle")
        place = max(active.place for active in here)
        return self._say("status.place", place=place) if place else self._say("status.running")

    async def _token_line(
        self, model: str, canonical: Canonical | None, past: Sequence[PastTurn]
    ) -> str:
        engine = self._context.engines[model]
        window = engine.info.n_ctx_tokens if engine.info else self._context.settings.n_ctx(model)
        try:
            used = await tokens_used(engine, canonical, past)
        except EngineError:
            return self._say("status.tokens_unknown", window=window)
        return self._say("status.tokens", used=used, window=window)

    async def cancel(self, turn_id: str, *, silent: bool = False) -> bool:
        """Stop a turn wherever it is. False when it had ended already."""
        found = await self._context.store.request_cancel(turn_id, silent=silent)
        self._context.board.stop(turn_id, silent=silent)
        self._context.work.set()
        if found is None or found.value not in {"queued", "running"}:
            return False
        if self._context.board.get(turn_id) is None:
            self._context.signs.clear(turn_id)
        return True

    async def ask_again(self, last: Turn, *, event_id: str, message_id: str) -> str:
        """Queue a finished turn's question again and leave the old answer out of later prompts.

        Once per turn: a second press of the same button finds it asked again already.
        """
        store = self._context.store
        await store.mark_replaced(last.id)
        await forget_canonical(self._context, last.session_id)
        draft = TurnDraft(
            session=last.session,
            kind=TurnKind.CHAT,
            lane=last.lane,
            asker=last.asker,
            question=last.question,
            target=last.target,
            message_id=message_id,
            chat_kind=last.chat_kind,
            while_busy=WhileBusy.QUEUE,
            attachments=last.attachments,
            continues=last.continues,
            quotes=last.quotes,
            again_of=last.id,
        )
        accepted = await store.accept(
            Acceptance(last.session.app_id, f"again:{last.id}", event_id, draft)
        )
        self._context.work.set()
        return accepted.turn_id

    def _forget(self, engine: Engine, key: str) -> None:
        task = asyncio.create_task(engine.forget(key))
        self._forgetting.add(task)
        task.add_done_callback(self._forgotten)

    def _forgotten(self, task: asyncio.Task[None]) -> None:
        self._forgetting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("engine_forget_failed", error=type(error).__name__)

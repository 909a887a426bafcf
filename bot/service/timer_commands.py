"""`/remind` and `/schedule`: what is to be said or asked at a time. The timers themselves are run by `bot.service.timers`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from bot.domain.catalogue import say
from bot.domain.commands import arguments_of, number_of
from bot.domain.records import Timer, TimerKind
from bot.domain.timing import MAX_AHEAD, parse_rule, parse_when
from bot.domain.types import Turn
from bot.service.context import Context

MOST_TIMERS = 20
TEXT_CHARS = 500
_LIST = {"list", "列表", "查看"}
_REMOVE = {"remove", "cancel", "取消", "删除"}


class TimerCommands:
    """Makes, lists and removes timers of a conversation. Holds no state. `changed` is told that there may be an earlier one."""

    def __init__(self, context: Context, changed: Callable[[], None]) -> None:
        self._context = context
        self._changed = changed

    async def remind(self, turn: Turn, bot_name: str) -> str:
        """Anybody may be reminded, in the chat where it was asked for."""
        text = arguments_of(turn.question)
        if (done := await self._manage(turn, bot_name, TimerKind.REMIND, text)) is not None:
            return done
        # Counted from when it was asked for, also when it is taken up again after a crash.
        when = parse_when(text, turn.created_at.astimezone(self._context.settings.zone))
        if when is None or not when.text:
            return self._say("remind.usage")
        if not turn.created_at < when.due_at <= turn.created_at + MAX_AHEAD:
            return self._say("remind.past")
        refused = await self._refusal(turn, when.text)
        if refused:
            return refused
        await self._add(turn, TimerKind.REMIND, when.text, when.due_at, "")
        return self._say("remind.done", when=self._when(when.due_at), text=when.text)

    async def schedule(self, turn: Turn, bot_name: str) -> str:
        """Questions at fixed times cost everybody's time: for admins."""
        if not self._context.is_admin(bot_name, turn.asker.user_id):
            return self._say("schedule.admins")
        text = arguments_of(turn.question)
        if (done := await self._manage(turn, bot_name, TimerKind.SCHEDULE, text)) is not None:
            return done
        parsed = parse_rule(text)
        if parsed is None or not parsed[1]:
            return self._say("schedule.usage")
        rule, prompt = parsed
        refused = await self._refusal(turn, prompt)
        if refused:
            return refused
        due_at = rule.next_after(turn.created_at, self._context.settings.zone)
        await self._add(turn, TimerKind.SCHEDULE, prompt, due_at, str(rule))
        return self._say("schedule.done", when=self._when(due_at), rule=rule)

    # -- inside ------------------------------------------------------------------------------------------------------
    async def _manage(self, turn: Turn, bot_name: str, kind: TimerKind, text: str) -> str | None:
        """The answer to `list`, `remove n` or nothing at all; None for everything else."""
        words = text.casefold().split()
        if not words:
            return self._say(f"{kind.value}.usage")
        if words[0] in _LIST and len(words) == 1:
            return await self._list(turn, kind)
        if words[0] in _REMOVE and len(words) == 2 and words[1].isdecimal():
            return await self._remove(turn, bot_name, kind, words[1])
        return None

    async def _list(self, turn: Turn, kind: TimerKind) -> str:
        lines = [
            self._say(
                "timer.line",
                n=n,
                when=self._when(timer.due_at),
                what=f"{timer.rule} · {timer.text}" if timer.rule else timer.text,
            )
            for n, timer in enumerate(await self._timers(turn, kind), 1)
        ]
        return "\n".join(lines) or self._say(f"{kind.value}.none")

    async def _remove(self, turn: Turn, bot_name: str, kind: TimerKind, word: str) -> str:
        timers = await self._timers(turn, kind)
        n = number_of(word, len(timers))
        if n is None:
            return self._say("timer.no_such", n=word[:9])
        timer = timers[n - 1]
        is_admin = self._context.is_admin(bot_name, turn.asker.user_id)
        if not is_admin and timer.asker.user_id != turn.asker.user_id:
            return self._say("timer.not_yours")
        await self._context.store.remove_timer(timer.id)
        return self._say("timer.removed", n=n)

    async def _timers(self, turn: Turn, kind: TimerKind) -> list[Timer]:
        found = await self._context.store.timers_of(turn.session)
        return [timer for timer in found if timer.kind is kind]

    async def _refusal(self, turn: Turn, text: str) -> str:
        if len(text) > TEXT_CHARS:
            return self._say("remind.too_long", most=TEXT_CHARS)
        others = await self._context.store.timers_of(turn.session)
        n_others = sum(timer.made_by_turn != turn.id for timer in others)
        return self._say("remind.too_many", most=MOST_TIMERS) if n_others >= MOST_TIMERS else ""

    async def _add(
        self, turn: Turn, kind: TimerKind, text: str, due_at: datetime, rule: str
    ) -> None:
        timer = Timer(
            id=0,
            kind=kind,
            session=turn.session,
            asker=turn.asker,
            chat_kind=turn.chat_kind,
            target=turn.target,
            text=text,
            due_at=due_at,
            rule=rule,
            made_by_turn=turn.id,
        )
        await self._context.store.add_timer(timer)
        self._changed()

    def _when(self, moment: datetime) -> str:
        return moment.astimezone(self._context.settings.zone).strftime("%Y-%m-%d %H:%M")

    def _say(self, key: str, **values: object) -> str:
        return say(self._context.settings.language, key, **values)

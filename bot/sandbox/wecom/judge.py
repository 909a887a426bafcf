"""What WeCom refuses or loses without a word, and what a strict reading of the document forbids. Owns the list of violations.

Some are noted when they happen; `left_streaming`, `never_finished` and `two_answers` are judged when the list is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bot.sandbox.wecom import text as reading

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.world import Message, World

_COMPARE_CHARS = 40


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of the bot: which rule, and about what."""

    at: float
    rule: str
    detail: str


class Judge:
    """Owner of the violations."""

    def __init__(self, config: WeComConfig, world: World) -> None:
        self._config = config
        self._world = world
        self._noted: list[Violation] = []

    def note(self, rule: str, detail: str) -> None:
        """Something happened that a strict platform would frown on; noted once for the same detail."""
        if all(known.rule != rule or known.detail != detail for known in self._noted):
            self._noted.append(Violation(self._config.clock(), rule, detail))

    def clear(self) -> None:
        """Forget what was noted so far."""
        self._noted.clear()

    def all(self) -> list[Violation]:
        """What was noted, and what is wrong with the state as it is now."""
        return [*self._noted, *self._unfinished(), *self._two_answers()]

    def look_at_text(self, content: str, where: str) -> None:
        """Mentions that nobody allowed, and a thinking block left open."""
        for userid in reading.mentions(content):
            if userid not in self._config.allowed_mentions:
                self.note("mention_injected", f"{where}: <@{userid}>")
        if reading.leaves_think_open(content):
            self.note("think_open", where)

    def _unfinished(self) -> list[Violation]:
        now = self._config.clock()
        return [
            Violation(
                now,
                "never_finished" if message.failed else "left_streaming",
                f"stream {message.stream_id} of question {message.answers}",
            )
            for message in self._world.messages.values()
            if message.streaming or message.failed
        ]

    def _two_answers(self) -> list[Violation]:
        found: list[Violation] = []
        answers: dict[str, list[str]] = {}
        for message in self._world.messages.values():
            if message.sender is not self._world.bot or message.recalled or not message.answers:
                continue
            text = visible_text(message)
            others = answers.setdefault(message.answers, [])
            if any(_same_start(text, other) for other in others):
                found.append(
                    Violation(self._config.clock(), "two_answers", f"question {message.answers}")
                )
            others.append(text)
        return found


def _same_start(a: str, b: str) -> bool:
    size = min(len(a), len(b), _COMPARE_CHARS)
    return size > 0 and a[:size] == b[:size]


def visible_text(message: Message) -> str:
    """What a person reads in this message, without thinking blocks and without the buttons of a card."""
    if message.kind in {"markdown", "stream"}:
        return reading.readable(message.text)
    return message.text

"""What WeCom refuses or loses without a word, and what a strict reading of the document forbids. Owns the list of violations.

Some are noted when they happen; `left_streaming`, `never_finished` and `two_answers` are judged when the list is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.sandbox.violations import Violation, Violations
from bot.sandbox.wecom import text as reading

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.world import Message, World


class Judge(Violations):
    """Owner of the violations."""

    def __init__(self, config: WeComConfig, world: World) -> None:
        super().__init__(config.clock)
        self._config = config
        self._world = world

    def all(self) -> list[Violation]:
        """What was noted, and what is wrong with the state as it is now."""
        return [*self.noted, *self._unfinished(), *self._two_answers()]

    def look_at_text(self, content: str, where: str) -> None:
        """Mentions that nobody allowed, and a thinking block left open."""
        for userid in reading.mentions(content):
            if userid not in self._config.allowed_mentions:
                self.note("mention_injected", f"{where}: <@{userid}>")
        if reading.leaves_think_open(content):
            self.note("think_open", where)

    def _unfinished(self) -> list[Violation]:
        return [
            self.found(
                "never_finished" if message.failed else "left_streaming",
                f"stream {message.stream_id} of question {message.answers}",
            )
            for message in self._world.messages.values()
            if message.streaming or message.failed
        ]

    def _two_answers(self) -> list[Violation]:
        answers: dict[str, list[str]] = {}
        for message in self._world.messages.values():
            if message.sender is self._world.bot and not message.recalled and message.answers:
                answers.setdefault(message.answers, []).append(visible_text(message))
        return self.two_answers(answers)


def visible_text(message: Message) -> str:
    """What a person reads in this message, without thinking blocks and without the buttons of a card."""
    if message.kind in {"markdown", "stream"}:
        return reading.readable(message.text)
    return message.text

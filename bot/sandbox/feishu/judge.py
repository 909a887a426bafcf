"""What a strict platform would frown on although it lets it pass. Owns the list of violations; tests assert that it is empty.

Some are noted when they happen; `left_streaming` and `two_answers` are judged when the list is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bot.sandbox.feishu import markdown

if TYPE_CHECKING:
    from bot.sandbox.feishu.card import Card
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.world import Message, World

_COMPARE_CHARS = 40


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of the bot: which rule, and about what."""

    at: float
    rule: str
    detail: str


class Judge:
    """Owner of the violations."""

    def __init__(self, config: SandboxConfig, world: World) -> None:
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
        return [*self._noted, *self._left_streaming(), *self._two_answers()]

    def look_at_text(self, text: str, where: str) -> None:
        """Mentions in a text of the bot that nobody allowed: the model's words must not ping people (feishu.md §5.6)."""
        if "<" not in text:
            return
        prose, code = markdown.split_code(text)
        for rule, part in (("mention_injected", prose), ("mention_in_code", code)):
            for tag in markdown.people_tags(part):
                wrong = [
                    any_id
                    for any_id in tag.ids or ("",)
                    if any_id not in self._config.allowed_mentions
                ]
                if wrong:
                    self.note(rule, f"{where}: <{tag.tag}> of {wrong[0]}")

    def content_call(self, card: Card, element_id: str, text: str) -> None:
        """A typewriter update that does not extend the one before is shown at once, without typewriter (feishu.md §5.2)."""
        before = card.streamed.get(element_id)
        if before is not None and not text.startswith(before):
            self.note("text_not_extended", f"card {card.id} element {element_id}")

    def _left_streaming(self) -> list[Violation]:
        now = self._config.clock()
        found = []
        for card in self._world.cards.values():
            card.expire_streaming(now, self._config.limits.streaming_s)
            if card.message is None or card.message.recalled:
                continue
            if card.streaming:
                found.append(
                    Violation(now, "left_streaming", f"card {card.id} message {card.message.id}")
                )
            elif card.timed_out:
                found.append(
                    Violation(
                        now, "streaming_timed_out", f"card {card.id} message {card.message.id}"
                    )
                )
        return found

    def _two_answers(self) -> list[Violation]:
        found = []
        answers: dict[str, list[Message]] = {}
        for message in self._world.messages.values():
            if message.answers and not message.recalled:
                answers.setdefault(message.answers, []).append(message)
        for question_id, messages in answers.items():
            texts = [visible_text(message).strip() for message in messages]
            for i, first in enumerate(texts):
                if any(_same_start(first, other) for other in texts[:i]):
                    found.append(
                        Violation(self._config.clock(), "two_answers", f"question {question_id}")
                    )
        return found


def _same_start(a: str, b: str) -> bool:
    size = min(len(a), len(b), _COMPARE_CHARS)
    return size > 0 and a[:size] == b[:size]


def visible_text(message: Message) -> str:
    """What a person reads in this message, without the buttons of a card."""
    if message.card is not None:
        return message.card.text
    if message.kind == "text":
        return str(message.content.get("text", ""))
    if message.kind == "post":
        return post_text(message.content)
    return ""


def post_text(content: dict[str, object]) -> str:
    """The text of a rich-text message, with or without a locale level."""
    inner = content
    if "content" not in inner:
        inner = next((value for value in content.values() if isinstance(value, dict)), {})
    lines = [str(inner["title"])] if inner.get("title") else []
    paragraphs = inner.get("content")
    for paragraph in paragraphs if isinstance(paragraphs, list) else []:
        nodes = paragraph if isinstance(paragraph, list) else []
        lines.append(
            "".join(
                str(n.get("text") or n.get("user_name") or "") for n in nodes if isinstance(n, dict)
            )
        )
    return "\n".join(lines)

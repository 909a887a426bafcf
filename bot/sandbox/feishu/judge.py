"""What a strict platform would frown on although it lets it pass. Owns the list of violations; tests assert that it is empty.

Some are noted when they happen; `left_streaming` and `two_answers` are judged when the list is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.sandbox.feishu import markdown
from bot.sandbox.violations import Violation, Violations

if TYPE_CHECKING:
    from bot.sandbox.feishu.card import Card
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.world import Message, World


class Judge(Violations):
    """Owner of the violations."""

    def __init__(self, config: SandboxConfig, world: World) -> None:
        super().__init__(config.clock)
        self._config = config
        self._world = world

    def all(self) -> list[Violation]:
        """What was noted, and what is wrong with the state as it is now."""
        return [*self.noted, *self._left_streaming(), *self._two_answers()]

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
            where = f"card {card.id} message {card.message.id}"
            if card.streaming:
                found.append(self.found("left_streaming", where))
            elif card.timed_out:
                found.append(self.found("streaming_timed_out", where))
        return found

    def _two_answers(self) -> list[Violation]:
        answers: dict[str, list[str]] = {}
        for message in self._world.messages.values():
            if message.answers and not message.recalled:
                answers.setdefault(message.answers, []).append(visible_text(message).strip())
        return self.two_answers(answers)


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

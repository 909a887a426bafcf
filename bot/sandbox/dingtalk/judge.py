"""What a strict platform would frown on although it lets it pass. Owns the list of violations; tests assert that it is empty.

Some are noted when they happen; cards left growing, final texts that no reopened chat shows and double answers are judged
when the list is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.sandbox.dingtalk.markdown import message_text
from bot.sandbox.violations import Violation, Violations

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.card import Card
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.world import Chat, Message, User, World

MARKDOWN_KINDS = frozenset({"markdown", "actionCard"})


class Judge(Violations):
    """Owner of the violations."""

    def __init__(self, config: SandboxConfig, world: World) -> None:
        super().__init__(config.clock)
        self._config = config
        self._world = world

    def all(self) -> list[Violation]:
        """What was noted, and what is wrong with the state as it is now."""
        return [*self.noted, *self._cards(), *self._two_answers()]

    def may_mention(self, any_id: str, chat: Chat) -> bool:
        """Whoever asked in this chat, and the ids of the config: the model's words must not ping anybody else."""
        if any_id in self._config.allowed_mentions:
            return True
        user = self._world.find_any(any_id)
        return user is not None and self._world.newest_question(chat, user) is not None

    def mentioned(self, ids: list[str], chat: Chat, where: str) -> None:
        """People whom the bot pings or marks."""
        for any_id in ids:
            if not self.may_mention(any_id, chat):
                self.note("mention_injected", f"{where}: {any_id}")

    def look_at_message(self, message: Message) -> None:
        """Lines of a Markdown message that run together."""
        if message.kind in MARKDOWN_KINDS and message_text(str(message.content["text"])).glued:
            self.note("lines_glued", f"message {message.id}")

    def look_at_card(self, card: Card) -> None:
        """Lines that run together, tags that vanish, mentions that nobody allowed, a text so long that nothing shows."""
        where = f"card {card.track_id}"
        shown = card.shown
        if shown.glued:
            self.note("lines_glued", where)
        if shown.swallowed:
            self.note("tag_swallowed", f"{where}: <{shown.swallowed[0]}>")
        if card.is_blank:
            self.note("card_blank", f"{where}: {len(card.source)} characters")
        for message in card.messages[:1]:
            self.mentioned(list(shown.mentions), message.chat, where)

    def _cards(self) -> list[Violation]:
        found = []
        for card in self._world.cards.values():
            if not card.messages or all(message.recalled for message in card.messages):
                continue
            where = f"card {card.track_id}"
            if card.growing:
                found.append(self.found("left_growing", f"{where}: {card.shown_state}"))
            elif card.shown_state == "finished" and card.kept_source != card.source:
                found.append(self.found("final_text_not_kept", where))
        return found

    def _two_answers(self) -> list[Violation]:
        answers: dict[str, list[str]] = {}
        for message in self._world.messages.values():
            if not message.answers or message.recalled:
                continue
            # A card that never finished is followed by the whole answer as a message, and rightly so (§6).
            if message.card is not None and message.card.shown_state != "finished":
                continue
            answers.setdefault(message.answers, []).append(visible_text(message).strip())
        return self.two_answers(answers)


def visible_text(message: Message) -> str:
    """What a person reads in this message, without the buttons of a card."""
    if message.card is not None:
        return message.card.text
    if message.kind == "richText":
        parts = message.content.get("richText")
        items = parts if isinstance(parts, list) else []
        return "".join(str(item.get("text", "")) for item in items if isinstance(item, dict))
    if message.kind in MARKDOWN_KINDS:
        return message_text(str(message.content.get("text", ""))).text
    content = message.content
    return str(content.get("text") or content.get("content") or content.get("title") or "")


def pinged_in(text: str, people: list[User]) -> list[User]:
    """Those of `people` who are really pinged: their staffId must stand in the visible text (§4.1)."""
    return [user for user in people if f"@{user.staff_id}" in text]

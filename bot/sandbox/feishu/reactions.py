"""Reactions: add and delete (feishu.md §4.7; codes of the reaction API's own pages). Owns the reaction ids."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from bot.sandbox.feishu.errors import ApiError
from bot.sandbox.feishu.world import Message, Reaction

if TYPE_CHECKING:
    from bot.sandbox.feishu.cardschema import Json
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.judge import Judge
    from bot.sandbox.feishu.world import World

# The names are case-sensitive.
EMOJI = frozenset({
    "OK", "THUMBSUP", "THANKS", "MUSCLE", "FINGERHEART", "APPLAUSE", "FISTBUMP", "JIAYI",
    "DONE", "SMILE", "BLUSH", "LAUGH", "SMIRK", "LOL", "FACEPALM", "LOVE", "WINK", "PROUD",
    "WITTY", "SMART", "SCOWL", "THINKING", "SOB", "CRY", "ERROR", "NOSEPICK", "HAUGHTY", "SLAP",
    "SPITBLOOD", "TOASTED", "GLANCE", "DULL", "INNOCENTSMILE", "JOYFUL", "WOW", "TRICK", "YEAH",
    "ENOUGH", "TEARS", "EMBARRASSED", "KISS", "SMOOCH", "DROOL", "OBSESSED", "MONEY", "TEASE",
    "SHOWOFF", "COMFORT", "CLAP", "PRAISE", "STRIVE", "XBLUSH", "SILENT", "WAVE", "WHAT",
    "FROWN", "SHY", "DIZZY", "LOOKDOWN", "CHUCKLE", "WAIL", "CRAZY", "WHIMPER", "HUG",
    "BLUBBER", "WRONGED", "HUSKY", "SHHH", "SMUG", "ANGRY", "HAMMER", "SHOCKED", "TERROR",
    "PETRIFIED", "SKULL", "SWEAT", "SPEECHLESS", "SLEEP", "DROWSY", "YAWN", "SICK", "PUKE",
    "BETRAYED", "HEADSET", "EatingFood", "MeMeMe", "Sigh", "Typing", "LGTM", "OnIt",
    "OneSecond", "CheckMark", "CrossMark", "Hundred", "Pin", "Alarm", "Loudspeaker", "Trophy",
    "Fire", "BOMB", "HEART", "HEARTBROKEN", "ROSE", "LIPS", "BEER", "CAKE", "GIFT", "PARTY",
})  # fmt: skip


class Reactions:
    """Adds and removes the bot's reactions. One owner of what is on each message: the message itself."""

    def __init__(self, config: SandboxConfig, world: World, judge: Judge) -> None:
        self._config = config
        self._world = world
        self._judge = judge
        self._where: dict[str, Message] = {}

    def add(self, message_id: str, body: Json) -> Json:
        """POST /messages/:id/reactions. The same emoji again is the same reaction."""
        kind = body.get("reaction_type")
        emoji = kind.get("emoji_type") if isinstance(kind, dict) else None
        if not isinstance(emoji, str) or emoji not in EMOJI:
            raise ApiError(231001)
        message = self._message(message_id)
        bot = self._world.bot
        for old in message.reactions:
            if old.emoji == emoji and old.operator is bot:
                self._judge.note("reaction_added_again", f"message {message_id}")
                return self._describe(old)
        reaction = Reaction(secrets.token_urlsafe(24), emoji, bot, self._world.now_ms())
        message.reactions.append(reaction)
        self._where[reaction.id] = message
        self._world.tell("reaction", message)
        return self._describe(reaction)

    def list(self, message_id: str, query: Json) -> Json:
        """GET /messages/:id/reactions: one page is enough for a sandbox."""
        emoji = query.get("reaction_type")
        found = [r for r in self._message(message_id).reactions if not emoji or r.emoji == emoji]
        return {"items": [self._describe(r) for r in found], "has_more": False}

    def delete(self, message_id: str, reaction_id: str) -> Json:
        """DELETE /messages/:id/reactions/:reaction_id: the bot's own."""
        message = self._message(message_id)
        where = self._where.get(reaction_id)
        reaction = (
            next((r for r in where.reactions if r.id == reaction_id), None) if where else None
        )
        if reaction is None:
            raise ApiError(231011)
        if where is not message:
            raise ApiError(231010)
        message.reactions.remove(reaction)
        del self._where[reaction_id]
        self._world.tell("reaction", message)
        return self._describe(reaction)

    def _message(self, message_id: str) -> Message:
        message = self._world.messages.get(message_id)
        if message is None or message.recalled:
            raise ApiError(231003)
        if not message.chat.has_bot:
            raise ApiError(231002)
        return message

    def _describe(self, reaction: Reaction) -> Json:
        return {
            "reaction_id": reaction.id,
            "operator": {"operator_id": self._config.app_id, "operator_type": "app"},
            "action_time": str(reaction.at_ms),
            "reaction_type": {"emoji_type": reaction.emoji},
        }

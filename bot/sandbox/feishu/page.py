"""Feishu's side of the chat page: its world as the page draws it, and what the page's verbs do here."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bot.sandbox.feishu import views
from bot.sandbox.feishu.courier import LONG_CONNECTION
from bot.sandbox.feishu.gateway import SOCKET
from bot.sandbox.feishu.people import SayOptions
from bot.sandbox.feishu.world import Chat, Message, User
from bot.sandbox.page.base import BasePage, Drawing

if TYPE_CHECKING:
    from bot.sandbox.feishu.sandbox import FeishuSandbox
    from bot.sandbox.page.server import Json, Sentence, SentFile
    from bot.sandbox.records import Attempt, Push


def _gone(message: Message) -> Json:
    return {"id": message.id, "chat_id": message.chat.id}


def _reactions(message: Message) -> Json:
    return {"message_id": message.id, "reactions": views.reactions_view(message)}


_DRAWING = Drawing(
    {
        "message": views.message_view,
        "reaction": _reactions,
        "removed": _gone,
        "chat": views.chat_view,
    },
    views.call_trace,
)


class FeishuPage(BasePage[Chat, User, Message]):
    """The PageHost of one FeishuSandbox."""

    def __init__(self, sandbox: FeishuSandbox) -> None:
        super().__init__(sandbox, _DRAWING)
        self._sandbox = sandbox

    def draw_push(self, push: Push, attempt: Attempt) -> Json:
        """A webhook, or a frame of the long connection."""
        url = self._sandbox.courier.event_url
        trace = views.push_trace(push, attempt, urlsplit(url).path)
        return trace | {"method": "WS", "path": SOCKET} if url == LONG_CONNECTION else trace

    # -- verbs -------------------------------------------------------------------------------------------------------
    def state(self) -> Json:
        """The whole world; cards whose streaming time is over are ended first."""
        config = self._sandbox.config
        for card in self._sandbox.world.cards.values():
            card.expire_streaming(config.clock(), config.limits.streaming_s)
        return views.state_view(self._sandbox.world, self.notes)

    def prepare(self, sentence: Sentence) -> Awaitable[object]:
        """A message with the mentions that stand in its text."""
        chat, user = self.chat(sentence.chat_id), self.person(sentence.user_id)
        # Longest names first, so that "@Al" does not take the place of "@Alex".
        people = sorted(
            (u for u in chat.members if f"@{u.name}" in sentence.text), key=lambda u: -len(u.name)
        )
        bot = self._sandbox.bot
        options: SayOptions = {
            "mentions": [*([bot] if f"@{bot.name}" in sentence.text else []), *people]
        }
        if sentence.reply_to:
            options["reply_to"] = self.message(sentence.reply_to)
        return self._sandbox.say(chat, user, sentence.text, sentence.mention_bot, **options)

    def prepare_file(self, sent: SentFile) -> Awaitable[object]:
        """A file or a picture. It can mention nobody, so that in a group the bot is not told of it."""
        chat, user = self.chat(sent.chat_id), self.person(sent.user_id)
        stored = self._sandbox.add_file(sent.name, sent.data, is_image=sent.is_image)
        if sent.is_image:
            content, kind = {"image_key": stored.key}, "image"
        else:
            content, kind = {"file_key": stored.key, "file_name": sent.name}, "file"
        return self._sandbox.say(chat, user, content, False, message_type=kind)

    async def recall(self, message_id: str) -> None:
        """Only a person's own."""
        message = self.own_message(message_id)
        if not message.recalled:
            await self._sandbox.recall(message)

    async def press(self, message_id: str, value: Any, user_id: str) -> Json:
        """A click; the toast of the answer."""
        result = await self._sandbox.press(self.message(message_id), value, self.person(user_id))
        return {"toast": result.toast, "code": result.code}

    async def new_chat(self, name: str) -> Json:
        """A group with everybody; the bot is told that it was added."""
        people = [user for user in self._sandbox.world.users.values() if not user.bot]
        chat = self._sandbox.add_group(name, people)
        if self._sandbox.courier.event_url:
            await self._sandbox.bot_added(chat)
        return views.chat_view(chat)

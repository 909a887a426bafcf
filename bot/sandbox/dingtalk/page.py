"""DingTalk's side of the chat page: its world as the page draws it, and what the page's verbs do here."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bot.sandbox.dingtalk import views
from bot.sandbox.dingtalk.people import SayOptions
from bot.sandbox.dingtalk.world import Chat, Message, User
from bot.sandbox.page.base import BasePage, Drawing

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.sandbox import DingTalkSandbox
    from bot.sandbox.page.server import Json, Sentence, SentFile
    from bot.sandbox.records import Attempt, Push


def _reactions(message: Message) -> Json:
    return {"message_id": message.id, "reactions": views.reactions_view(message)}


_DRAWING = Drawing(
    {"message": views.message_view, "reaction": _reactions, "chat": views.chat_view},
    views.call_trace,
)


class DingTalkPage(BasePage[Chat, User, Message]):
    """The PageHost of one DingTalkSandbox."""

    def __init__(self, sandbox: DingTalkSandbox) -> None:
        super().__init__(sandbox, _DRAWING)
        self._sandbox = sandbox

    def is_worth_repeating(self, push: Push) -> bool:
        """A robot message, not a click."""
        return "msgId" in push.payload

    def draw_push(self, push: Push, attempt: Attempt) -> Json:
        """A webhook, or a frame of the stream."""
        return views.push_trace(push, attempt, urlsplit(self._sandbox.courier.url).path)

    # -- verbs -------------------------------------------------------------------------------------------------------
    def state(self) -> Json:
        """The whole world."""
        return views.state_view(self._sandbox.world, self.notes)

    def prepare(self, sentence: Sentence) -> Awaitable[object]:
        """A message with the mentions that stand in its text."""
        chat, user = self.chat(sentence.chat_id), self.person(sentence.user_id)
        bot = self._sandbox.bot
        named = f"@{bot.name}" in sentence.text
        options: SayOptions = {
            "mentions": [person for person in chat.members if f"@{person.name}" in sentence.text]
        }
        if sentence.reply_to:
            options["reply_to"] = self.message(sentence.reply_to)
        # The platform takes the robot's name out of what it pushes.
        text = sentence.text.replace(f"@{bot.name}", "").strip() if named else sentence.text
        return self._sandbox.say(chat, user, text, sentence.mention_bot or named, **options)

    def prepare_file(self, sent: SentFile) -> Awaitable[object]:
        """A file or a picture. It can mention nobody, so that in a group the robot is not told of it."""
        chat, user = self.chat(sent.chat_id), self.person(sent.user_id)
        stored = self._sandbox.add_file(sent.name, sent.data)
        if sent.is_image:
            content, kind = {"downloadCode": stored.code}, "picture"
        else:
            content, kind = {"downloadCode": stored.code, "fileName": sent.name}, "file"
        return self._sandbox.say(chat, user, content, False, message_type=kind)

    async def recall(self, message_id: str) -> None:
        """Only a person's own."""
        await self._sandbox.recall(self.own_message(message_id))

    async def press(self, message_id: str, value: Any, user_id: str) -> Json:
        """A click. The platform shows no toast of the app's; a failure is told in words."""
        result = await self._sandbox.press(self.message(message_id), value, self.person(user_id))
        toast = {"type": "error", "content": result.error} if result.error else None
        return {"toast": toast, "code": result.error}

    async def new_chat(self, name: str) -> Json:
        """A group with everybody and the robot; DingTalk does not tell the robot."""
        people = [user for user in self._sandbox.world.users.values() if not user.bot]
        return views.chat_view(self._sandbox.add_group(name, people))

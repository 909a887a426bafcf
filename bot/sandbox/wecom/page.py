"""WeCom's side of the chat page: its world as the page draws it, and what the page's verbs do here."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bot.sandbox.page.base import BasePage, Drawing
from bot.sandbox.wecom import views
from bot.sandbox.wecom.world import Chat, Message, User

if TYPE_CHECKING:
    from bot.sandbox.page.server import Json, Sentence, SentFile
    from bot.sandbox.records import Attempt, Push
    from bot.sandbox.wecom.compose import SayOptions
    from bot.sandbox.wecom.sandbox import WeComSandbox

_DRAWING = Drawing({"message": views.message_view, "chat": views.chat_view}, views.call_trace)


class WeComPage(BasePage[Chat, User, Message]):
    """The PageHost of one WeComSandbox."""

    def __init__(self, sandbox: WeComSandbox) -> None:
        super().__init__(sandbox, _DRAWING)
        self._sandbox = sandbox

    def is_worth_repeating(self, push: Push) -> bool:
        """A message or an event, not a refresh poll."""
        return push.event_type != "stream"

    def draw_push(self, push: Push, attempt: Attempt) -> Json:
        """A callback with what its answer says, or a frame of the long connection."""
        url = self._sandbox.courier.event_url
        path = urlsplit(url).path if push.way == "webhook" else "/openws"
        opened = self._sandbox.sealing.peek(attempt.body)
        return views.push_trace(push, attempt, path, opened)

    # -- verbs -------------------------------------------------------------------------------------------------------
    def state(self) -> Json:
        """The whole world."""
        return views.state_view(self._sandbox.world, self.notes)

    def prepare(self, sentence: Sentence) -> Awaitable[object]:
        """A message; the bot is mentioned when its name stands in the text."""
        chat, user = self.chat(sentence.chat_id), self.person(sentence.user_id)
        options: SayOptions = {}
        if sentence.reply_to:
            options["quote"] = self.message(sentence.reply_to)
        named = f"@{self._sandbox.bot.name}" in sentence.text
        return self._sandbox.say(
            chat, user, sentence.text, sentence.mention_bot or named, **options
        )

    def prepare_file(self, sent: SentFile) -> Awaitable[object]:
        """A file or a picture; in a group the bot is told of neither."""
        chat, user = self.chat(sent.chat_id), self.person(sent.user_id)
        kind = "image" if sent.is_image else "file"
        return self._sandbox.say(
            chat, user, "", False, kind=kind, data=sent.data, filename=sent.name
        )

    async def recall(self, message_id: str) -> None:
        """Only a person's own; the bot is not told."""
        self._sandbox.recall(self.own_message(message_id))

    async def press(self, message_id: str, value: Any, user_id: str) -> Json:
        """A click; WeCom shows no toast."""
        result = await self._sandbox.press(
            self.message(message_id), str(value), self.person(user_id)
        )
        return {"toast": result.toast, "code": result.code}

    async def new_chat(self, name: str) -> Json:
        """A group with everybody. An app is in none."""
        if self._sandbox.config.mode == "app":
            raise ValueError("a self-built app is in no groups")
        return views.chat_view(
            self._sandbox.add_group(name, list(self._sandbox.world.users.values()))
        )

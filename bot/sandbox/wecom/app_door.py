"""The self-built app's ear: delivers XML callbacks and takes passive replies (wecom.md §1.3). Owns what was delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bot.sandbox.records import Attempt, Push
from bot.sandbox.wecom import appxml
from bot.sandbox.wecom.sealing import tag_of
from bot.sandbox.wecom.text import cut_bytes
from bot.sandbox.wecom.world import Message, new_id

if TYPE_CHECKING:
    from bot.sandbox.wecom.appxml import Fields
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.courier import Courier
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.sealing import Sealing
    from bot.sandbox.wecom.world import Chat, User, World

Json = dict[str, Any]
_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Sent:
    name: str
    chat: Chat
    message: Message | None
    fields: Fields
    plain: bytes


class AppDoor:
    """How an app hears."""

    def __init__(
        self, config: WeComConfig, world: World, courier: Courier, sealing: Sealing, judge: Judge
    ) -> None:
        self._config = config
        self._world = world
        self._courier = courier
        self._sealing = sealing
        self._judge = judge
        self._sent: dict[str, _Sent] = {}

    async def deliver(
        self, chat: Chat, user: User, fields: Fields, message: Message | None = None
    ) -> Push:
        """A message (with MsgId) or an event (without), up to three attempts, byte for byte the same."""
        is_event = fields["MsgType"] == "event"
        name = str(fields["Event"] if is_event else fields["MsgType"])
        event_id = str(fields.get("MsgId") or f"{user.id}-{name}-{new_id()}")
        sent = _Sent(name, chat, message, fields, appxml.callback(self._config, user.id, fields))
        self._sent[event_id] = sent
        return await self._push(event_id, sent)

    async def again(self, push: Push) -> Push:
        """A callback that was delivered before, once more: the same CreateTime, a new envelope."""
        return await self._push(push.event_id, self._sent[push.event_id])

    async def _push(self, event_id: str, sent: _Sent) -> Push:
        topic = "callback.event" if sent.fields["MsgType"] == "event" else "callback.message"
        letter = self._sealing.letter(topic, sent.plain, _TRIES)
        push = Push(event_id, sent.name, dict(sent.fields), letter.body, encrypted=True)

        def on_reply(attempt: Attempt, lost: bool) -> None:
            if not lost:
                self._take(attempt.body, sent.chat, sent.message, f"{sent.name} {event_id}")

        return await self._courier.push(push, letter, on_reply)

    def _take(self, body: bytes, chat: Chat, message: Message | None, where: str) -> None:
        xml = self._sealing.open_xml(body, where)
        if xml is None:
            return
        kind, content = tag_of(xml, "MsgType"), tag_of(xml, "Content")
        if kind != "text" or not content:
            self._judge.note("reply_kind", f"{where}: {kind}")
            return
        most = self._config.limits.app_text_bytes
        if len(content.encode()) > most:
            self._judge.note("text_cut", where)
        self._world.add_message(
            Message(
                new_id(), chat, self._world.bot, self._world.now_ms(), "text", cut_bytes(content, most),
                answers=message.id if message else "",
            )
        )  # fmt: skip

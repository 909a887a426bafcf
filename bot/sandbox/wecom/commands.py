"""What an AI bot may do on its connection once it is subscribed: answer, greet, update a card, push, upload (wecom.md §3.3).

Owns the req_ids the bot made up and the uploads in progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bot.sandbox.wecom import errors
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.wecom.replies import RESPOND_MSG, SEND_MSG, UPDATE

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.connection import Frame
    from bot.sandbox.wecom.exchanges import Exchange, Exchanges
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.limits import Rates
    from bot.sandbox.wecom.replies import Replies
    from bot.sandbox.wecom.world import Chat, World

Json = dict[str, Any]
_CHAT_TYPES: dict[Any, str] = {1: "single", 2: "group"}
_STREAMS = frozenset({"stream", "stream_with_template_card"})


class Commands:
    """The commands behind the subscription. `run` raises ApiError for a refusal."""

    def __init__(
        self,
        config: WeComConfig,
        world: World,
        exchanges: Exchanges,
        replies: Replies,
        rates: Rates,
        judge: Judge,
    ) -> None:
        self._config = config
        self._world = world
        self._exchanges = exchanges
        self._replies = replies
        self._rates = rates
        self._judge = judge
        self._own_req_ids: set[str] = set()

    def run(self, frame: Frame) -> Json | None:
        """Do it. None: no ack will come."""
        match frame.cmd:
            case "aibot_respond_msg":
                return self._respond(frame)
            case "aibot_respond_welcome_msg":
                return self._within_5s(frame, "enter_chat", frozenset({"text", "template_card"}))
            case "aibot_respond_update_msg":
                return self._within_5s(frame, "template_card_event", frozenset({UPDATE}))
            case "aibot_send_msg":
                return self._send(frame)
            case _:
                self._judge.note("unknown_command", frame.cmd)
                raise ApiError(errors.BAD_PARAMETER, frame.cmd)

    def _exchange(self, frame: Frame, kind: str) -> Exchange:
        exchange = self._exchanges.by_req_id.get(frame.req_id)
        if exchange is None or exchange.kind != kind:
            self._judge.note("req_id_unknown", f"{frame.cmd} {frame.req_id}")
            raise ApiError(errors.BAD_REQ_ID)
        return exchange

    def _respond(self, frame: Frame) -> Json | None:
        exchange = self._exchange(frame, "message")
        where = f"ws.respond {frame.req_id}"
        if self._config.clock() >= exchange.at + self._config.limits.reply_window_s:
            self._judge.note("reply_too_late", where)
            raise ApiError(errors.WINDOW_OVER)
        kind = self._replies.kind_of(frame.body, RESPOND_MSG, where)
        if kind == "stream_with_template_card":
            self._judge.note("combined_by_websocket", where)
        stream = frame.body.get("stream") if kind in _STREAMS else None
        if self._is_equal_final(exchange, stream):
            return None
        self._count(exchange.chat, stream)
        try:
            self._replies.apply(exchange, frame.body, RESPOND_MSG, where)
        except ApiError as error:
            if error.code == errors.STREAM_OVER and self._config.late_frames == "silent":
                return {}
            raise
        return {}

    def _count(self, chat: Chat, stream: Any) -> None:
        """What counts against the conversation: finished messages; every frame when so configured."""
        is_refresh = isinstance(stream, dict) and stream.get("finish") is not True
        if not is_refresh or self._config.limits.count_refreshes:
            self._rates.check_chat(chat.id)

    def _is_equal_final(self, exchange: Exchange, stream: Any) -> bool:
        if not self._config.drop_equal_final or not isinstance(stream, dict):
            return False
        bubble = exchange.bubbles.get(str(stream.get("id")))
        if bubble is None or bubble.finished or stream.get("finish") is not True:
            return False
        if stream.get("content") != bubble.message.text:
            return False
        self._replies.apply(
            exchange, {"msgtype": "stream", "stream": stream}, _STREAMS, "ws.respond"
        )
        return True

    def _within_5s(self, frame: Frame, kind: str, allowed: frozenset[str]) -> Json:
        exchange = self._exchange(frame, kind)
        where = f"{frame.cmd} {frame.req_id}"
        if self._config.clock() >= exchange.at + self._config.limits.event_s:
            self._judge.note("reply_too_late", where)
            raise ApiError(errors.WINDOW_OVER)
        if exchange.answered:
            self._judge.note("second_event_reply", where)
            raise ApiError(errors.BAD_REQ_ID)
        self._replies.apply(exchange, frame.body, allowed, where)
        return {}

    def _send(self, frame: Frame) -> Json:
        where = f"ws.send {frame.req_id}"
        if frame.req_id in self._own_req_ids or frame.req_id in self._exchanges.by_req_id:
            self._judge.note("req_id_reused", where)
        self._own_req_ids.add(frame.req_id)
        chat = self._target(frame.body, where)
        kind = self._replies.kind_of(frame.body, SEND_MSG, where)
        self._rates.check_chat(chat.id)
        self._replies.post(chat, frame.body, kind, where)
        return {}

    def _target(self, body: Json, where: str) -> Chat:
        chat = self._world.chats.get(str(body.get("chatid", "")))
        kind = _CHAT_TYPES.get(body.get("chat_type", 0))
        if kind is None:
            self._judge.note("chat_type_missing", where)
        if chat is None or not chat.spoken or (kind is not None and chat.kind != kind):
            self._judge.note("chat_unknown", f"{where}: {body.get('chatid')}")
            raise ApiError(errors.BAD_CHAT)
        if not chat.has_bot:
            raise ApiError(errors.NOT_IN_CHAT)
        return chat

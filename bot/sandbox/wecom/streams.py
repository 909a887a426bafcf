"""The rules of a stream: which snapshot is taken, and what becomes visible (wecom.md §2.3, §2.4, §3.4).

The same rules serve polls and pushed frames; the caller says which. Owns no state but the exchanges' bubbles.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any

from bot.sandbox.wecom import errors
from bot.sandbox.wecom import text as reading
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.wecom.exchanges import Bubble
from bot.sandbox.wecom.world import Message, new_id

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.exchanges import Exchange, Exchanges
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.world import World

Json = dict[str, Any]
_FAILED_WORDS = "[the bot did not finish its answer]"


class Streams:
    """Applies snapshots to bubbles."""

    def __init__(
        self, config: WeComConfig, world: World, judge: Judge, exchanges: Exchanges
    ) -> None:
        self._config = config
        self._world = world
        self._judge = judge
        self._exchanges = exchanges

    @property
    def _pushed(self) -> bool:
        return self._config.mode == "websocket"

    def apply(self, exchange: Exchange, stream: Any) -> Bubble:
        """Take one snapshot. Raises ApiError when a client would not show it; the violation is noted then."""
        if not isinstance(stream, dict):
            raise self._refused("stream_malformed", exchange, "stream is not an object")
        content, finish = self._fields(exchange, stream)
        bubble = self._bubble(exchange, str(stream["id"]))
        if bubble is not None and bubble.finished:
            return self._after_finish(exchange, bubble, content, finish=finish)
        if bubble is not None and self._is_late(bubble):
            raise self._refused("stream_too_late", exchange, bubble.id, errors.STREAM_OVER)
        if bubble is None:
            bubble = self._open(exchange, stream, content)
        elif self.feedback_id(stream, _name(exchange, bubble.id)) not in {"", bubble.message.feedback_id}:  # fmt: skip
            self._judge.note("feedback_late", _name(exchange, bubble.id))
        items = self._items(exchange, stream, finish=finish)
        if finish and not reading.readable(content) and not items:
            self._judge.note("empty_final", _name(exchange, bubble.id))
        self._judge.look_at_text(content, _name(exchange, bubble.id))
        self._show(bubble, content, items, finish=finish)
        return bubble

    def give_up(self, exchange: Exchange) -> None:
        """The time is over: WeCom asks no more and puts its own words there."""
        exchange.gave_up = True
        bubble = exchange.open_bubble
        if bubble is None:
            return
        bubble.finished = True
        bubble.message.streaming = False
        bubble.message.failed = True
        bubble.message.text = (bubble.message.text + "\n\n" + _FAILED_WORDS).strip()
        self._world.changed(bubble.message)

    # -- the checks --------------------------------------------------------------------------------------------------
    def _fields(self, exchange: Exchange, stream: Json) -> tuple[str, bool]:
        stream_id, content, finish = (
            stream.get("id"),
            stream.get("content", ""),
            stream.get("finish", False),
        )
        if not isinstance(stream_id, str) or not stream_id:
            raise self._refused("stream_malformed", exchange, "id is missing")
        if not isinstance(content, str) or not isinstance(finish, bool):
            raise self._refused(
                "stream_malformed", exchange, f"{stream_id}: content or finish has a wrong type"
            )
        size = len(content.encode())
        if size > self._config.limits.stream_bytes:
            raise self._refused(
                "stream_too_big", exchange, f"{stream_id}: {size} bytes", errors.TOO_LONG
            )
        return content, finish

    def _bubble(self, exchange: Exchange, stream_id: str) -> Bubble | None:
        owner = self._exchanges.stream_owner.get(stream_id)
        if owner is not None and owner is not exchange:
            raise self._refused("stream_id_reused", exchange, stream_id)
        bubble = exchange.bubbles.get(stream_id)
        if bubble is None and exchange.bubbles:
            if not self._pushed:
                raise self._refused("stream_id_changed", exchange, stream_id)
            if exchange.open_bubble is not None:
                self._judge.note("second_stream_open", _name(exchange, stream_id))
        return bubble

    def _after_finish(
        self, exchange: Exchange, bubble: Bubble, content: str, *, finish: bool
    ) -> Bubble:
        """The final snapshot again does no harm (its ack was lost, or the callback came twice); anything else comes too late."""
        if bubble.message.failed:
            raise self._refused("stream_too_late", exchange, bubble.id, errors.STREAM_OVER)
        if finish and content == bubble.message.text:
            return bubble
        raise self._refused("after_finish", exchange, bubble.id, errors.STREAM_OVER)

    def _is_late(self, bubble: Bubble) -> bool:
        return (
            self._pushed
            and self._config.clock() >= bubble.opened_at + self._config.limits.stream_life_s
        )

    def _open(self, exchange: Exchange, stream: Json, content: str) -> Bubble:
        message = Message(
            new_id(),
            exchange.chat,
            self._world.bot,
            self._world.now_ms(),
            "stream",
            content,
            answers=exchange.question_id,
            streaming=True,
            stream_id=str(stream["id"]),
            feedback_id=self.feedback_id(stream, _name(exchange, str(stream["id"]))),
        )
        bubble = Bubble(message.stream_id, message, self._config.clock())
        exchange.bubbles[bubble.id] = bubble
        self._exchanges.stream_owner[bubble.id] = exchange
        self._world.add_message(message)
        return bubble

    def feedback_id(self, holder: Json, where: str) -> str:
        """`feedback.id`, "" when there is none or a bad one."""
        feedback = holder.get("feedback")
        if feedback is None:
            return ""
        value = feedback.get("id") if isinstance(feedback, dict) else None
        if (
            not isinstance(value, str)
            or not 0 < len(value.encode()) <= self._config.limits.feedback_id_bytes
        ):
            self._judge.note("feedback_malformed", where)
            return ""
        return value

    def _items(self, exchange: Exchange, stream: Json, *, finish: bool) -> list[Json]:
        items = stream.get("msg_item")
        if not items:
            return []
        where = _name(exchange, str(stream["id"]))
        if self._pushed:
            self._judge.note("msg_item_by_websocket", where)
            return []
        if not finish or not isinstance(items, list) or len(items) > self._config.limits.images:
            self._judge.note("msg_item_malformed", where)
            return []
        if not all(self._is_image(item) for item in items):
            self._judge.note("msg_item_malformed", where)
            return []
        return items

    def _is_image(self, item: Any) -> bool:
        image = item.get("image") if isinstance(item, dict) else None
        if not isinstance(image, dict):
            return False
        try:
            data = base64.b64decode(str(image.get("base64", "")), validate=True)
        except binascii.Error:
            return False
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        known = data.startswith((b"\x89PNG", b"\xff\xd8\xff"))
        return known and digest == image.get("md5") and len(data) <= self._config.limits.image_bytes

    def _show(self, bubble: Bubble, content: str, items: list[Json], *, finish: bool) -> None:
        message = bubble.message
        changed = content != message.text or bool(items) or finish
        message.text = content
        if items:
            message.data = {"msg_item": items}
        message.updates += 1
        if finish:
            bubble.finished = True
            message.streaming = False
        if changed:
            self._world.changed(message)

    def _refused(
        self, rule: str, exchange: Exchange, detail: str, code: int = errors.BAD_PARAMETER
    ) -> ApiError:
        self._judge.note(rule, _name(exchange, detail))
        return ApiError(code, detail)


def _name(exchange: Exchange, detail: str) -> str:
    return f"question {exchange.question_id or exchange.msgid}: {detail}"

"""Replies through a sessionWebhook (dingtalk.md §4.1): HTTP 200 whatever happens, the outcome is in `errcode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bot.sandbox.dingtalk import world as w
from bot.sandbox.dingtalk.errors import OldError
from bot.sandbox.dingtalk.judge import pinged_in

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.judge import Judge
    from bot.sandbox.dingtalk.limits import RateLimits
    from bot.sandbox.dingtalk.world import Session, World

Json = dict[str, Any]
_NEEDED = {
    "text": ("content",), "markdown": ("title", "text"), "actionCard": ("title", "text"),
    "link": ("title", "text", "messageUrl"), "feedCard": ("links",), "empty": (),
}  # fmt: skip
_FIELDS = frozenset({*_NEEDED, "msgtype", "at", "msgUuid"})
_AT_FIELDS = frozenset({"atUserIds", "atMobiles", "atDingtalkIds", "isAtAll"})


class Sessions:
    """The endpoint behind every sessionWebhook. Keeps nothing: sessions live in the world."""

    def __init__(
        self, config: SandboxConfig, world: World, judge: Judge, rates: RateLimits
    ) -> None:
        self._config = config
        self._world = world
        self._judge = judge
        self._rates = rates

    def send(self, token: str, body: Json, raw_bytes: int, content_type: str) -> Json:
        """POST /robot/sendBySession?session=… Raises OldError."""
        if content_type != "application/json":
            raise OldError(43004)
        session = self._world.sessions.get(token)
        if session is None or session.expires_ms <= self._world.now_ms():
            raise OldError(300001)
        if raw_bytes > self._config.limits.session_bytes:
            raise OldError(460101)
        kind, content = self._content(body)
        if session.message.chat.dissolved:
            raise OldError(400013)
        if not session.message.chat.has_bot:
            raise OldError(400102)
        self._rates.check_session(token)
        for name in body.keys() - _FIELDS:
            self._judge.note("unknown_field", f"sessionWebhook: {name}")
        if kind != "empty":
            self._keep(session, kind, content, body.get("at"))
        return {}

    def _content(self, body: Json) -> tuple[str, Json]:
        kind = str(body.get("msgtype"))
        content = body.get(kind, {})
        if kind not in _NEEDED:
            raise OldError(400105)
        if not isinstance(content, dict):
            raise OldError(40035, f"{kind} must be an object")
        for name in _NEEDED[kind]:
            if not content.get(name):
                raise OldError(40035, f"{kind}.{name} is required")
        if any(word in str(content) for word in self._config.unsafe_words):
            raise OldError(430102)
        return kind, content

    def _keep(self, session: Session, kind: str, content: Json, at: Any) -> None:
        chat = session.message.chat
        at = at if isinstance(at, dict) else {}
        for name in at.keys() - _AT_FIELDS:
            self._judge.note("unknown_field", f"sessionWebhook: at.{name}")
        ids = [
            str(any_id) for name in ("atUserIds", "atDingtalkIds") for any_id in at.get(name) or ()
        ]
        self._judge.mentioned(ids, chat, "sessionWebhook")
        if at.get("isAtAll") is True:
            self._judge.note("mention_injected", "sessionWebhook: isAtAll")
        people = [user for user in map(self._world.find_any, ids) if user is not None]
        text = str(content.get("text") or content.get("content") or "")
        # In a text the platform writes the names itself; in Markdown the @ must stand in the text.
        pinged = people if kind == "text" else pinged_in(text, people)
        if len(pinged) < len(people):
            self._judge.note("at_without_text", f"question {session.message.id}")
        message = self._world.add_message(
            w.Message(
                w.new_message_id(), chat, self._world.bot, self._world.now_ms(), kind, content,
                answers=session.message.id, by="session", mentions=tuple(people), pinged=tuple(pinged),
                at_all=at.get("isAtAll") is True,
            )
        )  # fmt: skip
        self._judge.look_at_message(message)

"""The robot's OpenAPI: sends, recalls, emotions, downloads (dingtalk.md §1.2, §4.3)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from bot.sandbox.dingtalk import world as w
from bot.sandbox.dingtalk.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.judge import Judge
    from bot.sandbox.dingtalk.world import Chat, World

Json = dict[str, Any]
_KINDS = {
    "sampleText": ("text", ("content",)), "sampleMarkdown": ("markdown", ("title", "text")),
    "sampleImageMsg": ("picture", ("photoURL",)), "sampleLink": ("link", ("title", "text", "messageUrl")),
    "sampleActionCard": ("actionCard", ("title", "text")), "sampleAudio": ("audio", ("mediaId",)),
    "sampleFile": ("file", ("mediaId",)), "sampleVideo": ("video", ("videoMediaId",)),
    **{f"sampleActionCard{n}": ("actionCard", ("title", "text")) for n in range(2, 7)},
}  # fmt: skip


class Robot:
    """The calls with a token that need qyapi_robot_sendmsg. Keeps nothing."""

    def __init__(self, config: SandboxConfig, world: World, judge: Judge) -> None:
        self._config = config
        self._world = world
        self._judge = judge

    def send_to_group(self, body: Json) -> Json:
        """POST /v1.0/robot/groupMessages/send. A group that does not exist is no error here (§7)."""
        kind, content = self._content(body)
        conversation = _need(body, "openConversationId")
        chat = self._world.chats.get(conversation)
        key = w.new_query_key()
        if chat is None or chat.kind != "group":
            self._judge.note("unknown_group", conversation)
        elif not chat.has_bot or chat.dissolved:
            raise ApiError("bot.stopped")
        else:
            self._keep(chat, kind, content, key)
        return {"processQueryKey": key}

    def send_to_people(self, body: Json) -> Json:
        """POST /v1.0/robot/oToMessages/batchSend: HTTP 200 also when nobody got it; the lists say so."""
        kind, content = self._content(body)
        ids = body.get("userIds")
        if not isinstance(ids, list) or not ids:
            raise ApiError("invalidParameter", "userIds is required")
        if len(ids) > self._config.limits.people_per_send:
            raise ApiError("too.many.people")
        key = w.new_query_key()
        invalid: list[str] = []
        slowed: list[str] = []
        for staff_id in map(str, ids):
            user = self._world.find_staff(staff_id)
            if user is None:
                invalid.append(staff_id)
            elif user.flow_controlled:
                slowed.append(staff_id)
            else:
                self._keep(self._world.direct_chat(user), kind, content, key)
        return {
            "processQueryKey": key,
            "invalidStaffIdList": invalid,
            "flowControlledStaffIdList": slowed,
            "filteredStaffIdList": [],
        }

    def recall(self, body: Json, *, group: bool) -> Json:
        """The three recall calls: own sends by processQueryKey, cards by carrierId, within 24 h."""
        self._own(body)
        if group:
            _need(body, "openConversationId")
        keys = body.get("processQueryKeys")
        if not isinstance(keys, list) or not 1 <= len(keys) <= self._config.limits.people_per_send:
            raise ApiError("invalidParameter", "processQueryKeys")
        done: list[str] = []
        failed: dict[str, str] = {}
        oldest_ms = self._world.now_ms() - int(self._config.limits.recall_s * 1000)
        for key in map(str, keys):
            sent = self._world.sent_under(key)
            if not sent or any(message.at_ms < oldest_ms for message in sent):
                failed[key] = "processQueryKey is illegal or too old"
                continue
            for message in sent:
                message.recalled = True
                self._world.tell("message", message)
            done.append(key)
        return {"successResult": done, "failedResult": failed}

    def emotion(self, body: Json, *, add: bool) -> Json:
        """POST /v1.0/robot/emotion/reply and …/recall: the typing hint."""
        self._own(body)
        _need(body, "openConversationId")
        message = self._world.messages.get(_need(body, "openMsgId"))
        name = _need(body, "emotionName")
        if message is None:
            raise ApiError("invalidParameter", "openMsgId")
        same = [r for r in message.reactions if r.emoji == name]
        if add and not same:
            message.reactions.append(w.Reaction(name, self._world.bot))
        elif not add:
            message.reactions = [r for r in message.reactions if r not in same]
        self._world.tell("reaction", message)
        return {"success": True}

    def file_url(self, body: Json, base_url: str) -> Json:
        """POST /v1.0/robot/messageFiles/download: a short-lived address."""
        self._own(body)
        stored = self._world.files.get(_need(body, "downloadCode"))
        if stored is None:
            raise ApiError("invalidParameter.downloadCode")
        token = secrets.token_urlsafe(18)
        expires = self._config.clock() + self._config.limits.file_url_s
        self._world.file_urls[token] = (stored, expires)
        return {"downloadUrl": f"{base_url}/files/{token}"}

    # -- inside ------------------------------------------------------------------------------------------------------
    def _own(self, body: Json) -> None:
        if body.get("robotCode") != self._config.robot:
            raise ApiError("invalidParameter.robotCode")

    def _content(self, body: Json) -> tuple[str, Json]:
        self._own(body)
        kind, needed = _KINDS.get(str(body.get("msgKey")), ("", ()))
        if not kind:
            raise ApiError("invalidParameter.msgKey")
        text = body.get("msgParam")
        if not isinstance(text, str):
            raise ApiError("invalidParameter", "msgParam must be a JSON string")
        if len(text.encode()) > self._config.limits.msg_param_bytes:
            raise ApiError("invalidParameter.msgParam.tooLong")
        try:
            content = msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise ApiError("invalidParameter", "msgParam is not JSON") from None
        if not isinstance(content, dict) or any(not content.get(name) for name in needed):
            raise ApiError("invalidParameter", f"msgParam needs {', '.join(needed)}")
        if any(word in text for word in self._config.unsafe_words):
            raise ApiError("contentUnsafe")
        return kind, content

    def _keep(self, chat: Chat, kind: str, content: Json, key: str) -> None:
        question = self._world.newest_question(chat)
        message = self._world.add_message(
            w.Message(
                w.new_message_id(), chat, self._world.bot, self._world.now_ms(), kind, content,
                answers=question.id if question else "", by="api", query_key=key,
            )
        )  # fmt: skip
        self._judge.look_at_message(message)


def _need(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ApiError("invalidParameter", f"{name} is required")
    return value

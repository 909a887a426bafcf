"""The dozen Feishu calls this adapter makes, one small function each (feishu.md §4, §5.1). No JSON leaves this module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bot.errors import Ambiguous, RetryLater
from bot.platforms.feishu.client import Call, FeishuClient, card_limit, chat_limit, message_limit

_IM = "/open-apis/im/v1/messages"
_CARDS = "/open-apis/cardkit/v1/cards"


def dumps(value: Any) -> str:
    """Compact JSON as Feishu wants it inside strings; non-ASCII is kept, so that sizes are those of the text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send: `content` is the JSON string of its type."""

    msg_type: str
    content: str
    uuid: str
    in_thread: bool = False


def _text(answer: Mapping[str, Any], *path: str) -> str:
    value: Any = answer
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


class FeishuApi:
    """Typed calls on top of a client. Holds no state."""

    def __init__(self, client: FeishuClient) -> None:
        self.client = client

    async def bot_identity(self) -> tuple[str, str]:
        """Our own open_id and name: GET bot/v3/info (no scope needed; the object is under `bot`, not `data`)."""
        answer = await self.client.call(Call("bot_info", "GET", "/open-apis/bot/v3/info"))
        open_id = _text(answer, "bot", "open_id")
        if not open_id:
            raise RetryLater("bot_info: Feishu's answer holds no open_id", after_s=5.0)
        return open_id, _text(answer, "bot", "app_name")

    async def resource(self, message_id: str, file_key: str, kind: str, *, max_bytes: int) -> bytes:
        """What came with a message; `kind` is image or file (feishu.md §1.4). Raises TooLarge."""
        path = f"{_IM}/{quote(message_id, safe='')}/resources/{quote(file_key, safe='')}"
        call = Call("message_resource", "GET", path, query={"type": kind}, max_wait_s=30.0)
        return await self.client.download(call, max_bytes=max_bytes)

    async def message(self, message_id: str) -> dict[str, Any]:
        """A message as it stands: GET messages/:id. Empty when Feishu's answer holds none."""
        path = f"{_IM}/{quote(message_id, safe='')}"
        answer = await self.client.call(Call("message_get", "GET", path, max_wait_s=3.0))
        data = answer.get("data")
        items = data.get("items") if isinstance(data, dict) else None
        first = items[0] if isinstance(items, list) and items else None
        return first if isinstance(first, dict) else {}

    async def reply(self, to_message_id: str, chat_id: str, message: Outgoing) -> str:
        """Answer a message; returns the new message's id."""
        body: dict[str, Any] = {
            "msg_type": message.msg_type,
            "content": message.content,
            "uuid": message.uuid,
        }
        if message.in_thread:
            body["reply_in_thread"] = True
        return await self._send(
            Call(
                "message_reply",
                "POST",
                f"{_IM}/{quote(to_message_id, safe='')}/reply",
                body,
                limits=(chat_limit(chat_id),),
            )
        )

    async def send(self, chat_id: str, message: Outgoing) -> str:
        """Write to a chat; returns the new message's id."""
        body = {
            "receive_id": chat_id,
            "msg_type": message.msg_type,
            "content": message.content,
            "uuid": message.uuid,
        }
        return await self._send(
            Call(
                "message_create",
                "POST",
                _IM,
                body,
                {"receive_id_type": "chat_id"},
                (chat_limit(chat_id),),
            )
        )

    async def _send(self, call: Call) -> str:
        message_id = _text(await self.client.call(call), "data", "message_id")
        if not message_id:
            raise Ambiguous(f"{call.api}: Feishu's answer holds no message_id")
        return message_id

    async def patch_message(self, message_id: str, card: str) -> None:
        """Replace a card that was sent by its JSON."""
        path = f"{_IM}/{quote(message_id, safe='')}"
        await self.client.call(
            Call(
                "message_patch",
                "PATCH",
                path,
                {"content": card},
                limits=(message_limit(message_id),),
            )
        )

    async def add_reaction(self, message_id: str, emoji_type: str) -> str:
        """React to a message; returns the reaction's id."""
        path = f"{_IM}/{quote(message_id, safe='')}/reactions"
        body = {"reaction_type": {"emoji_type": emoji_type}}
        answer = await self.client.call(Call("reaction_add", "POST", path, body, max_wait_s=2.0))
        return _text(answer, "data", "reaction_id")

    async def find_own_reaction(self, message_id: str, emoji_type: str) -> str:
        """The id of this app's own reaction on a message, "" when there is none."""
        path = f"{_IM}/{quote(message_id, safe='')}/reactions"
        query = {"reaction_type": emoji_type, "page_size": "50"}
        answer = await self.client.call(Call("reaction_list", "GET", path, query=query))
        data = answer.get("data")
        items = data.get("items") if isinstance(data, dict) else None
        for item in items if isinstance(items, list) else []:
            own = _text(item, "operator", "operator_id") == self.client.app_id
            if isinstance(item, dict) and own and _text(item, "operator", "operator_type") == "app":
                return _text(item, "reaction_id")
        return ""

    async def remove_reaction(self, message_id: str, reaction_id: str) -> None:
        """Take a reaction back."""
        path = f"{_IM}/{quote(message_id, safe='')}/reactions/{quote(reaction_id, safe='')}"
        await self.client.call(Call("reaction_remove", "DELETE", path))

    async def create_card(self, card: str) -> str:
        """Make a card entity (nobody sees it yet); returns its card_id."""
        body = {"type": "card_json", "data": card}
        answer = await self.client.call(Call("card_create", "POST", _CARDS, body))
        card_id = _text(answer, "data", "card_id")
        if not card_id:
            raise RetryLater("card_create: Feishu's answer holds no card_id")
        return card_id

    async def put_card(self, card_id: str, card: str, sequence: int) -> None:
        """Replace a whole card."""
        body = {"card": {"type": "card_json", "data": card}, "sequence": sequence}
        await self._card_call("card_update", "PUT", card_id, "", body)

    async def put_content(self, card_id: str, element_id: str, content: str, sequence: int) -> None:
        """Show the whole text so far in a streaming card (§5.1 call 3)."""
        body = {"content": content, "sequence": sequence}
        await self._card_call(
            "card_content", "PUT", card_id, f"/elements/{element_id}/content", body
        )

    async def set_streaming(self, card_id: str, *, on: bool, summary: str, sequence: int) -> None:
        """Switch the typewriter; `summary` is the preview in the list of chats (§5.1 call 4)."""
        config: dict[str, Any] = {"streaming_mode": on}
        if summary:
            config["summary"] = {"content": summary}
        body = {"settings": dumps({"config": config}), "sequence": sequence}
        await self._card_call("card_settings", "PATCH", card_id, "/settings", body)

    async def put_element(
        self, card_id: str, element_id: str, element: Mapping[str, Any], sequence: int
    ) -> None:
        """Replace one element."""
        body = {"element": dumps(element), "sequence": sequence}
        await self._card_call("card_element", "PUT", card_id, f"/elements/{element_id}", body)

    async def append_element(self, card_id: str, element: Mapping[str, Any], sequence: int) -> None:
        """Add one element at the card's end."""
        body = {"type": "append", "elements": dumps([element]), "sequence": sequence}
        await self._card_call("card_element_add", "POST", card_id, "/elements", body)

    async def delete_element(self, card_id: str, element_id: str, sequence: int) -> None:
        """Remove one element."""
        path = f"/elements/{element_id}"
        await self._card_call(
            "card_element_remove", "DELETE", card_id, path, {"sequence": sequence}
        )

    async def _card_call(
        self, api: str, method: str, card_id: str, path: str, body: Mapping[str, Any]
    ) -> None:
        where = f"{_CARDS}/{quote(card_id, safe='')}{path}"
        # A snapshot that would wait longer is better replaced by a newer one.
        await self.client.call(
            Call(api, method, where, body, limits=(card_limit(card_id),), max_wait_s=1.0)
        )

"""What people send that is not text: who may download it (feishu.md §1.4). Owns no bytes; those are the world's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import web

from bot.sandbox.feishu.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.feishu.world import StoredFile, World

MAX_BYTES = 100 * 2**20
# Neither stickers nor folders, cards and forwarded messages can be downloaded.
_KINDS = {"image": "image", "file": "file", "audio": "file", "media": "file", "post": ""}


class Files:
    """GET messages/:message_id/resources/:file_key."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, ids: Mapping[str, str], query: Mapping[str, Any]) -> StoredFile:
        """A file of a message, asked for by the right type. Raises ApiError."""
        wanted = query.get("type")
        if wanted not in {"image", "file"}:
            raise ApiError(234001, "type")
        message = self._world.messages.get(ids["message_id"])
        if message is None or message.recalled:
            raise ApiError(230110)
        if not message.chat.has_bot:
            raise ApiError(234004)
        kind = _KINDS.get(message.kind)
        stored = self._world.files.get(ids["file_key"])
        if kind is None or stored is None or stored.key not in set(_keys(message.content)):
            raise ApiError(234003)
        if wanted != (kind or ("image" if stored.key.startswith("img") else "file")):
            raise ApiError(234001, "type does not match the resource")
        if len(stored.data) > MAX_BYTES:
            raise ApiError(234037)
        return stored


def _keys(content: object) -> Iterator[str]:
    """Every file_key and image_key in a message's content, however deep."""
    if isinstance(content, dict):
        yield from (
            content[k] for k in ("file_key", "image_key") if isinstance(content.get(k), str)
        )
        for value in content.values():
            yield from _keys(value)
    elif isinstance(content, list):
        for value in content:
            yield from _keys(value)


def file_response(stored: StoredFile, headers: Mapping[str, str]) -> web.Response:
    """The bytes with their name."""
    told = {
        **headers,
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(stored.name)}",
    }
    return web.Response(body=stored.data, headers=told)

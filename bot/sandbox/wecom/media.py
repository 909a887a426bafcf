"""Files: encrypted ones behind short-lived URLs (AI bot) and plain ones behind media ids (app, uploads). Owns the bytes."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiohttp import web

from bot.sandbox.wecom import crypto, errors
from bot.sandbox.wecom.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.judge import Judge

MEDIA_TYPES = frozenset({"image", "voice", "video", "file"})
_MAX_BYTES = {
    "image": 10 * 1024 * 1024,
    "voice": 2 * 1024 * 1024,
    "video": 10 * 1024 * 1024,
    "file": 20 * 1024 * 1024,
}


@dataclass(frozen=True, slots=True)
class Stored:
    """One file. `body` is encrypted when it lies behind a URL."""

    body: bytes
    name: str
    kind: str
    expires: float


class Media:
    """The files of one sandbox."""

    def __init__(self, config: WeComConfig, judge: Judge) -> None:
        self._config = config
        self._judge = judge
        self._behind_url: dict[str, Stored] = {}
        self._by_id: dict[str, Stored] = {}
        self.base_url = ""

    def publish(self, data: bytes, name: str, kind: str) -> dict[str, str]:
        """The payload of a message of an AI bot: a URL for 5 minutes, and by WebSocket a key of its own."""
        payload = {}
        if self._config.mode == "websocket":
            key = secrets.token_bytes(32)
            payload["aeskey"] = base64.b64encode(key).decode().rstrip("=")
        else:
            key = crypto.key_of(self._config.encoding_aes_key)
        handle = secrets.token_hex(16)
        expires = self._config.clock() + self._config.limits.media_url_s
        self._behind_url[handle] = Stored(crypto.seal_bytes(data, key), name, kind, expires)
        return {"url": f"{self.base_url}/media/{handle}?sign={secrets.token_hex(8)}", **payload}

    def keep(self, data: bytes, name: str, kind: str) -> str:
        """A media id, good for 3 days. Raises ApiError."""
        if kind not in MEDIA_TYPES:
            raise ApiError(errors.BAD_MEDIA_TYPE)
        if not 5 < len(data) <= _MAX_BYTES[kind]:
            raise ApiError(errors.TOO_LONG, f"{kind} of {len(data)} bytes")
        media_id = secrets.token_urlsafe(48)
        expires = self._config.clock() + self._config.limits.media_id_s
        self._by_id[media_id] = Stored(data, name, kind, expires)
        return media_id

    def get(self, media_id: object) -> Stored:
        """What is behind a media id. Raises ApiError when it is unknown or too old."""
        stored = self._by_id.get(str(media_id))
        if stored is None or stored.expires <= self._config.clock():
            raise ApiError(errors.BAD_MEDIA_ID)
        return stored

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /media/{handle}: the encrypted bytes."""
        stored = self._behind_url.get(request.match_info["handle"])
        if stored is None:
            return web.Response(status=404, text="not found")
        if stored.expires <= self._config.clock():
            self._judge.note("media_too_late", stored.name or stored.kind)
            return web.Response(status=403, text="expired")
        return file_response(stored)


def file_response(stored: Stored) -> web.Response:
    """The bytes with their name."""
    headers = {"Content-Type": "application/octet-stream"}
    if stored.name:
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(stored.name)}"
    return web.Response(body=stored.body, headers=headers)

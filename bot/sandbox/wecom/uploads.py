"""Uploads on the long connection: init, chunks, finish (wecom.md §3.3). Owns the sessions."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bot.sandbox.wecom import errors
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.wecom.media import MEDIA_TYPES

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.limits import Rates
    from bot.sandbox.wecom.media import Media

Json = dict[str, Any]


@dataclass(slots=True)
class _Session:
    kind: str
    name: str
    size: int
    count: int
    md5: str
    until: float
    chunks: dict[int, bytes] = field(default_factory=dict)


class Uploads:
    """Three commands that end in a media id. Each raises ApiError and notes `upload_malformed` for a mistake."""

    def __init__(self, config: WeComConfig, media: Media, rates: Rates, judge: Judge) -> None:
        self._config = config
        self._media = media
        self._rates = rates
        self._judge = judge
        self._sessions: dict[str, _Session] = {}

    def run(self, cmd: str, body: Json) -> Json | None:
        """The ack's extra fields; None when the command is not one of ours."""
        match cmd:
            case "aibot_upload_media_init":
                return {"body": self._init(body)}
            case "aibot_upload_media_chunk":
                return {"body": self._chunk(body)}
            case "aibot_upload_media_finish":
                return {"body": self._finish(body)}
            case _:
                return None

    def _init(self, body: Json) -> Json:
        limits = self._config.limits
        kind, name = body.get("type"), body.get("filename")
        size, count = body.get("total_size"), body.get("total_chunks")
        if kind not in MEDIA_TYPES or not isinstance(name, str) or not name:
            raise self._refused("type or filename")
        if (
            not isinstance(size, int)
            or not isinstance(count, int)
            or not 1 <= count <= limits.chunks
        ):
            raise self._refused("total_size or total_chunks")
        self._rates.check_upload()
        upload_id = secrets.token_hex(16)
        until = self._config.clock() + limits.upload_s
        self._sessions[upload_id] = _Session(
            kind, name, size, count, str(body.get("md5", "")), until
        )
        return {"upload_id": upload_id}

    def _chunk(self, body: Json) -> Json:
        session = self._session(body)
        index = body.get("chunk_index")
        if not isinstance(index, int) or not 0 <= index < session.count:
            raise self._refused(f"chunk_index {index}: they count from 0")
        try:
            data = base64.b64decode(str(body.get("base64_data", "")), validate=True)
        except binascii.Error:
            raise self._refused("base64_data") from None
        if not 0 < len(data) <= self._config.limits.chunk_bytes:
            raise self._refused(f"a chunk of {len(data)} bytes")
        session.chunks[index] = data
        return {}

    def _finish(self, body: Json) -> Json:
        session = self._session(body)
        data = b"".join(session.chunks[index] for index in sorted(session.chunks))
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if len(session.chunks) != session.count or len(data) != session.size:
            raise self._refused("chunks are missing")
        if session.md5 and session.md5 != digest:
            raise self._refused("md5")
        media_id = self._media.keep(data, session.name, session.kind)
        del self._sessions[str(body["upload_id"])]
        return {
            "type": session.kind,
            "media_id": media_id,
            "created_at": str(int(self._config.clock())),
        }

    def _session(self, body: Json) -> _Session:
        session = self._sessions.get(str(body.get("upload_id")))
        if session is None or session.until <= self._config.clock():
            raise self._refused("upload_id")
        return session

    def _refused(self, detail: str) -> ApiError:
        self._judge.note("upload_malformed", detail)
        return ApiError(errors.BAD_PARAMETER, detail)

"""Attachments that people send (wecom.md §2.2, §3.2): where their bytes may be fetched from, and their decryption.

An AI bot's attachment is an encrypted file behind a URL that lives 5 minutes; an app's is fetched by its media id.
"""

from __future__ import annotations

import json

from bot.domain.types import Attachment
from bot.errors import GiveUp
from bot.platforms.downloads import Sources, download
from bot.platforms.http import SharedHttp
from bot.platforms.wecom.crypto import DecryptError, aes_key, decrypt_media
from bot.platforms.wecom.errors import judge_http
from bot.platforms.wecom.fields import text_of


def keys_of(attachment: Attachment) -> dict[str, str]:
    """What the parser noted of an attachment. Raises GiveUp when there is nothing to fetch."""
    try:
        noted = json.loads(attachment.remote_key)
    except ValueError:
        noted = None
    keys = {key: text_of(noted, key) for key in ("url", "aeskey", "media_id")}
    if not any(keys.values()):
        raise GiveUp("media: the attachment has no address")
    return keys


async def fetch(
    http: SharedHttp, attachment: Attachment, key: bytes, sources: Sources, *, max_bytes: int
) -> bytes:
    """The clear bytes of an AI bot's attachment; `key` is the bot's own, for those that bring none. Raises PlatformError."""
    keys = keys_of(attachment)
    if not keys["aeskey"] and not key:
        raise GiveUp("media: the file came without a key, and encoding_aes_key is not configured")
    # The encryption adds 32 bytes at most.
    answer = await download(http, "media", keys["url"], sources, max_bytes=max_bytes + 32)
    if answer.status != 200:
        error = judge_http("media", answer, runs_out=True)
        raise error if error is not None else GiveUp(f"media: HTTP {answer.status}")
    try:
        return decrypt_media(aes_key(keys["aeskey"]) if keys["aeskey"] else key, answer.body)
    except DecryptError as error:
        raise GiveUp(f"media: {error}") from None

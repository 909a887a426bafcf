"""Reading untrusted values and naming things: what both of WeCom's parsers share. Pure."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

_SURROGATE = re.compile("[\ud800-\udfff]")


def readable(text: str) -> str:
    """The text with lone surrogates (half an emoji, cut by a client) as U+FFFD: nothing else can store or send them."""
    return _SURROGATE.sub("\ufffd", text)


def get(data: object, *path: str) -> Any:
    """A value deep in objects; None where the way ends."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def text_of(data: object, *path: str) -> str:
    """A string deep in objects; "" when it is anything else."""
    value = get(data, *path)
    return readable(value) if isinstance(value, str) else ""


def seconds(value: object, otherwise: datetime) -> datetime:
    """Seconds since 1970, as a number or its digits."""
    try:
        return datetime.fromtimestamp(int(str(value)), UTC)
    except (ValueError, OverflowError, OSError):
        return otherwise


def stream_id(app_id: str, message_id: str) -> str:
    """The stream that answers a message: the same for every delivery of it, in every process."""
    return "h" + hashlib.sha256(f"{app_id}:{message_id}".encode()).hexdigest()[:31]


def same_origin(url: str, base: str) -> bool:
    """Whether a URL from a payload leads to the host that is configured, by the same scheme and port."""
    try:
        one, two = (
            (parts.scheme, parts.hostname, parts.port) for parts in (urlsplit(url), urlsplit(base))
        )
    except ValueError:
        return False
    return one == two

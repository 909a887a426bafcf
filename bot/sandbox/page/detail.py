"""What the side panel shows of a request and its answer: secrets hidden, long texts cut. Pure."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

_DETAIL_BYTES = 4096
_STRING_CHARS = 800


def detail(value: dict[str, Any], hidden: Set[str]) -> dict[str, Any] | str:
    """Fields named in `hidden` blotted out; as a whole at most 4 KB (then as cut-off pretty JSON)."""
    shown: dict[str, Any] = _redacted(value, hidden)
    raw = msgspec.json.encode(shown)
    if len(raw) <= _DETAIL_BYTES:
        return shown
    return msgspec.json.format(raw, indent=2)[: _DETAIL_BYTES - 4].decode("utf-8", "ignore") + "…"


def _redacted(value: Any, hidden: Set[str]) -> Any:
    if isinstance(value, dict):
        return {
            key: "•••" if key in hidden and item else _redacted(item, hidden)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_redacted(item, hidden) for item in value]
    if isinstance(value, str) and len(value) > _STRING_CHARS:
        return f"{value[:_STRING_CHARS]}… ({len(value)} chars)"
    return value

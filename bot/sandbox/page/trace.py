"""The rows of the side panel: an API call of the bot, and one delivery of a push to it. Alike for every platform. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Set
from typing import TYPE_CHECKING, Any

from bot.sandbox.page.detail import detail

if TYPE_CHECKING:
    from bot.sandbox.records import Attempt, Call, Push

_SEALED_BYTES = 96
_REPLY_BYTES = 512


def call_row(call: Call, title: str, hidden: Set[str]) -> dict[str, Any]:
    """An API call; the fields named in `hidden` are blotted out."""
    return {
        "id": f"c{call.id}",
        "at": int(call.at * 1000),
        "direction": "api",
        "method": call.method,
        "path": call.path,
        "status": call.status,
        "code": call.code,
        "ms": round(call.ms, 1),
        "title": title,
        "detail": detail({"request": call.request, "response": call.response}, hidden),
        "encrypted": False,
    }


def push_row(
    push: Push, attempt: Attempt, path: str, title: str, shown: dict[str, Any], hidden: Set[str]
) -> dict[str, Any]:
    """One delivery; `shown` is what the panel unfolds."""
    tries = f" (try {len(push.attempts)})" if len(push.attempts) > 1 else ""
    return {
        "id": f"w{secrets.token_hex(6)}",
        "at": int(attempt.at * 1000),
        "direction": "webhook",
        "method": "POST" if push.way == "webhook" else "WS",
        "path": path,
        "status": attempt.status,
        "code": 0 if attempt.ok else -1,
        "ms": round(attempt.ms, 1),
        "title": title + tries,
        "detail": detail(shown, hidden),
        "encrypted": push.encrypted,
    }


def sealed(push: Push) -> str:
    """The beginning of a sealed body."""
    if not push.encrypted:
        return "(plain)"
    more = "…" if len(push.body) > _SEALED_BYTES else ""
    return push.body[:_SEALED_BYTES].decode("utf-8", "replace") + more


def answered(attempt: Attempt) -> str:
    """The beginning of what came back, or why nothing did."""
    return attempt.body[:_REPLY_BYTES].decode("utf-8", "replace") or attempt.error

"""DingTalk's two signatures (dingtalk.md §1.1, §5.8). Pure; independent of the adapter on purpose."""

from __future__ import annotations

import base64
import hashlib
import hmac


def robot_sign(timestamp_ms: str, app_secret: str) -> str:
    """`sign` of a robot callback: the body is not part of it."""
    return _mac(app_secret, f"{timestamp_ms}\n{app_secret}")


def card_sign(timestamp_ms: str, api_secret: str) -> str:
    """`x-ddpaas-signature` of a card callback over HTTP."""
    return _mac(api_secret, timestamp_ms)


def _mac(key: str, message: str) -> str:
    digest = hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode("ascii")

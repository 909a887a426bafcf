"""DingTalk's request signatures (dingtalk.md §1.1, §5.8): computing and checking them. Pure.

They cover the time and the secret, never the body: whoever saw one pair of headers can send any body with it until the
window ends. So the window is short, every message is taken once by its own id, and TLS is a must.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime

from bot.errors import Rejected

_MAX_DIGITS = 15


def _base64_hmac(key: str, message: str) -> str:
    digest = hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def robot_signature(timestamp: str, client_secret: str) -> str:
    """The header `sign` of a robot callback."""
    return _base64_hmac(client_secret, f"{timestamp}\n{client_secret}")


def card_signature(timestamp: str, api_secret: str) -> str:
    """The header `x-ddpaas-signature` of a card callback."""
    return _base64_hmac(api_secret, timestamp)


def own_card_secret(client_secret: str) -> str:
    """The secret of card callbacks where none is configured: the same in every process, of no use for anything else."""
    return hmac.new(client_secret.encode(), b"hearth card callback", hashlib.sha256).hexdigest()


def same(given: str, expected: str) -> bool:
    """Compare two signatures in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def check_time(timestamp: str, now: datetime, window_s: float) -> None:
    """Refuse what was signed too long ago or too far ahead. Raises Rejected(401)."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= _MAX_DIGITS):
        raise Rejected(401, "the signature's time is missing or not a number")
    if abs(now.timestamp() - int(timestamp) / 1000) > window_s:
        raise Rejected(
            401, "the signature is too old: is this machine's clock right? (signature_window_s)"
        )

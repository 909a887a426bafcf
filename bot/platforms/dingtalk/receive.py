"""Is this webhook genuine? Robot callbacks (§1.1) and card callbacks (§5.8) of dingtalk.md. Pure computing; fails closed.

Both come to the same bot: which of the two a request is, its signature's header says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bot.errors import Rejected
from bot.platforms.base import Received, WebhookReply, WebhookRequest
from bot.platforms.dingtalk import crypto
from bot.platforms.dingtalk.parse import Identity, read_click, read_message

MAX_BODY_BYTES = 1_048_576


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """What DingTalk and we both know, and how old a signature may be. An empty secret opens nothing."""

    client_secret: str
    card_secret: str
    window_s: float


def receive(
    request: WebhookRequest, secrets: Secrets, identity: Identity, now: datetime
) -> Received:
    """Verify and parse one request. Raises Rejected for anything that is not genuine."""
    if request.method != "POST":
        raise Rejected(405, "DingTalk sends POST")
    if len(request.body) > MAX_BODY_BYTES:
        raise Rejected(413, "the body is larger than any message of DingTalk")
    if "x-ddpaas-signature" in request.headers:
        _check_card(request, secrets, now)
        return Received(WebhookReply(200, {}), (read_click(_json_object(request.body), identity),))
    _check_robot(request, secrets, now)
    event = read_message(_json_object(request.body), identity, now)
    return Received(WebhookReply(200, ""), (event,))


def _check_robot(request: WebhookRequest, secrets: Secrets, now: datetime) -> None:
    # Stripped once, so that the time that is checked is the time that is signed.
    timestamp = request.headers.get("timestamp", "").strip()
    given = request.headers.get("sign", "").strip()
    if not given or not secrets.client_secret:
        raise Rejected(401, "the signature is missing")
    crypto.check_time(timestamp, now, secrets.window_s)
    if not crypto.same(given, crypto.robot_signature(timestamp, secrets.client_secret)):
        raise Rejected(401, "the signature does not match: is client_secret the console's?")


def _check_card(request: WebhookRequest, secrets: Secrets, now: datetime) -> None:
    timestamp = request.headers.get("x-ddpaas-signature-timestamp", "").strip()
    given = request.headers["x-ddpaas-signature"].strip()
    if not given or not secrets.card_secret:
        raise Rejected(401, "the signature is missing")
    crypto.check_time(timestamp, now, secrets.window_s)
    if not crypto.same(given, crypto.card_signature(timestamp, secrets.card_secret)):
        raise Rejected(401, "the card's signature does not match")


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise Rejected(400, "the body is not JSON") from None
    if not isinstance(data, dict):
        raise Rejected(400, "the body is not a JSON object")
    return data

"""Is this webhook genuine? The order of feishu.md §2: size, signature, decryption, token, type. Pure computing.

The one request that comes unsigned is the check of the URL: it may be decrypted, must be a `url_verification` with the
right token, and gets its challenge back; everything else without a signature is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bot.errors import Rejected
from bot.platforms.base import Received, WebhookReply, WebhookRequest
from bot.platforms.feishu import crypto
from bot.platforms.feishu.names import Names
from bot.platforms.feishu.parse import Identity, open_envelope, read_event

MAX_BODY_BYTES = 1_048_576
# The check of the URL is a few hundred bytes; nothing unsigned that is larger gets decrypted.
_MAX_UNSIGNED_BYTES = 16_384
_MAX_CHALLENGE_CHARS = 1024


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """What Feishu and we both know."""

    encrypt_key: str
    verification_token: str


def receive(
    request: WebhookRequest,
    secrets: Secrets,
    identity: Identity,
    now: datetime,
    names: Names | None = None,
) -> Received:
    """Verify, decrypt and parse one request. Raises Rejected for anything that is not genuine."""
    if request.method != "POST":
        raise Rejected(405, "Feishu sends POST")
    if not secrets.encrypt_key or not secrets.verification_token:
        raise Rejected(404, "this bot takes its events over the long connection")
    if len(request.body) > MAX_BODY_BYTES:
        raise Rejected(413, "the body is larger than any event of Feishu")
    signed = _check_signature(request, secrets)
    if not signed and len(request.body) > _MAX_UNSIGNED_BYTES:
        raise Rejected(401, "the signature is missing")
    data = _decrypted(_json_object(request.body), secrets, signed=signed)
    if data.get("type") == "url_verification":
        _check_token(data.get("token"), secrets)
        return _challenge(data)
    if not signed:
        raise Rejected(401, "the signature is missing")
    envelope = open_envelope(data)
    _check_token(envelope.token, secrets)
    return Received(WebhookReply(200, {}), (read_event(envelope, identity, now, names),))


def _check_signature(request: WebhookRequest, secrets: Secrets) -> bool:
    """True when signed rightly, False when not signed at all. Raises Rejected(401) when signed wrongly."""
    signature = request.headers.get("x-lark-signature", "")
    timestamp = request.headers.get("x-lark-request-timestamp", "")
    nonce = request.headers.get("x-lark-request-nonce", "")
    if not signature:
        return False
    expected = crypto.sign(secrets.encrypt_key, timestamp, nonce, request.body)
    if not crypto.same(signature, expected):
        raise Rejected(401, "the signature does not match: is encrypt_key the console's?")
    return True


def _check_token(token: object, secrets: Secrets) -> None:
    if not isinstance(token, str) or not crypto.same(token, secrets.verification_token):
        raise Rejected(401, "the verification token does not match the console's")


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise Rejected(400, "the body is not JSON") from None
    if not isinstance(data, dict):
        raise Rejected(400, "the body is not a JSON object")
    return data


def _decrypted(data: dict[str, Any], secrets: Secrets, *, signed: bool) -> dict[str, Any]:
    if "encrypt" not in data:
        return data
    ciphertext = data["encrypt"]
    if not isinstance(ciphertext, str):
        raise Rejected(400, "the encrypted part is not a string")
    try:
        return _json_object(crypto.decrypt(secrets.encrypt_key, ciphertext))
    except crypto.DecryptError as error:
        raise Rejected(400 if signed else 401, str(error)) from None


def _challenge(data: dict[str, Any]) -> Received:
    challenge = data.get("challenge")
    if not isinstance(challenge, str) or not 0 < len(challenge) <= _MAX_CHALLENGE_CHARS:
        raise Rejected(400, "the check of the URL has no challenge")
    return Received(WebhookReply(200, {"challenge": challenge}))

"""Is this webhook genuine? Size, signature, then decryption, for both of WeCom's formats (wecom.md §1.1-1.3, §2.1). Pure.

The check of the URL is signed like everything else. Must not know what a message says: that is `parse.py` and `appparse.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from bot.errors import Rejected
from bot.platforms.base import Received, WebhookReply, WebhookRequest
from bot.platforms.wecom import crypto

# Both are parsed before anything about them is known to be genuine.
_MAX_JSON_BYTES = 1_048_576
_MAX_XML_BYTES = 65_536


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """What WeCom and we both know. `receive_id` is the company's id for an app, "" for an AI bot."""

    token: str
    key: bytes
    receive_id: str = ""


def check_url(request: WebhookRequest, secrets: Secrets) -> Received:
    """The console's GET (§1.2): the decrypted text and nothing else. Raises Rejected."""
    # Base64 has no spaces: one is a "+" that went through form decoding.
    echo = request.query.get("echostr", "").replace(" ", "+")
    if not echo:
        raise Rejected(400, "the check of the URL has no echostr")
    return Received(WebhookReply(200, _opened(request, secrets, echo).decode("utf-8", "replace")))


def open_json(request: WebhookRequest, secrets: Secrets) -> dict[str, Any]:
    """An AI bot's message out of its envelope. Raises Rejected."""
    _check_size(request, _MAX_JSON_BYTES)
    envelope = _json_object(request.body)
    encrypted = envelope.get("encrypt", envelope.get("Encrypt"))
    if not isinstance(encrypted, str):
        raise Rejected(400, "the body has no encrypted part")
    return _json_object(_opened(request, secrets, encrypted))


def open_xml(request: WebhookRequest, secrets: Secrets) -> Element:
    """An app's message out of its envelope. Raises Rejected."""
    _check_size(request, _MAX_XML_BYTES)
    encrypted = _xml(request.body).findtext("Encrypt")
    if not encrypted:
        raise Rejected(400, "the body has no encrypted part")
    return _xml(_opened(request, secrets, encrypted.strip()))


def sealed(message: Mapping[str, Any], nonce: str, secrets: Secrets, now: datetime) -> WebhookReply:
    """A passive reply to an AI bot's callback (§2.1): all four fields, with the nonce of the callback."""
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    encrypted = crypto.encrypt(secrets.key, text.encode("utf-8", "replace"), secrets.receive_id)
    timestamp = int(now.timestamp())
    signature = crypto.sign(secrets.token, str(timestamp), nonce, encrypted)
    return WebhookReply(
        200,
        {"encrypt": encrypted, "msgsignature": signature, "timestamp": timestamp, "nonce": nonce},
    )


def _check_size(request: WebhookRequest, limit: int) -> None:
    if request.method != "POST":
        raise Rejected(405, "WeCom sends GET and POST")
    if len(request.body) > limit:
        raise Rejected(413, "the body is larger than any message of WeCom")


def _opened(request: WebhookRequest, secrets: Secrets, encrypted: str) -> bytes:
    if not encrypted.isascii():  # half a character in it could not even be hashed
        raise Rejected(400, "the encrypted part is not base64")
    query = request.query
    signature = query.get("msg_signature", "")
    expected = crypto.sign(
        secrets.token, query.get("timestamp", ""), query.get("nonce", ""), encrypted
    )
    if not signature or not crypto.same(signature, expected):
        raise Rejected(401, "the signature does not match: is the token the console's?")
    try:
        return crypto.decrypt(secrets.key, encrypted, secrets.receive_id)
    except crypto.DecryptError as error:
        raise Rejected(400, str(error)) from None


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise Rejected(400, "the body is not JSON") from None
    if not isinstance(data, dict):
        raise Rejected(400, "the body is not a JSON object")
    return data


def _xml(raw: bytes) -> Element:
    """No document type, no entities of its own (§1.5)."""
    try:
        root: Element = fromstring(raw, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise Rejected(400, "the body is not plain XML") from None
    return root

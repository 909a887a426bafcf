"""Seals callbacks and opens passive replies: JSON for an AI bot, XML for an app (wecom.md §1.3, §2.1). Notes what a reply lacks."""

from __future__ import annotations

import hmac
import re
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from bot.sandbox.wecom import crypto
from bot.sandbox.wecom.courier import Letter

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.judge import Judge

Json = dict[str, Any]
_TAG = r"<{0}>\s*(?:<!\[CDATA\[)?(.*?)(?:\]\]>)?\s*</{0}>"


class Sealing:
    """One bot's token and key."""

    def __init__(self, config: WeComConfig, judge: Judge) -> None:
        self._config = config
        self._judge = judge
        self._key = crypto.key_of(config.encoding_aes_key)

    def query_for(self, encrypted: str) -> dict[str, str]:
        """msg_signature, timestamp and nonce of a callback."""
        timestamp, nonce = str(int(self._config.clock())), str(secrets.randbelow(10**10))
        return {
            "msg_signature": crypto.signature(self._config.token, timestamp, nonce, encrypted),
            "timestamp": timestamp,
            "nonce": nonce,
        }

    def encrypt(self, plain: bytes) -> str:
        """As WeCom does it in this mode."""
        return crypto.encrypt(plain, self._key, self._config.receive_id)

    def letter(self, topic: str, plain: bytes, tries: int) -> Letter:
        """A callback, ready to be posted."""
        encrypted = self.encrypt(plain)
        query = self.query_for(encrypted)
        if self._config.mode == "app":
            body = (
                f"<xml><ToUserName><![CDATA[{self._config.corp_id}]]></ToUserName><AgentID>{self._config.agent_id}</AgentID>"
                f"<Encrypt><![CDATA[{encrypted}]]></Encrypt></xml>"
            )
            return Letter(topic, query, body.encode(), "text/xml", tries)
        body_bytes = msgspec.json.encode({"encrypt": encrypted})
        return Letter(topic, query, body_bytes, "application/json", tries)

    def open_json(self, body: bytes, nonce: str, where: str) -> Json | None:
        """The plain reply of an AI bot; None when it says nothing that WeCom would read."""
        if not body.strip():
            return None
        envelope = _json(body)
        if envelope is None or not isinstance(envelope.get("encrypt"), str):
            self._judge.note("plain_reply", f"{where}: {body[:40].decode(errors='replace')}")
            return None
        wanted = {"encrypt": str, "msgsignature": str, "timestamp": int, "nonce": str}
        for name, kind in wanted.items():
            if not isinstance(envelope.get(name), kind):
                self._judge.note("reply_fields", f"{where}: {name} is not a {kind.__name__}")
        if envelope.get("nonce") != nonce:
            self._judge.note("reply_nonce", where)
        signature = str(envelope.get("msgsignature", ""))
        stamp, own = str(envelope.get("timestamp", "")), str(envelope.get("nonce", ""))
        plain = self._open(envelope["encrypt"], (signature, stamp, own), where)
        reply = _json(plain) if plain is not None else None
        if plain is not None and reply is None:
            self._judge.note("reply_not_json", where)
        return reply

    def open_xml(self, body: bytes, where: str) -> str | None:
        """The plain XML of an app's passive reply; None when there is none."""
        text = body.decode(errors="replace").strip()
        if text in {"", "success"}:
            return None
        encrypted = tag_of(text, "Encrypt")
        if not encrypted:
            self._judge.note("plain_reply", f"{where}: {text[:40]}")
            return None
        signed = (tag_of(text, "MsgSignature"), tag_of(text, "TimeStamp"), tag_of(text, "Nonce"))
        plain = self._open(encrypted, signed, where)
        return plain.decode() if plain is not None else None

    def peek(self, body: bytes) -> str:
        """What is inside a passive reply, for the page: judged by nobody, "" when it cannot be opened."""
        sealed = (_json(body) or {}).get("encrypt") or tag_of(
            body.decode(errors="replace"), "Encrypt"
        )
        try:
            return crypto.decrypt(str(sealed), self._key)[0].decode() if sealed else ""
        except ValueError:
            return ""

    def _open(self, encrypted: str, signed: tuple[str, str, str], where: str) -> bytes | None:
        signature, timestamp, nonce = signed
        expected = crypto.signature(self._config.token, timestamp, nonce, encrypted)
        if not hmac.compare_digest(expected, signature):
            self._judge.note("reply_signature", where)
            return None
        try:
            plain, receive_id = crypto.decrypt(encrypted, self._key)
        except ValueError as error:
            self._judge.note("reply_undecryptable", f"{where}: {error}")
            return None
        if receive_id != (self._config.corp_id if self._config.mode == "app" else ""):
            self._judge.note("reply_receive_id", f"{where}: {receive_id}")
            return None
        return plain


def tag_of(xml: str, name: str) -> str:
    """The text of one of the few tags a reply has, "" when it is missing."""
    match = re.search(_TAG.format(name), xml, re.DOTALL)
    return match[1] if match else ""


def _json(text: bytes) -> Json | None:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None

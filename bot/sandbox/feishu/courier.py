"""Carries events to the bot: encrypts, signs, posts, waits 3 s, tries again on the ladder (feishu.md §1.2, §2)."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from bot.sandbox.feishu import crypto, events
from bot.sandbox.postman import Postman
from bot.sandbox.records import Attempt, Push

if TYPE_CHECKING:
    from bot.sandbox.feishu.cardschema import Json
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.gateway import Gateway
    from bot.sandbox.records import Records

# An address that stands for "whatever long connection is open".
LONG_CONNECTION = "long-connection:"


class Courier:
    """Delivers to one event URL and one callback URL (the same when only one is given), or by long connection."""

    def __init__(self, config: SandboxConfig, records: Records, gateway: Gateway) -> None:
        self._config = config
        self._gateway = gateway
        self._records = records
        self._postman = Postman(config.clock)
        self.event_url = ""
        self.callback_url = ""

    async def start(self) -> None:
        """Open the session."""
        await self._postman.start()

    async def close(self) -> None:
        """Cancel the retries, close the session."""
        await self._postman.close()

    def seal(self, payload: Json) -> bytes:
        """The raw body: {"encrypt": …} when there is an Encrypt Key, else the plain event, as on a long connection."""
        plain = msgspec.json.encode(payload)
        if not self._config.encrypt_key or self.event_url == LONG_CONNECTION:
            return plain
        return b'{"encrypt":"%b"}' % crypto.encrypt(plain, self._config.encrypt_key).encode()

    def signed_headers(self, body: bytes) -> dict[str, str]:
        """Timestamp, nonce and signature over the raw body."""
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "X-Lark-Request-Timestamp": str(int(self._config.clock())),
            "X-Lark-Request-Nonce": secrets.token_hex(8),
        }
        if self._config.encrypt_key:
            headers["X-Lark-Signature"] = crypto.signature(
                headers["X-Lark-Request-Timestamp"],
                headers["X-Lark-Request-Nonce"],
                self._config.encrypt_key,
                body,
            )
        return headers

    async def push(self, payload: Json, *, url: str = "", retry: bool = True) -> Push:
        """Deliver an event: returns after the first attempt; a failed one is tried again in the background."""
        body = self.seal(payload)
        push = Push(
            events.event_id_of(payload),
            events.event_type_of(payload),
            payload,
            body,
            bool(self._config.encrypt_key),
        )
        self._records.add_push(push)
        url = url or self.event_url
        if not url:
            return push
        headers = self.signed_headers(body)
        attempt = await self.post(url, body, headers)
        self._records.add_attempt(push, attempt)
        if retry and not attempt.ok and self._config.redelivery_s:
            self._postman.later(self._ladder(push, url, headers), f"redeliver {push.event_id}")
        return push

    async def _ladder(self, push: Push, url: str, headers: dict[str, str]) -> None:
        for wait_s in self._config.redelivery_s:
            await asyncio.sleep(wait_s)
            if self._config.retry_fresh_timestamp:
                headers = self.signed_headers(push.body)
            attempt = await self.post(url, push.body, headers)
            self._records.add_attempt(push, attempt)
            if attempt.ok:
                return

    async def post(
        self, url: str, body: bytes, headers: dict[str, str], deadline_s: float | None = None
    ) -> Attempt:
        """One POST as Feishu does it: no redirects, 2 s to connect, the whole answer within the deadline."""
        if url == LONG_CONNECTION:
            return await self._gateway.deliver(body, deadline_s or self._config.deadline_s)
        limit_s = deadline_s if deadline_s is not None else self._config.deadline_s
        return await self._postman.request("POST", url, limit_s, body, headers)


def decode_reply(text: bytes) -> Any:
    """The JSON of an answer, None when it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None

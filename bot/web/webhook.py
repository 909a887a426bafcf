"""`/webhook/{bot}`: bytes in, verified events to the inbox, the platform's answer out.

The event is on disk before the answer leaves (DESIGN §4 steps 1-4). Whatever is not genuine gets a 4xx and one log line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog
from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from bot.domain.types import InboundEvent
from bot.errors import HearthError, Rejected
from bot.platforms.base import PlatformAdapter, WebhookReply, WebhookRequest

log = structlog.get_logger()

# Feishu gives up after 3 s; a body that has not arrived by then is not worth waiting for.
BODY_TIMEOUT_S = 5.0


class Inbox(Protocol):
    """What takes verified events: returns after they are stored."""

    async def accept(
        self, bot_name: str, adapter: PlatformAdapter, events: tuple[InboundEvent, ...]
    ) -> WebhookReply | None: ...


class WebhookHandler:
    """Serves the webhook of every configured bot. Holds no state of its own."""

    def __init__(
        self, adapters: Mapping[str, PlatformAdapter], inbox: Inbox, max_body_bytes: int
    ) -> None:
        self._adapters = adapters
        self._inbox = inbox
        self._max_body_bytes = max_body_bytes

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request of a platform."""
        name = request.match_info["bot"]
        adapter = self._adapters.get(name)
        if adapter is None:
            return _answer(WebhookReply(404, {"error": "no bot of this name is configured"}))
        try:
            body = await self._read(request)
            received = adapter.receive(
                WebhookRequest(
                    method=request.method,
                    headers={key.lower(): value for key, value in request.headers.items()},
                    query=dict(request.query),
                    body=body,
                )
            )
        except Rejected as refusal:
            log.warning("webhook_refused", bot=name, status=refusal.status, reason=refusal.reason)
            return _answer(WebhookReply(refusal.status, {"error": refusal.reason}))
        if not received.events:
            return _answer(received.reply)
        try:
            reply = await self._inbox.accept(name, adapter, received.events)
        except HearthError as error:
            # Not stored, so not acknowledged: the platform delivers it again.
            log.warning("webhook_not_stored", bot=name, error=str(error))
            return _answer(WebhookReply(503, {"error": "try again"}))
        return _answer(reply or received.reply)

    async def _read(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > self._max_body_bytes:
            raise Rejected(413, "the body is larger than server.max_body_bytes")
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise Rejected(413, "the body is larger than server.max_body_bytes") from None
        except TimeoutError:
            raise Rejected(408, "the body did not arrive in time") from None
        except (ConnectionError, ClientPayloadError, HttpProcessingError, web.RequestPayloadError):
            raise Rejected(400, "the body did not arrive whole") from None


def _answer(reply: WebhookReply) -> web.Response:
    if isinstance(reply.body, str):
        return web.Response(status=reply.status, text=reply.body)
    return web.json_response(reply.body, status=reply.status)

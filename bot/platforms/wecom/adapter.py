"""One configured WeCom AI bot (implements PlatformAdapter), by callback or by long connection.

By callback it owns the shelf of streams that refresh polls are answered from; by long connection the socket. A poll is no
event and is not stored: it is answered at once with the newest snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from bot.config import WeComBotConfig
from bot.domain.types import Attachment, InboundMessage, Quoted, ReplyTarget
from bot.errors import Ambiguous, PlatformError, Rejected, RetryLater
from bot.platforms.base import (
    EventSink,
    Link,
    MayConnect,
    PartLedger,
    Received,
    ReplyDriver,
    WebhookReply,
    WebhookRequest,
    always,
)
from bot.platforms.downloads import Sources
from bot.platforms.http import SharedHttp
from bot.platforms.wecom import media
from bot.platforms.wecom.crypto import aes_key
from bot.platforms.wecom.fields import text_of
from bot.platforms.wecom.longconn import Frame, LongConnection
from bot.platforms.wecom.parse import Identity, read_message
from bot.platforms.wecom.pollreply import PolledReply
from bot.platforms.wecom.pushdesk import PushDesk
from bot.platforms.wecom.pushreply import PushedReply
from bot.platforms.wecom.receive import Secrets, check_url, open_json, sealed
from bot.platforms.wecom.streams import StreamShelf
from bot.platforms.wecom.urls import ResponseUrls

log = structlog.get_logger()

# "Accepted, nothing to say" (wecom.md §2.1).
_NOTHING = WebhookReply(200, "")


def _text(text: str) -> dict[str, Any]:
    return {"msgtype": "text", "text": {"content": text}}


class _BotBase:
    """What both modes share."""

    platform = "wecom_bot"

    def __init__(self, name: str, config: WeComBotConfig, http: SharedHttp) -> None:
        self.name = name
        self.config = config
        self._http = http
        self._identity = Identity(config.app_id, config.api_base, config.bot_id, config.bot_name)

    @property
    def app_id(self) -> str:
        """The bot's id, or what stands for it."""
        return self.config.app_id

    @property
    def display_name(self) -> str:
        """The configured name; WeCom does not tell it."""
        return self.config.bot_name or self.name

    def button_reply(self, toast: str, *, kind: str = "info") -> WebhookReply:
        """Answers have no buttons here; nothing is shown for one."""
        del toast, kind
        return _NOTHING

    async def look_up(self, quoted: Quoted, target: ReplyTarget) -> Quoted | None:
        """What is quoted comes with the question, without an id (wecom.md §2.2)."""
        del quoted, target
        return None

    async def fetch(self, attachment: Attachment, target: ReplyTarget, *, max_bytes: int) -> bytes:
        """The bytes of an attachment, within 5 minutes of its arrival. Raises PlatformError."""
        del target
        text = self.config.encoding_aes_key.get_secret_value()
        key = aes_key(text) if text else b""
        sources = Sources((self.config.api_base,), self.config.media_hosts)
        return await media.fetch(self._http, attachment, key, sources, max_bytes=max_bytes)


class WeComCallbackAdapter(_BotBase):
    """An AI bot that WeCom calls and polls."""

    link = Link.NONE

    def __init__(self, name: str, config: WeComBotConfig, http: SharedHttp) -> None:
        super().__init__(name, config, http)
        key = aes_key(config.encoding_aes_key.get_secret_value())
        self._secrets = Secrets(config.token.get_secret_value(), key)
        self.shelf = StreamShelf(config.stream_cutoff_s)
        self.urls = ResponseUrls(http)

    async def start(self) -> None:
        """Nothing runs in the background."""

    async def close(self) -> None:
        """Nothing to end."""

    async def listen(self, sink: EventSink, may_connect: MayConnect = always) -> None:
        """Everything comes by webhook."""
        del sink, may_connect

    async def hang_up(self) -> None:
        """There is no connection."""

    def receive(self, request: WebhookRequest) -> Received:
        """Verify and decrypt, then answer: a message with its stream, a poll with the newest snapshot (wecom.md §2)."""
        if request.method == "GET":
            return check_url(request, self._secrets)
        data = open_json(request, self._secrets)
        if text_of(data, "msgtype") == "stream":
            stream_id = text_of(data, "stream", "id")
            if not stream_id:
                return Received(_NOTHING)
            return Received(
                self._sealed(self.shelf.poll(stream_id).message(), request.query.get("nonce", ""))
            )
        nonce = request.query.get("nonce", "")
        event = read_message(data, self._identity, datetime.now(UTC), nonce=nonce)
        if not isinstance(event, InboundMessage):
            return Received(_NOTHING, (event,))
        place = (event.chat_id, event.sender.user_id)
        self.urls.remember(place, event.target.opaque["url"])
        stream = self.shelf.open(event.target.opaque["stream"], place)
        message = stream.first_message() if self.config.feedback else stream.message()
        return Received(self._sealed(message, nonce), (event,))

    def _sealed(self, message: dict[str, Any], nonce: str) -> WebhookReply:
        return sealed(message, nonce, self._secrets, datetime.now(UTC))

    async def welcome(self, target: ReplyTarget, text: str) -> WebhookReply | None:
        """The answer to the callback itself: nothing else would be taken (wecom.md §2.5)."""
        return self._sealed(_text(text), target.opaque.get("nonce", ""))

    def open_reply(self, target: ReplyTarget, ledger: PartLedger) -> ReplyDriver:
        """A driver for one answer."""
        return PolledReply(self.shelf, self.urls, target, ledger)

    async def show_alive(self, target: ReplyTarget) -> str:
        """The moving dots are there already; now it is known that an answer will come."""
        stream_id = target.opaque.get("stream", "")
        return stream_id if self.shelf.expect(stream_id) else ""

    async def find_alive(self, target: ReplyTarget) -> str:
        """The bubble of the question; after a crash it is found by its id."""
        return target.opaque.get("stream", "")

    async def clear_alive(self, target: ReplyTarget, token: str) -> None:
        """A bubble that the answer does not go into points to it."""
        del target
        self.shelf.let_go(token)

    def health(self) -> Mapping[str, str]:
        """Facts for /readyz."""
        return {"mode": "webhook", "open_streams": str(self.shelf.n_open)}


class WeComSocketAdapter(_BotBase):
    """An AI bot that holds a long connection."""

    link = Link.SPEAKS

    def __init__(self, name: str, config: WeComBotConfig, http: SharedHttp) -> None:
        super().__init__(name, config, http)
        self.connection = LongConnection(
            name, config.ws_url, config.bot_id, config.secret.get_secret_value()
        )
        self.desk = PushDesk(self.connection, config)
        self._welcoming: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connecting waits until events can be stored."""

    async def listen(self, sink: EventSink, may_connect: MayConnect = always) -> None:
        """Connect, and give everything that comes to the sink."""

        async def store(frames: list[Frame]) -> None:
            now = datetime.now(UTC)
            await sink(
                tuple(
                    read_message(frame.body, self._identity, now, req_id=frame.req_id)
                    for frame in frames
                )
            )

        self.connection.start(store, may_connect)

    async def hang_up(self) -> None:
        """End the connection; `listen` may begin it again."""
        for task in self._welcoming:
            task.cancel()
        await asyncio.gather(*self._welcoming, return_exceptions=True)
        await self.connection.close()

    async def close(self) -> None:
        """End the connection."""
        await self.connection.close()

    def receive(self, request: WebhookRequest) -> Received:
        """Nothing comes by webhook."""
        raise Rejected(404, f"this bot takes its events over the long connection, not by {request.method}")  # fmt: skip

    async def welcome(self, target: ReplyTarget, text: str) -> WebhookReply | None:
        """A frame of its own within 5 s (wecom.md §3.3); what comes in meanwhile does not wait for it."""
        task = asyncio.create_task(self._welcome(target.opaque.get("req", ""), text))
        self._welcoming.add(task)
        task.add_done_callback(self._welcoming.discard)
        return None

    async def _welcome(self, req_id: str, text: str) -> None:
        try:
            await self.connection.call("aibot_respond_welcome_msg", _text(text), req_id)
        except PlatformError as error:
            log.info("wecom_welcome_lost", bot=self.name, code=error.code)

    def open_reply(self, target: ReplyTarget, ledger: PartLedger) -> ReplyDriver:
        """A driver for one answer."""
        return PushedReply(self.desk, target, ledger)

    async def show_alive(self, target: ReplyTarget) -> str:
        """Open the answer's bubble with moving dots. Returns its stream's id."""
        return await self.desk.show_placeholder(target)

    async def find_alive(self, target: ReplyTarget) -> str:
        """The bubble that was perhaps opened before a crash."""
        return target.opaque.get("stream", "")

    async def clear_alive(self, target: ReplyTarget, token: str) -> None:
        """A bubble that the answer does not go into points to it."""
        try:
            await self.desk.end_placeholder(target, token)
        except (RetryLater, Ambiguous):
            log.info("wecom_placeholder_left", bot=self.name)
        except PlatformError as error:
            log.debug("wecom_placeholder_refused", bot=self.name, code=error.code)

    def health(self) -> Mapping[str, str]:
        """Facts for /readyz."""
        return {"mode": "websocket", **self.connection.facts()}

"""One configured DingTalk bot (implements PlatformAdapter): puts the parts of this package together.

Owns the app's API client, the stream where that is the mode, and the task that registers the address for clicks on cards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from bot.config import DingTalkBotConfig
from bot.domain.types import Attachment, InboundEvent, Quoted, ReplyTarget, Unreadable
from bot.errors import FallBack, GiveUp, PlatformError, Rejected, RetryLater
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
from bot.platforms.budget import CallBudget
from bot.platforms.dingtalk import crypto
from bot.platforms.dingtalk.api import Address, DingTalkApi
from bot.platforms.dingtalk.client import DingTalkClient
from bot.platforms.dingtalk.desk import ReplyDesk
from bot.platforms.dingtalk.longconn import StreamListener
from bot.platforms.dingtalk.parse import QUOTA_REASON, Identity, read_click, read_message
from bot.platforms.dingtalk.receive import Secrets, receive
from bot.platforms.dingtalk.reply import DingTalkReply
from bot.platforms.dingtalk.socket import CARD_TOPIC
from bot.platforms.downloads import Sources, download
from bot.platforms.http import SharedHttp

log = structlog.get_logger()

_MAX_BACKOFF_S = 300.0


class DingTalkAdapter:
    """One bot on DingTalk. Lives as long as the process; `close` ends its tasks."""

    platform = "dingtalk"

    def __init__(
        self, name: str, config: DingTalkBotConfig, http: SharedHttp, budget: CallBudget
    ) -> None:
        self.name = name
        self.config = config
        self._http = http
        client_secret = config.client_secret.get_secret_value()
        card_secret = config.card_callback_secret.get_secret_value()
        self._secrets = Secrets(
            client_secret,
            card_secret or crypto.own_card_secret(client_secret),
            config.signature_window_s,
        )
        bases = (config.api_base, config.oapi_base)
        self.client = DingTalkClient(bases, config.client_id, client_secret, http, budget)
        self.api = DingTalkApi(self.client)
        self.desk = ReplyDesk(self.api, config)
        self.identity = Identity(config.client_id, config.robot_name)
        self.stream: StreamListener | None = None
        if config.mode == "stream":
            credentials = (config.client_id, client_secret)
            self.stream = StreamListener(self.client, credentials, cards=bool(config.card_template))
        self._registrar: asyncio.Task[None] | None = None
        self._registered = not config.card_callback_url
        self._quota_spent = ""

    @property
    def app_id(self) -> str:
        """DingTalk's id of the app."""
        return self.config.client_id

    @property
    def display_name(self) -> str:
        """The robot's name as configured: DingTalk does not tell it."""
        return self.config.robot_name or self.name

    def on_call(self, hook: Callable[[str, bool], None]) -> None:
        """Be told of every API call: its name and whether it was done."""
        self.client.on_call.append(hook)

    async def start(self) -> None:
        """Fetch a token in the background, and have clicks on cards sent to us."""
        self.client.tokens.start()
        wanted = self.config.mode == "webhook" and self.config.card_callback_url
        if wanted and self._registrar is None:
            self._registrar = asyncio.create_task(self._register(), name=f"cards-{self.name}")

    async def close(self) -> None:
        """End the background tasks; hang up."""
        registrar, self._registrar = self._registrar, None
        if registrar is not None:
            registrar.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await registrar
        if self.stream is not None:
            await self.stream.close()
        await self.client.tokens.close()

    async def _register(self) -> None:
        """POST card/callbacks/register until it succeeds once (§5.8)."""
        pause_s = 1.0
        while True:
            try:
                await self.api.register_callback(
                    self.desk.route_key, self.config.card_callback_url, self._secrets.card_secret
                )
            except PlatformError as error:
                log.warning("dingtalk_clicks_not_registered", bot=self.name, error=str(error), retry_in_s=pause_s)  # fmt: skip
            else:
                self._registered = True
                return
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_BACKOFF_S, pause_s * 2)

    # -- in ----------------------------------------------------------------------------------------------------------
    @property
    def link(self) -> Link:
        """In stream mode events come over the stream; answers always go by HTTP."""
        return Link.NONE if self.stream is None else Link.HEARS

    async def listen(self, sink: EventSink, may_connect: MayConnect = always) -> None:
        """Connect, in stream mode."""
        if self.stream is None:
            return

        async def take(
            topic: str, contents: tuple[Mapping[str, Any], ...]
        ) -> Mapping[str, Any] | None:
            events = self._read(topic, contents)
            reply = await sink(events)
            if reply is None or not isinstance(reply.body, dict):
                return {} if topic == CARD_TOPIC else None
            return reply.body

        await self.stream.start(take, may_connect)

    async def hang_up(self) -> None:
        """End the stream; `listen` may begin it again."""
        if self.stream is not None:
            await self.stream.close()

    def _read(
        self, topic: str, contents: tuple[Mapping[str, Any], ...]
    ) -> tuple[InboundEvent, ...]:
        if topic == CARD_TOPIC:
            return tuple(read_click(data, self.identity) for data in contents)
        now = datetime.now(UTC)
        events = tuple(read_message(data, self.identity, now) for data in contents)
        self._note_quota(events)
        return events

    def receive(self, request: WebhookRequest) -> Received:
        """Verify and parse (dingtalk.md §1.1, §5.8)."""
        if self.config.mode != "webhook":
            raise Rejected(404, "this bot takes its messages over the stream")
        received = receive(request, self._secrets, self.identity, datetime.now(UTC))
        self._note_quota(received.events)
        return received

    def _note_quota(self, events: tuple[InboundEvent, ...]) -> None:
        """Messages without content (20001) leave people unanswered: the admin must see why."""
        for event in events:
            if isinstance(event, Unreadable):
                if event.reason == QUOTA_REASON:
                    self._quota_spent = QUOTA_REASON
            else:
                self._quota_spent = ""

    def button_reply(self, toast: str, *, kind: str = "info") -> WebhookReply:
        """Empty: DingTalk's answer to a click can change the card, but knows no toast (§5.8)."""
        del toast, kind
        return WebhookReply(200, {})

    # -- out ---------------------------------------------------------------------------------------------------------
    async def welcome(self, target: ReplyTarget, text: str) -> WebhookReply | None:
        """DingTalk does not tell who opens a chat."""
        del target, text
        return None

    def open_reply(self, target: ReplyTarget, ledger: PartLedger) -> ReplyDriver:
        """A driver for one answer."""
        return DingTalkReply(self.desk, target, ledger)

    async def show_alive(self, target: ReplyTarget) -> str:
        """None: the sign that DingTalk knows costs two counted calls per answer (§4.3)."""
        del target
        return ""

    async def find_alive(self, target: ReplyTarget) -> str:
        """None is ever shown."""
        del target
        return ""

    async def clear_alive(self, target: ReplyTarget, token: str) -> None:
        """None is ever shown."""

    async def fetch(self, attachment: Attachment, target: ReplyTarget, *, max_bytes: int) -> bytes:
        """By its downloadCode: one counted call for a short-lived address, then the address (§1.2)."""
        if not attachment.remote_key:
            raise GiveUp("file_url: the attachment has no downloadCode")
        config = self.config
        robot_code = Address.of(target, config.robot_code).robot_code
        try:
            url = await self.api.file_url(attachment.remote_key, robot_code)
        except FallBack as error:
            raise GiveUp(str(error), code=error.code) from None
        sources = Sources((config.api_base, config.oapi_base), config.media_hosts)
        answer = await download(self._http, "file", url, sources, max_bytes=max_bytes)
        if answer.status != 200:
            raise (
                RetryLater(f"file: HTTP {answer.status}")
                if answer.status >= 500
                else GiveUp(f"file: HTTP {answer.status}")
            )
        return answer.body

    async def look_up(self, quoted: Quoted, target: ReplyTarget) -> Quoted | None:
        """A message is told of with the question, or not at all (dingtalk.md §1.2)."""
        del quoted, target
        return None

    def health(self) -> Mapping[str, str]:
        """Facts for /readyz."""
        facts = {
            "token": "known" if self.client.tokens.known else "unknown",
            "cards": self.desk.why_whole() or "streaming",
            "growing": str(self.desk.n_growing),
            "calls_this_month": self.client.budget.told(),
        }
        if self.stream is not None:
            facts |= self.stream.health()
        if not self._registered:
            facts["buttons"] = "the address for clicks is not registered yet"
        if error := self._quota_spent or self.client.trouble:
            facts["error"] = error
        return facts


def open_adapter(
    name: str, config: DingTalkBotConfig, http: SharedHttp, budget: CallBudget
) -> DingTalkAdapter:
    """The adapter of one configured bot; `start` it before use."""
    return DingTalkAdapter(name, config, http, budget)

"""One configured Feishu bot (implements PlatformAdapter): puts the parts of this package together.

Owns the app's API client, the knowledge of its own identity, and the task that learns it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import structlog

from bot.config import FeishuBotConfig
from bot.domain.types import Attachment, Quoted, ReplyTarget
from bot.errors import Ambiguous, FallBack, GiveUp, PlatformError, Rejected, RetryLater
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
from bot.platforms.feishu.api import FeishuApi
from bot.platforms.feishu.client import FeishuClient
from bot.platforms.feishu.desk import ReplyDesk
from bot.platforms.feishu.errors import CardKitRefused
from bot.platforms.feishu.longconn import LongConnection, plain_event
from bot.platforms.feishu.names import Names
from bot.platforms.feishu.parse import Identity, open_envelope, read_event, read_quoted
from bot.platforms.feishu.receive import Secrets, receive
from bot.platforms.feishu.reply import FeishuReply
from bot.platforms.http import SharedHttp

log = structlog.get_logger()

_TYPING = "Typing"
# A reaction on an old message notifies people for nothing (feishu.md §4.7).
_ALIVE_WITHIN = timedelta(minutes=2)
_IDENTITY_WAIT_S = 1.0
_MAX_BACKOFF_S = 60.0
# Below this share of the month's calls, signs of life (two calls each) are saved for answers.
_THRIFTY_BELOW = 0.1


class FeishuAdapter:
    """One bot on Feishu. Lives as long as the process; `close` ends its tasks."""

    platform = "feishu"

    def __init__(
        self, name: str, config: FeishuBotConfig, http: SharedHttp, budget: CallBudget
    ) -> None:
        self.name = name
        self.config = config
        self._secrets = Secrets(
            config.encrypt_key.get_secret_value(), config.verification_token.get_secret_value()
        )
        self.client = FeishuClient(
            config.api_base, config.app_id, config.app_secret.get_secret_value(), http, budget
        )
        self.api = FeishuApi(self.client)
        self.desk = ReplyDesk(self.api, config)
        self._identity = Identity(config.app_id)
        self._names = Names()
        self._learner: asyncio.Task[None] | None = None
        self._connection: LongConnection | None = None
        if config.mode == "websocket":
            self._connection = LongConnection(
                config.api_base, config.app_id, config.app_secret.get_secret_value()
            )
        self._last_error = ""
        self._reactions_refused = False

    @property
    def app_id(self) -> str:
        """Feishu's id of the app."""
        return self.config.app_id

    @property
    def display_name(self) -> str:
        """The app's name in Feishu; the config's until it is known."""
        return self._identity.name or self.name

    def on_call(self, hook: Callable[[str, bool], None]) -> None:
        """Be told of every API call: its name and whether it was done."""
        self.client.on_call.append(hook)

    async def start(self) -> None:
        """Fetch a token and our own identity in the background; waits a moment for it, never for long."""
        if self._learner is None:
            self.client.tokens.start()
            self._learner = asyncio.create_task(
                self._learn_identity(), name=f"identity-{self.name}"
            )
            await asyncio.wait({self._learner}, timeout=_IDENTITY_WAIT_S)

    async def close(self) -> None:
        """End the background tasks."""
        if self._connection is not None:
            await self._connection.close()
        learner, self._learner = self._learner, None
        if learner is not None:
            learner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await learner
        await self.client.tokens.close()

    @property
    def link(self) -> Link:
        """With mode = "websocket" events come over the long connection; answers always go by HTTP."""
        return Link.NONE if self._connection is None else Link.HEARS

    async def listen(self, sink: EventSink, may_connect: MayConnect = always) -> None:
        """Open the long connection, where the mode is "websocket"."""
        if self._connection is None:
            return

        async def store(payload: bytes) -> dict[str, Any] | None:
            try:
                envelope = open_envelope(plain_event(payload))
                event = read_event(envelope, self._identity, datetime.now(UTC), self._names)
            except (Rejected, ValueError) as error:
                if isinstance(error, Rejected) and error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                    raise  # not acknowledged, so that it comes again
                log.warning("feishu_event_unreadable", bot=self.name, error=str(error))
                return None  # it would be as unreadable the next time
            reply = await sink((event,))
            return reply.body if reply is not None and isinstance(reply.body, dict) else None

        self._connection.start(store, may_connect)

    async def hang_up(self) -> None:
        """End the long connection; `listen` may open it again."""
        if self._connection is not None:
            await self._connection.close()

    async def _learn_identity(self) -> None:
        """GET bot/v3/info until it succeeds once; never again after that (polling it burns quotas)."""
        pause_s = 0.5
        while True:
            try:
                open_id, name = await self.api.bot_identity()
            except PlatformError as error:
                self._last_error = str(error)
                log.warning(
                    "feishu_identity_unknown", bot=self.name, error=str(error), retry_in_s=pause_s
                )
            else:
                self._identity = Identity(self.app_id, open_id, name)
                self._last_error = ""
                log.info("feishu_identity_known", bot=self.name, app_id=self.app_id)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_BACKOFF_S, pause_s * 2)

    def receive(self, request: WebhookRequest) -> Received:
        """Verify, decrypt, parse (feishu.md §2)."""
        return receive(request, self._secrets, self._identity, datetime.now(UTC), self._names)

    def button_reply(self, toast: str, *, kind: str = "info") -> WebhookReply:
        """Only a toast: a streaming card cannot be changed by the answer to a click (feishu.md §1.6)."""
        return WebhookReply(200, {"toast": {"type": kind, "content": toast}} if toast else {})

    async def welcome(self, target: ReplyTarget, text: str) -> WebhookReply | None:
        """Feishu shows a greeting of its own; nobody asks for one."""
        del target, text
        return None

    def open_reply(self, target: ReplyTarget, ledger: PartLedger) -> ReplyDriver:
        """A driver for one answer."""
        return FeishuReply(self.desk, target, ledger)

    async def show_alive(self, target: ReplyTarget) -> str:
        """The reaction "Typing" on the question. Returns its id."""
        if not target.reply_to or self._reactions_refused or not _is_fresh(target):
            return ""
        if self.client.budget.calls_left() < _THRIFTY_BELOW:
            return ""
        try:
            return await self.api.add_reaction(target.reply_to, _TYPING)
        except CardKitRefused as error:
            self._reactions_refused = True
            log.warning("feishu_reactions_refused", bot=self.name, code=error.code,
                        mend="grant the scope im:message.reactions:write_only and publish a version")  # fmt: skip
        except PlatformError as error:
            log.debug("feishu_reaction_failed", bot=self.name, code=error.code)
        return ""

    async def find_alive(self, target: ReplyTarget) -> str:
        """The reaction that an earlier process set but could not write down; adding it again would notify people."""
        try:
            return await self.api.find_own_reaction(target.reply_to, _TYPING)
        except PlatformError as error:
            log.debug("feishu_reaction_not_listed", bot=self.name, code=error.code)
            return ""

    async def clear_alive(self, target: ReplyTarget, token: str) -> None:
        """Take the reaction away; tried three times, because one left behind says "typing" for ever."""
        if not token:
            return
        for pause_s in (0.5, 2.0, 0.0):
            try:
                await self.api.remove_reaction(target.reply_to, token)
            except (RetryLater, Ambiguous):
                await asyncio.sleep(pause_s)
            except PlatformError as error:
                log.debug("feishu_reaction_not_removed", bot=self.name, code=error.code)
                return
            else:
                return

    async def fetch(self, attachment: Attachment, target: ReplyTarget, *, max_bytes: int) -> bytes:
        """GET messages/:id/resources/:key; stickers and what has no key cannot be had (feishu.md §1.4)."""
        if not attachment.remote_key or not target.reply_to or attachment.kind == "sticker":
            raise GiveUp("message_resource: the attachment cannot be downloaded")
        kind = "image" if attachment.kind == "image" else "file"
        try:
            return await self.api.resource(
                target.reply_to, attachment.remote_key, kind, max_bytes=max_bytes
            )
        except FallBack as error:
            raise GiveUp(str(error), code=error.code) from None

    async def look_up(self, quoted: Quoted, target: ReplyTarget) -> Quoted | None:
        """GET messages/:id: an event names what it answers and tells no more of it (feishu.md §1.4). One call."""
        if not quoted.message_id:
            return None
        try:
            item = await self.api.message(quoted.message_id)
        except PlatformError as error:
            log.info("feishu_quote_not_read", bot=self.name, code=error.code)
            return None
        return read_quoted(item, target.chat_id, self._identity)

    def health(self) -> Mapping[str, str]:
        """Facts for /readyz."""
        facts = {
            "identity": "known" if self._identity.open_id else "unknown",
            "token": "known" if self.client.tokens.known else "unknown",
            "cards": self.desk.cards,
            "growing": str(self.desk.n_growing),
        }
        if self._connection is not None:
            facts |= self._connection.health()
        if error := self._last_error or self.client.trouble:
            facts["error"] = error
        return facts


def _is_fresh(target: ReplyTarget) -> bool:
    try:
        sent_at = datetime.fromisoformat(target.opaque.get("sent_at", ""))
    except ValueError:
        return False
    return datetime.now(UTC) - sent_at < _ALIVE_WITHIN


def open_adapter(
    name: str, config: FeishuBotConfig, http: SharedHttp, budget: CallBudget
) -> FeishuAdapter:
    """The adapter of one configured bot; `start` it before use."""
    return FeishuAdapter(name, config, http, budget)

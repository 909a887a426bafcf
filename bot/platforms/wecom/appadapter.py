"""One configured WeCom self-built app (implements PlatformAdapter): XML in, short messages out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from bot.config import WeComAppConfig
from bot.domain.types import Attachment, Quoted, ReplyTarget
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
from bot.platforms.http import SharedHttp
from bot.platforms.wecom import media
from bot.platforms.wecom.appparse import AppIdentity, read_app_message
from bot.platforms.wecom.appreply import AppReply
from bot.platforms.wecom.client import WeComClient
from bot.platforms.wecom.crypto import aes_key
from bot.platforms.wecom.receive import Secrets, check_url, open_xml

# "Accepted, no passive reply" (wecom.md §1.3).
_ACCEPTED = WebhookReply(200, "")


class WeComAppAdapter:
    """One app. Lives as long as the process; `close` ends its token's task."""

    platform = "wecom_app"
    link = Link.NONE

    def __init__(
        self, name: str, config: WeComAppConfig, http: SharedHttp, budget: CallBudget
    ) -> None:
        self.name = name
        self.config = config
        key = aes_key(config.encoding_aes_key.get_secret_value())
        self._secrets = Secrets(config.token.get_secret_value(), key, config.corp_id)
        self._identity = AppIdentity(config.app_id, config.agent_id)
        self.client = WeComClient(
            config.api_base,
            (config.corp_id, config.corp_secret.get_secret_value()),
            http,
            budget,
            per_minute=config.messages_per_minute,
        )

    @property
    def app_id(self) -> str:
        """The company and the app in it."""
        return self.config.app_id

    @property
    def display_name(self) -> str:
        """WeCom does not tell the app's name."""
        return self.name

    def on_call(self, hook: Callable[[str, bool], None]) -> None:
        """Be told of every API call: its name and whether it was done."""
        self.client.on_call.append(hook)

    async def start(self) -> None:
        """Keep a token fresh in the background."""
        self.client.tokens.start()

    async def close(self) -> None:
        """End the background task."""
        await self.client.tokens.close()

    async def listen(self, sink: EventSink, may_connect: MayConnect = always) -> None:
        """Everything comes by webhook."""
        del sink, may_connect

    async def hang_up(self) -> None:
        """There is no connection."""

    def receive(self, request: WebhookRequest) -> Received:
        """Verify, decrypt, parse (wecom.md §1)."""
        if request.method == "GET":
            return check_url(request, self._secrets)
        xml = open_xml(request, self._secrets)
        return Received(_ACCEPTED, (read_app_message(xml, self._identity, datetime.now(UTC)),))

    def button_reply(self, toast: str, *, kind: str = "info") -> WebhookReply:
        """Answers have no buttons here."""
        del toast, kind
        return _ACCEPTED

    async def welcome(self, target: ReplyTarget, text: str) -> WebhookReply | None:
        """Told on every opening (wecom.md §1.4): a greeting each time would be a nuisance."""
        del target, text
        return None

    def open_reply(self, target: ReplyTarget, ledger: PartLedger) -> ReplyDriver:
        """A driver for one answer."""
        config = self.config
        return AppReply(self.client, config.agent_id, config.message_format, target, ledger)

    async def show_alive(self, target: ReplyTarget) -> str:
        """A message that could not be taken away again is no sign of life."""
        del target
        return ""

    async def find_alive(self, target: ReplyTarget) -> str:
        """See `show_alive`."""
        del target
        return ""

    async def clear_alive(self, target: ReplyTarget, token: str) -> None:
        """See `show_alive`."""
        del target, token

    async def fetch(self, attachment: Attachment, target: ReplyTarget, *, max_bytes: int) -> bytes:
        """The bytes of an attachment, within 3 days of its arrival. Raises PlatformError."""
        del target
        media_id = media.keys_of(attachment)["media_id"]
        answer = await self.client.media(media_id, max_bytes=max_bytes)
        return answer.body

    async def look_up(self, quoted: Quoted, target: ReplyTarget) -> Quoted | None:
        """An app is told of no quotes."""
        del quoted, target
        return None

    def health(self) -> Mapping[str, str]:
        """Facts for /readyz."""
        facts = {"mode": "webhook", "token": "known" if self.client.tokens.known else "unknown"}
        if self.client.trouble:
            facts["error"] = self.client.trouble
        return facts

"""FeishuSandbox: the platform on loopback, in one object. Builds the parts, starts the server, offers the people's acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from aiohttp import web

from bot.sandbox.changes import Changes
from bot.sandbox.clock import dated
from bot.sandbox.faults import Faults
from bot.sandbox.feishu.admission import Admission
from bot.sandbox.feishu.api import MAX_BODY_BYTES, Api, Parts
from bot.sandbox.feishu.cardkit import CardKit
from bot.sandbox.feishu.cardschema import CardRules
from bot.sandbox.feishu.clicks import Clicks, PressResult
from bot.sandbox.feishu.config import SandboxConfig
from bot.sandbox.feishu.courier import LONG_CONNECTION, Courier, decode_reply
from bot.sandbox.feishu.files import Files
from bot.sandbox.feishu.gateway import Gateway
from bot.sandbox.feishu.judge import Judge, visible_text
from bot.sandbox.feishu.limits import RateLimits
from bot.sandbox.feishu.messages import Messages, Rulebook
from bot.sandbox.feishu.page import FeishuPage
from bot.sandbox.feishu.people import People, SayOptions, SentMessage
from bot.sandbox.feishu.reactions import Reactions
from bot.sandbox.feishu.tokens import Tokens
from bot.sandbox.feishu.world import Chat, Message, StoredFile, User, World
from bot.sandbox.page import Page
from bot.sandbox.records import Attempt, Call, Push, Records
from bot.sandbox.violations import Violation

if TYPE_CHECKING:
    from bot.sandbox.feishu.cardschema import Json

_CHALLENGE_S = 1.0


class FeishuSandbox:
    """Feishu, strict, on 127.0.0.1. Owns its server, its session and every part below it. Use on one event loop."""

    def __init__(
        self, config: SandboxConfig | None = None, *, faults: Faults | None = None
    ) -> None:
        """`faults` may be a subclass that does more than answer (kill the service in the middle of a call)."""
        self.config = config or SandboxConfig()
        self.world = World(self.config.clock, self.config.bot_name, self.config.tenant_key)
        self.faults = faults or Faults()
        self.records = Records(self.config.keep_calls)
        self.tokens = Tokens(self.config)
        self.judge = Judge(self.config, self.world)
        self.gateway = Gateway(self.config)
        self.courier = Courier(self.config, self.records, self.gateway)
        limits = self.config.limits
        rates = RateLimits(limits, self.config.clock, enforce=self.config.strict)
        rules = CardRules(
            limits,
            lambda any_id: self.world.find_user(any_id) is not None,
            strict=self.config.strict,
        )
        self.cardkit = CardKit(self.config, self.world, self.judge, rules, rates)
        messages = Messages(
            self.world, self.cardkit, Rulebook(self.config, self.judge, rules, rates)
        )
        reactions = Reactions(self.config, self.world, self.judge)
        self.clicks = Clicks(self.config, self.cardkit, self.judge, self.courier, self.records)
        self._people = People(self.config, self.world, self.courier)
        self.rates = rates
        self._api = Api(
            Parts(
                self.config, self.world, self.tokens, rates, self.faults, self.judge, self.records, messages,
                reactions, Files(self.world), self.cardkit, self.clicks, Admission(self.config),
            )
        )  # fmt: skip
        self._page = Page(FeishuPage(self)) if self.config.page else None
        self._runner: web.AppRunner | None = None
        self._changes = Changes(self.records)
        self.base_url = ""
        self.world.listen(self._changes.note)

    # -- life --------------------------------------------------------------------------------------------------------
    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. `base_url` is known afterwards."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(dated(self.config.clock))
        self._api.register(app)
        self.gateway.register(app)
        if self._page is not None:
            self._page.register(app)
        await self.courier.start()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        address = self._runner.addresses[0]
        self.base_url = f"http://{host}:{address[1]}"

    async def close(self) -> None:
        """Stop listening and end every task."""
        await self.courier.close()
        await self.gateway.close()
        if self._page is not None:
            await self._page.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> FeishuSandbox:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, event_url: str, callback_url: str | None = None) -> None:
        """Where events and clicks go; clicks go to the event URL when no callback URL is given."""
        self.courier.event_url = event_url
        self.courier.callback_url = callback_url or event_url

    def use_long_connection(self) -> None:
        """Events and clicks go to whatever long connection is open."""
        self.subscribe(LONG_CONNECTION)

    # -- people and chats --------------------------------------------------------------------------------------------
    @property
    def bot(self) -> User:
        """The bot as a member of chats."""
        return self.world.bot

    def add_user(self, name: str) -> User:
        """A new person."""
        return self.world.add_user(name)

    def add_group(
        self, name: str, members: Sequence[User], *, topic: bool = False, has_bot: bool = True
    ) -> Chat:
        """A group (or topic group) with the bot in it."""
        chat = self.world.add_chat(name, list(members), "topic" if topic else "group")
        chat.has_bot = has_bot
        return chat

    def add_file(self, name: str, data: bytes, *, is_image: bool = False) -> StoredFile:
        """Something to send: its `key` goes into the content (message_type="file", {"file_key", "file_name"})."""
        return self.world.add_file(name, data, is_image=is_image)

    def direct_chat(self, user: User) -> Chat:
        """The person's direct chat with the bot."""
        return self.world.direct_chat(user)

    # -- what people do ----------------------------------------------------------------------------------------------
    async def say(
        self,
        chat: Chat,
        user: User,
        text: str | Json,
        mention_bot: bool = True,
        **options: Unpack[SayOptions],
    ) -> SentMessage:
        """Write a message (a dict is a post's content). Returns after the first push; see SayOptions for the rest."""
        return await self._people.say(chat, user, text, mention_bot, options)

    async def recall(self, message: Message | SentMessage) -> Push:
        """A person takes a message back."""
        return await self._people.recall(_message(message))

    async def press(
        self, message: Message | SentMessage, action_value: Any, user: User
    ) -> PressResult:
        """Click the button whose callback value is (or contains, or whose `action` is) `action_value`."""
        return await self.clicks.press(_message(message), action_value, user)

    async def bot_added(self, chat: Chat, operator: User | None = None) -> Push:
        """Somebody adds the bot to a group."""
        return await self._people.membership(chat, operator or chat.members[0], added=True)

    async def bot_removed(self, chat: Chat, operator: User | None = None) -> Push:
        """Somebody removes the bot."""
        return await self._people.membership(chat, operator or chat.members[0], added=False)

    async def redeliver(self, sent: SentMessage | Push, *, new_event_id: bool = False) -> Push:
        """The same event again (a duplicate after a 200), or the same message under a new event_id."""
        push = sent.push if isinstance(sent, SentMessage) else sent
        if push is None:
            raise LookupError("this message was never pushed")
        return await self._people.redeliver(push, new_event_id=new_event_id)

    async def send_event(self, payload: Json, *, retry: bool = True) -> Push:
        """Any event, sealed and signed (see events.envelope and events.envelope_v1)."""
        return await self.courier.push(payload, retry=retry)

    async def url_check(self, challenge: str = "ch-42") -> bool:
        """Save the URL in the console: unsigned, encrypted, to be answered within 1 s (feishu.md §1.1)."""
        token = self.config.verification_token
        body = self.courier.seal(
            {"challenge": challenge, "token": token, "type": "url_verification"}
        )
        headers = {"Content-Type": "application/json; charset=utf-8"}
        attempt = await self.courier.post(self.courier.event_url, body, headers, _CHALLENGE_S)
        return attempt.ok and decode_reply(attempt.body) == {"challenge": challenge}

    async def post_raw(self, body: bytes, headers: dict[str, str] | None = None) -> Attempt:
        """Any bytes to the event URL: forged, unsigned, oversized."""
        return await self.courier.post(self.courier.event_url, body, headers or {})

    # -- what can be seen --------------------------------------------------------------------------------------------
    @property
    def calls(self) -> list[Call]:
        """Every API call, oldest first."""
        return self.records.calls

    def calls_of(self, api: str) -> list[Call]:
        """The calls of one API, for example "card.content"."""
        return [call for call in self.records.calls if call.api == api]

    @property
    def violations(self) -> list[Violation]:
        """What a strict platform would frown on, with the state judged as it is now."""
        return self.judge.all()

    def messages(self, chat: Chat) -> list[Message]:
        """All messages of a chat, oldest first."""
        return self.world.messages_of(chat)

    def replies(self, message: Message | SentMessage) -> list[Message]:
        """The bot's answers to one message."""
        return list(self.world.replies_to(_message(message)))

    async def wait_for(self, predicate: Callable[[], Any], timeout: float = 10.0) -> Any:
        """The first true value of `predicate()`, asked after every change. Raises TimeoutError that tells the last calls."""
        return await self._changes.wait_for(predicate, timeout)


def _message(message: Message | SentMessage) -> Message:
    return message.message if isinstance(message, SentMessage) else message


__all__ = ["FeishuSandbox", "visible_text"]

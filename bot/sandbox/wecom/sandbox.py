"""WeComSandbox: the platform on loopback, in one object. Builds the parts, starts the server, offers the people's acts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Unpack
from urllib.parse import quote

from aiohttp import web

from bot.sandbox.changes import Changes
from bot.sandbox.clock import dated
from bot.sandbox.faults import Faults
from bot.sandbox.page import Page
from bot.sandbox.records import Attempt, Call, Push, Records
from bot.sandbox.violations import Violation
from bot.sandbox.wecom.api import MAX_BODY_BYTES, Api, Parts
from bot.sandbox.wecom.app_door import AppDoor
from bot.sandbox.wecom.callback import CallbackDoor
from bot.sandbox.wecom.cards import Cards
from bot.sandbox.wecom.commands import Commands
from bot.sandbox.wecom.compose import SayOptions, pasted
from bot.sandbox.wecom.config import WeComConfig
from bot.sandbox.wecom.courier import Courier
from bot.sandbox.wecom.doors import Doors
from bot.sandbox.wecom.exchanges import Exchanges
from bot.sandbox.wecom.gateway import Desk, Gateway
from bot.sandbox.wecom.judge import Judge, visible_text
from bot.sandbox.wecom.limits import Rates
from bot.sandbox.wecom.media import Media
from bot.sandbox.wecom.page import WeComPage
from bot.sandbox.wecom.people import People, PressResult, SentMessage
from bot.sandbox.wecom.replies import Replies
from bot.sandbox.wecom.sealing import Sealing
from bot.sandbox.wecom.sending import Sending
from bot.sandbox.wecom.streams import Streams
from bot.sandbox.wecom.tokens import Tokens
from bot.sandbox.wecom.uploads import Uploads
from bot.sandbox.wecom.world import Chat, Message, User, World


class WeComSandbox:
    """WeCom, strict, on 127.0.0.1. Owns its server and every part below it. Use on one event loop."""

    def __init__(self, config: WeComConfig | None = None, *, faults: Faults | None = None) -> None:
        """`faults` may be a subclass that does more than answer."""
        self.config = config = config or WeComConfig()
        self.world = World(config.clock, config.bot_name)
        self.faults = faults or Faults()
        self.records = Records(config.keep_calls)
        self.judge = Judge(config, self.world)
        self.tokens = Tokens(config)
        self.rates = Rates(config)
        self.exchanges = Exchanges(config.clock)
        self.media = Media(config, self.judge)
        self._build()
        self._page = Page(WeComPage(self)) if config.page else None
        self._runner: web.AppRunner | None = None
        self._changes = Changes(self.records)
        self.base_url = ""
        self.world.listen(self._changes.note)
        self.gateway.on_change = self._changes.note

    def _build(self) -> None:
        config, world, judge = self.config, self.world, self.judge
        cards = Cards(judge)
        streams = Streams(config, world, judge, self.exchanges)
        replies = Replies(config, world, judge, streams, cards, self.media)
        sending = Sending(config, world, judge, cards, self.rates, self.media)
        self.sealing = Sealing(config, judge)
        self.courier = Courier(config, self.records, self.faults, judge)
        self._callback = CallbackDoor(config, self.courier, self.sealing, replies, streams, judge)
        commands = Commands(config, world, self.exchanges, replies, self.rates, judge)
        uploads = Uploads(config, self.media, self.rates, judge)
        desk = Desk(commands, uploads, self.exchanges, self.rates)
        self.gateway = Gateway(config, desk, judge, self.records, self.faults)
        app_door = AppDoor(config, world, self.courier, self.sealing, judge)
        self._doors = Doors(config, self._callback, self.gateway, app_door)
        self._people = People(config, world, self.exchanges, self.media, self._doors)
        self._people.on_card_click = lambda message: sending.new_code([message])
        self.api = Api(
            Parts(
                config, self.tokens, self.rates, self.faults, judge, self.records, self.media, sending, replies,
                self.exchanges,
            )
        )  # fmt: skip

    # -- life --------------------------------------------------------------------------------------------------------
    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. `base_url` and `ws_url` are known afterwards."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(dated(self.config.clock))
        self.api.register(app)
        app.router.add_get("/openws", self.gateway.serve)
        if self._page is not None:
            self._page.register(app)
        await self.courier.start()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.base_url = f"http://{host}:{self._runner.addresses[0][1]}"
        self.media.base_url = self._doors.base_url = self.base_url

    @property
    def ws_url(self) -> str:
        """Where the long connection goes."""
        return self.base_url.replace("http://", "ws://") + "/openws"

    async def close(self) -> None:
        """Stop listening and end every task."""
        await self._callback.close()
        await self.courier.close()
        await self.gateway.close()
        if self._page is not None:
            await self._page.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> WeComSandbox:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, event_url: str) -> None:
        """Where callbacks go."""
        self.courier.event_url = event_url

    # -- people and chats --------------------------------------------------------------------------------------------
    @property
    def bot(self) -> User:
        """The bot as a member of chats."""
        return self.world.bot

    def add_user(self, name: str, userid: str = "") -> User:
        """A new person."""
        return self.world.add_user(name, userid)

    def add_group(self, name: str, members: Sequence[User], *, has_bot: bool = True) -> Chat:
        """A group with the bot in it."""
        chat = self.world.add_group(name, list(members))
        chat.has_bot = has_bot
        return chat

    def direct_chat(self, user: User) -> Chat:
        """The person's direct chat with the bot."""
        return self.world.direct_chat(user)

    # -- what people do ----------------------------------------------------------------------------------------------
    async def say(
        self,
        chat: Chat,
        user: User,
        text: str = "",
        mention_bot: bool = True,
        **options: Unpack[SayOptions],
    ) -> SentMessage:
        """Write a message. Returns after the first delivery; see SayOptions for files, quotes and the rest."""
        return await self._people.say(chat, user, text, options, mention_bot=mention_bot)

    async def paste(self, chat: Chat, user: User, text: str) -> list[SentMessage]:
        """Write something long: the client cuts it into messages of about 4000 characters."""
        return [await self.say(chat, user, part) for part in pasted(text)]

    async def enter_chat(self, user: User) -> Push | None:
        """Open the direct chat. None when an AI bot is not told because it was already opened today."""
        return await self._people.enter_chat(user)

    async def press(
        self,
        message: Message,
        key: str,
        user: User,
        selected: dict[str, list[str]] | None = None,
    ) -> PressResult:
        """Click a card's button, named by key or label."""
        return await self._people.press(message, key, user, selected)

    async def rate(
        self, message: Message, user: User, kind: int = 1, words: str = "", reasons: Sequence[int] = ()
    ) -> Push:  # fmt: skip
        """Thumb up (1), down (2) or taken back (3)."""
        return await self._people.rate(message, user, kind, words, reasons)

    def recall(self, message: Message | SentMessage) -> None:
        """A person takes a message back; no bot is told."""
        taken = message.message if isinstance(message, SentMessage) else message
        taken.recalled = True
        self.world.changed(taken)

    async def send_event(self, chat: Chat, user: User, payload: dict[str, Any]) -> Push:
        """Any callback of this person in this chat: an AI bot's body without its head, or the fields of an app's XML."""
        return await self._people.send_raw(chat, user, payload)

    # -- bad days ----------------------------------------------------------------------------------------------------
    def duplicate(self, copies: int) -> None:
        """Every message and event is delivered this many times from now on."""
        self.courier.copies = self.gateway.copies = copies

    def hold(self) -> None:
        """Messages are kept back until `release`."""
        self._people.hold()

    async def release(self, *, reverse: bool = False) -> None:
        """Deliver what was kept back; `reverse` delivers the newest first."""
        await self._people.release(reverse=reverse)

    async def redeliver(self, sent: SentMessage | Push) -> Push:
        """The same callback again, although it was taken."""
        push = sent.push if isinstance(sent, SentMessage) else sent
        if push is None:
            raise LookupError("this message was never delivered")
        return await self._doors.redeliver(push)

    def cut_socket(self) -> None:
        """The long connection dies without a word."""
        self.gateway.cut()

    def mute_socket(self) -> None:
        """The long connection is half dead: it stays open, but nothing comes any more, not even acks."""
        self.gateway.mute()

    async def close_socket(self) -> None:
        """The long connection is closed politely, as at a deployment."""
        await self.gateway.hang_up()

    async def kick(self) -> None:
        """The long connection loses its place to another one."""
        await self.gateway.kick()

    def trust_ips(self, *ips: str) -> None:
        """Only these callers may use the app's API from now on (60020 for others)."""
        self.api.trusted_ips = ips

    # -- raw requests ------------------------------------------------------------------------------------------------
    async def url_check(self, echo: str = "1616140317555161061", *, raw_plus: bool = False) -> bool:
        """Save the URL in the console: GET, to be answered within 1 s with the clear text and nothing else.

        The echostr has at least one '+'; with `raw_plus` it is not escaped, so that form decoding makes a space of it.
        """
        while "+" not in (echostr := self.sealing.encrypt(echo.encode())):
            continue
        query = self.sealing.query_for(echostr)
        pairs = [*query.items(), ("echostr", echostr)]
        safe = "+" if raw_plus else ""
        attempt = await self.courier.check(
            "&".join(f"{name}={quote(value, safe=safe)}" for name, value in pairs)
        )
        return attempt.ok and attempt.body == echo.encode()

    async def post_raw(
        self, body: bytes, query: dict[str, str] | None = None, content_type: str = "application/json"
    ) -> Attempt:  # fmt: skip
        """Any bytes to the callback URL: forged, unsigned, oversized."""
        wanted = query or {
            "msg_signature": "0" * 40,
            "timestamp": str(int(self.config.clock())),
            "nonce": secrets.token_hex(5),
        }
        return await self.courier.post(body, wanted, {"Content-Type": content_type})

    # -- what can be seen --------------------------------------------------------------------------------------------
    @property
    def calls(self) -> list[Call]:
        """Every API call and every frame of the bot, oldest first."""
        return self.records.calls

    def calls_of(self, api: str) -> list[Call]:
        """The calls of one API, for example "message.send" or "ws.respond"."""
        return [call for call in self.records.calls if call.api == api]

    @property
    def violations(self) -> list[Violation]:
        """What WeCom frowns on, with the state judged as it is now."""
        return self.judge.all()

    def messages(self, chat: Chat) -> list[Message]:
        """All messages of a chat, oldest first."""
        return self.world.messages_of(chat)

    def replies(self, message: Message | SentMessage) -> list[Message]:
        """The bot's answers to one message; where WeCom knows no link, those that came before the next question."""
        return self.world.replies_to(
            message.message if isinstance(message, SentMessage) else message
        )

    async def wait_for(self, predicate: Callable[[], Any], timeout: float = 10.0) -> Any:
        """The first true value of `predicate()`, asked after every change. Raises TimeoutError that tells the last calls."""
        return await self._changes.wait_for(predicate, timeout)


__all__ = ["WeComSandbox", "visible_text"]

"""DingTalkSandbox: the platform on loopback, in one object. Builds the parts, starts the server, offers the people's acts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from aiohttp import web

from bot.sandbox.changes import Changes
from bot.sandbox.clock import dated
from bot.sandbox.dingtalk.api import MAX_BODY_BYTES, Api, Parts
from bot.sandbox.dingtalk.cards import Cards
from bot.sandbox.dingtalk.clicks import Clicks, PressResult
from bot.sandbox.dingtalk.config import SandboxConfig
from bot.sandbox.dingtalk.courier import Courier
from bot.sandbox.dingtalk.gateway import Gateway
from bot.sandbox.dingtalk.judge import Judge
from bot.sandbox.dingtalk.limits import RateLimits
from bot.sandbox.dingtalk.page import DingTalkPage
from bot.sandbox.dingtalk.people import People, SayOptions, SentMessage
from bot.sandbox.dingtalk.robot import Robot
from bot.sandbox.dingtalk.session import Sessions
from bot.sandbox.dingtalk.tokens import Tokens
from bot.sandbox.dingtalk.world import Chat, Message, StoredFile, User, World
from bot.sandbox.faults import Faults
from bot.sandbox.page import Page
from bot.sandbox.records import Attempt, Call, Push, Records
from bot.sandbox.violations import Violation

if TYPE_CHECKING:
    from bot.sandbox.page import Json

_FOREIGN_HOST = "127.0.0.2"


class DingTalkSandbox:
    """DingTalk, strict, on 127.0.0.1: api.dingtalk.com, oapi.dingtalk.com and the Stream gateway under one `base_url`.

    Owns its server, its session and every part below it. Use on one event loop. A second address (127.0.0.2) plays a
    host that is not DingTalk's: whoever sends anything there has believed a forged sessionWebhook.
    """

    def __init__(
        self, config: SandboxConfig | None = None, *, faults: Faults | None = None
    ) -> None:
        """`faults` may be a subclass that does more than answer (kill the service in the middle of a call)."""
        self.config = config or SandboxConfig()
        limits = self.config.limits
        self.world = World(self.config.clock, self.config.bot_name)
        self.faults = faults or Faults()
        self.records = Records(self.config.keep_calls)
        self.tokens = Tokens(self.config)
        self.judge = Judge(self.config, self.world)
        self.rates = RateLimits(limits, self.config.clock, enforce=self.config.strict)
        self.gateway = Gateway(self.config, self.tokens, self.judge, self.faults)
        self.courier = Courier(self.config, self.records, self.gateway, self.judge)
        self.cards = Cards(self.config, self.world, self.judge)
        self.clicks = Clicks(self.config, self.cards, self.judge, self.records)
        self._people = People(self.config, self.world, self.courier, self.rates)
        self._api = Api(
            Parts(
                self.config, self.world, self.tokens, self.rates, self.faults, self.judge, self.records, self.cards,
                Robot(self.config, self.world, self.judge),
                Sessions(self.config, self.world, self.judge, self.rates), self.clicks, self.gateway,
            )
        )  # fmt: skip
        self._page = Page(DingTalkPage(self)) if self.config.page else None
        self._runners: list[web.AppRunner] = []
        self._changes = Changes(self.records)
        self.base_url = ""
        self.world.listen(self._changes.note)

    # -- life --------------------------------------------------------------------------------------------------------
    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. `base_url` is known afterwards."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(dated(self.config.clock))
        self._api.register(app)
        if self._page is not None:
            self._page.register(app)
        await self.courier.start()
        number = await self._listen(app, host, port)
        self.base_url = self._api.base_url = self._people.base_url = f"http://{host}:{number}"
        self.gateway.endpoint = f"ws://{host}:{number}/connect"
        trap = web.Application()
        trap.router.add_route("*", "/{path:.*}", self._caught)
        self._people.foreign_url = (
            f"http://{_FOREIGN_HOST}:{await self._listen(trap, _FOREIGN_HOST, 0)}"
        )

    async def close(self) -> None:
        """Stop listening and end every task."""
        await self.courier.close()
        await self.gateway.close()
        if self._page is not None:
            await self._page.close()
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def __aenter__(self) -> DingTalkSandbox:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, url: str) -> None:
        """HTTP mode: robot messages go to this URL. Without it they go through the Stream gateway."""
        self.courier.url = url

    async def _listen(self, app: web.Application, host: str, port: int) -> int:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, host, port).start()
        return int(runner.addresses[0][1])

    async def _caught(self, request: web.Request) -> web.StreamResponse:
        self.judge.note("sent_to_foreign_host", f"{request.method} {request.path}")
        return web.json_response({"errcode": 0, "errmsg": "ok"})

    # -- people and chats --------------------------------------------------------------------------------------------
    @property
    def bot(self) -> User:
        """The bot as a member of chats."""
        return self.world.bot

    def add_user(self, name: str, *, outside: bool = False) -> User:
        """A new person; `outside` the org has no staffId."""
        return self.world.add_user(name, outside=outside)

    def add_group(self, name: str, members: Sequence[User], *, has_bot: bool = True) -> Chat:
        """A group with the bot in it."""
        chat = self.world.add_chat(name, list(members), "group")
        chat.has_bot = has_bot
        return chat

    def direct_chat(self, user: User) -> Chat:
        """The person's direct chat with the bot."""
        return self.world.direct_chat(user)

    def add_file(self, name: str, data: bytes) -> StoredFile:
        """Something to send: its `code` is the downloadCode (message_type="file", {"downloadCode", "fileName"})."""
        return self.world.add_file(name, data)

    # -- what people do ----------------------------------------------------------------------------------------------
    async def say(
        self,
        chat: Chat,
        user: User,
        text: str | Json,
        mention_bot: bool = True,
        **options: Unpack[SayOptions],
    ) -> SentMessage:
        """Write a message (a dict is its content). Returns after the first push; see SayOptions for the rest."""
        return await self._people.say(chat, user, text, mention_bot, options)

    async def recall(self, message: Message | SentMessage) -> None:
        """A person takes a message back; the robot is not told."""
        self._people.recall(_message(message))

    async def press(
        self, message: Message | SentMessage, action_value: Any, user: User
    ) -> PressResult:
        """Click a button: by its action id, its params (or some of them), or the value of their `action`."""
        return await self.clicks.press(
            _message(message), action_value, user, self.gateway, self.courier
        )

    async def redeliver(self, sent: SentMessage | Push) -> Push:
        """The same message again, as after an acknowledgement that came late."""
        push = sent.push if isinstance(sent, SentMessage) else sent
        if push is None:
            raise LookupError("this message was never pushed")
        return await self._people.redeliver(push)

    def repeat_pushes(self, times: int) -> None:
        """From now on every robot message comes `times` times more than once."""
        self.courier.repeat = times

    async def send_message(self, payload: Json, *, retry: bool = True) -> Push:
        """Any robot message, signed."""
        return await self.courier.push(payload, retry=retry)

    async def send_event(self, event_type: str, data: Json, *, retry: bool = True) -> Push:
        """An EVENT frame to a connection that subscribed to events."""
        return await self.courier.event(event_type, secrets.token_hex(12), data, retry=retry)

    async def post_raw(self, body: bytes, headers: dict[str, str] | None = None) -> Attempt:
        """Any bytes to the robot's URL: forged, unsigned, oversized."""
        return await self.courier.post(
            self.courier.url, body, headers or {}, self.config.http_ack_s
        )

    # -- what can be seen --------------------------------------------------------------------------------------------
    @property
    def calls(self) -> list[Call]:
        """Every API call, oldest first."""
        return self.records.calls

    def calls_of(self, api: str) -> list[Call]:
        """The calls of one API, for example "card.stream"."""
        return [call for call in self.records.calls if call.api == api]

    @property
    def violations(self) -> list[Violation]:
        """What a strict platform would frown on, with the state judged as it is now."""
        return self.judge.all()

    def messages(self, chat: Chat) -> list[Message]:
        """All messages of a chat, oldest first."""
        return self.world.messages_of(chat)

    def replies(self, message: Message | SentMessage) -> list[Message]:
        """The bot's answers to one message (see world.Message.answers for how that is known)."""
        return list(self.world.replies_to(_message(message)))

    async def wait_for(self, predicate: Callable[[], Any], timeout: float = 10.0) -> Any:
        """The first true value of `predicate()`, asked after every change. Raises TimeoutError that tells the last calls."""
        return await self._changes.wait_for(predicate, timeout)


def _message(message: Message | SentMessage) -> Message:
    return message.message if isinstance(message, SentMessage) else message

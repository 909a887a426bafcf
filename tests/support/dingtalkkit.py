"""A DingTalk sandbox with strangers around it: a raw HTTP client, a raw Stream client, a recording webhook. Nothing of the bot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

import aiohttp
from aiohttp import web

from bot.sandbox.dingtalk import DEFAULT_TEMPLATE, Chat, DingTalkSandbox, ManualClock, SandboxConfig

ROBOT = "/v1.0/im/bot/messages/get"
CARD = "/v1.0/card/instances/callback"


@dataclass
class Reply:
    status: int
    body: dict[str, Any]

    @property
    def code(self) -> Any:
        return self.body.get("code", self.body.get("errcode"))


class Wire:
    """A tiny client: one session, a token of its own, no retries (every call on a fresh connection)."""

    def __init__(self, sandbox: DingTalkSandbox, session: aiohttp.ClientSession) -> None:
        self.sandbox = sandbox
        self.session = session
        self.token = ""

    async def login(self) -> Reply:
        config = self.sandbox.config
        body = {"appKey": config.client_id, "appSecret": config.client_secret}
        reply = await self.call("POST", "/v1.0/oauth2/accessToken", body)
        self.token = reply.body["accessToken"]
        return reply

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Reply:
        headers = {"x-acs-dingtalk-access-token": self.token} if self.token else {}
        url = path if path.startswith("http") else self.sandbox.base_url + path
        async with self.session.request(method, url, json=body, headers=headers, **more) as reply:
            text = await reply.read()
            is_json = reply.content_type == "application/json"
            return Reply(reply.status, json.loads(text) if is_json else {"text": text.decode()})

    async def new_card(self, chat: Chat, track_id: str = "", **more: Any) -> Reply:
        return await self.call(
            "POST",
            "/v1.0/card/instances/createAndDeliver",
            self.card_body(chat, track_id or str(uuid.uuid4()), **more),
        )

    def card_body(self, chat: Chat, track_id: str, **more: Any) -> dict[str, Any]:
        robot = self.sandbox.config.robot
        body: dict[str, Any] = {
            "cardTemplateId": DEFAULT_TEMPLATE,
            "outTrackId": track_id,
            "cardData": {"cardParamMap": {"content": ""}},
        }
        if chat.kind == "group":
            body["openSpaceId"] = f"dtv1.card//IM_GROUP.{chat.id}"
            body["imGroupOpenDeliverModel"] = {"robotCode": robot}
            body["imGroupOpenSpaceModel"] = {"supportForward": True}
        else:
            body["openSpaceId"] = f"dtv1.card//IM_ROBOT.{chat.members[0].staff_id}"
            body["imRobotOpenDeliverModel"] = {"spaceType": "IM_ROBOT", "robotCode": robot}
        return body | more

    async def frame(self, track_id: str, text: Any, **more: Any) -> Reply:
        body = {
            "outTrackId": track_id, "guid": str(uuid.uuid4()), "key": "content", "content": text,
            "isFull": True, "isFinalize": False, "isError": False,
        }  # fmt: skip
        return await self.call("PUT", "/v1.0/card/streaming", body | more)

    async def put(self, track_id: str, params: dict[str, Any], *, by_key: bool = True) -> Reply:
        body = {
            "outTrackId": track_id,
            "cardData": {"cardParamMap": params},
            "cardUpdateOptions": {"updateCardDataByKey": by_key},
        }
        return await self.call("PUT", "/v1.0/card/instances", body)


class StreamClient:
    """A stranger's Stream client: opens, connects, keeps every frame; acks what `answer` says."""

    def __init__(self, wire: Wire, topics: tuple[tuple[str, str], ...]) -> None:
        self.wire = wire
        self.topics = topics
        self.frames: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()
        self.closed = asyncio.Event()
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self.answer: Callable[[dict[str, Any]], Any] = lambda _frame: {"response": None}
        self.acks = True
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> Reply:
        config = self.wire.sandbox.config
        body = {
            "clientId": config.client_id, "clientSecret": config.client_secret, "ua": "stranger/1.0", "localIp": "127.0.0.1",
            "subscriptions": [{"type": kind, "topic": topic} for kind, topic in self.topics],
        }  # fmt: skip
        return await self.wire.call("POST", "/v1.0/gateway/connections/open", body)

    async def connect(self, opened: Reply | None = None) -> None:
        found = (opened or await self.open()).body
        url = f"{found['endpoint']}?ticket={quote_plus(found['ticket'])}"
        self.socket = await self.wire.session.ws_connect(url)
        self._task = asyncio.create_task(self._read(self.socket))

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            frame = json.loads(message.data)
            self.frames.append(frame)
            self.arrived.set()
            if self.acks and frame["headers"]["topic"] not in {"disconnect", "REGISTERED"}:
                await self.ack(frame)
        self.closed.set()

    async def ack(self, frame: dict[str, Any], code: int = 200, **more: Any) -> None:
        data = json.loads(frame["data"])
        answer = data if frame["headers"]["topic"] == "ping" else self.answer(frame)
        ack = {
            "code": code,
            "headers": {
                "messageId": frame["headers"]["messageId"],
                "contentType": "application/json",
            },
            "message": "OK",
            "data": json.dumps(answer),
        }
        assert self.socket is not None
        await self.socket.send_str(json.dumps(ack | more))

    def robot(self) -> list[dict[str, Any]]:
        """The robot messages so far, parsed."""
        return [json.loads(f["data"]) for f in self.frames if f["headers"]["topic"] == ROBOT]

    async def close(self) -> None:
        if self.socket is not None:
            await self.socket.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


@dataclass
class Hook:
    """The bot's end of an HTTP callback: records what comes, answers what the test says."""

    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answer: Callable[[], Awaitable[web.StreamResponse]] | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(json.loads(await request.read()))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return await self.answer() if self.answer else web.Response()


@contextlib.asynccontextmanager
async def played(**config: Any) -> AsyncIterator[tuple[DingTalkSandbox, Wire]]:
    """A started sandbox on a manual clock (unless told otherwise), and a client that is logged in."""
    settings = {"clock": ManualClock(), "redelivery_s": (0.05, 0.05), **config}
    async with DingTalkSandbox(SandboxConfig(**settings)) as sandbox:
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            wire = Wire(sandbox, session)
            await wire.login()
            yield sandbox, wire


@contextlib.asynccontextmanager
async def hooked() -> AsyncIterator[Hook]:
    """A recording webhook."""
    found = Hook()
    app = web.Application()
    app.router.add_post("/hook", found.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield found
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def streaming(wire: Wire, *topics: tuple[str, str]) -> AsyncIterator[StreamClient]:
    """A connected Stream client, by default for robot messages and card clicks."""
    client = StreamClient(wire, topics or (("CALLBACK", ROBOT), ("CALLBACK", CARD)))
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


def clock_of(sandbox: DingTalkSandbox) -> ManualClock:
    """The clock that the test moves."""
    assert isinstance(sandbox.config.clock, ManualClock)
    return sandbox.config.clock


def rules(sandbox: DingTalkSandbox) -> list[str]:
    """The names of the violations."""
    return [violation.rule for violation in sandbox.violations]

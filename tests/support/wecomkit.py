"""Small bots for the WeCom sandbox: one that answers callbacks as a test says, one that speaks the long connection."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from bot.sandbox.wecom import WeComConfig, WeComSandbox, crypto

Json = dict[str, Any]


def stream(stream_id: str, content: str, *, finish: bool = False, **more: Any) -> Json:
    return {
        "msgtype": "stream",
        "stream": {"id": stream_id, "finish": finish, "content": content, **more},
    }


def button_card(task_id: str, *labels: str) -> Json:
    """A legal card with buttons."""
    return {
        "card_type": "button_interaction",
        "main_title": {"title": "Choose"},
        "task_id": task_id,
        "button_list": [{"text": label, "key": f"key-{label}"} for label in labels or ("Stop",)],
    }


def seal(config: WeComConfig, reply: Json, nonce: str) -> bytes:
    """A passive reply as the document wants it."""
    encrypted = crypto.encrypt(
        json.dumps(reply).encode(), crypto.key_of(config.encoding_aes_key), ""
    )
    stamp = int(time.time())
    signature = crypto.signature(config.token, str(stamp), nonce, encrypted)
    return json.dumps(
        {"encrypt": encrypted, "msgsignature": signature, "timestamp": stamp, "nonce": nonce}
    ).encode()


@dataclass
class HookBot:
    """The bot's end of the callbacks. `answer(body)` gives a plain reply (sealed here), raw bytes, or None."""

    config: WeComConfig
    url: str = ""
    seen: list[Any] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answer: Callable[[Any], Any] = lambda _body: None
    status: int = 200

    async def serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        query = dict(request.query)
        self.requests.append((query, raw))
        text = raw.decode()
        encrypted = (
            re.search(r"<Encrypt><!\[CDATA\[(.*?)\]\]>", text)[1]  # type: ignore[index]
            if self.config.mode == "app"
            else json.loads(text)["encrypt"]
        )
        assert query["msg_signature"] == crypto.signature(
            self.config.token, query["timestamp"], query["nonce"], encrypted
        )
        plain, _ = crypto.decrypt(encrypted, crypto.key_of(self.config.encoding_aes_key))
        body = plain.decode() if self.config.mode == "app" else json.loads(plain)
        self.seen.append(body)
        reply = self.answer(body)
        if isinstance(reply, Awaitable):
            reply = await reply
        if isinstance(reply, dict):
            reply = seal(self.config, reply, query["nonce"])
        return web.Response(status=self.status, body=reply or b"")

    async def check(self, request: web.Request) -> web.StreamResponse:
        """The URL check, answered as it should be."""
        echostr = request.query["echostr"].replace(" ", "+")
        plain, _ = crypto.decrypt(echostr, crypto.key_of(self.config.encoding_aes_key))
        return web.Response(body=plain, content_type="text/plain")

    def of_type(self, msgtype: str) -> list[Any]:
        return [body for body in self.seen if body["msgtype"] == msgtype]


@asynccontextmanager
async def hooked(**config: Any) -> AsyncIterator[tuple[WeComSandbox, HookBot]]:
    """A sandbox with a bot on its callback URL; polls and retries are quick."""
    quick: Json = {"poll_interval_s": 0.02, "redelivery_s": (0.02, 0.02), **config}
    settings = WeComConfig(**quick)
    bot = HookBot(settings)
    app = web.Application()
    app.router.add_post("/wecom", bot.serve)
    app.router.add_get("/wecom", bot.check)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    bot.url = f"http://127.0.0.1:{runner.addresses[0][1]}/wecom"
    try:
        async with WeComSandbox(settings) as sandbox:
            sandbox.subscribe(bot.url)
            yield sandbox, bot
    finally:
        await runner.cleanup()


class SocketBot:
    """A client of the long connection that sends what a test says. Frames that are not acks go to `inbox`."""

    def __init__(self, sandbox: WeComSandbox, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.sandbox = sandbox
        self.ws = ws
        self.inbox: asyncio.Queue[Json] = asyncio.Queue()
        self._acks: dict[str, list[asyncio.Future[Json]]] = {}
        self._number = 0
        self._reader = asyncio.create_task(self._read())
        self.closed = asyncio.Event()

    async def _read(self) -> None:
        async for message in self.ws:
            frame = json.loads(message.data)
            waiting = self._acks.get(frame["headers"]["req_id"])
            if "errcode" in frame and waiting:
                waiting.pop(0).set_result(frame)
            else:
                await self.inbox.put(frame)
        self.closed.set()

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self.ws.close()

    def fresh(self) -> str:
        self._number += 1
        return f"own-{id(self)}-{self._number}"

    async def send(self, cmd: str, body: Json | None = None, req_id: str = "") -> asyncio.Future[Json]:  # fmt: skip
        """Write a frame; the future is its ack."""
        req_id = req_id or self.fresh()
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._acks.setdefault(req_id, []).append(future)
        frame: Json = {"cmd": cmd, "headers": {"req_id": req_id}}
        await self.ws.send_str(json.dumps(frame | ({"body": body} if body is not None else {})))
        return future

    async def call(self, cmd: str, body: Json | None = None, req_id: str = "") -> Json:
        async with asyncio.timeout(30):
            return await (await self.send(cmd, body, req_id))

    async def subscribe(self, **body: Any) -> Json:
        config = self.sandbox.config
        return await self.call(
            "aibot_subscribe", {"bot_id": config.bot_id, "secret": config.bot_secret, **body}
        )

    async def respond(self, frame: Json, body: Json) -> int:
        """Answer a callback; the errcode."""
        ack = await self.call("aibot_respond_msg", body, frame["headers"]["req_id"])
        return ack["errcode"]

    async def next(self) -> Json:
        async with asyncio.timeout(30):
            return await self.inbox.get()


@asynccontextmanager
async def socketed(
    **config: Any,
) -> AsyncIterator[tuple[WeComSandbox, Callable[[], Awaitable[SocketBot]]]]:
    """A sandbox and connect() → a new connection, not subscribed yet."""
    bots: list[SocketBot] = []
    async with (
        WeComSandbox(WeComConfig(mode="websocket", **config)) as sandbox,
        aiohttp.ClientSession() as session,
    ):

        async def connect() -> SocketBot:
            bot = SocketBot(sandbox, await session.ws_connect(sandbox.ws_url))
            bots.append(bot)
            return bot

        try:
            yield sandbox, connect
        finally:
            for bot in bots:
                await bot.close()


def rules(sandbox: WeComSandbox) -> list[str]:
    """The names of the violations."""
    return [violation.rule for violation in sandbox.violations]

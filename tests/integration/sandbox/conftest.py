"""A sandbox with a raw HTTP client and a recording webhook: nothing of the bot, so that the double is judged alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bot.sandbox.feishu import FeishuSandbox, ManualClock, SandboxConfig


@dataclass
class Reply:
    status: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def code(self) -> int:
        return self.body["code"]

    @property
    def data(self) -> dict[str, Any]:
        return self.body["data"]


class Wire:
    """A tiny client: one session, a token of its own, no retries (every call on a fresh connection)."""

    def __init__(self, sandbox: FeishuSandbox, session: aiohttp.ClientSession) -> None:
        self.sandbox = sandbox
        self.session = session
        self.token = ""

    async def login(self) -> Reply:
        config = self.sandbox.config
        reply = await self.call(
            "POST",
            "/auth/v3/tenant_access_token/internal",
            {"app_id": config.app_id, "app_secret": config.app_secret},
        )
        self.token = reply.body["tenant_access_token"]
        return reply

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Reply:
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        url = f"{self.sandbox.base_url}/open-apis{path}"
        async with self.session.request(
            method, url, json=body, headers=sent | (headers or {})
        ) as response:
            text = await response.read()
            parsed = (
                json.loads(text)
                if response.content_type == "application/json"
                else {"html": text.decode()}
            )
            return Reply(response.status, parsed, dict(response.headers))

    async def text(self, chat_id: str, text: str = "hello", uuid: str = "") -> Reply:
        body = {"receive_id": chat_id, "msg_type": "text", "content": json.dumps({"text": text})}
        return await self.call(
            "POST",
            "/im/v1/messages?receive_id_type=chat_id",
            body | ({"uuid": uuid} if uuid else {}),
        )

    async def reply(self, message_id: str, kind: str, content: Any, **more: Any) -> Reply:
        body = {"msg_type": kind, "content": json.dumps(content), **more}
        return await self.call("POST", f"/im/v1/messages/{message_id}/reply", body)

    async def new_card(self, *elements: dict[str, Any], **config: Any) -> str:
        reply = await self.create_card(card(*elements, **config))
        assert reply.code == 0, reply.body
        return reply.data["card_id"]

    async def create_card(self, data: Any) -> Reply:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        return await self.call("POST", "/cardkit/v1/cards", {"type": "card_json", "data": text})

    async def content(
        self, card_id: str, text: Any, sequence: Any, *, element: str = "answer", **more: Any
    ) -> Reply:
        body = {"content": text, "sequence": sequence, **more}
        return await self.call(
            "PUT", f"/cardkit/v1/cards/{card_id}/elements/{element}/content", body
        )

    async def settings(
        self, card_id: str, config: dict[str, Any], sequence: int, **more: Any
    ) -> Reply:
        body = {"settings": json.dumps({"config": config}), "sequence": sequence, **more}
        return await self.call("PATCH", f"/cardkit/v1/cards/{card_id}/settings", body)


def card(*elements: dict[str, Any], **config: Any) -> dict[str, Any]:
    """A legal streaming card."""
    body = elements or ({"tag": "markdown", "element_id": "answer", "content": "…"},)
    settings = {"update_multi": True, "streaming_mode": True, "summary": {"content": "…"}, **config}
    return {"schema": "2.0", "config": settings, "body": {"elements": list(body)}}


@dataclass
class Hook:
    """The bot's end of the webhook: records what comes, answers what the test says."""

    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    answer: Callable[[], Awaitable[web.StreamResponse]] | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.raw.append(body)
        self.seen.append(json.loads(body))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return await self.answer() if self.answer else web.json_response({})


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    found = Hook()
    app = web.Application()
    app.router.add_post("/hook", found.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield found
    await runner.cleanup()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make(
    clock: ManualClock,
) -> AsyncIterator[Callable[..., Awaitable[tuple[FeishuSandbox, Wire]]]]:
    """make(**config) → a started sandbox and a client that is logged in."""
    opened: list[tuple[FeishuSandbox, aiohttp.ClientSession]] = []

    async def build(**config: Any) -> tuple[FeishuSandbox, Wire]:
        sandbox = FeishuSandbox(
            SandboxConfig(**{"clock": clock, "redelivery_s": (0.02, 0.02), **config})
        )
        await sandbox.start()
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        opened.append((sandbox, session))
        wire = Wire(sandbox, session)
        await wire.login()
        return sandbox, wire

    yield build
    for sandbox, session in opened:
        await session.close()
        await sandbox.close()
    await asyncio.sleep(0)


@pytest.fixture
def a_card() -> Callable[..., dict[str, Any]]:
    return card

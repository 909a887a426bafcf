"""The API on a real socket with an engine child behind it, and a client that reads streams strictly."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bot.config import parse_config
from bot.config_engine import engine_settings
from bot.service.settings import Settings
from bot.web.openai_api import OpenAIApi
from bot.web.ops import OpsHandler
from bot.web.server import WebServer, build_app
from bot.web.webhook import WebhookHandler
from engine.client import open_engine
from engine.face import Engine


@dataclass
class Answer:
    """One streamed answer, read to its end."""

    status: int
    chunks: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    def text(self, key: str = "content") -> str:
        deltas = (choice["delta"] for chunk in self.chunks for choice in chunk.get("choices", []))
        return "".join(delta.get(key, "") for delta in deltas)

    @property
    def usage(self) -> dict[str, Any]:
        return self.chunks[-1]["usage"]

    @property
    def finish(self) -> list[str]:
        return [c["finish_reason"] for k in self.chunks for c in k.get("choices", []) if c["finish_reason"]]  # fmt: skip


@dataclass
class ApiRig:
    """Everything, started by `open`. `model` goes into [models.main], `server` into [server]."""

    folder: Path
    model: dict[str, Any]
    server: dict[str, Any]
    more_models: dict[str, Any]
    engines: dict[str, Engine] = field(init=False, default_factory=dict)
    web: WebServer = field(init=False)
    http: aiohttp.ClientSession = field(init=False)

    async def open(self, ready_s: float = 30.0) -> ApiRig:
        models = {"main": {"backend": "fake", **self.model}, **self.more_models}
        config = parse_config({"server": self.server, "models": models}, self.folder)
        for name, model in config.models.items():
            self.engines[name] = open_engine(engine_settings(name, model, config))
            await self.engines[name].start()
        self.registry = CollectorRegistry()

        async def ready() -> tuple[bool, dict[str, Any]]:
            return True, {}

        cap = config.server.max_body_bytes
        app = build_app(
            WebhookHandler({}, None, cap),
            OpsHandler(ready, self.registry),
            OpenAIApi(Settings(config), self.engines, self.registry),
            max_body_bytes=cap,
        )
        self.web = WebServer(app, "127.0.0.1", 0)
        await self.web.start()
        self.http = aiohttp.ClientSession(self.web.url)
        if ready_s:
            for engine in self.engines.values():
                await engine.wait_ready(ready_s)
        return self

    async def close(self) -> None:
        await self.http.close()
        await self.web.close()
        for engine in self.engines.values():
            await engine.close()

    @property
    def engine(self) -> Engine:
        return self.engines["main"]

    async def post(self, messages: Any, key: str = "", **fields: Any) -> tuple[int, Any, Any]:
        """(status, headers, body) of a completion in one piece."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"messages": messages, **fields}
        async with self.http.post("/v1/chat/completions", json=body, headers=headers) as response:
            return response.status, response.headers, await response.json()

    async def ask(self, messages: Any, **fields: Any) -> Any:
        """The body of a completion that must work."""
        status, _, body = await self.post(messages, **fields)
        assert status == 200, body
        return body

    async def stream(self, messages: Any, **fields: Any) -> Answer:
        """A streamed completion; every line must be what the standard says."""
        body = {"messages": messages, "stream": True, **fields}
        async with self.http.post("/v1/chat/completions", json=body) as response:
            answer = Answer(response.status)
            if response.status != 200:
                answer.chunks.append(await response.json())
                return answer
            assert response.headers["Content-Type"].startswith("text/event-stream")
            for event in (await response.text()).split("\n\n"):
                assert not answer.done or not event, "nothing comes after the end"
                if event == "data: [DONE]":
                    answer.done = True
                elif event and not event.startswith(":"):
                    assert event.startswith("data: ")
                    assert "\n" not in event
                    answer.chunks.append(json.loads(event.removeprefix("data: ")))
            return answer

    def figure(self, line: str) -> float:
        """A metric's value by its name and labels; 0 where it is not there."""
        for row in generate_latest(self.registry).decode().splitlines():
            if row.startswith(line + " "):
                return float(row.rpartition(" ")[2])
        return 0.0


@pytest.fixture
async def make_api(tmp_path: Path) -> AsyncIterator[Any]:
    rigs: list[ApiRig] = []

    async def make(
        *,
        server: dict[str, Any] | None = None,
        more_models: dict[str, Any] | None = None,
        ready_s: float = 30.0,
        **model: Any,
    ) -> ApiRig:
        rig = ApiRig(tmp_path, model, server or {}, more_models or {})
        rigs.append(rig)
        return await rig.open(ready_s)

    yield make
    for rig in rigs:
        await rig.close()

"""`hearth serve` as a whole process over other databases and engines than the usual ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.stand import Stand

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]
REPLY = "Half of this is shown before the kill, and the rest comes after it. " * 6 + "END"


def check_one_answer(stand: Stand, texts: list[str]) -> None:
    """One complete answer and nothing to frown on."""
    assert len(texts) == 1, texts
    assert "END" in texts[0]
    assert not stand.sandbox.violations


@pytest.mark.postgres
async def test_a_kill_on_postgresql_is_continued_after_the_lease(
    tmp_path: Path, postgres_url: str
) -> None:
    models = {"backend": "fake", "n_ctx": 8192, "fake": {"reply": REPLY, "token_delay_s": "0.004"}}
    extra = {"storage": {"url": postgres_url}, "chat": {"max_new_tokens": 1500}}
    async with Stand(
        tmp_path, models=models, extra=extra, bot={"update_interval_s": 0.35}
    ) as stand:
        user = stand.sandbox.add_user("Lin")
        group = stand.sandbox.add_group("g", [user])
        asked = await stand.sandbox.say(group, user, "Tell me.")
        await stand.sandbox.wait_for(
            lambda: any("Half" in text for text in stand.answers(asked)), timeout=20
        )
        await stand.restart()
        check_one_answer(stand, await stand.settled(asked, timeout_s=60))
        status = await stand.sandbox.say(group, user, "/status")
        assert "per person" in (await stand.settled(status))[0]


class Upstream:
    """A small OpenAI-compatible server; `requests` are the bodies it got."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "big", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for start in range(0, len(REPLY), 7):
            chunk = {"choices": [{"index": 0, "delta": {"content": REPLY[start : start + 7]}}]}
            try:
                await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            except ConnectionResetError:  # the service was killed, as the test wants
                return response
            await asyncio.sleep(0.03)
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        await response.write(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
        return response


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    server = Upstream()
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/chat/completions", server.chat)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield server, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


async def test_a_remote_model_interrupted_by_a_kill_starts_over_in_the_same_card_and_says_so(
    tmp_path: Path, upstream: tuple[Upstream, str]
) -> None:
    server, url = upstream
    models = {"backend": "openai", "base_url": url, "model": "big", "n_ctx": 4096}
    async with Stand(tmp_path, models=models, bot={"update_interval_s": 0.35}) as stand:
        user = stand.sandbox.add_user("Lin")
        chat = stand.sandbox.direct_chat(user)
        asked = await stand.sandbox.say(chat, user, "Tell me.")
        await stand.sandbox.wait_for(
            lambda: any("Half" in text for text in stand.answers(asked)), timeout=20
        )
        await stand.restart()
        texts = await stand.settled(asked, timeout_s=60)
        assert len(texts) == 1, texts
        assert texts[0].count("END") == 1
        assert "generated anew" in texts[0].split("END")[1]
        rules = {violation.rule for violation in stand.sandbox.violations}
        assert rules <= {"text_not_extended"}
        assert server.requests[-1]["messages"][-1]["content"].endswith("Tell me.")
        assert server.requests[-1]["stream"] is True

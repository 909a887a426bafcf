"""The API inside the whole application, as `hearth serve` composes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bot.app import Hearth
from bot.config import parse_config
from bot.errors import ConfigError


def config(folder: Path, keys: list[str]) -> Any:
    data = {
        "server": {"port": 0, "api_keys": keys, "shutdown_s": 1},
        "storage": {"url": "sqlite:///hearth.db"},
        "models": {"main": {"backend": "fake", "fake": {"reply": "Here."}}},
    }
    return parse_config(data, folder)


async def test_the_service_answers_the_api_too(tmp_path: Path) -> None:
    hearth = Hearth(config(tmp_path, ["the-only-key"]))
    await hearth.start()
    try:
        await hearth.engines["main"].wait_ready(30)
        assert hearth.web is not None
        headers = {"Authorization": "Bearer the-only-key"}
        ask = {"messages": [{"role": "user", "content": "Are you there?"}]}
        async with aiohttp.ClientSession(hearth.web.url) as http:
            async with http.post("/v1/chat/completions", json=ask, headers=headers) as response:
                body = await response.json()
            async with http.post("/v1/chat/completions", json=ask) as response:
                assert response.status == 401
            async with http.get("/metrics") as response:
                assert 'hearth_api_requests_total{status="200"} 1.0' in await response.text()
        assert body["choices"][0]["message"]["content"] == "Here."
    finally:
        await hearth.close()


async def test_a_key_that_is_none_stops_the_start(tmp_path: Path) -> None:
    hearth = Hearth(config(tmp_path, ["sha256:short"]))
    with pytest.raises(ConfigError, match=r"server\.api_keys\[0\]"):
        await hearth.start()

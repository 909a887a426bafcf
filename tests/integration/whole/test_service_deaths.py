"""The whole service over an engine that is short of memory and is killed by one question: what people and admins see."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from bot.sandbox.feishu import Limits, SandboxConfig
from tests.support.stand import Stand

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

SCRIPT = {
    "reply": "一字一句地回答。 " * 6,
    "token_delay_s": "0.01",
    "fits": "n_ubatch=256",
    "die": "segv",
    "die_on": "poison",
    "die_after": "20",
}


async def test_a_smaller_engine_and_a_question_that_kills_it(tmp_path: Path) -> None:
    stand = Stand(
        tmp_path,
        models={"backend": "fake", "fake": SCRIPT},
        sandbox_config=SandboxConfig(limits=Limits().without_rates()),
    )
    async with stand:
        people = [stand.sandbox.add_user(name) for name in ("Lin", "Alex", "王芳")]
        group = stand.sandbox.add_group("g", people)
        bad = await stand.sandbox.say(group, people[0], "This is poison")
        good = [await stand.sandbox.say(group, user, "A question") for user in people[1:]]
        (sentence,) = await stand.settled(bad, 90)
        assert "crashed each time" in sentence
        for question in good:
            (answer,) = await stand.settled(question, 90)
            assert answer.count("一字一句地回答。") == 6
        assert len(stand.events("engine_died")) == 3
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{stand.url}/readyz") as response,
        ):
            model = (await response.json())["models"]["main"]
        assert model["step_back"].startswith("n_ubatch 512 → 256 after running out of memory at")
        status = await stand.sandbox.say(group, people[1], "/status")
        assert "Running smaller than set: n_ubatch 512 → 256" in (await stand.settled(status))[0]
        peak = 'hearth_engine_peak_rss_bytes{model="main"}'
        async with asyncio.timeout(20):
            while peak not in (metrics := await stand.metrics()):  # looked at every five seconds
                await asyncio.sleep(0.2)
        assert metrics[peak] > 10 * 2**20
        available = metrics["hearth_machine_ram_available_bytes"]
        assert 0 < available <= metrics["hearth_machine_ram_bytes"]

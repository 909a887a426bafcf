"""kill -9 of the whole service: conversations of several people are warm again, with the real model and what is on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bot.sandbox.feishu import Limits, SandboxConfig
from tests.support.stand import Stand

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]
QUESTIONS = ("Name one bird of the sea.", "What does it eat?", "Where does it sleep?")


async def test_everybody_is_warm_after_kill_9(tmp_path: Path) -> None:
    stand = Stand(
        tmp_path,
        models={"backend": "llama.cpp", "path": "demo", "n_ctx": 1024, "n_parallel": 1},
        extra={"chat": {"max_new_tokens": 24, "show_date": False}},
        sandbox_config=SandboxConfig(limits=Limits().without_rates()),
    )
    async with stand:
        people = [stand.sandbox.add_user(name) for name in ("Lin", "Alex", "王芳")]
        chats = [stand.sandbox.direct_chat(user) for user in people]
        for number, question in enumerate(QUESTIONS):
            if number == 2:
                await asyncio.sleep(0.5)  # what was just said is being written
                stand.kill9()
                await stand.restart()
            for user, chat in zip(people, chats, strict=True):
                said = await stand.sandbox.say(chat, user, question)
                assert (await stand.settled(said, 90))[0]
        turns = stand.events("generated")
        assert len(turns) == 9
        # A turn computes its question, the marks of the template around it, and the last token of the answer before.
        computed = [turn["n_prompt"] - turn["n_cached"] for turn in turns[3:]]
        assert max(computed) <= 24, computed
        metrics = await stand.metrics()
        assert metrics['engine_kv_restored_tokens_total{model="main"}'] > 100

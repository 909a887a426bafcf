"""What must not cost everybody the engine: a request of a wrong type, a model that kills or hangs its child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.errors import EngineConfigError, EngineError
from engine.link.watch import Supervision
from engine.types import (
    ChatMessage,
    EngineEvent,
    EngineRequest,
    EngineState,
    Failed,
    FailureCode,
    Finished,
    Role,
)

Make = Callable[..., EngineProcess]


@pytest.fixture
async def hard_engines() -> AsyncIterator[Make]:
    made: list[EngineProcess] = []

    def make(rules: Supervision | None = None, **fake: str) -> EngineProcess:
        made.append(EngineProcess(EngineConfig(name="m", backend="fake", fake=fake), rules))
        return made[-1]

    yield make
    for engine in made:
        await engine.close()


async def until_detail(engine: EngineProcess, words: str) -> str:
    async with asyncio.timeout(15.0):
        while words not in (detail := (await engine.stats()).detail):
            await asyncio.sleep(0.02)
    return detail


async def test_a_field_of_a_wrong_type_fails_its_own_request_only(hard_engines: Make) -> None:
    engine = hard_engines(token_delay_s="0.01")
    await engine.start()
    await engine.wait_ready(20.0)

    async def events_of(request: EngineRequest) -> list[EngineEvent]:
        return [event async for event in engine.submit(request)]

    tokens = tuple(range(10, 30))
    other = asyncio.create_task(
        events_of(EngineRequest(id="other", prompt_tokens=tokens, max_new_tokens=60))
    )
    await asyncio.sleep(0.1)
    wrong: dict[str, Any] = {"max_new_tokens": 2.5}
    (failed,) = await events_of(EngineRequest(id="wrong", prompt_tokens=tokens, **wrong))
    assert isinstance(failed, Failed)
    assert (failed.request_id, failed.code) == ("wrong", FailureCode.BAD_REQUEST)
    odd: Any = ("x",)
    with pytest.raises(EngineError, match="wrong type"):
        await engine.render((ChatMessage(role=Role.ASSISTANT, content="x", token_ids=odd),))
    assert isinstance((await other)[-1], Finished)
    assert (await engine.stats()).n_restarts == 0


@pytest.mark.crash
async def test_a_model_that_hangs_while_loading_is_given_up(hard_engines: Make) -> None:
    engine = hard_engines(Supervision(load_s=1.5, watch_every_s=0.1), load_s="60")
    await engine.start()
    await until_detail(engine, "loading the model hung for more than 2 s")
    assert (await engine.stats()).state is EngineState.RESTARTING


@pytest.mark.crash
async def test_a_model_that_kills_every_child_is_a_settings_fault(hard_engines: Make) -> None:
    rules = Supervision(
        load_s=0.0, watch_every_s=0.05, backoff_first_s=0.05, max_load_deaths=3, config_retry_s=30.0
    )
    engine = hard_engines(rules, load_s="60")
    await engine.start()
    with pytest.raises(EngineConfigError, match="could not be loaded 3 times"):
        await engine.wait_ready(30.0)
    assert (await engine.stats()).state is EngineState.FAILED

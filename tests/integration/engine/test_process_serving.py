"""EngineProcess with a real child (fake backend): what it serves. All tests share one slow and one fast child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Role,
)
from tests.support.processkit import ask, events_of, ids_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def started(**changes: Any) -> EngineProcess:
    engine = EngineProcess(EngineConfig(name="m", backend="fake", n_parallel=2, **changes))
    await engine.start()
    await engine.wait_ready(20.0)
    return engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow() -> AsyncIterator[EngineProcess]:
    """50 tokens a second: there is a middle of a reply."""
    engine = await started(fake={"token_delay_s": "0.02"})
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fast() -> AsyncIterator[EngineProcess]:
    engine = await started()
    yield engine
    await engine.close()


async def test_two_hundred_at_once(fast: EngineProcess) -> None:
    requests = [ask(f"r{n}", owner=f"o{n}") for n in range(200)]
    streams = await asyncio.gather(*(events_of(fast, request) for request in requests))
    assert all(isinstance(events[-1], Finished) for events in streams)
    assert all(len(ids_of(events)) == 5 for events in streams)
    stats = await fast.stats()
    assert (stats.n_running, stats.n_waiting) == (0, 0)


async def test_questions_are_answered_while_it_decodes(slow: EngineProcess) -> None:
    async with aclosing(slow.submit(ask("r", 2000))) as stream:
        await anext(stream)
        alone = await slow.count("数一数")
        assert alone > 0
        assert await slow.count("") == 0
        assert await slow.count("a\ud800b") == await slow.count("a?b")
        messages = [
            ChatMessage(role=Role.USER, content="你好"),
            ChatMessage(role=Role.ASSISTANT, content="hi"),
        ]
        rendered = await slow.render(messages)
        assert rendered.n_tokens == len(rendered.token_ids)
        assert len(rendered.starts) == 2
        shorter = await slow.render(messages, add_generation_prompt=False)
        assert shorter.n_tokens < rendered.n_tokens
        counts = await asyncio.gather(*(slow.count("x" * n) for n in range(100)))
        assert counts == sorted(counts)
        assert (await slow.stats()).n_running == 1


async def test_a_slow_reader_loses_nothing_and_holds_nobody_up(fast: EngineProcess) -> None:
    stream = fast.submit(ask("slow", 300))
    events = [await anext(stream)]
    for n in range(3):
        assert isinstance((await events_of(fast, ask(f"quick{n}")))[-1], Finished)
    await asyncio.sleep(0.5)
    events += [event async for event in stream]
    assert len(ids_of(events)) == 300
    assert len(events) < 100, "what waited came melted together"


async def test_leaving_the_stream_cancels(slow: EngineProcess) -> None:
    async with aclosing(slow.submit(ask("r", 3000))) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                break
    async with asyncio.timeout(30.0):
        events = await events_of(slow, ask("r"))
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is not FinishReason.CANCELLED
    assert (await slow.stats()).n_running == 0


async def test_cancel_ends_the_stream(slow: EngineProcess) -> None:
    events: list[EngineEvent] = []
    async for event in slow.submit(ask("r", 3000)):
        events.append(event)
        if isinstance(event, Delta):
            await slow.cancel("r")
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is FinishReason.CANCELLED
    await slow.cancel("r")
    await slow.cancel("never seen")


async def test_an_id_that_is_running_is_refused_and_the_first_goes_on(slow: EngineProcess) -> None:
    async with aclosing(slow.submit(ask("r", 3000))) as stream:
        await anext(stream)
        (failed,) = await events_of(slow, ask("r"))
        assert isinstance(failed, Failed)
        assert (failed.code, failed.retryable) == (FailureCode.BAD_REQUEST, False)
        async for event in stream:
            if isinstance(event, Delta):
                break
        else:
            raise AssertionError("the first stream ended")


async def test_warm_and_forget_reach_the_child(fast: EngineProcess) -> None:
    await fast.warm("talk", "scope", range(10, 40))
    async with asyncio.timeout(30.0):
        while (await fast.stats()).n_sequences_kept != 1:
            await asyncio.sleep(0.02)
    events = await events_of(
        fast, ask("r", cache_key="talk", scope="scope", prompt_tokens=tuple(range(10, 50)))
    )
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.n_cached == 30
    await fast.forget("talk")
    assert (await fast.stats()).n_sequences_kept == 0

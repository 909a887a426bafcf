"""EngineProcess with the real demo model: a reply, its cache, a death in the middle and the same words after it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    Role,
    Sampling,
)

pytestmark = [
    pytest.mark.model,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]
QUESTION = (
    ChatMessage(role=Role.SYSTEM, content="You are a helpful assistant."),
    ChatMessage(role=Role.USER, content="Name three colours of the rainbow, then say why you like them."),
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(EngineConfig(name="demo", path="demo", n_ctx=1024, n_parallel=2))
    await engine.start()
    await engine.wait_ready(200.0)
    yield engine
    await engine.close()


def reply(
    request_id: str, tokens: tuple[int, ...], generated: tuple[int, ...] = ()
) -> EngineRequest:
    return EngineRequest(
        id=request_id,
        prompt_tokens=tokens,
        generated_tokens=generated,
        max_new_tokens=64,
        sampling=Sampling(temperature=0.0),
        cache_key="talk",
        scope="s",
    )


def ids_of(events: list[EngineEvent]) -> tuple[int, ...]:
    return tuple(i for event in events if isinstance(event, Delta) for i in event.token_ids)


def text_of(events: list[EngineEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


async def test_a_reply_survives_the_death_of_the_child(engine: EngineProcess) -> None:
    assert engine.info is not None
    assert engine.info.n_ctx_tokens == 1024
    assert engine.info.exact_counts
    rendered = await engine.render(QUESTION)
    assert rendered.exact
    assert await engine.count("Hello, world") in range(2, 8)

    whole = [event async for event in engine.submit(reply("whole", rendered.token_ids))]
    assert isinstance(whole[-1], Finished)
    assert whole[-1].usage.n_prompt == rendered.n_tokens
    assert len(ids_of(whole)) >= 24
    assert text_of(whole).strip()

    pid = (await engine.stats()).child_pid
    first: list[EngineEvent] = []
    killed = False
    async for event in engine.submit(reply("first", rendered.token_ids)):
        first.append(event)
        if len(ids_of(first)) >= 6 and not killed:  # what was sent before still arrives
            os.kill(pid, signal.SIGKILL)
            killed = True
    assert isinstance(first[-1], Failed)
    assert first[-1].code is FailureCode.ENGINE_DIED
    shown = ids_of(first)

    await engine.wait_ready(200.0)
    rest = [event async for event in engine.submit(reply("rest", rendered.token_ids, shown))]
    assert isinstance(rest[-1], Finished)
    assert shown + ids_of(rest) == ids_of(whole), "continued from its ids, not thrown away"
    assert text_of(first) + text_of(rest) == text_of(whole)


async def test_the_next_turn_computes_only_what_is_new(engine: EngineProcess) -> None:
    rendered = await engine.render(QUESTION)
    events = [event async for event in engine.submit(reply("a", rendered.token_ids))]
    longer = (*rendered.token_ids, *ids_of(events), *rendered.token_ids[-5:])
    again = [event async for event in engine.submit(reply("b", longer))]
    assert isinstance(again[-1], Finished)
    assert again[-1].usage.n_cached >= rendered.n_tokens

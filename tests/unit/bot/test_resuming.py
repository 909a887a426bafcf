"""A stream of the API goes on behind a death and behind a failed batch; what cannot be mended so is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from bot.web.resuming import MAX_DEATHS, resuming
from engine.types import (
    Delta,
    EngineEvent,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    ModelInfo,
    Usage,
)


class Failing:
    """An engine that gives one token and fails, as often as it is told to."""

    def __init__(self, code: FailureCode, n_failures: int) -> None:
        self.info = ModelInfo(name="m", path="", fingerprint="f", n_ctx_tokens=100)
        self.given: list[tuple[int, ...]] = []
        self._code = code
        self._n_failures = n_failures

    async def submit(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        self.given.append(request.generated_tokens)
        yield Delta(request_id=request.id, token_ids=(len(self.given),), text="a")
        if len(self.given) <= self._n_failures:
            yield Failed(request_id=request.id, code=self._code, retryable=True)
        else:
            yield Finished(request_id=request.id, reason=FinishReason.STOP, usage=Usage())

    async def wait_ready(self, timeout_s: float) -> ModelInfo:
        del timeout_s
        return self.info


async def events_of(engine: Any) -> list[EngineEvent]:
    request = EngineRequest(id="r", prompt_tokens=(1, 2))
    return [event async for event in resuming(engine, request)]


@pytest.mark.parametrize("code", [FailureCode.ENGINE_DIED, FailureCode.DECODE])
async def test_it_goes_on_from_the_ids_that_have_come(code: FailureCode) -> None:
    engine = Failing(code, 2)
    events = await events_of(engine)
    assert engine.given == [(), (1,), (1, 2)]
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(event, Failed) for event in events)


@pytest.mark.parametrize(
    ("code", "n_tries"), [(FailureCode.DECODE, MAX_DEATHS + 1), (FailureCode.BUSY, 1)]
)
async def test_and_is_told_in_the_end(code: FailureCode, n_tries: int) -> None:
    engine = Failing(code, 99)
    events = await events_of(engine)
    assert len(engine.given) == n_tries
    assert [event for event in events if isinstance(event, Failed)] == events[-1:]

"""Requests for an engine process and what comes back: shared by the tests of the child and of its serving."""

from __future__ import annotations

from typing import Any

from engine.client import EngineProcess
from engine.types import Delta, EngineEvent, EngineRequest, Failed, Finished


def ask(request_id: str, n_tokens: int = 5, **changes: Any) -> EngineRequest:
    fields: dict[str, Any] = {"prompt_tokens": tuple(range(10, 30)), "max_new_tokens": n_tokens}
    return EngineRequest(id=request_id, **fields | changes)


async def events_of(engine: EngineProcess, request: EngineRequest) -> list[EngineEvent]:
    events = [event async for event in engine.submit(request)]
    assert [e for e in events if isinstance(e, Finished | Failed)] == events[-1:]
    assert {event.request_id for event in events} == {request.id}
    return events


def ids_of(events: list[EngineEvent]) -> list[int]:
    return [i for event in events if isinstance(event, Delta) for i in event.token_ids]

"""An engine's stream that survives the engine's death: the same reply goes on from the token ids that have come.

For callers that hold nothing themselves (the API); turns of chats are continued from the store (`bot.service.generation`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
import structlog

from engine.errors import EngineError
from engine.face import Engine
from engine.types import Delta, EngineEvent, EngineRequest, Failed, FailureCode

log = structlog.get_logger()

MAX_DEATHS: Final = 3
_READY_S: Final = 120.0


async def resuming(engine: Engine, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
    """The events of a request, exactly one terminal one last. A dead engine is waited for and asked to go on, unless it comes
    back with another model, or the request has no token ids to go on from. So is one that failed on a batch: that may have
    been somebody else's fault."""
    info = engine.info
    ids = list(request.generated_tokens)
    n_deaths = 0
    while True:
        death: Failed | None = None
        async for event in engine.submit(request):
            if isinstance(event, Delta):
                ids += event.token_ids
            if _is_death(event) and request.prompt_tokens and n_deaths < MAX_DEATHS:
                assert isinstance(event, Failed)  # noqa: S101 - what `_is_death` says
                death = event
            else:
                yield event
        if death is None:
            return
        n_deaths += 1
        if not await _comes_back(engine, death, info.fingerprint if info else ""):
            yield death
            return
        log.info("reply_resumed", request_id=request.id, n_ids=len(ids))
        request = msgspec.structs.replace(request, id=f"{request.id}+", generated_tokens=tuple(ids))


def _is_death(event: EngineEvent) -> bool:
    codes = {FailureCode.ENGINE_DIED, FailureCode.DECODE}
    return isinstance(event, Failed) and event.retryable and event.code in codes


async def _comes_back(engine: Engine, death: Failed, fingerprint: str) -> bool:
    """Wait for the next child; whether it has the same model."""
    await asyncio.sleep(death.retry_after_s)
    try:
        info = await engine.wait_ready(_READY_S)
    except EngineError:
        return False
    return info.fingerprint == fingerprint

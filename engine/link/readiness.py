"""The state of an engine as `/readyz` tells it, and waiting for READY; the same for a child process and a remote server.

Owns state, detail and what is loaded. Must not change them by itself: one owner (a supervisor or a probe) does.
"""

from __future__ import annotations

import asyncio

from engine.errors import EngineConfigError, EngineUnavailable
from engine.types import EngineState, ModelInfo


class Readiness:
    """Owner: the supervisor or probe that made it; others read. CLOSED is for good."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._changed = asyncio.Event()
        self.state = EngineState.STARTING
        self.detail = "not started"
        self.info: ModelInfo | None = None

    def set(self, state: EngineState, detail: str) -> None:
        """Change the state; `detail` is one sentence for an admin, "" when all is well."""
        if self.state is not EngineState.CLOSED:
            self.state, self.detail = state, detail
        self._changed.set()

    async def wait_ready(self, timeout_s: float) -> ModelInfo:
        """Wait for READY. Raises EngineUnavailable on timeout and after close, EngineConfigError in FAILED."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if self.state is EngineState.READY and self.info is not None:
                        return self.info
                    if self.state is EngineState.FAILED:
                        raise EngineConfigError(self.detail)
                    if self.state is EngineState.CLOSED:
                        raise EngineUnavailable("the engine is closed")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise EngineUnavailable(
                f'the model "{self._model_name}" was not ready within {timeout_s:.0f} s: {self.detail}'
            ) from None

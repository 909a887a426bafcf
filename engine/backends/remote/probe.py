"""What a remote server is and whether it is there: asked in the background until it has answered.

Owns the readiness of the server and the one probing task. Must not send prompts.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, Final

import structlog

from engine.backends.remote.counter import Findings, RemoteCounter
from engine.backends.remote.http import RemoteServer
from engine.backends.remote.protocol import Dialect, RemoteFailure
from engine.link.readiness import Readiness
from engine.types import EngineState, FailureCode, ModelInfo

if TYPE_CHECKING:
    from engine.config import OpenAISettings

log = structlog.get_logger()

_FIRST_S: Final = 1.0
_MAX_S: Final = 30.0
_REFUSED_S: Final = 60.0


class ServerProbe:
    """Owner of the state: its own task.

    STARTING until the server has answered once; RESTARTING while it cannot be reached later; FAILED while it refuses the
    key (asked again every minute); CLOSED for good.
    """

    def __init__(
        self, settings: OpenAISettings, server: RemoteServer, counter: RemoteCounter
    ) -> None:
        self._settings = settings
        self._server = server
        self._counter = counter
        self._log = log.bind(model=settings.name)
        self._task: asyncio.Task[None] | None = None
        self.readiness = Readiness(settings.name)

    def start(self) -> None:
        """Look (again) in the background; nothing changes while it is looking already."""
        if self.readiness.state is EngineState.CLOSED or not (
            self._task is None or self._task.done()
        ):
            return
        if self.readiness.state is EngineState.STARTING:
            self.readiness.set(EngineState.STARTING, f"asking {self._server.host}")
        self._task = asyncio.create_task(self._look_until_ready(), name="remote_probe")

    async def close(self) -> None:
        """Stop looking."""
        self.readiness.set(EngineState.CLOSED, "closed")
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _look_until_ready(self) -> None:
        wait_s = _FIRST_S
        while True:
            try:
                await self._look_safely()
            except RemoteFailure as failure:
                if str(failure) != self.readiness.detail:
                    self._log.warning("remote_not_ready", detail=str(failure))
                if not failure.retryable:
                    self.readiness.set(EngineState.FAILED, str(failure))
                    await asyncio.sleep(_REFUSED_S)
                    continue
                known = self.readiness.info is not None
                state = EngineState.RESTARTING if known else EngineState.STARTING
                self.readiness.set(state, str(failure))
                await asyncio.sleep(wait_s)
                wait_s = min(_MAX_S, wait_s * 2)
            else:
                return

    async def _look_safely(self) -> None:
        """Turn whatever an odd answer does to us into a failure of the other side: the task must go on looking."""
        try:
            await self._look()
        except RemoteFailure:
            raise
        except Exception as error:
            message = f"{self._server.host} gave an odd answer ({type(error).__name__})"
            raise RemoteFailure(FailureCode.UPSTREAM, message, retryable=True) from error

    async def _look(self) -> None:
        models = await self._server.models()
        dialect = await self._counter.find_dialect()
        findings = Findings(dialect, await self._reported_window(models, dialect))
        self._server.dialect = dialect
        self._counter.findings = findings
        info = self.readiness.info = self._describe(findings)
        self.readiness.set(EngineState.READY, "")
        self._log.info("remote_ready", dialect=dialect.value, n_ctx=info.n_ctx_tokens)

    async def _reported_window(self, models: list[dict[str, Any]], dialect: Dialect) -> int | None:
        """vLLM lists `max_model_len`; llama-server's `/props` has the window of one slot."""
        for entry in models:
            window = entry.get("max_model_len")
            if entry.get("id") == self._settings.model and isinstance(window, int) and window > 0:
                return window
        if dialect is Dialect.LLAMA_SERVER:
            props = await self._server.get("/props")
            slot = (props or {}).get("default_generation_settings")
            window = slot.get("n_ctx") if isinstance(slot, dict) else None
            if isinstance(window, int) and window > 0:
                return window
        return None

    def _describe(self, findings: Findings) -> ModelInfo:
        window = min(self._settings.n_ctx, findings.n_ctx_tokens or self._settings.n_ctx)
        if window < self._settings.n_ctx:
            self._log.warning("remote_window_smaller", n_ctx=self._settings.n_ctx, real=window)
        identity = f"{self._server.host}\n{self._settings.model}"
        how = "its own tokenizer" if findings.can_tokenize else "an upper bound from UTF-8 bytes"
        return ModelInfo(
            name=self._settings.name,
            path=f"{self._settings.model} at {self._server.host}",
            fingerprint=f"remote-{hashlib.sha256(identity.encode()).hexdigest()[:16]}",
            n_ctx_tokens=window,
            n_parallel=self._settings.n_parallel,
            exact_counts=findings.can_tokenize,
            description=f"remote model, counted by {how}; an interrupted answer starts again",
        )

"""Which requests are accepted. Decides from the request and from how many wait; changes nothing but its own estimate."""

from __future__ import annotations

from engine.backends.base import Backend
from engine.config import EngineConfig
from engine.core.scheduler import WaitLine
from engine.types import EngineRequest, Failed, FailureCode

_FIRST_GUESS_SERVICE_S = 10.0
_WEIGHT = 0.1
# Every step looks for every stop string at the end of every reply.
MAX_STOPS = 64
MAX_STOP_CHARS = 256
_MIN_WAIT_S, _MAX_WAIT_S = 1.0, 300.0


class Gate:
    """Owned by the core. Every answer is a terminal event for the refused request, or None."""

    def __init__(self, backend: Backend, config: EngineConfig, n_parallel: int) -> None:
        self._backend = backend
        self._config = config
        self._n_parallel = n_parallel
        self._service_s = _FIRST_GUESS_SERVICE_S

    def observe_service(self, seconds: float) -> None:
        """A reply took so long from its sequence to its end; the estimate of waiting times follows."""
        self._service_s += _WEIGHT * (seconds - self._service_s)

    def refusal(self, request: EngineRequest, line: WaitLine, n_waiting: int) -> Failed | None:
        """Why a request cannot be accepted: it makes no sense, can never fit, or too many wait."""
        refusal = self.refusal_of_tokens(request)
        if refusal is not None:
            return refusal
        if request.max_new_tokens < 1:
            return _bad(request, "max_new_tokens must be at least 1")
        if len(request.stop) > MAX_STOPS or any(len(s) > MAX_STOP_CHARS for s in request.stop):
            message = f"at most {MAX_STOPS} stop strings of {MAX_STOP_CHARS} characters can be used"
            return _bad(request, message)
        n_own = line.n_of_owner(request.owner) if request.owner else 0
        if n_own >= self._config.max_waiting_per_owner:
            return self._busy(request, "too many requests of one owner wait", n_own)
        # Counted with those that go first only: a flood of less important requests must not shut people out.
        n_before = min(n_waiting, line.n_up_to(request.priority))
        if n_before >= self._config.max_waiting:
            return self._busy(request, "the queue is full", n_before)
        return None

    def refusal_of_tokens(self, request: EngineRequest) -> Failed | None:
        """Why these tokens can never be computed here."""
        n_prompt = len(request.prompt_tokens)
        window = self._backend.n_ctx_seq
        if n_prompt == 0:
            return _bad(request, "the prompt is empty")
        tokens = (*request.prompt_tokens, *request.generated_tokens)
        if min(tokens) < 0 or max(tokens) >= self._backend.n_vocab:
            return _bad(request, "the prompt holds token ids that this model does not have")
        if n_prompt + 1 > window:
            return Failed(
                request_id=request.id,
                code=FailureCode.TOO_LONG,
                retryable=False,
                message=f"the prompt has {n_prompt} tokens; one conversation has {window} with its reply",
            )
        return None

    def _busy(self, request: EngineRequest, message: str, n_ahead: int) -> Failed:
        wait_s = self._service_s * (n_ahead + 1) / self._n_parallel
        return Failed(
            request_id=request.id,
            code=FailureCode.BUSY,
            retryable=True,
            message=message,
            retry_after_s=min(max(wait_s, _MIN_WAIT_S), _MAX_WAIT_S),
        )


def _bad(request: EngineRequest, message: str) -> Failed:
    return Failed(
        request_id=request.id, code=FailureCode.BAD_REQUEST, retryable=False, message=message
    )

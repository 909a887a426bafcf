"""The chat-completions protocol as pure functions: what is sent, what a streamed chunk means, what an error means.

Must not do I/O and must never repeat words of the server: error texts of some servers quote the prompt or the key.
Sources: OpenAI "Create chat completion" and "Streaming"; llama.cpp tools/server README (`timings`, `reasoning_content`,
`exceed_context_size_error`); vLLM entrypoints/openai protocol (`reasoning`, `max_model_len`, `repetition_penalty`).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from engine.types import EngineRequest, Failed, FailureCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_MAX_RETRY_AFTER_S: Final = 300.0
_CONTEXT_MARKS: Final = (
    "context_length_exceeded", "exceed_context_size", "context length", "context size", "context window", "maximum model length",
    "prompt is too long",
)  # fmt: skip
# Fields that some servers refuse; without them the reply is still a reply.
OPTIONAL_FIELDS: Final = (
    "stream_options", "seed", "top_k", "min_p", "repeat_penalty", "repeat_last_n", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "top_p", "cache_prompt",
)  # fmt: skip
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Dialect(StrEnum):
    """Which fields beyond OpenAI's own a server understands."""

    PLAIN = "plain"
    LLAMA_SERVER = "llama-server"
    VLLM = "vllm"


class RemoteFailure(Exception):
    """A request that the server did not answer; becomes a `Failed` event."""

    def __init__(
        self, code: FailureCode, message: str, *, retryable: bool, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s

    def event(self, request_id: str) -> Failed:
        """The terminal event."""
        return Failed(
            request_id=request_id,
            code=self.code,
            retryable=self.retryable,
            message=str(self),
            retry_after_s=self.retry_after_s,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a streamed reply. Counts are None where the server did not say."""

    text: str = ""
    thinking: str = ""
    finish_reason: str = ""
    n_prompt: int | None = None
    n_cached: int | None = None
    n_generated: int | None = None
    done: bool = False


def request_body(
    model: str, request: EngineRequest, dialect: Dialect, left_out: Collection[str]
) -> dict[str, Any]:
    """The body of a streaming chat completion. A sampler setting that does nothing is not sent."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": message.role.value, "content": message.content} for message in request.messages
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": list(request.stop) or None,
        "seed": sampling.seed,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
    }
    if dialect is not Dialect.PLAIN:
        body |= {"top_k": sampling.top_k, "min_p": sampling.min_p}
    if dialect is Dialect.LLAMA_SERVER:
        body |= {
            "repeat_penalty": sampling.repeat_penalty,
            "repeat_last_n": sampling.repeat_last_n,
            "cache_prompt": True,
        }
    if dialect is Dialect.VLLM:
        body["repetition_penalty"] = sampling.repeat_penalty
    if "max_tokens" in left_out:
        body["max_completion_tokens"] = body["max_tokens"]
    return {
        name: value for name, value in body.items() if value is not None and name not in left_out
    }


def refused_field(status: int, body: str, sent: Collection[str]) -> str | None:
    """The field that a refusal is about, if the request can do without it (`max_tokens`: by its newer name)."""
    if status not in {400, 422} or any(mark in body for mark in _CONTEXT_MARKS):
        return None
    if "max_completion_tokens" in body and "max_tokens" in sent:
        return "max_tokens"
    for name in OPTIONAL_FIELDS:
        if name in sent and re.search(rf"\b{name}\b", body):
            return name
    return None


def read_chunk(data: Mapping[str, Any], redacted_host: str) -> Chunk:
    """What an event says; unknown shapes say nothing. Raises RemoteFailure for an error object."""
    if data.get("done") is True:
        return Chunk(done=True)
    error = data.get("error") or (data if data.get("object") == "error" else None)
    if error:
        status = _int(_get(error, "code")) or _int(_get(error, "status")) or 500
        raise failure_of(status, {}, error, redacted_host)
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    delta = _get(choice, "delta") or _get(choice, "message") or {}
    usage = data.get("usage") or _get(choice, "usage") or {}
    timings = data.get("timings") or {}
    cached = _get(_get(usage, "prompt_tokens_details") or {}, "cached_tokens")
    return Chunk(
        text=_text(_get(delta, "content")),
        thinking=_text(_get(delta, "reasoning_content")) or _text(_get(delta, "reasoning")),
        finish_reason=_text(_get(choice, "finish_reason")),
        n_prompt=_int(_get(usage, "prompt_tokens")),
        n_cached=_int(cached) if cached is not None else _int(_get(timings, "cache_n")),
        n_generated=_int(_get(usage, "completion_tokens")),
    )


def failure_of(
    status: int, headers: Mapping[str, str], error: Any, redacted_host: str
) -> RemoteFailure:
    """What an error answer means. `error` is its parsed JSON or its text; only identifiers and numbers of it are repeated."""
    inner = _get(error, "error") or error
    text = f"{inner}".lower()
    if any(mark in text for mark in _CONTEXT_MARKS) and status not in {401, 403}:
        return RemoteFailure(
            FailureCode.TOO_LONG, _too_long_sentence(inner, redacted_host), retryable=False
        )
    said = _identifiers(inner)
    where = f"{redacted_host} answered {status}{said}"
    wait_s = retry_after_s(headers)
    match status:
        case 413:
            message = f"{where}: the prompt is too big for it; check n_ctx of this model"
            return RemoteFailure(FailureCode.TOO_LONG, message, retryable=False)
        case 429:
            return RemoteFailure(
                FailureCode.BUSY, f"{where}: busy", retryable=True, retry_after_s=wait_s or 5.0
            )
        case 401 | 403:
            message = f"{where}: check api_key of this model"
            return RemoteFailure(FailureCode.UPSTREAM, message, retryable=False)
        case 404:
            message = f"{where}: check base_url (with /v1) and the model's name"
            return RemoteFailure(FailureCode.UPSTREAM, message, retryable=False)
        case _ if 300 <= status < 400:
            message = f"{where}: a redirect is not followed; set base_url to the final address"
            return RemoteFailure(FailureCode.UPSTREAM, message, retryable=False)
        case _ if status >= 500 or status in {408, 409, 425}:
            return RemoteFailure(
                FailureCode.UPSTREAM, where, retryable=True, retry_after_s=wait_s or 2.0
            )
        case _:
            return RemoteFailure(FailureCode.BAD_REQUEST, where, retryable=False)


def retry_after_s(headers: Mapping[str, str], now: float | None = None) -> float:
    """Seconds of a Retry-After header in either form (RFC 9110 §10.2.3); 0 = none; capped, as nobody waits for hours."""
    value = headers.get("Retry-After", "").strip()
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - (
                time.time() if now is None else now
            )
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_S) if seconds == seconds else 0.0


def _too_long_sentence(error: Any, redacted_host: str) -> str:
    n_prompt, n_ctx = _int(_get(error, "n_prompt_tokens")), _int(_get(error, "n_ctx"))
    numbers = f" ({n_prompt} tokens, its window has {n_ctx})" if n_prompt and n_ctx else ""
    return f"the prompt is too long for the model at {redacted_host}{numbers}; check n_ctx of this model"


def _identifiers(error: Any) -> str:
    names = [str(_get(error, key) or "") for key in ("type", "code", "param")]
    words = [name for name in names if _IDENTIFIER.fullmatch(name) and not name.isdigit()]
    return f" ({', '.join(dict.fromkeys(words))})" if words else ""


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _text(value: Any) -> str:
    """A string, or the text parts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(_get(part, "text")) for part in value)
    return ""


def _int(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

"""The words of OpenAI's chat completions: a request read into our own nouns, errors and answers in their JSON shape.

Pure. Fields that nobody here knows are ignored; those that would change the answer and are not supported are refused, so
that no program takes an answer for what it is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engine.types import ChatMessage, FinishReason, Role, Sampling, Usage

MAX_MESSAGES = 4096
MAX_STOPS = 16
MAX_STOP_CHARS = 256
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
          429: "rate_limit_error"}  # fmt: skip


class ApiError(Exception):
    """A request that gets an error instead of an answer; `message` is one sentence for its sender, and safe to log."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _TYPES.get(self.status) or (
            "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


class _Part(BaseModel):
    """One of a message's parts; only text has a meaning to a text model."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    type: str
    text: str = ""


class Message(BaseModel):
    """One message of the history."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None

    @field_validator("role")
    @classmethod
    def _known(cls, value: str) -> str:
        if value in {"tool", "function"}:
            raise ValueError(f'the role "{value}" is not supported: this server calls no tools')
        if value not in _ROLES:
            raise ValueError("must be one of system, developer, user and assistant")
        return value

    @field_validator("content")
    @classmethod
    def _only_text(cls, value: str | list[_Part] | None) -> str | list[_Part] | None:
        if isinstance(value, list) and any(part.type != "text" for part in value):
            raise ValueError('only parts of the type "text" are supported')
        return value

    @model_validator(mode="after")
    def _no_calls(self) -> Message:
        if self.tool_calls or self.function_call:
            raise ValueError("tool calls are not supported: this server calls no tools")
        if self.content is None and self.role != "assistant":
            raise ValueError("the message has no content")
        return self

    def to_engine(self) -> ChatMessage:
        """The message as the model is shown it."""
        content = self.content or ""
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        return ChatMessage(role=_ROLES[self.role], content=content)


_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}


class StreamOptions(BaseModel):
    """`stream_options`"""

    include_usage: bool | None = None


def _number(low: float, high: float) -> Any:
    return Field(None, ge=low, le=high, allow_inf_nan=False)


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`. Penalties and the extra samplers go by the names of llama.cpp and vLLM."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    model: str = "default"
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = _number(0, 5)
    top_p: float | None = _number(0, 1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float | None = _number(0, 1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    presence_penalty: float | None = _number(-2, 2)
    frequency_penalty: float | None = _number(-2, 2)
    repeat_penalty: float | None = _number(0, 3)
    repetition_penalty: float | None = _number(0, 3)
    n: int | None = None

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        stops = [value] if isinstance(value, str) else value or []
        if len(stops) > MAX_STOPS or any(not 0 < len(s) <= MAX_STOP_CHARS for s in stops):
            raise ValueError(
                f"at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters are supported"
            )
        return value

    @field_validator("n")
    @classmethod
    def _one(cls, value: int | None) -> int | None:
        if value not in {None, 1}:
            raise ValueError("only n = 1 is supported")
        return value

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that tells the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wanted_tokens(self) -> int | None:
        """How long the reply may be; None when the request does not say."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The request's own stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def engine_messages(self) -> tuple[ChatMessage, ...]:
        """The history as the engine takes it."""
        return tuple(message.to_engine() for message in self.messages)

    def sampling(self, defaults: Sampling) -> Sampling:
        """The model's settings with what this request says instead."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "seed": None if self.seed is None else self.seed & 0xFFFFFFFF,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repeat_penalty": self.repetition_penalty
            if self.repeat_penalty is None
            else self.repeat_penalty,
        }
        said = {name: value for name, value in given.items() if value is not None}
        return msgspec.structs.replace(defaults, **said)


def _is_text_format(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


# What a request may carry only as long as it asks for nothing: field -> whether this value asks for nothing.
_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value in ("none", "auto"),
    "functions": lambda value: value == [],
    "function_call": lambda value: value in ("none", "auto"),
    "response_format": _is_text_format,
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "logit_bias": lambda value: value == {},
    "modalities": lambda value: value == ["text"],
    "audio": lambda _: False,
    "prediction": lambda _: False,
    "web_search_options": lambda _: False,
}


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises ApiError (400) that names the field, never its value."""
    try:
        # Strictly: `json.loads` lets half an emoji through where it stands in the bytes themselves.
        text = body.decode(json.detect_encoding(body))
        data = json.loads(text)
        if "\\ud" in text.lower():
            # Half of an emoji, as JavaScript cuts them off: no UTF-8 text can hold it, so it becomes a question mark.
            data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not valid JSON", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    for field, is_idle in _UNSUPPORTED.items():
        if data.get(field) is not None and not is_idle(data[field]):
            raise ApiError(
                400, f"{field} is not supported", param=field, code="unsupported_parameter"
            )
    try:
        return ChatRequest.model_validate(data)
    except ValidationError as error:
        raise _first_fault(error) from None


def _first_fault(error: ValidationError) -> ApiError:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    # Branches of a union ("str", "list[...]") are pydantic's words, not the sender's.
    path = [p for p in first["loc"] if isinstance(p, int) or (p.isidentifier() and p != "str")]
    where = ".".join(str(p) for p in path)
    why = first["msg"].removeprefix("Value error, ")
    code = "unsupported_parameter" if "supported" in why else None
    return ApiError(400, f"{where}: {why[:1].lower()}{why[1:]}", param=where, code=code)


@dataclass(frozen=True, slots=True)
class Head:
    """What every piece of one answer begins with. `created`: seconds since 1970."""

    id: str
    model: str
    created: int

    def whole(
        self, content: str, thinking: str, finish: str, usage: dict[str, Any]
    ) -> dict[str, Any]:
        """The answer in one piece."""
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if thinking:
            message["reasoning_content"] = thinking
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return {**self._base("chat.completion"), "choices": [choice], "usage": usage}

    def chunk(self, delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        """A piece of a streamed answer."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._base("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last piece, where it was asked for."""
        return {**self._base("chat.completion.chunk"), "choices": [], "usage": usage}

    def _base(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage_body(usage: Usage, n_thinking: int) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_generated,
        "total_tokens": usage.n_prompt + usage.n_generated,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached},
        "completion_tokens_details": {"reasoning_tokens": n_thinking},
    }


def finish_word(reason: FinishReason) -> Literal["stop", "length"]:
    """Why a reply ended well, in OpenAI's words."""
    return "length" if reason is FinishReason.LENGTH else "stop"


def sse(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"
# A comment: readers skip it, proxies and time-outs see that the line is alive.
SSE_ALIVE = b": waiting\n\n"

"""What is sent to a remote server, what its chunks mean, and what its errors become."""

from __future__ import annotations

from typing import Any

import pytest
from rich.pretty import pretty_repr

from engine.backends.remote.protocol import (
    Chunk,
    Dialect,
    RemoteFailure,
    failure_of,
    read_chunk,
    refused_field,
    request_body,
    retry_after_s,
)
from engine.config import OpenAISettings
from engine.types import ChatMessage, EngineRequest, FailureCode, Role, Sampling

HOST = "box:8000"
REQUEST = EngineRequest(
    id="r",
    messages=(
        ChatMessage(role=Role.SYSTEM, content="be kind"),
        ChatMessage(role=Role.USER, content="你好"),
    ),
    max_new_tokens=77,
    stop=("END",),
    sampling=Sampling(temperature=0.3, top_k=5, seed=9),
)


def test_the_body_of_a_plain_server_holds_only_what_openai_knows() -> None:
    assert request_body("big", REQUEST, Dialect.PLAIN, ()) == {
        "model": "big",
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "你好"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 77,
        "temperature": 0.3,
        "top_p": 0.95,
        "stop": ["END"],
        "seed": 9,
    }


def test_known_servers_get_their_own_sampler_names() -> None:
    llama = request_body("m", REQUEST, Dialect.LLAMA_SERVER, ())
    assert (llama["top_k"], llama["min_p"], llama["repeat_penalty"]) == (5, 0.05, 1.0)
    assert llama["cache_prompt"] is True
    vllm = request_body("m", REQUEST, Dialect.VLLM, ())
    assert vllm["repetition_penalty"] == 1.0
    assert "repeat_penalty" not in vllm


def test_refused_fields_are_left_out_and_max_tokens_renamed() -> None:
    body = request_body("m", REQUEST, Dialect.PLAIN, {"seed", "stream_options", "max_tokens"})
    assert "seed" not in body
    assert "stream_options" not in body
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 77


@pytest.mark.parametrize(
    ("status", "error", "field"),
    [
        (400, '{"error": {"message": "Unrecognized request argument: stream_options"}}', "stream_options"),
        (422, '{"detail": [{"loc": ["body", "top_k"], "msg": "extra fields"}]}', "top_k"),
        (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens"),
        (400, "max_tokens is too large: maximum context length is 4096", None),
        (400, "messages must alternate", None),
        (500, "seed", None),
    ],
)  # fmt: skip
def test_which_field_a_refusal_is_about(status: int, error: str, field: str | None) -> None:
    sent = {"stream_options", "top_k", "max_tokens", "seed", "messages"}
    assert refused_field(status, error, sent) == field


def test_a_field_that_was_not_sent_is_not_blamed_again() -> None:
    assert refused_field(400, "seed is not supported", {"messages"}) is None


@pytest.mark.parametrize(
    ("data", "chunk"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": None}}]}, Chunk()),
        ({"choices": [{"delta": {"content": "hi"}}]}, Chunk(text="hi")),
        ({"choices": [{"delta": {"reasoning_content": "hm"}}]}, Chunk(thinking="hm")),
        ({"choices": [{"delta": {"reasoning": "hm"}}]}, Chunk(thinking="hm")),
        ({"choices": [{"delta": {"content": [{"type": "text", "text": "a"}, {"text": "b"}]}}]}, Chunk(text="ab")),
        ({"choices": [{"delta": {}, "finish_reason": "length"}]}, Chunk(finish_reason="length")),
        ({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}, Chunk(n_prompt=9, n_generated=3)),
        (
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}},
            Chunk(n_prompt=9, n_generated=3, n_cached=5),
        ),
        ({"choices": [], "timings": {"cache_n": 4}, "usage": {"prompt_tokens": 9}}, Chunk(n_prompt=9, n_cached=4)),
        ({"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}, Chunk(text="whole", finish_reason="stop")),
        ({"done": True}, Chunk(done=True)),
        ({}, Chunk()),
        ({"choices": None, "usage": None, "timings": None}, Chunk()),
        ({"choices": ["odd"], "usage": [1]}, Chunk()),
    ],
)  # fmt: skip
def test_chunks(data: dict[str, Any], chunk: Chunk) -> None:
    assert read_chunk(data, HOST) == chunk


@pytest.mark.parametrize(
    ("status", "error", "code", "retryable"),
    [
        (429, {"error": {"type": "rate_limit"}}, FailureCode.BUSY, True),
        (503, {"error": {"type": "unavailable_error", "message": "Loading model"}}, FailureCode.UPSTREAM, True),
        (500, "oops", FailureCode.UPSTREAM, True),
        (502, "<html>", FailureCode.UPSTREAM, True),
        (401, {"error": {"code": "invalid_api_key"}}, FailureCode.UPSTREAM, False),
        (404, {"error": {"code": "model_not_found"}}, FailureCode.UPSTREAM, False),
        (302, "", FailureCode.UPSTREAM, False),
        (400, {"error": {"message": "roles must alternate"}}, FailureCode.BAD_REQUEST, False),
        (400, {"error": {"code": "context_length_exceeded"}}, FailureCode.TOO_LONG, False),
        (400, {"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192}}, FailureCode.TOO_LONG, False),
        (400, {"object": "error", "message": "This model's maximum context length is 8192 tokens."}, FailureCode.TOO_LONG, False),
        (500, {"error": {"message": "the request exceeds the available context size"}}, FailureCode.TOO_LONG, False),
    ],
)  # fmt: skip
def test_errors(status: int, error: object, code: FailureCode, retryable: bool) -> None:
    failure = failure_of(status, {}, error, HOST)
    assert (failure.code, failure.retryable) == (code, retryable)
    assert HOST in str(failure)


def test_the_servers_own_words_are_not_repeated() -> None:
    error = {
        "error": {
            "message": "bad input: my secret question; key sk-12345",
            "type": "invalid_request_error",
            "code": "sk-12345 is not an identifier, it has spaces",
        }
    }
    message = str(failure_of(400, {}, error, HOST))
    assert "secret" not in message
    assert "sk-12345" not in message
    assert "invalid_request_error" in message


def test_a_window_that_is_too_small_is_told_in_numbers() -> None:
    error = {"type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192}
    assert "9000 tokens, its window has 8192" in str(failure_of(400, {}, error, HOST))


@pytest.mark.parametrize(
    "data",
    [
        {"error": {"code": 503, "message": "gone"}},
        {"error": {"message": "gone"}},
        {"error": "gone"},
        {"object": "error", "message": "gone", "code": 500},
    ],
)
def test_an_error_inside_the_stream(data: dict[str, Any]) -> None:
    with pytest.raises(RemoteFailure) as caught:
        read_chunk(data, HOST)
    assert caught.value.code is FailureCode.UPSTREAM
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("", 0.0),
        ("soon", 0.0),
        ("-3", 0.0),
        ("nan", 0.0),
        ("99999999", 300.0),
        ("inf", 300.0),
        ("Sun, 29 Nov 2026 12:00:10 GMT", 10.0),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0.0),
    ],
)
def test_retry_after(value: str, seconds: float) -> None:
    noon = 1795953600.0  # 2026-11-29 12:00:00 UTC
    assert retry_after_s({"Retry-After": value}, noon) == seconds


def test_the_settings_do_not_show_their_key() -> None:
    hidden = OpenAISettings(name="n", base_url="u", model="m", n_ctx=1, api_key="sk-secret")
    assert "sk-secret" not in f"{hidden!r} {hidden} {pretty_repr(hidden)}"

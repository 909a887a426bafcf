"""The words of OpenAI's API: what is read, what is refused and in which sentence."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.web.openai_wire import ApiError, Head, finish_word, read_request, sse, usage_body
from engine.types import FinishReason, Role, Sampling, Usage

ASK = [{"role": "user", "content": "Hello"}]
SECRET = "my-very-own-words"


def read(**fields: Any) -> Any:
    return read_request(json.dumps({"messages": ASK, **fields}).encode())


def test_a_plain_request_has_the_defaults() -> None:
    chat = read()
    assert (chat.model, chat.wanted_tokens, chat.stops) == ("default", None, ())
    assert not chat.stream
    assert not chat.include_usage
    defaults = Sampling(temperature=0.3, top_k=7, seed=5)
    assert chat.sampling(defaults) == defaults


def test_every_parameter_arrives() -> None:
    chat = read(
        model="main", stream=True, stream_options={"include_usage": True}, max_tokens=9,
        max_completion_tokens=7, temperature=0, top_p=0.5, top_k=-1, min_p=0.1, seed=-1,
        stop=["a", "b"], presence_penalty=-2, frequency_penalty=1, repeat_penalty=1.2, n=1,
        user="somebody", unheard_of={"x": 1},
    )  # fmt: skip
    assert chat.wanted_tokens == 7
    assert chat.stops == ("a", "b")
    assert chat.include_usage
    assert chat.sampling(Sampling()) == Sampling(
        temperature=0.0, top_p=0.5, top_k=0, min_p=0.1, seed=0xFFFFFFFF, presence_penalty=-2.0,
        frequency_penalty=1.0, repeat_penalty=1.2,
    )  # fmt: skip
    assert read(stop="x").stops == ("x",)
    assert read(repetition_penalty=1.3).sampling(Sampling()).repeat_penalty == 1.3


def test_messages_of_every_kind() -> None:
    chat = read(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "", "name": "Ann"},
        ]
    )  # fmt: skip
    messages = chat.engine_messages()
    assert [m.role for m in messages] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]
    assert [m.content for m in messages] == ["Be brief.", "a\nb", "", ""]


def test_half_an_emoji_becomes_a_question_mark() -> None:
    chat = read(messages=[{"role": "user", "content": "a\ud83d 🚀 汉"}])
    assert chat.engine_messages()[0].content == "a? 🚀 汉"


def test_fields_that_ask_for_nothing_are_taken() -> None:
    read(
        tools=[], tool_choice="none", response_format={"type": "text"}, logprobs=False,
        logit_bias={}, functions=None, modalities=["text"], audio=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"logprobs": True}, "logprobs", "not supported"),
        ({"audio": {}}, "audio", "not supported"),
        ({"n": 2}, "n", "only n = 1 is supported"),
        ({"temperature": 9}, "temperature", "less than or equal to 5"),
        ({"temperature": "warm"}, "temperature", "valid number"),
        ({"top_p": -1}, "top_p", "greater than or equal to 0"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 strings"),
        ({"stop": ""}, "stop", "1 to 256 characters"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": SECRET}, "messages", "valid list"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "valid"),
        ({"messages": [{"role": "user"}]}, "messages.0", "no content"),
        ({"messages": [{"role": "tool", "content": SECRET}]}, "messages.0.role", "not supported"),
        ({"messages": [{"role": SECRET, "content": SECRET}]}, "messages.0.role", "must be one of"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SECRET}}]}]},
            "messages.0.content",
            'only parts of the type "text"',
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": SECRET}]}]},
            "messages.0",
            "tool calls are not supported",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_one_sentence(
    fields: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    error = caught.value.body()["error"]
    assert caught.value.status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert says in error["message"]
    assert "\n" not in error["message"]
    assert SECRET not in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"messages": ' + b"[" * 100_000,
        b"NaN",
        b'{"messages": ' + b"1" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "a\xed\xa0\xbd"}]}',
        '{"messages": [{"role": "user", "content": "a\ud83d"}]}'.encode("utf-16", "surrogatepass"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_request(body)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_FIELDS = st.sampled_from(
    ["model", "messages", "stream", "stream_options", "max_tokens", "seed", "stop", "n", "tools", "top_k",
     "response_format", "temperature"]
)  # fmt: skip


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.dictionaries(_FIELDS, _JSON, max_size=4))
def test_no_body_whatever_is_more_than_an_api_error(fields: dict[str, Any]) -> None:
    body = json.dumps({"messages": ASK, **fields}).encode()
    with contextlib.suppress(ApiError):
        chat = read_request(body)
        chat.sampling(Sampling())
        assert chat.engine_messages()


def test_answers_have_the_shape_that_clients_read() -> None:
    head = Head("chatcmpl-1", "main", 1)
    usage = usage_body(Usage(n_prompt=10, n_cached=4, n_generated=3), 2)
    assert usage["total_tokens"] == 13
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    whole = head.whole("hi", "", "stop", usage)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "hi", "refusal": None}
    assert (
        head.whole("hi", "hm", "stop", usage)["choices"][0]["message"]["reasoning_content"] == "hm"
    )
    assert head.usage_chunk(usage)["choices"] == []
    line = sse(head.chunk({"content": "汉\n字"}))
    assert line.startswith(b"data: {")
    assert line.count(b"\n") == 2
    assert finish_word(FinishReason.LENGTH) == "length"

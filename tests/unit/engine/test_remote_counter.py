"""Counting without a tokenizer of our own: an upper bound always, the server's count where it has one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.remote.counter import (
    TOKENS_BASE,
    TOKENS_PER_MESSAGE,
    Findings,
    RemoteCounter,
    byte_bound,
)
from engine.backends.remote.protocol import Dialect
from engine.types import ChatMessage, Role


class Server:
    """Plays one kind of server; counts a token per character."""

    def __init__(self, kind: Dialect) -> None:
        self.kind = kind
        self.calls = 0
        self.broken = False

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        assert path == "/tokenize"
        self.calls += 1
        text = {Dialect.LLAMA_SERVER: "content", Dialect.VLLM: "prompt"}.get(self.kind, "")
        if text not in body or self.broken:
            return None
        return {"tokens": list(range(len(body[text]))), "count": len(body[text])}


def counter_of(server: Server) -> RemoteCounter:
    counter = RemoteCounter("m", server.post)
    counter.findings = Findings(server.kind)
    return counter


@pytest.mark.parametrize("kind", list(Dialect))
async def test_the_dialect_is_found_by_asking(kind: Dialect) -> None:
    assert await RemoteCounter("m", Server(kind).post).find_dialect() is kind


async def test_without_tokenizer_bytes_are_the_bound() -> None:
    server = Server(Dialect.PLAIN)
    counter = counter_of(server)
    assert await counter.count("") == 0
    assert await counter.count("abc") == 4
    assert await counter.count("你好") == 7
    assert server.calls == 0


@pytest.mark.parametrize("kind", [Dialect.LLAMA_SERVER, Dialect.VLLM])
async def test_the_servers_count_is_used_and_remembered(kind: Dialect) -> None:
    server = Server(kind)
    counter = counter_of(server)
    assert [await counter.count("你好") for _ in range(3)] == [2, 2, 2]
    assert server.calls == 1


async def test_a_failing_server_makes_counts_larger_never_smaller() -> None:
    server = Server(Dialect.LLAMA_SERVER)
    counter = counter_of(server)
    server.broken = True
    assert await counter.count("你好") == byte_bound("你好")
    server.broken = False
    assert await counter.count("你好") == 2, "the bound was not remembered as a count"


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.text(max_size=40))
def test_a_byte_level_tokenizer_never_exceeds_the_bound(text: str) -> None:
    assert len(text.encode("utf-8", "replace")) <= byte_bound(text)


async def test_a_rendered_conversation_is_a_bound_behind_every_cut() -> None:
    counter = counter_of(Server(Dialect.LLAMA_SERVER))
    messages = [
        ChatMessage(role=Role.SYSTEM, content="s" * 10),
        ChatMessage(role=Role.USER, content="u" * 20),
        ChatMessage(role=Role.ASSISTANT, content="a" * 30),
    ]
    rendered = await counter.render(messages, add_generation_prompt=True)
    assert not rendered.exact
    assert rendered.token_ids == ()
    assert rendered.n_tokens == 60 + TOKENS_BASE + 4 * TOKENS_PER_MESSAGE
    for cut in range(3):
        rest = await counter.render(messages[cut:], add_generation_prompt=True)
        assert rendered.n_tokens - rendered.starts[cut] == rest.n_tokens

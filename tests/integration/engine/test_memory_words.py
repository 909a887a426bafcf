"""Conversations with words of their own, in one core, for every kind of memory: no reply is touched by another's words.

Three conversations differ in one sentence at their beginning. There are fewer sequences than conversations, so each turn
finds its memory in VRAM, in RAM, or not at all; whatever it finds, the reply is that of a core that knows nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.backends.llamacpp import LlamaBackend
from engine.config import EngineConfig
from tests.support.corekit import CoreKit
from tests.support.tinymodels import MODELS, write_model

WORDS = {"anna": "quince walrus", "ben": "teapot glacier", "cleo": "violin pepper"}
FOLLOW_UPS = ("what is the word", "and the other word", "say both of them")
N_REPLY = 8


def config_for(path: Path) -> EngineConfig:
    # So the noise of batches is 0.00001; with flash attention it is 0.02, which is the distance of the best two tokens here
    # and there.
    return EngineConfig(
        name="t",
        path=str(path),
        n_ctx=512,
        kv_cells=1024,
        n_parallel=2,
        n_sequences=2,
        n_batch=64,
        n_threads=1,
        cache_type_k="f32",
        cache_type_v="f32",
        flash_attention="off",
        kv_ram_bytes=2**26,
    )


@pytest.fixture(params=list(MODELS))
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlamaBackend]:
    backend = LlamaBackend(config_for(write_model(request.param, tmp_path)))
    yield backend
    backend.close()


class Talk:
    """One conversation: what was said so far, as token ids, and what of it was found again per turn."""

    def __init__(self, kit: CoreKit, key: str, scope: str = "scope") -> None:
        self.kit, self.key, self.scope = kit, key, scope
        self.tokens: tuple[int, ...] = ()
        self.replies: list[tuple[int, ...]] = []
        self.n_cached: list[int] = []
        self.n_before: list[int] = []

    def submit(self, question: str) -> str:
        self.n_before.append(len(self.tokens))
        if self.tokens:
            turn = f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            self.tokens += tuple(self.kit.ids(turn))
        else:
            self.tokens = self.kit.request("", question).prompt_tokens
        request_id = f"{self.scope}-{self.key}-{len(self.replies)}"
        self.kit.ask(
            request_id,
            prompt_tokens=self.tokens,
            cache_key=self.key,
            scope=self.scope,
            max_new_tokens=N_REPLY,
        )
        return request_id

    def take(self, request_id: str) -> None:
        self.n_cached.append(self.kit.cached(request_id))
        self.replies.append(self.kit.token_ids(request_id))
        self.tokens += self.replies[-1]


def questions(key: str) -> list[str]:
    return [f"the word is {WORDS[key]} and you are {key}", *FOLLOW_UPS]


def alone(loaded: LlamaBackend, key: str) -> Talk:
    """Every turn on an empty core."""
    config = config_for(Path(loaded.info().path))
    talk = Talk(CoreKit(loaded, config), key)
    for question in questions(key):
        talk.kit = CoreKit(loaded, config)
        request_id = talk.submit(question)
        talk.kit.run()
        talk.take(request_id)
        talk.kit.core.close()
    assert talk.n_cached == [0] * len(talk.replies)
    return talk


def test_conversations_never_see_each_others_words(loaded: LlamaBackend) -> None:
    singles = {key: alone(loaded, key) for key in WORDS}
    by_turn = list(zip(*(single.replies for single in singles.values()), strict=True))
    assert all(len(set(said)) > 1 for said in by_turn), "the words make no difference"
    assert len({tuple(single.replies) for single in singles.values()}) == len(WORDS)
    kit = CoreKit(loaded, config_for(Path(loaded.info().path)))
    talks = [Talk(kit, key) for key in WORDS]
    for turn in zip(*(questions(talk.key) for talk in talks), strict=True):
        asked = [talk.submit(question) for talk, question in zip(talks, turn, strict=True)]
        kit.run()
        for talk, request_id in zip(talks, asked, strict=True):
            talk.take(request_id)
    for talk in talks:
        assert talk.replies == singles[talk.key].replies
        # All of the turns before is found again, but for the last token of the reply, which was never computed.
        assert talk.n_cached[1:] == [n - 1 for n in talk.n_before[1:]]
    kit.core.close()


def test_another_scope_and_a_forgotten_conversation_find_nothing(loaded: LlamaBackend) -> None:
    kit = CoreKit(loaded, config_for(Path(loaded.info().path)))
    expected: list[tuple[int, ...]] = []
    for scope, forget in (("one", False), ("two", False), ("two", True)):
        if forget:
            kit.core.forget("anna")
        talk = Talk(kit, "anna", scope)
        request_id = talk.submit(questions("anna")[0])
        kit.events.clear()
        kit.run()
        talk.take(request_id)
        expected.append(talk.replies[0])
        # A forgotten conversation leaves the system prompt of its scope, which is nobody's own.
        n_system = kit.request("", "").n_shared_prefix
        assert talk.n_cached[0] <= (n_system if forget else 0)
    assert len(set(expected)) == 1
    kit.core.close()

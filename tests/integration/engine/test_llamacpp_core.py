"""The core on the demo model: batching, reuse and sharing change the speed, never the text."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import pytest

from engine.backends.llamacpp import LlamaBackend
from engine.config import EngineConfig
from engine.types import Delta, FinishReason, Progress, Sampling
from tests.support.corekit import CoreKit

pytestmark = pytest.mark.model

CONFIG = EngineConfig(name="t", n_ctx=512, n_parallel=4, n_batch=64, n_threads=1)
QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "What do cats eat?",
    "Count from one to five.",
]


@pytest.fixture(scope="module")
def loaded() -> Iterator[LlamaBackend]:
    backend = LlamaBackend(CONFIG)
    yield backend
    backend.close()


@pytest.fixture
def kit(loaded: LlamaBackend) -> Iterator[CoreKit]:
    kit = CoreKit(loaded, CONFIG)
    yield kit
    kit.core.close()


def alone(loaded: LlamaBackend, question: str, n_tokens: int = 12, **fields: object) -> str:
    """The text of one request on an empty cache."""
    kit = CoreKit(loaded, CONFIG)
    kit.ask("alone", question, max_new_tokens=n_tokens, n_shared_prefix=0, **fields)
    kit.run()
    return kit.text("alone")


def test_batched_replies_are_the_single_ones(loaded: LlamaBackend) -> None:
    singles = [alone(loaded, question) for question in QUESTIONS]
    kit = CoreKit(loaded, CONFIG)
    for i in range(8):
        kit.ask(f"r{i}", QUESTIONS[i % 4], cache_key=f"k{i}", max_new_tokens=12)
    kit.run()
    assert [kit.text(f"r{i}") for i in range(8)] == singles * 2
    assert len(set(singles)) == 4
    assert all(singles)
    # Eight on four places: two rounds, the system prompt once.
    assert kit.core.stats().steps_total < 60
    assert kit.cached("r7") == kit.cached("r1") > 0


def test_reuse_gives_the_same_text_and_computes_only_what_is_new(
    loaded: LlamaBackend, kit: CoreKit
) -> None:
    first = kit.ask("t1", QUESTIONS[0], cache_key="k", max_new_tokens=12)
    kit.run()
    n_before = kit.n_prompt_decoded
    assert n_before == len(first.prompt_tokens)
    answer = kit.token_ids("t1")
    end = kit.finished("t1")
    kept = answer[end.answer_start : end.answer_start + end.n_answer]
    tail = kit.ids("<|im_end|>\n<|im_start|>user\nAnd of Italy?<|im_end|>\n<|im_start|>assistant\n")
    prompt = (*first.prompt_tokens, *kept, *tail)
    kit.ask("t2", prompt_tokens=prompt, cache_key="k", max_new_tokens=12)
    kit.run()
    # The last id of the reply was sampled and not decoded; whether it is in the prompt again depends on how it ended.
    n_known = len(first.prompt_tokens) + min(len(answer) - 1, len(kept))
    assert kit.cached("t2") == n_known
    assert kit.n_prompt_decoded - n_before == len(prompt) - n_known
    assert kit.text("t2") == alone(loaded, "", prompt_tokens=prompt)


def test_a_copied_prefix_gives_the_same_text(loaded: LlamaBackend, kit: CoreKit) -> None:
    system = (
        "You are a careful assistant. Answer briefly, in English, and say so when you do not know."
    )
    kit.ask("first", QUESTIONS[0], system=system, max_new_tokens=2)
    kit.run()
    kit.ask("second", QUESTIONS[2], system=system, max_new_tokens=12)
    kit.run()
    assert kit.cached("second") == kit.request("x", system=system).n_shared_prefix > 15
    assert kit.text("second") == alone(loaded, QUESTIONS[2], system=system)


def test_scopes_share_nothing(kit: CoreKit) -> None:
    request = kit.ask("a", cache_key="k", scope="one", max_new_tokens=2)
    kit.run()
    kit.ask("b", cache_key="k", scope="two", max_new_tokens=2)
    kit.run()
    assert kit.cached("b") == 0
    assert kit.n_prompt_decoded == 2 * len(request.prompt_tokens)
    kit.ask("c", cache_key="k", scope="one", max_new_tokens=2)
    kit.run()
    assert kit.n_prompt_decoded == 2 * len(request.prompt_tokens) + 1


def test_an_interrupted_reply_goes_on_as_if_nothing_had_happened(
    loaded: LlamaBackend, kit: CoreKit
) -> None:
    whole = alone(loaded, QUESTIONS[3])
    kit.ask("a", QUESTIONS[3], max_new_tokens=12)
    kit.step(6)
    given, shown = kit.token_ids("a"), kit.text("a")
    assert 0 < len(given) < 12
    kit.core.cancel("a")
    kit.core.forget("")
    kit.ask("b", QUESTIONS[3], max_new_tokens=12, generated_tokens=given)
    kit.run()
    assert shown + kit.text("b") == whole
    assert kit.finished("b").usage.n_generated <= 12


def test_cancel_in_the_middle_of_a_prompt_frees_its_place(kit: CoreKit) -> None:
    kit.ask("long", "word " * 150, max_new_tokens=4)
    kit.step(2)
    assert not [event for event in kit.of("long") if isinstance(event, Delta)]
    assert kit.core.stats().n_running == 1
    kit.core.cancel("long")
    assert kit.finished("long").reason is FinishReason.CANCELLED
    assert kit.core.stats().n_running == 0
    kit.ask("next", QUESTIONS[0], max_new_tokens=4)
    kit.run()
    assert kit.text("next")


def test_a_long_prompt_tells_its_progress(kit: CoreKit) -> None:
    kit.ask("long", "word " * 200, max_new_tokens=1)
    while kit.core.has_work:
        kit.step()
        kit.clock.now += 1.0
    told = [event.done_tokens for event in kit.of("long") if isinstance(event, Progress)]
    assert told == sorted(set(told))
    assert len(told) >= 2


def test_chinese_and_emoji_go_in_and_come_out_whole(loaded: LlamaBackend, kit: CoreKit) -> None:
    text = "你好，世界 🚀👍🏽"
    given = tuple(loaded.tokenize(text, add_special=False, parse_special=False))
    n_half = len(given) // 2
    kit.ask(
        "a", "Repeat 你好，世界 🚀👍🏽", generated_tokens=given[:n_half], max_new_tokens=n_half + 8
    )
    kit.run()
    ids = (*given[:n_half], *kit.token_ids("a"))
    data = b"".join(map(loaded.token_bytes, ids))
    shown_before = b"".join(map(loaded.token_bytes, given[:n_half])).decode(errors="ignore")
    # A character that the limit cut is left out.
    whole = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data)
    assert shown_before + kit.text("a") == whole


def test_sampling_with_a_seed_is_the_same_alone_and_among_others(kit: CoreKit) -> None:
    hot = Sampling(temperature=1.0, seed=7)
    kit.ask("a", QUESTIONS[1], sampling=hot, max_new_tokens=8)
    kit.run()
    for i in range(3):
        kit.ask(f"other{i}", QUESTIONS[i], max_new_tokens=8)
    kit.ask("b", QUESTIONS[1], sampling=hot, max_new_tokens=8)
    kit.run()
    assert kit.text("a") == kit.text("b")


def test_without_cells_a_reply_waits_and_none_is_given_up() -> None:
    config = EngineConfig(name="t", n_ctx=256, kv_cells=256, n_parallel=4, n_batch=64, n_threads=1)
    backend = LlamaBackend(config)
    try:
        kit = CoreKit(backend, config)
        for i in range(3):
            kit.ask(f"r{i}", QUESTIONS[i], scope=f"s{i}", max_new_tokens=120, stop=(".",))
        kit.step(2)
        assert (kit.core.stats().n_running, kit.core.stats().n_waiting) == (1, 2)
        for i in range(3):
            kit.step(3)
            kit.core.cancel(f"r{i}")
            kit.step()
        kit.check_end()
        assert all(kit.text(f"r{i}") for i in range(3))
    finally:
        backend.close()

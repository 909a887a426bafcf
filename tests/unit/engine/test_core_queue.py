"""Waiting, cancelling, priorities, failures: who is served when, and that nobody is forgotten."""

import random
from pathlib import Path
from typing import Any

import pytest

from engine.backends.base import DecodeFailed, DecodeStatus
from engine.backends.fake import IM_END, N_VOCAB
from engine.core.core import MAX_FAILED_BATCHES
from engine.errors import EngineError
from engine.types import (
    Delta,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Priority,
    Queued,
    Started,
)
from tests.support.corekit import GREEDY, CoreKit, fake_kit

REPLY = "Hello, 世界 🙂!"


def test_places_count_down_and_are_told_only_when_they_change() -> None:
    kit = fake_kit(n_parallel=1)
    for name in "abc":
        kit.ask(name, owner=name)
    kit.run()
    assert kit.places("a") == [1]
    assert kit.places("b") == [2, 1]
    assert kit.places("c") == [3, 2, 1]


def test_a_more_important_request_goes_first_and_the_others_hear_of_it() -> None:
    kit = fake_kit(n_parallel=1)
    kit.ask("running")
    kit.step()
    kit.ask("person", owner="p")
    kit.ask("admin", owner="a", priority=Priority.ADMIN)
    kit.run()
    assert kit.start_order == ["running", "admin", "person"]
    assert kit.places("person") == [1, 2, 1]


def test_owners_take_turns() -> None:
    kit = fake_kit(n_parallel=1)
    for i in range(3):
        kit.ask(f"flood{i}", owner="flood")
    kit.ask("b", owner="b")
    kit.ask("c", owner="c")
    kit.run()
    assert kit.start_order == ["flood0", "b", "c", "flood1", "flood2"]


def test_a_full_queue_says_when_to_come_back() -> None:
    kit = fake_kit(n_parallel=1, max_waiting=2)
    kit.ask("running")
    kit.step()
    kit.ask("a", owner="a")
    kit.ask("b", owner="b")
    kit.ask("c", owner="c")
    refused = kit.failed("c")
    assert refused.code is FailureCode.BUSY
    assert refused.retryable
    assert 1 <= refused.retry_after_s <= 300
    kit.run()
    assert kit.text("a") == kit.text("b") == REPLY


def test_a_queue_full_of_less_important_requests_is_open_to_people() -> None:
    kit = fake_kit(n_parallel=1, max_waiting=2)
    kit.ask("running")
    kit.step()
    for i in range(3):
        kit.ask(f"batch{i}", owner=f"key{i}", priority=Priority.API)
    kit.ask("person", owner="p")
    assert [e.request_id for e in kit.events if isinstance(e, Failed)] == ["batch2"]
    kit.run()
    assert kit.start_order == ["running", "person", "batch0", "batch1"]


def test_one_owner_cannot_fill_the_queue() -> None:
    kit = fake_kit(n_parallel=1, max_waiting_per_owner=2)
    for i in range(4):
        kit.ask(f"r{i}", owner="flood")
    kit.ask("other", owner="other")
    busy = [e.request_id for e in kit.events if isinstance(e, Failed)]
    assert busy == ["r2", "r3"]
    kit.run()
    assert kit.text("other") == REPLY


def test_deadline_ends_only_those_that_have_not_started() -> None:
    kit = fake_kit(n_parallel=1)
    kit.ask("a", deadline_s=5.0)
    kit.ask("b", deadline_s=5.0)
    kit.ask("c")
    kit.step()
    kit.clock.now += 6.0
    kit.run()
    assert kit.text("a") == kit.text("c") == REPLY
    assert kit.failed("b").code is FailureCode.DEADLINE


@pytest.mark.parametrize("n_steps", [0, 1, 3, 8])
def test_cancel_works_at_any_time_and_frees_the_place_at_once(n_steps: int) -> None:
    kit = fake_kit(n_parallel=1, n_ctx=1024, n_batch=64)
    kit.ask("a", "q" * 200, cache_key="ka")
    kit.ask("b")
    kit.step(n_steps)
    kit.core.cancel("a")
    assert kit.finished("a").reason is FinishReason.CANCELLED
    kit.step()
    assert "b" in kit.start_order
    kit.run()
    assert kit.text("b") == REPLY


def test_cancel_flushes_what_was_held_back() -> None:
    kit = fake_kit({"reply": "abc STO never"})
    kit.ask("a", stop=("STOP",))
    kit.step(7)
    assert kit.text("a") == "abc "
    kit.core.cancel("a")
    assert kit.text("a") == "abc STO"
    assert kit.finished("a").n_answer == 7


def test_cancel_of_unknown_or_finished_requests_is_ignored() -> None:
    kit = fake_kit()
    kit.core.cancel("nobody")
    kit.ask("a")
    kit.run()
    kit.core.cancel("a")
    kit.check_end()


def test_a_cancelled_builder_of_a_shared_prefix_hands_over() -> None:
    kit = fake_kit(n_ctx=1024, n_batch=32)
    for name in "abc":
        kit.ask(name, system="s" * 200)
    kit.step(2)
    assert kit.start_order == ["a"]
    kit.core.cancel("a")
    kit.run()
    assert kit.text("b") == kit.text("c") == REPLY
    assert kit.cached("c") > 200


def test_without_room_for_all_a_reply_waits_and_none_is_given_up() -> None:
    # E9: four long chats at once in a cache for two.
    kit = fake_kit({"reply": "x" * 180}, n_ctx=256, kv_cells=520)
    for i in range(4):
        kit.ask(f"r{i}", cache_key=f"k{i}", scope=f"s{i}", max_new_tokens=180)
    kit.step(5)
    assert kit.core.stats().n_running == 2
    assert kit.core.stats().n_waiting == 2
    kit.run()
    assert all(kit.text(f"r{i}") == "x" * 180 for i in range(4))


def test_a_big_request_is_not_overtaken_for_ever() -> None:
    kit = fake_kit({"reply": "x" * 40}, n_ctx=512, kv_cells=512, n_parallel=2)
    kit.ask("small0", owner="o0", max_new_tokens=40)
    kit.step()
    kit.ask("big", owner="big", max_new_tokens=460)
    for i in range(1, 5):
        kit.ask(f"small{i}", owner=f"o{i}", max_new_tokens=40)
    kit.run()
    assert kit.start_order[1] == "big"


def test_background_replies_yield_their_place_and_go_on_later() -> None:
    kit = fake_kit({"reply": "0123456789" * 5}, n_parallel=1)
    kit.ask("summary", priority=Priority.BACKGROUND, cache_key="s")
    kit.step(10)
    kit.ask("person")
    kit.step()
    assert kit.start_order == ["summary", "person"]
    kit.run()
    assert kit.text("summary") == kit.text("person") == "0123456789" * 5
    ends = [event.request_id for event in kit.events if isinstance(event, Finished)]
    assert ends == ["person", "summary"]
    assert len([e for e in kit.of("summary") if isinstance(e, Started)]) == 1


def test_background_replies_are_displaced_for_memory_too() -> None:
    kit = fake_kit({"reply": "x" * 150}, n_ctx=256, kv_cells=256)
    kit.ask("summary", priority=Priority.BACKGROUND, max_new_tokens=150)
    kit.step(30)
    kit.ask("person", max_new_tokens=150, scope="other")
    kit.run()
    assert kit.text("summary") == kit.text("person") == "x" * 150
    ends = [event.request_id for event in kit.events if isinstance(event, Finished)]
    assert ends == ["person", "summary"]


def test_people_are_never_displaced() -> None:
    kit = fake_kit(n_parallel=1)
    kit.ask("a")
    kit.step(3)
    kit.ask("admin", priority=Priority.ADMIN)
    kit.run()
    ends = [event.request_id for event in kit.events if isinstance(event, Finished)]
    assert ends == ["a", "admin"]


def test_a_failed_decode_fails_only_its_batch() -> None:
    kit = fake_kit(n_parallel=2)
    kit.ask("a", cache_key="ka")
    kit.ask("b")
    kit.ask("waiting")
    kit.step(3)
    kit.backend.failures.append(DecodeFailed("out of luck"))
    kit.core.step()
    for name in "ab":
        assert kit.failed(name).code is FailureCode.DECODE
        assert kit.failed(name).retryable
    kit.run()
    assert kit.text("waiting") == REPLY
    kit.ask("again", cache_key="ka")
    kit.run()
    assert kit.text("again") == REPLY


def test_any_exception_of_the_backend_is_a_failed_batch() -> None:
    kit = fake_kit()
    kit.backend.failures.append(RuntimeError("boom"))
    kit.ask("a")
    kit.run()
    assert kit.failed("a").code is FailureCode.DECODE


def test_a_backend_that_always_fails_ends_the_engine() -> None:
    kit = fake_kit(n_parallel=1)
    kit.backend.failures += [DecodeFailed("no")] * MAX_FAILED_BATCHES
    for i in range(MAX_FAILED_BATCHES):
        kit.ask(f"r{i}")
    with pytest.raises(EngineError, match="in a row failed"):
        kit.run()
    kit.check_end()


def test_a_full_cache_first_costs_idle_sequences() -> None:
    kit = fake_kit()
    kit.ask("old", cache_key="old")
    kit.run()
    n_kept = kit.core.stats().n_sequences_kept
    assert n_kept == 2
    kit.backend.failures += [DecodeStatus.NO_SLOT] * n_kept
    n_before = len(kit.backend.batches)
    request = kit.ask("a", "q" * 100, scope="other")
    kit.step()
    assert kit.core.stats().n_sequences_kept == 1  # the new prefix
    (part,) = kit.backend.batches[n_before]
    assert len(part.tokens) == len(request.prompt_tokens)
    kit.run()
    assert kit.text("a") == REPLY


def test_then_the_batch_is_halved_and_the_rest_follows() -> None:
    kit = fake_kit()
    kit.backend.failures += [DecodeStatus.NO_SLOT] * 2
    request = kit.ask("a", "q" * 100)
    kit.run()
    sizes = [len(part.tokens) for batch in kit.backend.batches for part in batch][:2]
    n_prompt = len(request.prompt_tokens)
    assert sizes == [n_prompt // 2 // 2, n_prompt - n_prompt // 2 // 2]
    assert kit.text("a") == REPLY


def test_a_cache_without_a_single_cell_fails_the_request_not_the_engine() -> None:
    kit = fake_kit()
    kit.ask("a")
    kit.step(2)
    kit.backend.failures += [DecodeStatus.NO_SLOT] * 10
    kit.run()
    assert kit.failed("a").code is FailureCode.DECODE
    kit.backend.failures.clear()
    kit.ask("b")
    kit.run()
    assert kit.text("b") == REPLY


def test_one_broken_reply_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = fake_kit()
    kit.ask("a")
    kit.ask("b")
    kit.step(2)
    original = kit.backend.sample

    def sample(part_index: int, sampler: Any, offset: int = 0) -> int:
        if part_index == 0:
            raise RuntimeError("bad luck")
        return original(part_index, sampler, offset)

    monkeypatch.setattr(kit.backend, "sample", sample)
    kit.step()
    monkeypatch.undo()
    kit.run()
    assert kit.failed("a").code is FailureCode.DECODE
    assert kit.text("b") == REPLY


def test_a_request_that_cannot_be_started_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = fake_kit()

    def new_sampler(*_args: Any) -> Any:
        raise OverflowError("strange value")

    with monkeypatch.context() as patch:
        patch.setattr(kit.backend, "new_sampler", new_sampler)
        kit.ask("a")
        kit.step()
    assert kit.failed("a").code is FailureCode.BAD_REQUEST
    kit.ask("b")
    kit.run()
    assert kit.text("b") == REPLY


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("memory", ["attention", "sliding", "recurrent"])
def test_random_traffic_keeps_every_promise(seed: int, memory: str, tmp_path: Path) -> None:
    """Any mix of commands and failures: the kit checks cells, deltas and terminal events on the way."""
    rng = random.Random(f"{seed}{memory}")
    kit = fake_kit(
        {"reply": "abc 汉字 def", "memory": memory, "n_swa": "24" if memory == "sliding" else "0"},
        n_ctx=160,
        kv_cells=rng.choice([170, 300, 640]),
        n_parallel=rng.choice([1, 2, 4]),
        n_sequences=rng.choice([4, 6, 16]),
        n_batch=rng.choice([16, 64, 512]),
        max_waiting=20,
        max_waiting_per_owner=6,
        speculation=seed % 3 > 0,
        kv_ram_bytes=(0, 3000, 10**6)[seed % 3],
        kv_disk_bytes=(0, 5000, 10**6)[seed // 3 % 3],
        kv_dir=str(tmp_path / "kv"),
    )
    for i in range(150):
        _random_command(kit, rng, f"r{i}")
        for _ in range(rng.randrange(4)):
            kit.clock.now += rng.random()
            kit.step()
    kit.backend.failures.clear()
    kit.run()
    kit.core.close()
    complete = [e for e in kit.events if isinstance(e, Finished) and e.reason is FinishReason.STOP]
    assert len(complete) > 10
    whole = (*"abc 汉字 def".encode(), IM_END)
    for end in complete:
        sampled = kit.token_ids(end.request_id)
        assert whole[len(whole) - len(sampled) :] == sampled
        assert end.usage.n_generated == len(whole)
        shown_before = bytes(whole[: len(whole) - len(sampled)]).decode(errors="ignore")
        assert shown_before + kit.text(end.request_id) == "abc 汉字 def"


def _random_command(kit: CoreKit, rng: random.Random, request_id: str) -> None:
    chance = rng.random()
    key, scope = f"k{rng.randrange(5)}", f"s{rng.randrange(2)}"
    if chance < 0.65:
        text = f"<|im_start|>system\n{'S' * rng.choice([4, 20])}<|im_end|>\n"
        n_shared = len(kit.ids(text))
        n = rng.randrange(60)
        question = "q" * n if n % 2 else "Repeat: abc 汉字 dex abc."
        text += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        kit.core.submit(
            EngineRequest(
                id=request_id,
                prompt_tokens=tuple(kit.ids(text)),
                generated_tokens=tuple("abc 汉字".encode()[: rng.randrange(8)]),
                max_new_tokens=rng.choice([3, 40, 100]),
                sampling=GREEDY,
                cache_key=rng.choice(["", key]),
                scope=scope,
                owner=f"o{rng.randrange(3)}",
                priority=rng.choice(list(Priority)),
                deadline_s=rng.choice([0.0, 3.0]),
                n_shared_prefix=rng.choice([0, n_shared]),
            )
        )
    elif chance < 0.75:
        kit.core.cancel(f"r{rng.randrange(150)}")
    elif chance < 0.85:
        kit.core.warm(key, scope, [rng.randrange(N_VOCAB) for _ in range(rng.randrange(1, 120))])
    elif chance < 0.9:
        kit.core.forget(key)
    elif chance < 0.95:
        kit.backend.failures += [DecodeStatus.NO_SLOT] * rng.randrange(4)
    elif not any(isinstance(failure, DecodeFailed) for failure in kit.backend.failures):
        kit.backend.failures.append(DecodeFailed("random"))


def test_all_that_was_told_is_told_before_a_decode() -> None:
    """A long prompt may take seconds: places in the line, and refusals, must not wait for it."""
    kit = fake_kit({"reply": "abc"}, n_ctx=160, kv_cells=160, n_parallel=1)
    seen: list[tuple[bool, int]] = []
    kit.core.before_decode = lambda is_long: seen.append((is_long, len(kit.events)))
    kit.ask("a", "a question of some length")
    kit.ask("b")
    kit.step()
    assert seen == [(True, len([e for e in kit.events if not isinstance(e, Delta)]))]
    assert {event.request_id for event in kit.events if isinstance(event, Queued)} == {"a", "b"}
    kit.step()
    assert seen[-1][0] is False, "a reply's next token"
    kit.run()

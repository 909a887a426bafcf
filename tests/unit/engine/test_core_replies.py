"""Replies from submit to their end: text, ids, limits, stops, thinking, resumption, refusals."""

import pytest

from engine.backends.fake import IM_END
from engine.types import (
    Delta,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Progress,
    Queued,
    Started,
)
from tests.support.corekit import fake_kit

REPLY = "Hello, 世界 🙂!"


def test_reply_grows_and_ends_with_one_terminal_event() -> None:
    kit = fake_kit()
    request = kit.ask("a", cache_key="k")
    kit.run()
    kinds = [type(event) for event in kit.of("a")]
    assert kinds[0] is Queued
    assert kinds[1] is Started
    assert kinds[-1] is Finished
    assert set(kinds[2:-1]) == {Delta}
    assert kit.text("a") == REPLY
    assert kit.token_ids("a") == (*REPLY.encode(), IM_END)
    end = kit.finished("a")
    assert end.reason is FinishReason.STOP
    assert (end.answer_start, end.n_answer) == (0, len(REPLY.encode()))
    assert end.usage.n_prompt == len(request.prompt_tokens)
    assert end.usage.n_generated == len(REPLY.encode()) + 1


def test_characters_never_come_out_in_pieces() -> None:
    kit = fake_kit({"reply": "汉字🚀👍🏽é"})
    kit.ask("a")
    kit.run()
    texts = [event.text for event in kit.of("a") if isinstance(event, Delta)]
    assert "".join(texts) == "汉字🚀👍🏽é"
    assert "�" not in "".join(texts)


def test_eight_requests_on_four_places_are_all_answered_and_batched() -> None:
    kit = fake_kit()
    for i in range(8):
        kit.ask(f"r{i}", f"question {i}", cache_key=f"k{i}")
    kit.run()
    assert all(kit.text(f"r{i}") == REPLY for i in range(8))
    assert all(kit.finished(f"r{i}").reason is FinishReason.STOP for i in range(8))
    # 18 + 1 ids per reply: two rounds of about that many steps, not eight.
    assert kit.core.stats().steps_total < 3 * (len(REPLY.encode()) + 1)


def test_requests_join_and_leave_between_steps() -> None:
    kit = fake_kit()
    kit.ask("a")
    kit.step(5)
    kit.ask("b")
    kit.run()
    assert kit.text("a") == kit.text("b") == REPLY
    order = [event.request_id for event in kit.events if isinstance(event, Finished)]
    assert order == ["a", "b"]


def test_max_new_tokens_ends_with_length() -> None:
    kit = fake_kit()
    kit.ask("a", max_new_tokens=5)
    kit.run()
    end = kit.finished("a")
    assert (end.reason, end.usage.n_generated, end.n_answer) == (FinishReason.LENGTH, 5, 5)
    assert kit.text("a") == "Hello"


def test_a_character_cut_by_the_limit_is_left_out() -> None:
    kit = fake_kit({"reply": "汉字"})
    kit.ask("a", max_new_tokens=4)
    kit.run()
    assert kit.text("a") == "汉"


@pytest.mark.parametrize("n_left", [1, 2, 7])
def test_prompt_and_reply_never_exceed_the_window(n_left: int) -> None:
    kit = fake_kit({"reply": "x" * 2000}, n_ctx=300)
    empty = len(kit.request("probe", "").prompt_tokens)
    request = kit.ask("a", "q" * (300 - empty - n_left), max_new_tokens=1000)
    assert len(request.prompt_tokens) == 300 - n_left
    kit.run()
    end = kit.finished("a")
    assert end.reason is FinishReason.LENGTH
    assert end.usage.n_prompt + end.usage.n_generated == 300


def test_a_prompt_that_fills_the_window_is_refused_at_once() -> None:
    kit = fake_kit(n_ctx=300)
    empty = len(kit.request("probe", "").prompt_tokens)
    kit.ask("a", "q" * (300 - empty))
    assert kit.failed("a").code is FailureCode.TOO_LONG
    assert not kit.failed("a").retryable
    assert not kit.core.has_work


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_tokens": ()},
        {"prompt_tokens": (1, 99999)},
        {"prompt_tokens": (-1,)},
        {"max_new_tokens": 0},
    ],
)
def test_senseless_requests_are_refused(fields: dict[str, object]) -> None:
    kit = fake_kit()
    kit.ask("a", **fields)
    assert kit.failed("a").code is FailureCode.BAD_REQUEST
    assert not kit.core.has_work


def test_stop_string_over_several_tokens_ends_the_reply_before_it() -> None:
    kit = fake_kit({"reply": "one two STOP three"})
    kit.ask("a", stop=("STOP",))
    kit.run()
    end = kit.finished("a")
    assert end.reason is FinishReason.STOP
    assert kit.text("a") == "one two "
    assert end.n_answer == len("one two ")
    assert kit.token_ids("a") == tuple(b"one two STOP")


def test_a_held_back_beginning_of_a_stop_string_comes_out_at_the_end() -> None:
    kit = fake_kit({"reply": "one ST"})
    kit.ask("a", stop=("STOP",))
    kit.run()
    assert kit.text("a") == "one ST"
    assert kit.finished("a").n_answer == 6


def test_thinking_is_told_apart_and_not_counted_as_answer() -> None:
    kit = fake_kit({"thinking": "hmm 嗯", "reply": "Yes."})
    kit.ask("a")
    kit.run()
    assert (kit.thinking("a"), kit.text("a")) == ("hmm 嗯", "Yes.")
    end = kit.finished("a")
    ids = kit.token_ids("a")[end.answer_start : end.answer_start + end.n_answer]
    assert bytes(ids) == b"Yes."


@pytest.mark.parametrize("n_given", [1, 7, 9, 12])
def test_a_reply_goes_on_behind_its_stored_ids(n_given: int) -> None:
    whole = (*REPLY.encode(), IM_END)
    kit = fake_kit()
    request = kit.ask("a", generated_tokens=whole[:n_given])
    kit.run()
    assert kit.token_ids("a") == whole[n_given:]
    # Bytes 7–9 are one character: what was not complete before comes out whole now, what was is not repeated.
    shown_before = REPLY.encode()[:n_given].decode(errors="ignore")
    assert shown_before + kit.text("a") == REPLY
    end = kit.finished("a")
    assert (end.answer_start, end.n_answer) == (0, len(REPLY.encode()))
    assert end.usage.n_generated == len(whole)
    assert end.usage.n_prompt == len(request.prompt_tokens)


def test_given_ids_count_against_max_new_tokens() -> None:
    kit = fake_kit()
    kit.ask("a", generated_tokens=tuple(b"Hello"), max_new_tokens=7)
    kit.run()
    assert kit.text("a") == ", "
    assert kit.finished("a").reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("given", "fields", "reason"),
    [
        ((*b"Hello", IM_END), {}, FinishReason.STOP),
        (tuple(b"Hello ST"), {"stop": (" ST",)}, FinishReason.STOP),
        (tuple(b"Hello"), {"max_new_tokens": 5}, FinishReason.LENGTH),
    ],
)
def test_a_reply_that_was_complete_already_ends_without_decoding(
    given: tuple[int, ...], fields: dict[str, object], reason: FinishReason
) -> None:
    kit = fake_kit()
    kit.ask("a", generated_tokens=given, **fields)
    kit.run()
    end = kit.finished("a")
    assert (end.reason, end.n_answer) == (reason, 5)
    assert kit.text("a") == ""
    assert kit.backend.batches == []


def test_a_second_request_with_an_open_id_changes_nothing() -> None:
    kit = fake_kit()
    kit.ask("a")
    kit.step(3)
    kit.ask("a", "other")
    kit.run()
    assert kit.text("a") == REPLY


def test_progress_of_a_long_prompt_is_told_at_most_four_times_a_second() -> None:
    kit = fake_kit(n_ctx=8192, n_batch=64)
    request = kit.ask("a", "q" * 3000)
    while not isinstance(kit.events[-1], Delta):
        kit.clock.now += 0.1
        kit.step()
    told = [event for event in kit.of("a") if isinstance(event, Progress)]
    n_steps = kit.core.stats().steps_total
    assert n_steps >= 3000 // 64
    assert n_steps / 4 <= len(told) <= n_steps / 2.5
    done = [event.done_tokens for event in told]
    assert done == sorted(done)
    assert {event.total_tokens for event in told} == {len(request.prompt_tokens)}
    assert done[-1] < len(request.prompt_tokens)


def test_a_short_prompt_has_no_progress() -> None:
    kit = fake_kit()
    kit.ask("a")
    kit.run()
    assert not [event for event in kit.of("a") if isinstance(event, Progress)]


def test_times_in_usage_add_up() -> None:
    kit = fake_kit(n_parallel=1)
    kit.ask("a", max_new_tokens=3)
    kit.ask("b", max_new_tokens=3)
    while kit.core.has_work:
        kit.step()
        kit.clock.now += 1.0
    usage = kit.finished("b").usage
    assert usage.queue_s == 3.0
    assert usage.prefill_s == 0.0
    assert usage.decode_s == 2.0


def test_close_ends_every_open_request_as_retryable() -> None:
    kit = fake_kit(n_parallel=1)
    kit.ask("a")
    kit.ask("b")
    kit.step(2)
    kit.core.close()
    kit.check_end()
    for request_id in ("a", "b"):
        assert kit.failed(request_id) == Failed(
            request_id=request_id,
            code=FailureCode.ENGINE_DIED,
            retryable=True,
            message="the engine is shutting down",
        )
    assert kit.core.stats().kv_cells_used == kit.backend.cache.n_used

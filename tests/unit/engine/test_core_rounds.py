"""Several decodes in one step: they change when things are told and nothing else, and stand back for everything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.base import BatchPart, DecodeFailed, DecodeStatus
from engine.core.rounds import LONGEST_S, MOST_ROUNDS
from engine.types import Delta, FailureCode, FinishReason, Priority
from tests.support.corekit import CoreKit, assert_same_reply, fake_kit

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."


def running_on(script: dict[str, str] | None = None, **fields: Any) -> CoreKit:
    """A kit in which nobody ever wants anything between the rounds of a step."""
    kit = fake_kit({"reply": TEXT} | (script or {}), **fields)
    kit.core.is_wanted = lambda: False
    return kit


def ids_per_delta(kit: CoreKit, request_id: str) -> list[int]:
    return [len(event.token_ids) for event in kit.of(request_id) if isinstance(event, Delta)]


def into_replies(kit: CoreKit, *request_ids: str) -> None:
    """Step until each of them has its first token, and no further."""
    kit.core.is_wanted = lambda: True
    while not all(ids_per_delta(kit, request_id) for request_id in request_ids):
        kit.step()
    kit.core.is_wanted = lambda: False


# What comes out.

PIECES = st.lists(
    st.sampled_from(["ab", "abc ", "好", "🙂", "\n\n", "abcabc", "x", "."]), max_size=14
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    reply=PIECES.map("".join),
    questions=st.lists(PIECES.map("".join), min_size=1, max_size=5),
    stops=st.lists(st.sampled_from(["bc", "abcab", "c 好", "x.", "\n\n", "🙂x"]), max_size=2),
    max_new_tokens=st.integers(1, 80),
    memory=st.sampled_from([("attention", 0), ("sliding", 40), ("sliding", 400), ("recurrent", 0)]),
    n_parallel=st.integers(1, 4),
    speculation=st.booleans(),
    data=st.data(),
)
def test_the_same_comes_out_and_the_same_is_kept(
    reply: str,
    questions: list[str],
    stops: list[str],
    max_new_tokens: int,
    memory: tuple[str, int],
    n_parallel: int,
    speculation: bool,
    data: st.DataObject,
) -> None:
    script = {"reply": reply or "-", "memory": memory[0], "n_swa": str(memory[1])}
    wanted = data.draw(st.lists(st.booleans(), min_size=1, max_size=9))
    kits = []
    for in_rounds in (False, True):
        kit = fake_kit(script, speculation=speculation, n_parallel=n_parallel, n_ctx=256)
        answers = iter(wanted * 2000)
        if in_rounds:
            kit.core.is_wanted = lambda answers=answers: next(answers)  # type: ignore[misc]
        for turn in range(2):
            for i, question in enumerate(questions):
                kit.ask(
                    f"{turn}.{i}",
                    f"{question} {turn}",
                    cache_key=f"k{i}",
                    stop=tuple(stops),
                    max_new_tokens=max_new_tokens,
                    history=f"<|im_start|>user\n{question} 0<|im_end|>\n" if turn else "",
                )
            kit.run()
        kits.append(kit)
    plain, rounds = kits
    for request_id in {event.request_id for event in plain.events}:
        assert_same_reply(plain, rounds, request_id)
    stats = [kit.core.stats() for kit in kits]
    assert stats[0].decoded_generated_tokens_total == stats[1].decoded_generated_tokens_total


def test_a_reply_alone_takes_many_tokens_a_step() -> None:
    kit = running_on()
    kit.ask("a")
    kit.run()
    assert kit.text("a") == TEXT
    # The first token comes with the prompt; then as many rounds as may be, up to the token that ends the reply.
    n_rest = len(TEXT) - 1 + 1
    sizes = [1] + [MOST_ROUNDS] * (n_rest // MOST_ROUNDS)
    assert ids_per_delta(kit, "a")[: len(sizes)] == sizes
    assert kit.core.stats().steps_total == len(TEXT) + 1
    assert kit.core.stats().accepted_tokens_total == 0


def test_several_replies_go_on_together_until_one_of_them_ends() -> None:
    kit = running_on()
    kit.ask("a", max_new_tokens=4, n_shared_prefix=0)
    kit.ask("b", n_shared_prefix=0)
    into_replies(kit, "a", "b")
    kit.step()
    assert kit.finished("a").reason is FinishReason.LENGTH
    assert kit.text("a") == TEXT[:4]
    assert len(kit.token_ids("b")) == 4
    kit.run()
    assert kit.text("b") == TEXT


def test_whoever_ends_ends_the_rounds_of_all() -> None:
    kit = running_on()
    kit.ask("a")
    into_replies(kit, "a")
    kit.core.is_wanted = lambda: True
    kit.step(MOST_ROUNDS * ((len(TEXT) - 2) // MOST_ROUNDS))
    kit.ask("b")
    into_replies(kit, "b")
    n_left = len(TEXT) + 1 - len(kit.token_ids("a"))
    assert 0 < n_left < MOST_ROUNDS
    before = len(kit.token_ids("b"))
    kit.step()
    assert kit.finished("a").reason is FinishReason.STOP
    assert len(kit.token_ids("b")) == before + n_left
    kit.run()
    assert kit.text("b") == TEXT


# Who is not kept waiting.


def test_a_command_waits_for_one_round_at_most() -> None:
    kit = running_on()
    kit.ask("a")
    into_replies(kit, "a")
    asked: list[int] = []

    def is_wanted() -> bool:
        asked.append(1)
        return len(asked) > 2

    kit.core.is_wanted = is_wanted
    kit.step()
    assert ids_per_delta(kit, "a")[-1] == 2


def test_one_round_beside_a_prompt_a_warm_up_and_work_in_the_background() -> None:
    kit = running_on(n_batch=16, n_ctx=1024)
    kit.ask("a", max_new_tokens=60)
    into_replies(kit, "a")
    kit.ask("long", "word " * 60, max_new_tokens=3)
    while len(ids_per_delta(kit, "long")) == 0:
        kit.step()
        assert max(ids_per_delta(kit, "a")) == 1
    kit.run()

    kit.ask("b", max_new_tokens=60)
    kit.ask("summary", max_new_tokens=30, priority=Priority.BACKGROUND, scope="s")
    into_replies(kit, "b", "summary")
    while kit.core.stats().n_running == 2:
        kit.step()
        assert max(ids_per_delta(kit, "b")) == 1
    kit.run()
    assert max(ids_per_delta(kit, "b")) > 1


def test_slow_steps_are_not_repeated_and_fast_ones_end_in_time() -> None:
    for step_s, n_rounds in ((0.06, 1), (0.03, 3), (0.001, MOST_ROUNDS)):
        kit = running_on()
        original = kit.backend.decode

        def decode(
            parts: Any, kit: CoreKit = kit, step_s: float = step_s, original: Any = original
        ) -> DecodeStatus:
            kit.clock.now += step_s
            return original(parts)

        kit.backend.decode = decode  # type: ignore[method-assign]
        kit.ask("a")
        into_replies(kit, "a")
        kit.step()
        assert ids_per_delta(kit, "a")[-1] == n_rounds
        assert n_rounds == 1 or n_rounds * step_s <= LONGEST_S


def test_whoever_waits_begins_as_soon_as_a_stop_string_ends_the_reply_before_him() -> None:
    kit = running_on(n_parallel=1)
    kit.ask("a", stop=(" q",), n_shared_prefix=0)
    kit.ask("b", n_shared_prefix=0)
    kit.run()
    assert kit.text("a") == TEXT[: TEXT.index(" q")]
    # Its prompt is the next thing that is decoded; nothing is computed behind a stop.
    batches = kit.backend.batches  # type: ignore[attr-defined]
    starts = [i for i, batch in enumerate(batches) if batch[0].start == 0]
    n_until_stop = TEXT.index(" q") + len(" q")
    assert starts[1] - starts[0] == n_until_stop


def test_the_time_of_choosing_counts_as_well() -> None:
    kit = running_on()
    original = kit.backend.sample

    def sample(part_index: int, sampler: Any, offset: int = 0) -> int:
        kit.clock.now += 0.02
        return original(part_index, sampler, offset)

    kit.backend.sample = sample  # type: ignore[method-assign]
    kit.ask("a")
    into_replies(kit, "a")
    kit.step()
    assert ids_per_delta(kit, "a")[-1] <= 5


# What is kept.


@pytest.mark.parametrize("memory", ["attention", "sliding", "recurrent"])
def test_nothing_behind_a_stop_string_is_kept_and_nothing_before_it_is_lost(memory: str) -> None:
    kept = []
    for in_rounds in (False, True):
        n_swa = "16" if memory == "sliding" else "0"
        kit = fake_kit({"reply": TEXT, "memory": memory, "n_swa": n_swa})
        kit.core.is_wanted = lambda in_rounds=in_rounds: not in_rounds  # type: ignore[misc]
        kit.ask("a", stop=("lazy",), cache_key="k")
        kit.run()
        assert kit.text("a") == TEXT[: TEXT.index("lazy")]
        assert kit.finished("a").usage.n_generated == TEXT.index("lazy") + len("lazy")
        kept.append(next(seq.tokens for seq in kit.core._pool._seqs if seq.key == "k"))
    assert kept[0] == kept[1] != []


@pytest.mark.parametrize("memory", ["attention", "sliding", "recurrent"])
def test_every_memory_goes_on_in_rounds(memory: str) -> None:
    kit = running_on({"memory": memory, "n_swa": "16" if memory == "sliding" else "0"})
    kit.ask("a", cache_key="k")
    kit.run()
    assert kit.text("a") == TEXT
    assert max(ids_per_delta(kit, "a")) == MOST_ROUNDS


# Faults.


def test_a_sampler_that_fails_in_a_later_round_ends_its_own_reply_only() -> None:
    kit = running_on()
    kit.ask("a")
    kit.ask("b")
    into_replies(kit, "a", "b")
    original, n_calls = kit.backend.sample, 0

    def sample(part_index: int, sampler: Any, offset: int = 0) -> int:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 5:  # the third round of the first one
            raise RuntimeError("broken")
        return original(part_index, sampler, offset)

    kit.backend.sample = sample  # type: ignore[method-assign]
    kit.step()
    assert kit.failed("a").code is FailureCode.DECODE
    assert "broken" in kit.failed("a").message
    assert kit.failed("a").retryable
    kit.run()
    assert kit.text("b") == TEXT


def test_rounds_end_where_cells_are_missing_and_the_next_step_finds_a_way() -> None:
    kit = running_on()
    kit.ask("a")
    into_replies(kit, "a")
    fail_third_decode(kit, DecodeStatus.NO_SLOT)
    kit.step()
    assert ids_per_delta(kit, "a")[-1] == 2
    kit.run()
    assert kit.text("a") == TEXT


def test_a_decode_that_fails_in_a_later_round_fails_those_in_it_and_leaves_no_cell() -> None:
    kit = running_on()
    kit.ask("a", cache_key="k")
    into_replies(kit, "a")
    fail_third_decode(kit, DecodeFailed("no more"))
    kit.step()
    assert kit.failed("a").retryable
    assert kit.text("a") == TEXT[:1]
    kit.ask("again", cache_key="k")
    kit.run()
    assert kit.text("again") == TEXT


def fail_third_decode(kit: CoreKit, failure: DecodeStatus | DecodeFailed) -> None:
    original, n_calls = kit.backend.decode, 0

    def decode(parts: list[BatchPart]) -> DecodeStatus:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            if isinstance(failure, DecodeFailed):
                raise failure
            return failure
        return original(parts)

    kit.backend.decode = decode  # type: ignore[assignment,method-assign]


# Beside guesses.


def test_while_guesses_pay_every_token_may_be_one() -> None:
    repeating = "one two three four five six seven. " * 8
    kit = running_on({"reply": repeating}, speculation=True, n_ctx=1024)
    kit.ask("a", max_new_tokens=len(repeating) + 1)
    kit.run()
    assert kit.text("a") == repeating
    stats = kit.core.stats()
    assert stats.accepted_tokens_total > len(repeating) // 2


def test_guesses_begin_within_a_step_of_where_text_repeats() -> None:
    fresh = "".join(f"{i * 7919 % 1000:03d}, " for i in range(60))
    kit = running_on({"reply": fresh + TEXT}, speculation=True, n_ctx=1024)
    kit.ask("a", f"Repeat this: {TEXT}", max_new_tokens=len(fresh + TEXT) + 1)
    kit.run()
    assert kit.text("a") == fresh + TEXT
    assert kit.core.stats().accepted_tokens_total > len(TEXT) // 2

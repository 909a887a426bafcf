"""Guessed tokens in the batch: they change the number of steps and nothing else, and only where they pay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.base import DecodeStatus
from engine.core.drafts import KEPT_SPEED, MAX_DRAFT_TOKENS, GuessCost, share_out
from engine.types import Delta, Finished, FinishReason
from tests.support.corekit import CoreKit, assert_same_reply, fake_kit

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."


def drafting(script: dict[str, str] | None = None, **fields: Any) -> CoreKit:
    """The kit's clock stands still, so every step costs the same and every guess is worth computing."""
    return fake_kit(script, **({"speculation": True} | fields))


def besides_deltas(kit: CoreKit, request_id: str) -> list[object]:
    """All that the outside hears about a request but how it was cut into deltas."""
    return [event for event in kit.of(request_id) if not isinstance(event, Delta)]


# What comes out.


PIECES = st.lists(
    st.sampled_from(["ab", "abc ", "好", "🙂", "\n\n", "abcabc", "x", "."]), max_size=14
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    reply=PIECES.map("".join),
    thinking=PIECES.map("".join),
    questions=st.lists(PIECES.map("".join), min_size=1, max_size=5),
    stops=st.lists(st.sampled_from(["bc", "abcab", "c 好", "x.", "\n\n", "🙂x"]), max_size=2),
    max_new_tokens=st.integers(1, 80),
    memory=st.sampled_from([("attention", 0), ("sliding", 40), ("sliding", 400), ("recurrent", 0)]),
    n_parallel=st.integers(1, 4),
    n_sequences=st.sampled_from([4, 6, 20]),
    n_batch=st.sampled_from([8, 64, 512]),
    data=st.data(),
)
def test_the_same_comes_out_and_the_same_is_kept(
    reply: str,
    thinking: str,
    questions: list[str],
    stops: list[str],
    max_new_tokens: int,
    memory: tuple[str, int],
    n_parallel: int,
    n_sequences: int,
    n_batch: int,
    data: st.DataObject,
) -> None:
    script = {"reply": reply or "-", "memory": memory[0], "n_swa": str(memory[1])}
    script |= {"thinking": thinking} if thinking else {}
    n_given = data.draw(st.integers(0, 6))
    kits = []
    for speculation in (False, True):
        kit = fake_kit(
            script,
            speculation=speculation,
            n_parallel=n_parallel,
            n_sequences=n_sequences,
            n_batch=n_batch,
            n_ctx=256,
        )
        given_ids = tuple(kit.backend.reply_to([])[:n_given])  # type: ignore[attr-defined]
        for turn in range(2):
            for i, question in enumerate(questions):
                kit.ask(
                    f"{turn}.{i}",
                    f"{question} {turn}",
                    cache_key=f"k{i}",
                    stop=tuple(stops),
                    max_new_tokens=max_new_tokens,
                    generated_tokens=given_ids if i == 0 else (),
                    history=f"<|im_start|>user\n{question} 0<|im_end|>\n" if turn else "",
                )
            kit.run()
        kits.append(kit)
    plain, guessed = kits
    for request_id in {event.request_id for event in plain.events}:
        # Who takes turns with whom depends on the number of steps; what each of them gets does not.
        assert_same_reply(plain, guessed, request_id)
        if len(questions) <= n_parallel and n_sequences == 20:
            assert besides_deltas(plain, request_id) == besides_deltas(guessed, request_id)
    assert plain.core.stats().drafted_tokens_total == 0
    stats = [kit.core.stats() for kit in kits]
    assert stats[0].decoded_generated_tokens_total == stats[1].decoded_generated_tokens_total
    assert stats[1].steps_total <= stats[0].steps_total


def test_a_quote_comes_in_few_steps() -> None:
    steps = []
    for kit in (fake_kit({"reply": TEXT}), drafting({"reply": TEXT})):
        kit.ask("a", f"Repeat this: {TEXT}")
        kit.run()
        assert kit.text("a") == TEXT
        assert kit.finished("a").usage.n_generated == len(TEXT) + 1
        steps.append(kit.core.stats().steps_total)
    stats = kit.core.stats()
    assert steps[1] < steps[0] / 4
    assert stats.drafted_tokens_total >= stats.accepted_tokens_total > len(TEXT) * 3 // 4
    # Every token came out once: by a step of its own, or as an accepted guess.
    assert steps[1] - 1 + stats.accepted_tokens_total == len(TEXT)


def test_a_stop_string_inside_a_run_ends_it_there_and_keeps_no_more() -> None:
    kept = []
    for kit in (fake_kit({"reply": TEXT}), drafting({"reply": TEXT})):
        kit.ask("a", f"Repeat this: {TEXT}", stop=("lazy",), cache_key="k")
        kit.run()
        assert kit.text("a") == TEXT[: TEXT.index("lazy")]
        assert kit.finished("a").usage.n_generated == TEXT.index("lazy") + len("lazy")
        assert kit.finished("a").reason is FinishReason.STOP
        kept.append(next(seq.tokens for seq in kit.core._pool._seqs if seq.key == "k"))
    assert kept[0] == kept[1]
    assert kit.core.stats().accepted_tokens_total > 20


def test_the_limit_is_met_exactly_and_no_cell_beyond_it_is_used() -> None:
    prompt = len(fake_kit().request("x", f"Repeat this: {TEXT}").prompt_tokens)
    for n_new in range(1, 40):
        # As many cells as the prompt and the reply have: one guess too many would find no place.
        n_cells = prompt + n_new
        kit = drafting({"reply": TEXT}, n_parallel=1, n_ctx=n_cells, kv_cells=n_cells)
        kit.ask("a", f"Repeat this: {TEXT}", max_new_tokens=n_new, n_shared_prefix=0)
        kit.run()
        assert kit.text("a") == TEXT[:n_new]
        assert kit.finished("a").reason is FinishReason.LENGTH
        assert all(
            part.start + len(part.tokens) < n_cells
            for batch in kit.backend.batches  # type: ignore[attr-defined]
            for part in batch
        )


def test_a_step_that_finds_no_cells_goes_on_without_guesses() -> None:
    kit = drafting({"reply": TEXT})
    kit.ask("kept", "another", cache_key="k")
    kit.run()
    kit.ask("a", f"Repeat this: {TEXT}", max_new_tokens=100, scope="other")
    for _ in range(200):
        if not kit.core.has_work:
            break
        kit.backend.failures.append(DecodeStatus.NO_SLOT)  # type: ignore[attr-defined]
        kit.step()
    kit.backend.failures.clear()  # type: ignore[attr-defined]
    kit.check_end()
    assert kit.text("a") == TEXT


# Where there are none.


def test_none_where_it_is_switched_off_and_none_while_a_prompt_is_read() -> None:
    kit = fake_kit({"reply": TEXT}, speculation=False)
    kit.ask("a", f"Repeat this: {TEXT}")
    kit.run()
    assert kit.core.stats().drafted_tokens_total == 0
    kit = drafting({"reply": TEXT * 30}, n_batch=16, n_ctx=4096)
    kit.ask("a", f"Repeat this: {TEXT}", max_new_tokens=3000)
    kit.ask("b", f"Repeat this: {TEXT}", max_new_tokens=200)
    while not any(isinstance(event, Finished) for event in kit.events):
        kit.step()  # what guesses cost is known now, for one and for two at once
    assert kit.core.stats().n_running == 1
    kit.ask("long", "word " * 200)
    before = kit.core.stats().drafted_tokens_total
    kit.step(20)
    assert kit.core.stats().drafted_tokens_total == before
    kit.run()
    assert kit.core.stats().drafted_tokens_total > before


@pytest.mark.parametrize(
    ("memory", "n_swa", "drafts"),
    [("recurrent", 0, False), ("sliding", 16, False), ("sliding", 400, True)],
)
def test_none_where_the_memory_cannot_be_rolled_back(memory: str, n_swa: int, drafts: bool) -> None:
    kit = drafting({"reply": TEXT, "memory": memory, "n_swa": str(n_swa)})
    request = kit.ask("a", f"Repeat this: {TEXT}")
    kit.run()
    assert kit.text("a") == TEXT
    # Nothing was ever lost by a cut that could not be exact.
    assert kit.n_prompt_decoded == len(request.prompt_tokens)
    assert (kit.core.stats().drafted_tokens_total > 0) == drafts


def test_guesses_end_where_the_sliding_window_begins_to_lose() -> None:
    kit = drafting({"reply": TEXT, "memory": "sliding", "n_swa": "200"})
    request = kit.ask("a", f"Repeat this: {TEXT} {'.' * 20}")
    kit.run()
    assert kit.text("a") == TEXT
    n_prompt = len(request.prompt_tokens)
    assert n_prompt < 200 < n_prompt + len(TEXT)
    assert kit.n_prompt_decoded == n_prompt
    parts = [part for batch in kit.backend.batches for part in batch]  # type: ignore[attr-defined]
    guessed = [part for part in parts if part.n_outputs > 1]
    assert guessed
    assert max(part.start + len(part.tokens) for part in guessed) == 200


def test_outputs_never_exceed_what_the_context_has() -> None:
    kit = drafting({"reply": TEXT}, n_parallel=4, n_sequences=6)
    for i in range(4):
        kit.ask(f"r{i}", f"Repeat this: {TEXT}")
    kit.run()
    n_outputs = [
        sum(part.n_outputs for part in batch)
        for batch in kit.backend.batches  # type: ignore[attr-defined]
    ]
    assert max(n_outputs) == 6 == kit.backend.n_outputs_max
    assert all(kit.text(f"r{i}") == TEXT for i in range(4))


# Whether it pays.


def test_cheap_guesses_are_all_computed_and_dear_ones_only_when_likely() -> None:
    flat = [0.010] * 16
    steep = [0.010 * (1 + n) for n in range(16)]
    half = [0.010 + 0.005 * n for n in range(16)]
    sure = [0.98**n for n in range(1, 16)]
    doubtful = [0.6**n for n in range(1, 16)]
    assert share_out([sure], flat) == [15]
    assert share_out([sure], steep) == [0]
    # The tenth costs half a step; by then the tokens come at 0.55 of a step each, and the next are less and less likely.
    assert 8 <= share_out([sure], half)[0] < 15
    assert share_out([doubtful], half) == [1]
    assert share_out([[0.3, 0.09]], half) == [0]


def test_nobody_is_slowed_down_for_the_guesses_of_another() -> None:
    cpu = [0.050 + 0.010 * n for n in range(13)]
    sure = [0.98**n for n in range(1, 13)]
    assert share_out([sure, [], [], []], cpu) == [0, 0, 0, 0]
    gpu = [0.010 + 0.0001 * n for n in range(13)]
    counts = share_out([sure, [], [], []], gpu)
    assert counts == [11, 0, 0, 0]
    assert gpu[0] >= KEPT_SPEED * gpu[sum(counts)]
    assert sum(share_out([sure] * 4, cpu)) == 12
    assert max(share_out([sure] * 4, cpu)) == 3


def learned(costs: dict[int, float], n_times: int = 100, step_s: float = 0.010) -> GuessCost:
    """Has seen steps with so many guesses in turn."""
    cost = GuessCost(1)
    for _ in range(n_times):
        for n_guesses, units in costs.items():
            cost.observe(n_guesses, units * step_s)
    return cost


def test_the_cost_of_guesses_is_learned_from_small_numbers_up() -> None:
    cost = GuessCost(2)
    assert cost.curve(15) == []
    cost.observe(0, 0.010)
    assert cost.curve(15) == [1.0, 1.125, 1.25, 1.375]
    cost.observe(3, 0.030)
    assert len(cost.curve(15)) == 8
    cost.observe(6, 0.040)
    assert len(cost.curve(15)) == 14
    assert len(GuessCost(8).curve(15)) == 0
    costs = learned({0: 1.0, 1: 1.6, 3: 3.0}).curve(15)
    assert costs[:4] == pytest.approx([1.0, 1.6, 2.3, 3.0], rel=0.02)
    assert costs[7] == pytest.approx(3.0 + 4 * 2.0 / 3, rel=0.02)
    assert len(learned({0: 1.0, 3: 3.0}).curve(5)) == 6


def test_a_machine_that_gets_busy_is_not_taken_for_dear_guesses() -> None:
    cost = learned({0: 1.0, 7: 4.0})
    for _ in range(30):
        for n_guesses, units in ((7, 4.0), (7, 4.0), (0, 1.0)):
            cost.observe(n_guesses, units * 0.040)
    assert cost.curve(7)[7] == pytest.approx(4.0, rel=0.1)


def test_one_slow_step_does_not_rule_guesses_out_for_ever() -> None:
    cost = GuessCost(1)
    cost.observe(0, 0.010)
    cost.observe(1, 5.0)
    assert 1.5 < cost.curve(1)[1] < 2.5
    for _ in range(8):
        cost.observe(0, 0.010)
        cost.observe(1, 0.012)
    assert cost.curve(1)[1] < 1.4
    # What was dear once is tried again after a long time.
    dear = learned({0: 1.0, 1: 2.0})
    before = dear.curve(1)[1]
    for _ in range(6000):
        dear.observe(0, 0.010)
    assert dear.curve(1)[1] < before - 0.2


def test_steps_never_seem_to_get_cheaper_with_more_guesses() -> None:
    curve = learned({0: 1.0, 1: 2.0, 4: 1.2, 8: 3.0}).curve(15)
    assert curve == sorted(curve)


def test_a_step_without_guesses_comes_between_many_with_them() -> None:
    kit = drafting({"reply": "ab" * 700}, n_ctx=2048)
    kit.ask("a", max_new_tokens=1400)
    kit.run()
    sizes = [len(batch[0].tokens) for batch in kit.backend.batches]  # type: ignore[attr-defined]
    guessed = [size > 1 for size in sizes[1:]]
    first = guessed.index(True)
    assert guessed[first : first + 66] == [True] * 64 + [False, True]


def test_text_without_repetition_costs_no_guesses_after_a_while() -> None:
    words = [f"{i * 7919 % 1000:03d}, " for i in range(90)]
    kit = drafting({"reply": "".join(words)}, n_ctx=1024)
    kit.clock.now = 0.0
    original = kit.backend.decode

    def decode(parts: Any) -> DecodeStatus:
        kit.clock.now += 0.005 + 0.010 * sum(len(part.tokens) for part in parts)
        return original(parts)

    kit.backend.decode = decode  # type: ignore[method-assign]
    kit.ask("a", "Numbers, please.", max_new_tokens=450)
    kit.run()
    stats = kit.core.stats()
    assert stats.decoded_generated_tokens_total > 440
    assert stats.drafted_tokens_total < 40
    assert MAX_DRAFT_TOKENS == 15

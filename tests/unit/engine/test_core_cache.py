"""Prefix reuse: only new tokens are computed, and never across scopes or where the memory cannot do it exactly."""

import pytest

from engine.text.turnmarks import TurnMarks
from engine.types import Priority, Started
from tests.support.corekit import CoreKit, fake_kit

REPLY = "Hello, 世界 🙂!"
N_REPLY = len(REPLY.encode())


def history(*questions: str) -> str:
    return "".join(
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{REPLY}<|im_end|>\n"
        for question in questions
    )


def decoded_by(kit: CoreKit, request_id: str, question: str = "hi", **fields: object) -> int:
    """Prompt tokens computed for one request from submit to end."""
    before = kit.n_prompt_decoded
    kit.ask(request_id, question, **fields)
    kit.run()
    return kit.n_prompt_decoded - before


def test_the_next_turn_computes_only_what_is_new() -> None:
    kit = fake_kit()
    first = kit.request("t1", "one")
    assert decoded_by(kit, "t1", "one", cache_key="k") == len(first.prompt_tokens)
    second = kit.request("t2", "two", history=history("one"))
    # In the cache: the first prompt and its reply; the end token was sampled, not decoded.
    n_known = len(first.prompt_tokens) + N_REPLY
    n_new = len(second.prompt_tokens) - n_known
    assert decoded_by(kit, "t2", "two", history=history("one"), cache_key="k") == n_new
    assert kit.cached("t2") == n_known
    assert kit.finished("t2").usage.n_cached == n_known
    assert kit.text("t2") == REPLY


def test_a_changed_question_keeps_the_common_beginning() -> None:
    kit = fake_kit()
    decoded_by(kit, "a", "what is alpha", cache_key="k")
    request = kit.request("b", "what is omega")
    n_same = next(
        i
        for i, (x, y) in enumerate(
            zip(
                request.prompt_tokens, kit.request("a", "what is alpha").prompt_tokens, strict=False
            )
        )
        if x != y
    )
    assert (
        decoded_by(kit, "b", "what is omega", cache_key="k") == len(request.prompt_tokens) - n_same
    )


def test_the_same_prompt_again_computes_one_token() -> None:
    kit = fake_kit()
    decoded_by(kit, "a", cache_key="k")
    assert decoded_by(kit, "b", cache_key="k") == 1
    assert kit.text("b") == REPLY


def test_conversations_without_a_key_are_not_kept() -> None:
    kit = fake_kit()
    kit.ask("a", n_shared_prefix=0)
    kit.run()
    assert kit.core.stats().n_sequences_kept == 0
    assert kit.core.stats().kv_cells_used == 0


def test_many_conversations_in_rotation_are_all_warm() -> None:
    kit = fake_kit(n_ctx=512, n_parallel=4)
    for i in range(8):
        decoded_by(kit, f"a{i}", f"question {i}", cache_key=f"k{i}")
    for i in range(8):
        n_new = decoded_by(
            kit, f"b{i}", "next", history=history(f"question {i}"), cache_key=f"k{i}"
        )
        assert n_new < 50
        assert kit.text(f"b{i}") == REPLY


def test_the_system_prompt_is_computed_once_per_scope() -> None:
    kit = fake_kit(n_ctx=1024, n_batch=64)
    system = "s" * 200
    requests = [kit.ask(f"r{i}", f"q{i}", system=system, cache_key=f"k{i}") for i in range(4)]
    kit.run()
    n_shared = requests[0].n_shared_prefix
    n_own = sum(len(request.prompt_tokens) - n_shared for request in requests)
    assert kit.n_prompt_decoded == n_shared + n_own
    assert [kit.cached(f"r{i}") for i in range(4)] == [0, n_shared, n_shared, n_shared]
    # One copy of its cells, however many share them.
    n_tails = sum(len(r.prompt_tokens) - n_shared + N_REPLY for r in requests)
    assert kit.core.stats().kv_cells_used == n_shared + n_tails


def test_the_header_of_the_first_question_is_shared_where_it_is_as_expected() -> None:
    kit = fake_kit(n_ctx=1024)
    header = tuple(kit.ids("<|im_start|>user\n"))
    kit.core._turns = TurnMarks(user_header=header)
    first = kit.ask("a", "one", cache_key="k1")
    kit.run()
    kit.ask("b", "two", cache_key="k2")
    kit.run()
    assert kit.cached("b") == first.n_shared_prefix + len(header)
    # Questions that begin otherwise (the first characters melt into the header) share all before that.
    system = kit.ids("<|im_start|>system\nYou are terse.<|im_end|>\n")
    for name in "cx":
        odd = (*system, *header[:-1], *kit.ids(f"\tthree {name}"))
        kit.ask(name, cache_key=f"k{name}", prompt_tokens=odd)
        kit.run()
    assert kit.cached("x") == first.n_shared_prefix + len(header) - 1
    kit.ask("y", "six", cache_key="ky")
    kit.run()
    assert kit.cached("y") == first.n_shared_prefix + len(header)
    # Without a system prompt nothing is shared.
    kit.ask("d", "four", cache_key="k4", n_shared_prefix=0, scope="other")
    kit.run()
    kit.ask("e", "five", cache_key="k5", n_shared_prefix=0, scope="other")
    kit.run()
    assert kit.cached("e") == 0


@pytest.mark.parametrize("memory", ["sliding", "recurrent"])
def test_the_header_is_not_shared_where_a_prefix_serves_as_a_whole_only(memory: str) -> None:
    kit = fake_kit({"memory": memory, "n_swa": "400" if memory == "sliding" else "0"}, n_ctx=1024)
    kit.core._turns = TurnMarks(user_header=tuple(kit.ids("<|im_start|>user\n")))
    first = kit.ask("a", "one", cache_key="k1")
    kit.run()
    kit.ask("b", "two", cache_key="k2")
    kit.run()
    assert kit.cached("b") == first.n_shared_prefix


@pytest.mark.parametrize("older", ["a" * 60, "ab", "b" * 100])
def test_a_new_system_prompt_is_computed_once_also_beside_an_older_one(older: str) -> None:
    """However much the two have in common: the first one computes what is missing, the others wait for that."""
    kit = fake_kit(n_ctx=1024, n_batch=64)
    kit.ask("old", "hi", system=older, cache_key="old")
    kit.run()
    requests = [kit.ask(f"r{i}", f"q{i}", system="b" * 200, cache_key=f"k{i}") for i in range(4)]
    kit.run()
    n_shared = requests[0].n_shared_prefix
    assert kit.cached("r0") < n_shared
    assert [kit.cached(f"r{i}") for i in range(1, 4)] == [n_shared] * 3


def test_when_the_builder_of_a_new_system_prompt_leaves_the_next_one_takes_over() -> None:
    kit = fake_kit(n_ctx=1024, n_batch=64)
    kit.ask("old", "hi", system="a" * 60, cache_key="old")
    kit.run()
    requests = [kit.ask(f"r{i}", f"q{i}", system="b" * 200, cache_key=f"k{i}") for i in range(4)]
    kit.step(2)
    kit.core.cancel("r0")
    kit.run()
    n_shared = requests[0].n_shared_prefix
    assert [kit.cached("r2"), kit.cached("r3")] == [n_shared, n_shared]
    kit.ask("late", "q", system="b" * 200, cache_key="late")
    kit.run()
    assert kit.cached("late") == n_shared


def test_the_shared_prefix_outlives_the_conversation_that_made_it() -> None:
    kit = fake_kit()
    request = kit.ask("a", system="s" * 100)
    kit.run()
    assert kit.core.stats().kv_cells_used == request.n_shared_prefix
    assert (
        decoded_by(kit, "b", system="s" * 100)
        == len(request.prompt_tokens) - request.n_shared_prefix
    )


def test_a_reply_of_one_token_leaves_its_prefix_as_well() -> None:
    kit = fake_kit()
    request = kit.ask("a", max_new_tokens=1)
    kit.run()
    assert kit.core.stats().kv_cells_used == request.n_shared_prefix


def test_kv_never_crosses_scopes() -> None:
    kit = fake_kit()
    n_prompt = len(kit.request("x").prompt_tokens)
    assert decoded_by(kit, "a", cache_key="k", scope="one") == n_prompt
    assert decoded_by(kit, "b", cache_key="k", scope="two") == n_prompt
    assert kit.cached("b") == 0
    assert decoded_by(kit, "c", cache_key="k", scope="one") == 1


def test_prefixes_of_two_scopes_do_not_wait_for_each_other() -> None:
    kit = fake_kit(n_ctx=1024, n_batch=64)
    kit.ask("a", system="s" * 200, scope="one")
    kit.ask("b", system="s" * 200, scope="two")
    kit.step()
    assert kit.start_order == ["a", "b"]
    kit.run()


def test_forget_drops_every_copy_of_a_conversation() -> None:
    kit = fake_kit()
    request = kit.ask("a", cache_key="k")
    kit.run()
    kit.core.forget("k")
    assert kit.core.stats().kv_cells_used == request.n_shared_prefix
    decoded = decoded_by(kit, "b", cache_key="k")
    assert decoded == len(request.prompt_tokens) - request.n_shared_prefix


def test_forget_of_a_running_conversation_leaves_nothing_behind() -> None:
    kit = fake_kit()
    kit.ask("a", cache_key="k", n_shared_prefix=0)
    kit.step(3)
    kit.core.forget("k")
    kit.run()
    assert kit.text("a") == REPLY
    assert kit.core.stats().kv_cells_used == 0


def test_the_least_recently_used_conversation_leaves_first() -> None:
    kit = fake_kit(n_ctx=128, kv_cells=300, n_sequences=16)
    for name in ("old", "mid", "new"):
        decoded_by(kit, f"{name}1", cache_key=name, n_shared_prefix=0, max_new_tokens=30)
    decoded_by(kit, "old2", cache_key="old", n_shared_prefix=0, max_new_tokens=30)
    # Needs room: "mid" is the oldest now.
    decoded_by(kit, "x", "q" * 50, cache_key="x", n_shared_prefix=0, max_new_tokens=30)
    assert decoded_by(kit, "old3", cache_key="old", n_shared_prefix=0, max_new_tokens=30) == 1
    assert decoded_by(kit, "mid2", cache_key="mid", n_shared_prefix=0, max_new_tokens=30) > 1


def test_sequences_run_out_before_cells() -> None:
    kit = fake_kit(n_parallel=2, n_sequences=4, n_ctx=2048)
    for i in range(10):
        decoded_by(kit, f"r{i}", f"q{i}", cache_key=f"k{i}")
    assert kit.core.stats().n_sequences_kept <= 4
    assert all(kit.text(f"r{i}") == REPLY for i in range(10))


def test_two_requests_of_one_conversation_at_once_do_not_share_a_sequence() -> None:
    kit = fake_kit()
    kit.ask("a", "one", cache_key="k")
    kit.ask("b", "two", cache_key="k")
    kit.run()
    assert kit.text("a") == kit.text("b") == REPLY
    assert kit.core.stats().n_sequences_kept == 2  # the prefix and the newer one


def test_warming_makes_the_next_message_cheap() -> None:
    kit = fake_kit()
    request = kit.request("a", "next", history=history("one", "two"))
    kit.core.warm("k", "", request.prompt_tokens[:-10])
    kit.run()
    assert kit.events == []
    assert decoded_by(kit, "a", "next", history=history("one", "two"), cache_key="k") == 10


def test_warming_a_shorter_canonical_list_cuts_the_tail() -> None:
    kit = fake_kit()
    request = kit.ask("a", cache_key="k", n_shared_prefix=0)
    kit.run()
    before = kit.n_prompt_decoded
    kit.core.warm("k", "", request.prompt_tokens)
    kit.run()
    assert kit.n_prompt_decoded == before
    assert kit.core.stats().kv_cells_used == len(request.prompt_tokens)


def test_a_question_takes_over_what_is_warm_by_now() -> None:
    kit = fake_kit(n_ctx=2048, n_batch=64)
    request = kit.request("a", "q" * 600)
    kit.core.warm("k", "", request.prompt_tokens)
    kit.step(3)
    kit.ask("a", "q" * 600, cache_key="k")
    kit.step()
    assert kit.cached("a") >= 64
    kit.run()
    assert kit.n_prompt_decoded == len(request.prompt_tokens)


def test_warming_waits_for_the_running_reply_of_its_conversation() -> None:
    kit = fake_kit()
    request = kit.ask("a", cache_key="k", n_shared_prefix=0)
    kit.step(2)
    kit.core.warm("k", "", request.prompt_tokens)
    kit.run()
    # Nothing computed twice, and what is kept is the canonical list.
    assert kit.n_prompt_decoded == len(request.prompt_tokens)
    assert kit.core.stats().kv_cells_used == len(request.prompt_tokens)


def test_people_come_before_warming_within_a_step() -> None:
    kit = fake_kit(n_ctx=4096, n_batch=64)
    kit.core.warm("k", "", [7] * 3000)
    kit.step(2)
    kit.ask("a", "q" * 300, n_shared_prefix=0)
    n_before = len(kit.backend.batches)
    while not any(isinstance(e, Started) for e in kit.events):
        kit.step()
    assert len(kit.backend.batches) == n_before + 1
    last = kit.backend.batches[-1]
    assert sum(len(part.tokens) for part in last if 7 not in part.tokens) == 64
    kit.run()
    assert kit.text("a") == REPLY


def test_warming_gives_way_when_memory_is_short() -> None:
    kit = fake_kit(n_ctx=512, kv_cells=512, n_batch=64)
    kit.core.warm("k", "", [7] * 400)
    kit.step(2)
    kit.ask("a", max_new_tokens=300)
    kit.step()
    assert kit.start_order == ["a"]
    kit.run()
    assert kit.text("a") == REPLY


@pytest.mark.parametrize("tokens", [[], [1] * 600, [5000]])
def test_impossible_warm_ups_are_dropped(tokens: list[int]) -> None:
    kit = fake_kit()
    kit.core.warm("k", "", tokens)
    assert not kit.core.has_work


def test_a_sliding_window_is_computed_again_when_the_cut_lies_behind_it() -> None:
    kit = fake_kit({"memory": "sliding", "n_swa": "32"})
    request = kit.request("x", "q" * 100)
    decoded_by(kit, "a", "q" * 100, cache_key="k", n_shared_prefix=0)
    # The reply and a changed beginning lie more than a window apart: nothing of it may be used.
    assert decoded_by(kit, "b", "p" + "q" * 99, cache_key="k", n_shared_prefix=0) == len(
        request.prompt_tokens
    )
    # An exact continuation is always possible.
    n_new = decoded_by(
        kit, "c", "next", history=history("p" + "q" * 99), cache_key="k", n_shared_prefix=0
    )
    assert n_new < 60
    assert kit.text("c") == REPLY


def test_a_recurrent_state_is_only_extended_never_cut() -> None:
    kit = fake_kit({"memory": "recurrent"})
    request = kit.ask("a", "one", cache_key="k")
    kit.run()
    n_new = decoded_by(kit, "b", "two", history=history("one"), cache_key="k")
    assert n_new < 50
    # A retry would have to cut: it starts again, from the system prompt at best.
    decoded = decoded_by(kit, "c", "one", cache_key="k")
    assert decoded == len(request.prompt_tokens) - request.n_shared_prefix
    assert kit.text("c") == REPLY


def test_background_prompts_get_only_what_people_leave() -> None:
    kit = fake_kit(n_ctx=2048, n_batch=100)
    kit.ask("summary", "b" * 500, priority=Priority.BACKGROUND, n_shared_prefix=0)
    kit.step()
    kit.ask("person", "p" * 400, n_shared_prefix=0)
    kit.step(3)
    for batch in kit.backend.batches[1:4]:
        assert sum(len(part.tokens) for part in batch) == 100
        assert all(98 not in part.tokens[1:] for part in batch)
    kit.run()

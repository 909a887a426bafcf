"""Conversations found by content: what is reused, by whom, and that it stays bounded."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bot.web.api_memory import Recalled, TalkMemory
from engine.types import ChatMessage, Role

SEED = ("api:a", "main", "fingerprint")
SYSTEM = ChatMessage(role=Role.SYSTEM, content="Be brief.")


def user(text: str) -> ChatMessage:
    return ChatMessage(role=Role.USER, content=text)


def bot(text: str) -> ChatMessage:
    return ChatMessage(role=Role.ASSISTANT, content=text)


def turn(
    memory: TalkMemory,
    messages: Sequence[ChatMessage],
    answer: str = "",
    prompt: Sequence[int] = (1, 2, 3),
    ids: Sequence[int] = (7, 8),
    seed: Sequence[str] = SEED,
) -> Recalled:
    recalled = memory.recall(seed, messages)
    memory.note_question(recalled)
    if answer:
        memory.note_reply(recalled, answer, prompt, ids)
    memory.release(recalled)
    return recalled


def test_the_next_turn_finds_its_ids_and_its_key() -> None:
    memory = TalkMemory()
    first = turn(memory, [SYSTEM, user("a")], " A")
    second = turn(memory, [SYSTEM, user("a"), bot("A"), user("b")])
    assert first.canonical == ()
    assert second.cache_key == first.cache_key
    assert second.canonical == (1, 2, 3, 7, 8)
    assert second.messages[2].token_ids == (7, 8)


def test_older_replies_keep_their_ids_too() -> None:
    memory = TalkMemory()
    turn(memory, [user("a")], "A", ids=(7,))
    turn(memory, [user("a"), bot("A"), user("b")], "B", ids=(9,))
    third = turn(memory, [user("a"), bot("A"), user("b"), bot("B"), user("c")])
    assert [m.token_ids for m in third.messages] == [(), (7,), (), (9,), ()]


def test_the_same_question_again_finds_as_much() -> None:
    memory = TalkMemory()
    turn(memory, [user("a")], "A")
    history = [user("a"), bot("A"), user("b")]
    first = turn(memory, history, "B")
    again = turn(memory, history, "B, said otherwise")
    assert again.canonical == first.canonical == (1, 2, 3, 7, 8)
    assert again.cache_key == first.cache_key


def test_another_key_model_or_word_knows_nothing() -> None:
    memory = TalkMemory()
    first = turn(memory, [user("a")], "A")
    history = [user("a"), bot("A"), user("b")]
    for seed in (("api:b", *SEED[1:]), ("api:a", "other", "fingerprint"), ("api:a", "main", "new")):
        other = turn(memory, history, seed=seed)
        assert other.cache_key != first.cache_key
        assert other.canonical == ()
        assert other.messages == tuple(history)
    changed = turn(memory, [user("a!"), bot("A"), user("b")])
    assert changed.cache_key != first.cache_key


def test_joins_between_messages_matter() -> None:
    memory = TalkMemory()
    turn(memory, [user("ab")], "c")
    assert turn(memory, [user("a"), bot("bc"), user("x")]).canonical == ()
    assert turn(memory, [user("ab"), user("c"), user("x")]).canonical == ()


def test_a_client_that_rewrites_replies_keeps_its_key() -> None:
    memory = TalkMemory()
    first = turn(memory, [user("a")], "**A**")
    second = turn(memory, [user("a"), bot("A"), user("b")], "**B**")
    third = turn(memory, [user("a"), bot("A"), user("b"), bot("B"), user("c")])
    assert second.canonical == third.canonical == ()
    assert first.cache_key == second.cache_key == third.cache_key


def test_an_edited_question_keeps_the_key_and_the_abandoned_branch_gets_its_own() -> None:
    memory = TalkMemory()
    start = [user("a"), bot("A")]
    turn(memory, [user("a")], "A")
    main = turn(memory, [*start, user("b")], "B")
    edited = turn(memory, [*start, user("c")], "C")
    assert edited.cache_key == main.cache_key
    assert edited.canonical == (1, 2, 3, 7, 8)
    back = turn(memory, [*start, user("b"), bot("B"), user("d")], "D")
    assert back.cache_key != main.cache_key
    again = turn(memory, [*start, user("c"), bot("C"), user("e")])
    assert again.cache_key == edited.cache_key, "the two take it from each other only once"
    assert (
        turn(memory, [*start, user("b"), bot("B"), user("d"), bot("D"), user("f")]).cache_key
        == back.cache_key
    )


def test_people_who_say_the_same_first_words_do_not_take_each_others_place() -> None:
    memory = TalkMemory()
    ann = turn(memory, [user("hi")], "Hello Ann")
    bob = turn(memory, [user("hi")], "Hello Bob")
    assert ann.cache_key != bob.cache_key
    assert turn(memory, [user("hi"), bot("Hello Ann"), user("x")]).cache_key == ann.cache_key
    assert turn(memory, [user("hi"), bot("Hello Bob"), user("x")]).cache_key == bob.cache_key


def test_a_key_in_use_is_not_given_twice() -> None:
    memory = TalkMemory()
    turn(memory, [user("a")], "A")
    history = [user("a"), bot("A"), user("b")]
    held = memory.recall(SEED, history)
    other = memory.recall(SEED, history)
    assert held.cache_key != other.cache_key
    assert other.canonical == held.canonical
    memory.release(held)
    memory.release(other)


def test_a_reply_without_a_reusable_prompt_still_lends_its_ids() -> None:
    memory = TalkMemory()
    turn(memory, [user("a")], "A", prompt=())
    second = turn(memory, [user("a"), bot("A"), user("b")])
    assert second.canonical == ()
    assert second.messages[1].token_ids == (7, 8)


def test_an_empty_reply_is_not_remembered() -> None:
    memory = TalkMemory()
    turn(memory, [user("a")], " \n")
    assert memory.n_entries == 1


def test_the_least_recently_used_goes_first() -> None:
    memory = TalkMemory(max_entries=4)
    turn(memory, [user("a")], "A")
    turn(memory, [user("b")], "B")
    assert turn(memory, [user("a"), bot("A"), user("c")]).canonical
    assert memory.n_entries == 4
    assert turn(memory, [user("b"), bot("B"), user("d")]).messages[1].token_ids == (7, 8)
    turn(memory, [user("x")], "X")
    turn(memory, [user("y")], "Y")
    assert turn(memory, [user("a"), bot("A"), user("c")]).canonical == ()


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 400), st.booleans()),
        max_size=40,
    )
)
def test_it_never_grows_past_its_bounds(steps: list[tuple[int, int, int, bool]]) -> None:
    memory = TalkMemory(max_entries=6, max_bytes=5000)
    history: dict[int, list[ChatMessage]] = {}
    for who, what, n_ids, answered in steps:
        said = history.setdefault(who, [])
        said.append(user(str(what)))
        seed = (f"api:{who}", "m", "f")
        recalled = turn(memory, said, "R" if answered else "", range(n_ids), (1, 2), seed)
        assert not recalled.canonical or recalled.canonical[-2:] == (1, 2)
        if answered:
            said.append(bot("R"))
        assert memory.n_entries <= 6
        assert memory.n_bytes <= 5000
        assert memory.n_bytes == sum(entry.n_bytes for entry in memory._entries.values())
        assert set(memory._tips.values()) <= set(memory._entries)
        assert not memory._busy

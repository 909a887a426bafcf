"""A text over which the engine died twice is not read a third time; all others are."""

from __future__ import annotations

from engine.link import wire
from engine.link.deadlytexts import DeadlyTexts
from engine.types import ChatMessage, Role


def count(seq: int, text: str) -> wire.Command:
    return wire.AskCount(seq=seq, text=text)


def render(seq: int, text: str) -> wire.Command:
    messages = (ChatMessage(role=Role.USER, content=text),)
    return wire.AskRender(seq=seq, messages=messages, add_generation_prompt=True)


def die_over(texts: DeadlyTexts, *questions: wire.Command, blame: bool = True) -> None:
    for seq, question in enumerate(questions, start=100):
        assert not texts.refuses(question)
        texts.asked(seq, question)
    texts.gone()
    texts.died(blame=blame)


def test_twice_and_then_not_again() -> None:
    texts = DeadlyTexts()
    die_over(texts, render(1, "bad"), render(2, "good"))
    texts.asked(3, render(3, "good"))
    texts.answered(3)
    die_over(texts, render(4, "bad"), render(5, "good"))
    assert texts.refuses(render(6, "bad"))
    assert not texts.refuses(render(7, "good"))
    assert not texts.refuses(count(8, "other"))
    assert not texts.refuses(wire.AskStats(seq=9))


def test_who_was_not_there_is_not_counted() -> None:
    texts = DeadlyTexts()
    for _ in range(3):
        texts.asked(1, count(1, "answered"))
        texts.answered(1)
        texts.asked(2, count(2, "left"))
        texts.left(2)
        die_over(texts, count(3, "killed from outside"), blame=False)
        die_over(texts, wire.AskStats(seq=4))
    for text in ("answered", "left", "killed from outside"):
        assert not texts.refuses(count(5, text))


def test_what_is_remembered_is_bounded() -> None:
    texts = DeadlyTexts()
    for n in range(1000):
        die_over(texts, count(1, f"text {n}"))
    assert len(texts._n_deaths) <= 256

"""Summaries without a model: what three compressions keep, and what a model's text must be to be kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.domain.summary import Said, accept, clean_prose, draft, language_of, request_text, shorter
from bot.domain.weight import fold, items_of, split_sentences, weigh

CASES = Path(__file__).parents[4] / "shared" / "cases" / "summary.jsonl"
PROSE = "The group talked about several things in a friendly way and agreed to go on soon."


def compress_thrice(messages: list[Said], prose: str, share: float) -> str:
    """Three compressions, each of a third of the talk, to `share` of its length."""
    n = len(messages)
    n_chars = sum(len(m.speaker) + len(m.text) + 4 for m in messages)
    text = ""
    for start, end in ((0, n // 3), (n // 3, 2 * n // 3), (2 * n // 3, n)):
        part = messages[start:end]
        text = draft(accept(prose, part, text), text, part, int(share * n_chars)).text()
    return text


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not on this machine")
@pytest.mark.parametrize("prose", ["", PROSE, PROSE * 40], ids=["nothing", "prose", "endless"])
def test_three_compressions_keep_what_matters(prose: str) -> None:
    kept = wanted = 0
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        messages = [Said(m["speaker"], m["text"]) for m in case["messages"]]
        text = fold(compress_thrice(messages, prose, 0.5))
        wanted += len(case["must_keep"])
        kept += sum(fold(item) in text for item in case["must_keep"])
    assert kept >= 0.85 * wanted


OWN_TALK = [
    Said("Ada", "Morning! Did anybody see the plan?"),
    Said("Bo", "The visit is on 14 June, not on 7 June."),
    Said("Ada", "haha"),
    Said("Bo", "预算定了：一共8600元，超过要重新批。"),
    Said("Cy", "Nice weather today, is it not?"),
    Said("Ada", "Let's go with “Blue Fir” as the supplier."),
    Said("Cy", "ok"),
    Said("Bo", "停车场的问题还没定，我明天去问物业。"),
]


def test_figures_names_and_decisions_come_before_chatter() -> None:
    text = draft("", "", OWN_TALK, 150).text()
    for wanted in ("14 June", "8600元", "Blue Fir"):
        assert wanted in text
    assert "weather" not in text
    assert "haha" not in text


def test_who_said_it_stays() -> None:
    assert "- Bo: 预算定了" in draft("", "", OWN_TALK, 400).text()


def test_an_old_summary_is_taken_over_line_by_line() -> None:
    first = draft("", "", OWN_TALK, 400).text()
    second = draft("", first, [Said("Cy", "The bus costs 320 euros.")], 400).text()
    for wanted in ("- Bo: 预算定了", "320 euros", "Blue Fir"):
        assert wanted in second


def test_prose_with_the_facts_is_kept_and_not_doubled() -> None:
    prose = "The visit is on 14 June; the budget is 8600元; the supplier is Blue Fir."
    assert accept(prose, OWN_TALK, "") == prose
    made = draft(prose, "", OWN_TALK, 300)
    assert made.how == "model"
    assert made.text().count("Blue Fir") == 1


@pytest.mark.parametrize(
    "prose", ["", "   \n", "```\n```", "Summary:", PROSE, "x" * 5000, "word " * 400]
)
def test_prose_that_says_nothing_is_not_kept(prose: str) -> None:
    assert accept(prose, OWN_TALK, "") == ""


APOLOGY = "I'm sorry for any confusion. Please go ahead and ask your question."
GROUP_TALK = [
    Said("Mira", "We move on Wednesday 13 May."),
    Said("Ember", APOLOGY),
    Said("Sofia", "Two vans from Kessler are 360 euros."),
    Said("Ember", APOLOGY),
    Said("Tom", "I need 40 boxes, they are 2.50 each."),
    Said("Ember", APOLOGY),
]


def test_what_a_weak_model_wrote_does_not_take_the_facts_room() -> None:
    weak = (
        f"Mira: {APOLOGY}\nSofia: I won't be going to the party tonight.\nMira: 13 May.\nThe chat:"
    )
    prose = accept(weak, GROUP_TALK, "")
    assert "sorry" not in prose
    assert "party" not in prose
    assert "chat" not in prose
    text = draft(
        "Mira and Sofia talked for long, and some of it was of May.", "", GROUP_TALK, 130
    ).text()
    assert "talked" not in text
    for wanted in ("13 May", "Kessler", "360", "2.50"):
        assert wanted in text


def test_a_dense_summary_stays() -> None:
    prose = (
        "They move on 13 May with two vans from Kessler (360 euros). Tom needs 40 boxes at 2.50."
    )
    assert draft(accept(prose, GROUP_TALK, ""), "", GROUP_TALK, 130).prose == prose
    talk = [
        Said("小林", "开放日定在5月23号，报名上限120人。"),
        Said("老周", "路线改成先看仓库再看装配区，去年在装配区堵得要命。"),
    ]
    zh = "开放日5月23号，上限120人；路线先仓库后装配区。"
    assert draft(accept(zh, talk, ""), "", talk, 40).prose == zh


def test_phrases_are_left_out_before_facts() -> None:
    assert "sorry" not in draft("", "", GROUP_TALK, 10_000).text()


def test_small_talk_is_better_than_nothing() -> None:
    talk = [Said("Ann", "And what is a lighthouse?"), Said("Ember", "Is it tall?")]
    assert "lighthouse" in draft("", "", talk, 200).text()


def test_a_thousand_turns_are_looked_at_a_few_times_each() -> None:
    said = [Said("Ann", f"Crate {n} of lot {n % 7} costs {n} euros.") for n in range(400)]
    n_looks = 0

    def cost(text: str) -> float:
        nonlocal n_looks
        n_looks += 1
        return len(text)

    assert len(draft("", "", said, 2000, cost).sentences) > 20
    assert n_looks < 3 * len(said)


def test_labels_fences_and_repeated_lines_go() -> None:
    text = "```\n**Summary:** A is 5.\n- A is 5.\n* B is 6.\n```"
    assert clean_prose(text) == "A is 5.\nB is 6."


def test_the_language_is_that_of_the_talk() -> None:
    assert language_of(["我们明天下午三点在会议室开会讨论预算和供应商的问题"], "en") == "zh"
    assert language_of(["We meet tomorrow at three in the big room"], "zh") == "en"
    assert language_of(["ok"], "zh") == "zh"


def test_the_request_holds_the_talk_and_the_own_instruction() -> None:
    text = request_text("en", "", "Old facts.", OWN_TALK, max_words=50)
    assert "Old facts." in text
    assert "Bo: The visit is on 14 June" in text
    assert request_text("zh", "Nur auf Deutsch.", "", OWN_TALK, max_words=50).startswith(
        "Nur auf Deutsch."
    )


TALK = st.lists(
    st.builds(Said, st.sampled_from(["Ann", "小林", ""]), st.text(max_size=300)), max_size=12
)


@given(TALK, st.text(max_size=200), st.text(max_size=500), st.integers(10, 600))
def test_any_talk_gives_a_summary_that_fits(
    said: list[Said], before: str, prose: str, max_chars: int
) -> None:
    made = draft(accept(prose, said, before), before, said, max_chars)
    assert len(made.text()) <= max_chars + 1
    while made.text():
        less = shorter(made)
        assert len(less.text()) < len(made.text())
        made = less


@given(st.text(max_size=2000))
def test_sentences_hold_all_the_text(text: str) -> None:
    joined = "".join("".join(split_sentences(text)).split())
    assert len(joined) <= len("".join(text.split()))
    for sentence in weigh([("a", text)]):
        assert len(sentence.text) <= 320
        assert items_of(sentence.text) == sentence.items

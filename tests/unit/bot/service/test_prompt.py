"""The prompt: exact budget, one-block cuts, stable prefixes, and the texts that go into it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.prompt import (
    CannotFit,
    clean_name,
    conversation_fingerprint,
    cut_middle,
    date_note,
    least_tokens,
    next_canonical,
    reserve_tokens,
    speaker_name,
    system_text,
    usable,
    user_text,
)
from bot.domain.records import PastTurn
from bot.domain.types import Attachment, Outcome, Sender
from bot.service.prompting import PromptBuilder, PromptInput, messages_of
from engine.types import ChatMessage, ModelInfo, Role

TEXT = st.text(
    alphabet=st.sampled_from("ab 你好世界，。🙂\n{}<|im_end|>"), min_size=0, max_size=120
)


class Renderer:
    """The byte-ish template of the tests as an engine."""

    def __init__(self, render, *, with_ids=True, thinking_open=False):
        self._render = render
        self._options = {"with_ids": with_ids, "thinking_open": thinking_open}
        self.n_renders = 0
        self.n_messages = []

    async def render(self, messages, *, add_generation_prompt=True):
        self.n_renders += 1
        self.n_messages.append(len(messages))
        return self._render(messages, **self._options)


class Talk:
    """A conversation that goes on turn by turn, as the service would lead it."""

    def __init__(self, render, n_ctx, max_new=64, *, system="Be kind.", **options):
        self.engine = Renderer(render, **options)
        self.info = ModelInfo(name="m", path="", fingerprint="fp", n_ctx_tokens=n_ctx)
        self.max_new = max_new
        self.system = system
        self.fingerprint = conversation_fingerprint("fp", system)
        self.past: list[PastTurn] = []
        self.canonical = None
        self.turn_no = 0
        self.plans = []

    def ask(self, question, answer_ids=(5, 6), answer="ok"):
        return asyncio.run(self._ask(question, answer_ids, answer))

    async def _ask(self, question, answer_ids, answer):
        self.turn_no += 1
        first = self.canonical.window_from_turn_no if self.canonical else 0
        wanted = PromptInput(
            system=self.system,
            past=[turn for turn in self.past if turn.turn_no >= first],
            question=question,
            turn_no=self.turn_no,
            fingerprint=self.fingerprint,
            canonical=self.canonical,
            max_new_tokens=self.max_new,
            cut_marker="[cut]",
        )
        built = await PromptBuilder(self.engine, self.info).build(wanted)
        self.plans.append(built.plan)
        self.canonical = next_canonical(built.plan, self.fingerprint, self.turn_no, answer_ids)
        self.past.append(
            PastTurn(
                f"t{self.turn_no}",
                self.turn_no,
                Sender("u"),
                built.question,
                answer,
                Outcome.COMPLETE,
                tuple(answer_ids),
                "fp",
                n_question=built.plan.n_question,
            )
        )
        return built


@given(
    st.lists(st.tuples(TEXT, st.lists(st.integers(0, 255), max_size=60)), max_size=40),
    st.integers(256, 1200),
    st.integers(1, 400),
    st.booleans(),
    st.booleans(),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_prompt_and_reply_always_fit(tools_render, turns, n_ctx, max_new, with_ids, thinking):
    talk = Talk(tools_render, n_ctx, max_new, with_ids=with_ids, thinking_open=thinking)
    for question, ids in turns:
        plan = talk.ask(question, ids, answer="x" * max(1, len(ids))).plan
        assert plan.n_prompt_tokens + plan.max_new_tokens <= n_ctx
        assert plan.max_new_tokens >= reserve_tokens(max_new, n_ctx)
        assert plan.max_new_tokens <= max_new
        if with_ids:
            assert len(plan.tokens) == plan.n_prompt_tokens
            assert list(plan.boundaries) == sorted(plan.boundaries)
            assert plan.tokens[plan.boundaries[-1]] == 302  # the newest message, always


@pytest.fixture(scope="session")
def tools_render(tools):
    return tools.render_bytes


def test_the_prefix_stays_and_cuts_come_in_blocks(tools_render):
    """Cases D20: past the limit at most one full prefill per cut, and a cut frees half the window."""
    talk = Talk(tools_render, 1024)
    before = ()
    n_cuts = 0
    for n in range(200):
        plan = talk.ask(f"question number {n}").plan
        shared = plan.tokens[: len(before)] == before
        n_cuts += not shared
        before = talk.canonical.token_ids
    n_per_turn = len("question number 100") + 8
    assert n_cuts <= 200 * n_per_turn / (1024 * 0.3)
    assert n_cuts >= 2


def test_the_system_message_is_always_there_and_shared(tools_render):
    talk = Talk(tools_render, 400)
    for n in range(50):
        plan = talk.ask(f"question {n}").plan
        assert plan.tokens[: plan.n_shared_prefix] == (301, *b"Be kind.", 300)


def test_a_replaced_turn_makes_the_list_anew(tools_render):
    talk = Talk(tools_render, 1024)
    for n in range(3):
        talk.ask(f"question {n}")
    del talk.past[1]
    built = talk.ask("again")
    assert b"question 1" not in bytes(i for i in built.plan.tokens if i < 256)
    assert len(built.messages) == 1 + 2 * 2 + 1


def test_a_changed_system_message_makes_the_list_anew(tools_render):
    talk = Talk(tools_render, 1024)
    talk.ask("one")
    talk.system = "Be short."
    talk.fingerprint = conversation_fingerprint("fp", talk.system)
    assert bytes(talk.ask("two").plan.tokens[1:10]) == b"Be short."


def test_an_open_thinking_block_keeps_only_the_window(tools_render):
    talk = Talk(tools_render, 600, thinking_open=True)
    firsts = []
    for n in range(60):
        plan = talk.ask(f"question {n}").plan
        assert talk.canonical.token_ids == ()
        firsts.append(plan.first_turn_no)
    assert (
        len(set(firsts)) <= 12
    )  # cut in blocks here as well, though every prompt is rendered whole


def test_a_long_message_loses_its_middle(tools_render):
    talk = Talk(tools_render, 512)
    talk.ask("short")
    built = talk.ask("start " + "x" * 5000 + " end")
    assert built.question.startswith("start ")
    assert built.question.endswith(" end")
    assert "[cut]" in built.question
    assert built.plan.n_prompt_tokens + built.plan.max_new_tokens <= 512
    assert built.plan.first_turn_no == 2


def test_a_system_message_that_fills_the_window_is_said(tools_render):
    talk = Talk(tools_render, 512, system="s" * 600)
    with pytest.raises(CannotFit):
        talk.ask("hello, is anybody there?")


def test_no_more_renderings_than_needed(tools_render):
    talk = Talk(tools_render, 4096)
    for n in range(20):
        talk.ask(f"q{n}")
    assert talk.engine.n_renders == 20


def test_an_ordinary_turn_renders_no_more_than_the_last_one(tools_render):
    talk = Talk(tools_render, 4096)
    for n in range(60):
        talk.ask(f"q{n}")
    assert talk.engine.n_messages[2:] == [4] * 58, "system, the last question and answer, the new question"  # fmt: skip
    whole = tools_render(
        (
            ChatMessage(role=Role.SYSTEM, content=talk.system),
            *messages_of(talk.past[:-1], "fp"),
            ChatMessage(role=Role.USER, content="q59"),
        )
    )
    assert talk.plans[-1].tokens == whole.token_ids
    assert talk.plans[-1].boundaries[1::2] == whole.starts[1::2]


@given(
    st.lists(st.tuples(TEXT, st.lists(st.integers(0, 255), max_size=60)), min_size=1, max_size=60),
    st.integers(256, 1200),
    st.sets(st.integers(0, 59), max_size=10),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_stored_counts_change_no_prompt(tools_render, turns, n_ctx, unknown):
    """A history without a list, as after /forget last or with another model: the same turns, found without rendering all."""
    talk = Talk(tools_render, 100_000)
    for question, ids in turns:
        talk.ask(question, ids, answer="x" * max(1, len(ids)))
    counted = [
        replace(turn, n_question=0, fingerprint="other", answer_token_ids=())
        if n in unknown
        else turn
        for n, turn in enumerate(talk.past)
    ]
    plain = [replace(turn, n_question=0) for turn in counted]
    assert least_tokens(counted, "fp") >= least_tokens(plain, "fp")
    info = replace_info(talk.info, n_ctx)
    built = []
    for past in (counted, plain):
        wanted = PromptInput("Be kind.", past, "And now?", 99, "x", None, 64, "[cut]")
        builder = PromptBuilder(Renderer(tools_render), info)
        built.append(asyncio.run(builder.build(wanted)).plan)
    assert built[0] == built[1]


def replace_info(info, n_ctx):
    return ModelInfo(name=info.name, path="", fingerprint=info.fingerprint, n_ctx_tokens=n_ctx)


def test_a_history_far_over_the_window_is_not_rendered_whole(tools_render):
    talk = Talk(tools_render, 100_000)
    for n in range(200):
        talk.ask(f"question number {n}")
    talk.canonical = None
    talk.info = replace_info(talk.info, 1024)
    talk.engine.n_messages.clear()
    plan = talk.ask("And now?").plan
    assert 0 < 200 - plan.first_turn_no < 30
    assert max(talk.engine.n_messages) < 60


def test_the_reserve():
    assert reserve_tokens(512, 4096) == 512
    assert reserve_tokens(5000, 4096) == 1024
    assert reserve_tokens(1, 256) == 1


def test_the_system_text_holds_name_and_speakers_and_no_time():
    text = system_text("en", "Be kind.", "Ember [x]", shared=True)
    assert 'Your name is "Ember x".' in text
    assert "square brackets" in text
    assert system_text("en", "Be kind.", "", shared=False) == "Be kind."


@given(st.text(max_size=80))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_name_cannot_pass_for_markup(name):
    cleaned = clean_name(name)
    assert len(cleaned) <= 32
    assert not set(cleaned) & set("[]<>|\n\r\u202e\u200b")
    assert clean_name(cleaned) == cleaned


def test_people_without_a_name_are_told_apart():
    one, two = (speaker_name("en", Sender(f"ou_{x}")) for x in ("aaa1", "bbb2"))
    assert one != two
    assert speaker_name("en", Sender("u", "Ann")) == "Ann"


def test_the_date_is_in_the_configured_words():
    moment = datetime(2026, 11, 29, 8, 5, tzinfo=UTC)
    assert date_note("en", moment) == "(It is now 2026-11-29, Sunday, 08:05)"
    assert "星期日" in date_note("zh", moment)


def test_a_turn_names_speaker_date_and_attachments():
    text = user_text(
        "en",
        "hi",
        speaker="Ann",
        date="(now)",
        attachments=[Attachment("image"), Attachment("image"), Attachment("hologram")],
    )
    lines = text.split("\n")
    assert lines[0] == "(now)"
    assert "image, attachment" in lines[1]
    assert lines[2] == "[Ann] hi"


@given(st.text(min_size=1, max_size=200), st.integers(0, 250))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_cutting_keeps_both_ends(text, keep):
    cut = cut_middle(text, keep, "…")
    if keep >= len(text):
        assert cut == text
    else:
        head, tail = keep * 2 // 3, keep - keep * 2 // 3
        assert cut == text[:head] + "\n…\n" + (text[-tail:] if tail else "")


def test_what_was_taken_back_or_never_answered_is_left_out():
    turn = PastTurn("t", 1, Sender("u"), "q", "a", Outcome.COMPLETE)
    silent = PastTurn("t", 2, Sender("u"), "q", "a", Outcome.SILENT)
    empty = PastTurn("t", 3, Sender("u"), "q", "", Outcome.FAILED)
    assert usable([turn, silent, empty]) == [turn]

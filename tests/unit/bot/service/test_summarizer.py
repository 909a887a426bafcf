"""Long conversations are compressed in the background: what is kept, what is shown, and that nobody waits for it."""

from __future__ import annotations

import asyncio

import pytest

from bot.config import SummarizerConfig
from bot.domain.types import Outcome
from bot.service.compression import Measured, turns_to_compress
from engine.types import Priority, Rendered

N_CTX = 1600
RULES = {"enabled": True, "share": 0.2}


@pytest.fixture
def long_world(world, tools):
    """One id per byte, a window of 1600: some twenty short turns fill it."""
    world.engine.info = tools.ScriptEngine(n_ctx=N_CTX).info
    world.service.reload(tools.make_config(summarizer=RULES))
    return world


async def talk(
    world, n_turns, *, start=0, text="Stall {n}: Nr{n}. And so on and so on, as we said so often."
):
    """Turns that each hold a fact. Returns the last one's turn."""
    said = None
    for n in range(start, start + n_turns):
        said = await world.say(text.format(n=n))
        assert (await world.final(said)).outcome is Outcome.COMPLETE
    return await world.turn(said)


async def summarized(world, tools, session_id, rev=1):
    async def there() -> bool:
        summary = await world.store.summary(session_id)
        return summary is not None and summary.rev >= rev

    await tools.eventually(there)
    return await world.store.summary(session_id)


def people(world):
    return [r for r in world.engine.requests if r.priority < Priority.BACKGROUND]


async def test_the_oldest_turns_become_a_summary(long_world, tools):
    turn = await talk(long_world, 16)
    summary = await summarized(long_world, tools, turn.session_id)
    assert summary.covers_turn_no >= 3
    assert "Nr0" in summary.text
    await long_world.final(await long_world.say("And stall 1?"))
    last = people(long_world)[-1]
    shown = tools.text_of(last)
    assert "summary of what we said before" in shown
    assert shown.count("<user>Stall") == 16 - summary.covers_turn_no
    assert len(last.prompt_tokens) + last.max_new_tokens <= N_CTX
    # Computed before it was used, under a key of its own; the old one is forgotten.
    warm = next(r for r in long_world.engine.requests if r.cache_key == f"{turn.session_id}.1")
    assert warm.priority == Priority.BACKGROUND
    assert last.cache_key == warm.cache_key
    assert last.prompt_tokens[: len(warm.prompt_tokens)] == warm.prompt_tokens
    assert turn.session_id in long_world.engine.forgotten


def measured(n_system, sizes, limit=1000):
    """A conversation of turns of these sizes, without a summary."""
    starts, at = [0], n_system
    for size in sizes:
        starts += [at, at + size // 2]
        at += size
    rendered = Rendered(token_ids=(), n_tokens=at, starts=tuple(starts), tail_start=at, exact=True)
    return Measured(tuple(range(len(sizes))), rendered, 1, limit)


@pytest.mark.parametrize(
    ("n_system", "sizes", "n_gone"),
    [
        (50, [50] * 12, 9),  # down to 35 %, the summary's 150 and the system's 50 in it
        (50, [70] * 10, 7),  # the last three turns stay, above 35 % but under 50 %
        (50, [120] * 8, 6),  # not above 50 %
        (500, [30] * 8, 4),  # 35 % of the 350 that the system message and the summary leave
        (500, [60] * 5, 3),  # ... or 50 % for the last three turns
    ],
)
def test_how_many_turns_go(n_system, sizes, n_gone):
    rules = SummarizerConfig()
    assert (rules.high, rules.keep, rules.low) == (0.6, 0.5, 0.35)
    assert turns_to_compress(measured(n_system, sizes), rules, 150) == n_gone


async def test_a_long_system_prompt_leaves_the_talk_as_it_was_said(long_world, tools):
    chat = {"system_prompt": "s" * 1000, "language": "en", "show_date": False, "max_new_tokens": 64}
    long_world.service.reload(tools.make_config(summarizer=RULES, chat=chat))
    turn = await talk(long_world, 2)
    assert await long_world.service.summarizer.compress(turn, "feishu") is None
    assert await long_world.store.summary(turn.session_id) is None


async def test_a_system_prompt_that_fills_the_window_is_named(long_world, tools):
    chat = {"system_prompt": "s" * 1600, "language": "en", "show_date": False}
    long_world.service.reload(tools.make_config(summarizer=RULES, chat=chat))
    view = await long_world.final(await long_world.say("hi"))
    assert view.outcome is Outcome.FAILED
    assert "system_prompt" in view.notice


async def test_another_model_writes_the_summaries_one_at_a_time(world, tools):
    await world.service.close(1.0)
    world.engine.info = tools.ScriptEngine(n_ctx=N_CTX).info
    hold = asyncio.Event()
    other = tools.ScriptEngine(fingerprint="model-b")
    other.background = tools.Script(["Stall 0: Nr0. Stall 1: Nr1.", " Stall 2: Nr2."], hold=hold)
    world.more_engines = {"other": other}
    world.config = tools.make_config(
        models={"other": {"backend": "fake"}}, summarizer={**RULES, "model": "other"}
    )
    await world.start()
    turn = await talk(world, 16)
    await tools.eventually(lambda: bool(other.requests))
    assert world.service.summarizer._locks["other"].locked()
    hold.set()
    await summarized(world, tools, turn.session_id)
    # It only writes: the new prefix is computed by the model that answers.
    assert all(
        request.owner == "summarizer" and not request.cache_key for request in other.requests
    )
    assert not [
        r for r in world.engine.requests if r.priority == Priority.BACKGROUND and not r.cache_key
    ]


async def test_all_turns_stay_on_record(long_world, tools):
    turn = await talk(long_world, 17)
    await summarized(long_world, tools, turn.session_id)
    past = await long_world.store.past_turns(turn.session_id)
    assert [one.turn_no for one in past] == list(range(1, 18))


async def test_a_talk_of_months_stays_flat(long_world, tools):
    turn = await talk(long_world, 60)

    async def is_at_rest() -> bool:
        summary = await long_world.store.summary(turn.session_id)
        canonical = await long_world.store.canonical(turn.session_id)
        is_short = canonical is not None and 0 < len(canonical.token_ids) <= high
        return summary is not None and summary.covers_turn_no >= 40 and is_short

    high = 0.6 * (N_CTX - 64)
    # People here never pause, so that compressions come late and are fewer on a slow machine; the window holds all the same.
    await tools.eventually(is_at_rest)
    await long_world.final(await long_world.say("And stall 1?"))
    sizes = [len(request.prompt_tokens) for request in people(long_world)]
    assert max(sizes) <= N_CTX - 64
    # The question, and quotes of older turns, which are shown in this turn only.
    assert sizes[-1] <= high + 60 + 0.15 * N_CTX


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["", " ", "\n"],
        ["x " * 3000],
        ["We had a nice talk", " about many things."],
        ["- a\n" * 200],
        ["Stall 0: Nr0; stall 1: Nr1."],
    ],
    ids=["nothing", "blank", "endless", "prose", "loop", "good"],
)
async def test_whatever_a_weak_model_writes_facts_are_kept(long_world, tools, words):
    long_world.engine.background = tools.Script(words=words)
    turn = await talk(long_world, 16)
    summary = await summarized(long_world, tools, turn.session_id)
    facts = [f"Nr{n}" for n in range(summary.covers_turn_no)]
    assert sum(fact in summary.text for fact in facts) >= 0.7 * len(facts)
    assert summary.n_tokens == len(summary.text.encode())
    assert summary.n_tokens <= 0.2 * N_CTX


async def test_a_model_that_only_thinks_gives_nothing(long_world, tools):
    long_world.engine.background = tools.Script(words=["hm", "hm"], thinking=2)
    turn = await talk(long_world, 16)
    assert (await summarized(long_world, tools, turn.session_id)).how == "extract"


async def test_a_person_never_waits_for_a_summary(long_world, tools):
    hold = asyncio.Event()
    long_world.engine.background = tools.Script(words=["Part", " two"], hold=hold)
    turn = await talk(long_world, 18)
    assert await long_world.store.summary(turn.session_id) is None
    assert len(people(long_world)) == 18
    hold.set()
    summary = await summarized(long_world, tools, turn.session_id)
    assert summary.covers_turn_no < turn.turn_no


async def test_a_talk_that_outgrows_the_window_meanwhile_is_warmed_all_the_same(long_world, tools):
    hold = asyncio.Event()
    long_world.engine.background = tools.Script(words=["Part", " two"], hold=hold)
    await talk(long_world, 45)
    hold.set()
    turn = await talk(long_world, 1, start=45)
    summary = await summarized(long_world, tools, turn.session_id)
    assert summary.covers_turn_no < 20
    warmed = [r for r in long_world.engine.requests if r.cache_key == f"{turn.session_id}.1"]
    assert warmed
    assert all(len(r.prompt_tokens) < N_CTX for r in warmed)

    async def what_lay_between_is_taken() -> bool:
        newest = await long_world.store.summary(turn.session_id)
        return newest.covers_turn_no >= 35

    await tools.eventually(what_lay_between_is_taken)
    assert max(len(r.prompt_tokens) for r in long_world.engine.requests) < N_CTX


async def test_what_was_reset_meanwhile_does_not_come_back(long_world, tools):
    hold = asyncio.Event()
    long_world.engine.background = tools.Script(words=["Part", " two"], hold=hold)
    turn = await talk(long_world, 16)
    await tools.eventually(
        lambda: any(r.priority == Priority.BACKGROUND for r in long_world.engine.requests)
    )
    await long_world.final(await long_world.say("/reset"))
    hold.set()
    await talk(long_world, 1, text="fresh")
    assert await long_world.store.summary(turn.session_id) is None
    assert "Nr0" not in tools.text_of(people(long_world)[-1])


async def test_a_crash_in_a_compression_loses_nothing(long_world, tools):
    hold = asyncio.Event()
    long_world.engine.background = tools.Script(words=["Part", " two"], hold=hold)
    turn = await talk(long_world, 16)
    await tools.eventually(
        lambda: any(r.priority == Priority.BACKGROUND for r in long_world.engine.requests)
    )
    long_world.kill()
    long_world.config = tools.make_config(summarizer=RULES)
    long_world.engine.background = tools.Script(words=["ok"])
    await long_world.start()
    await talk(long_world, 1, start=16)
    summary = await summarized(long_world, tools, turn.session_id)
    assert "Nr0" in summary.text


async def test_without_token_ids_it_works_too(long_world, tools):
    long_world.engine.with_ids = False
    turn = await talk(long_world, 16)
    await summarized(long_world, tools, turn.session_id)
    await long_world.final(await long_world.say("And?"))
    assert "summary of what we said" in people(long_world)[-1].messages[1].content


async def test_it_can_be_turned_off(world, tools):
    world.engine.info = tools.ScriptEngine(n_ctx=N_CTX).info
    turn = await talk(world, 17)
    assert await world.store.summary(turn.session_id) is None

"""What /compact, /context, /history, /export and /system show and do."""

from __future__ import annotations

import pytest

from bot.domain.types import ChatKind, Outcome, Sender, SessionPolicy
from engine.errors import EngineUnavailable

LONG = " And so on and so on, as we said so often, in so many words that nobody could count them any more."
GROUP = {"chat_kind": ChatKind.GROUP, "mentions_bot": True, "chat_id": "group"}


async def talk(world, n_turns, start=0):
    for n in range(start, start + n_turns):
        said = await world.say(f"Stall {n}: Nr{n}.{LONG}")
        assert (await world.final(said)).outcome is Outcome.COMPLETE
    return await world.turn(said)


def figures(text):
    """The lines of /context as {name: tokens}."""
    lines = [
        line.split(" ", 1)[1] for line in text.splitlines() if line[0] in "█▓▒▞░·" and ":" in line
    ]
    return {name: int(n) for name, _, n in (line.rpartition(": ") for line in lines)}


# -- /compact --------------------------------------------------------------------------------------------------------------
async def test_compact_says_what_it_did(world, tools):
    turn = await talk(world, 6)
    text = await world.answer(await world.say("/compact"))
    summary = await world.store.summary(turn.session_id)
    before, after = (int(part) for part in text.split(": ")[1].split(" tokens")[0].split(" → "))
    assert after < before
    assert f"The oldest {summary.covers_turn_no} turns" in text
    assert f"the last {6 - summary.covers_turn_no} stay" in text
    assert ("extract" in text) == (summary.how == "extract")


async def test_compact_with_nothing_to_do_or_no_model(world):
    assert "nothing to compact" in await world.answer(await world.say("/compact"))
    said = await world.say("hi")
    await world.final(said)
    await world.final(await world.say("hi again"))
    # A summary would be longer than these.
    assert "nothing to compact" in await world.answer(await world.say("/compact"))
    info, world.engine.info = world.engine.info, None
    assert "not available" in await world.answer(await world.say("/compact"))
    world.engine.info = info


async def test_compact_while_the_model_fails(world):
    await talk(world, 5)

    async def away(*args, **kwargs):
        raise EngineUnavailable("restarting")

    world.engine.count = away
    assert "not available" in await world.answer(await world.say("/compact"))


# -- /context --------------------------------------------------------------------------------------------------------------
async def test_context_adds_up_to_the_window(world):
    await talk(world, 5)
    await world.final(await world.say("/compact"))
    turn = await talk(world, 1, start=5)
    text = await world.answer(await world.say("/context"))
    parts = figures(text)
    summary = await world.store.summary(turn.session_id)
    assert sum(parts.values()) == 4096
    assert parts["kept for the reply"] == 64
    assert parts["summary"] >= summary.n_tokens
    assert parts["for quotes of older turns, at most"] == int(0.15 * 4096)
    used = (
        parts["system prompt"]
        + parts["summary"]
        + parts[f"turns word for word ({6 - summary.covers_turn_no})"]
    )
    canonical = await world.store.canonical(turn.session_id)
    assert abs(used - len(canonical.token_ids)) <= 2  # what stands behind the last answer's content
    assert len(text.splitlines()[1]) == 24
    assert f"oldest {summary.covers_turn_no} turns are a summary" in text


async def test_context_of_a_new_conversation(world):
    parts = figures(await world.answer(await world.say("/context")))
    assert parts["turns word for word (0)"] <= 2
    assert "summary" not in parts
    assert len(parts) == 4  # nothing older there is, of which quotes could be shown


async def test_context_tells_what_was_dropped(world, tools):
    world.engine.info = tools.ScriptEngine(n_ctx=512).info
    turn = await talk(world, 12)
    text = await world.answer(await world.say("/context"))
    first = (await world.store.canonical(turn.session_id)).window_from_turn_no
    assert f"{first - 1} more turns no longer fit" in text
    assert sum(figures(text).values()) == 512


async def test_context_without_the_model(world):
    info, world.engine.info = world.engine.info, None
    assert "a window of 4096 tokens" in await world.answer(await world.say("/context"))
    world.engine.info = info


# -- /history and /export --------------------------------------------------------------------------------------------------
async def test_history_goes_over_topics_but_not_over_a_reset(world):
    await talk(world, 1)
    await world.final(await world.say("/reset"))
    await talk(world, 2, start=1)
    await world.final(await world.say("/new"))
    await talk(world, 1, start=3)
    text = await world.answer(await world.say("/history"))
    assert "The last 3 turns" in text
    assert [f"> Stall {n}" in text for n in range(4)] == [False, True, True, True]
    assert text.count("an earlier topic") == 2
    assert text.index("Nr1") < text.index("Nr3")


async def test_history_is_bounded(world):
    await talk(world, 7)
    await world.final(await world.say("long " + "y" * 3000))
    text = await world.answer(await world.say("/history"))
    assert text.count("> ") == 5
    assert "characters left out" in text
    assert len(text) < 2000
    assert (await world.answer(await world.say("/history 7"))).count("> ") == 7


@pytest.mark.parametrize("order", ["/history 0", "/history 21", "/history x", "/history 3 4"])
async def test_history_explains_itself(world, order):
    assert "at most 20" in await world.answer(await world.say(order))


async def test_history_of_nothing(world):
    assert "nothing on record" in await world.answer(await world.say("/history"))
    assert "nothing on record" in await world.answer(await world.say("/export"))


async def test_export_holds_everything_in_order(world, tools):
    world.engine.scripts = [tools.Script(["```py\nx = 1\n```"])]
    await talk(world, 3)
    await world.final(await world.say("/new"))
    await talk(world, 1, start=3)
    text = await world.answer(await world.say("/导出"))
    assert text.startswith("# Conversation")
    assert "4 turns" in text
    assert text.count("\n## ") == 4
    assert text.count("**Ember**") == 4
    assert "```py\nx = 1\n```" in text
    assert text.index("Nr0") < text.index("Nr3")


async def test_a_very_long_talk_is_exported_from_its_end(world, monkeypatch):
    monkeypatch.setattr("bot.service.memory_commands.EXPORT_CHARS", 60)
    await talk(world, 5)
    text = await world.answer(await world.say("/export"))
    assert "too long" in text
    assert "Nr4" in text
    assert "Nr0" not in text


async def test_one_persons_history_is_not_anothers(world):
    await world.final(await world.say("mine is 4711", **GROUP))
    text = await world.answer(await world.say("/history", sender=Sender("bob"), **GROUP))
    assert "4711" not in text


# -- /system ---------------------------------------------------------------------------------------------------------------
async def test_system_becomes_part_of_the_prompt_and_survives_a_new_topic(world, tools):
    await talk(world, 1)
    assert "Nothing is set" in await world.answer(await world.say("/system"))
    assert "Set" in await world.answer(await world.say("/system Answer in rhymes."))
    await talk(world, 1, start=1)
    old, new = (tools.text_of(request) for request in world.engine.requests)
    assert "rhymes" not in old
    assert "Answer in rhymes." in new.split("<user>")[0]
    assert "Nr0" in new
    assert "Answer in rhymes." in await world.answer(await world.say("/system"))
    await world.final(await world.say("/new"))
    await talk(world, 1, start=2)
    assert "rhymes" in tools.text_of(world.engine.requests[-1])
    assert "Removed" in await world.answer(await world.say("/system reset"))
    await talk(world, 1, start=3)
    assert "rhymes" not in tools.text_of(world.engine.requests[-1])


async def test_a_summary_is_made_with_the_same_system_message(world, tools):
    await world.final(await world.say("/system Answer in rhymes."))
    await talk(world, 5)
    await world.final(await world.say("/compact"))
    await talk(world, 1, start=5)
    warm = next(r for r in world.engine.requests if r.id.startswith("warm."))
    last = world.engine.requests[-1]
    assert last.prompt_tokens[: len(warm.prompt_tokens)] == warm.prompt_tokens


async def test_what_is_computed_of_ones_own_system_message_is_not_kept_for_everybody(world):
    """A shared beginning outlives `/forget`, which erases what was set here as well."""
    await talk(world, 1)
    await world.final(await world.say("/system Answer in rhymes."))
    await talk(world, 4, start=1)
    await world.final(await world.say("/compact"))
    await world.final(await world.say("/system reset"))
    await talk(world, 1, start=5)
    shared = [r.n_shared_prefix for r in world.engine.requests if r.scope == "app"]
    assert shared[0] == shared[-1] > 0
    assert set(shared[1:-1]) == {0}
    assert any(r.id.startswith("warm.") for r in world.engine.requests)


async def test_system_is_bounded(world, tools):
    assert "too long" in await world.answer(await world.say("/system " + "x" * 1001))
    world.engine.info = tools.ScriptEngine(n_ctx=512).info
    assert "too long" in await world.answer(await world.say("/system " + "x" * 129))


async def test_in_a_group_system_is_for_admins(world, tools):
    world.service.reload(tools.make_config(access={"admins": ["feishu:root"]}))
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    answer = await world.answer(await world.say("/system x", **GROUP))
    assert "only an admin" in answer
    assert "Set" in await world.answer(
        await world.say("/system rhyme", sender=Sender("root"), **GROUP)
    )
    assert "rhyme" in await world.answer(await world.say("/system", **GROUP))


@pytest.mark.parametrize(
    "order", ["/context", "/compact", "/history", "/export", "/system", "/forget", "/remind"]
)
async def test_all_of_it_in_chinese(world, tools, order):
    world.service.reload(tools.make_config(chat={"language": "zh"}))
    await talk(world, 5)
    text = await world.answer(await world.say(order))
    assert any("\u4e00" <= char <= "\u9fff" for char in text)

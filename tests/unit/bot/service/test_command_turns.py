"""What the commands do, and that they never wait behind chat."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bot.domain.commands import Command
from bot.domain.types import ChatKind, Outcome, Sender, SessionPolicy, TurnState
from engine.errors import EngineUnavailable
from engine.types import EngineState, EngineStats, KvReuse

GROUP = {"chat_kind": ChatKind.GROUP, "mentions_bot": True, "chat_id": "group"}


async def _hold(world, tools, text="x", **changes):
    """A question whose answer has begun and waits."""
    hold = asyncio.Event()
    world.engine.scripts = [tools.Script(["One", " two"], hold=hold)]
    n = len(world.engine.requests)
    said = await world.say(text, **changes)
    await tools.eventually(
        lambda: (
            len(world.engine.requests) > n and any(s.views for s in world.adapter.replies.values())
        )
    )
    return said, hold


@pytest.mark.parametrize("text", ["/help", "／help", "帮助", "/帮助 x"])
async def test_help(world, text):
    assert "/reset" in await world.answer(await world.say(text))
    assert world.engine.requests == []


async def test_whoami_gives_what_belongs_into_the_config(world, tools):
    world.service.reload(tools.make_config(access={"admins": ["feishu:ann"]}))
    assert await world.answer(await world.say("/whoami")) == "Id: feishu:ann\nRole: admin"


@pytest.mark.parametrize("command", ["/new", "/reset", "　／RESET　", "新话题"])
async def test_a_question_right_behind_belongs_to_the_new_topic(world, tools, command):
    """Cases C4, C5: nothing of the old talk is in the prompt."""
    first = await world.say("my number is 4711")
    await world.final(first)
    order = await world.say(command)
    second = await world.say("which number?")
    await world.final(second)
    assert await world.answer(order)
    assert "4711" not in tools.text_of(world.engine.requests[1])
    one, two = await world.turn(first), await world.turn(second)
    assert (two.session.epoch, one.session.epoch) == (1, 0)
    assert one.session_id != two.session_id


async def test_a_command_taken_up_again_leaves_the_newer_talk_alone(world, tools):
    """A crash before its answer was stored must not end the epoch that began since."""
    order = await world.say("/reset")
    old = await world.settled(order)
    said = await world.say("my number is 4711")
    await world.final(said)
    await world.service._commands.execute(old, "feishu")
    await world.final(await world.say("which number?"))
    assert "4711" in tools.text_of(world.engine.requests[1])
    assert (await world.turn(said)).session_id not in world.engine.forgotten


async def test_reset_also_drops_the_kv_and_the_stored_tokens(world, tools):
    said = await world.say("x")
    turn = await world.settled(said)
    assert await world.store.canonical(turn.session_id) is not None
    await world.final(await world.say("/reset"))
    assert await world.store.canonical(turn.session_id) is None
    await tools.eventually(lambda: turn.session_id in world.engine.forgotten)
    # A summary begins a new cache key: those must not stay behind either.
    await tools.eventually(lambda: f"{turn.session_id}.1" in world.engine.forgotten)


async def test_new_keeps_the_kv(world):
    await world.final(await world.say("x"))
    await world.final(await world.say("/new"))
    assert world.engine.forgotten == []


async def test_reset_stops_what_runs(world, tools):
    said, _ = await _hold(world, tools)
    await world.final(await world.say("/reset"))
    assert (await world.final(said)).outcome is Outcome.STOPPED


async def test_any_member_may_reset_a_shared_conversation(world, tools):
    """Cases C6: documented in the help."""
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    await world.final(await world.say("my number is 4711", **GROUP))
    await world.final(await world.say("/reset", sender=Sender("bob"), **GROUP))
    await world.final(await world.say("which?", **GROUP))
    assert "4711" not in tools.text_of(world.engine.requests[1])


async def test_stop_does_not_wait_behind_chat_nor_behind_a_hung_notice(world, tools):
    said, _ = await _hold(world, tools)
    world.adapter.gate = asyncio.Event()
    await world.say("/help")  # its delivery hangs
    await world.say("/stop")
    await tools.eventually(lambda: world.service.dispatcher._context.board.all() != [])

    async def cancelled() -> bool:
        snapshot, _ = await world.store.reply((await world.turn(said)).id)
        return snapshot.outcome is Outcome.STOPPED

    await tools.eventually(cancelled)
    world.adapter.gate.set()
    assert (await world.final(said)).outcome is Outcome.STOPPED


async def test_stop_ends_what_waits_too_and_only_ones_own(world, tools):
    world.service.reload(tools.make_config(chat={"while_busy": "queue"}))
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    said, hold = await _hold(world, tools, **GROUP)
    mine = await world.say("mine", sender=Sender("bob"), **GROUP)
    foreign = await world.say("/stop", sender=Sender("eve"), **GROUP)
    assert "somebody else's" in await world.answer(foreign)
    stop = await world.say("/stop", sender=Sender("bob"), **GROUP)
    assert await world.answer(stop) == "Stopped."
    hold.set()
    assert await world.answer(said) == "One two"
    assert (await world.settled(mine)).state is TurnState.CANCELLED
    await tools.eventually(lambda: world.adapter.alive == {})


async def test_an_admin_stops_everything(world, tools):
    world.service.reload(tools.make_config(access={"admins": ["feishu:root"]}))
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    said, _ = await _hold(world, tools, **GROUP)
    await world.final(await world.say("/stop", sender=Sender("root"), **GROUP))
    assert (await world.final(said)).outcome is Outcome.STOPPED


async def test_stop_with_nothing_running(world):
    assert "No answer is running" in await world.answer(await world.say("/stop"))


async def test_retry_answers_the_last_question_again(world, tools):
    await world.final(await world.say("tell me"))
    world.engine.scripts = [tools.Script(["Better"])]
    retry = await world.say("/retry")
    await tools.eventually(lambda: "Better" in world.adapter.finals)
    assert any("answering the last question" in text for text in world.adapter.finals)
    request = world.engine.requests[1]
    assert tools.text_of(request).count("tell me") == 1
    assert 1000 not in request.prompt_tokens
    await world.settled(retry)


async def test_retry_needs_a_finished_question_of_ones_own(world, tools):
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    assert "no question" in await world.answer(await world.say("/retry", **GROUP))
    said, hold = await _hold(world, tools, **GROUP)
    assert "Still answering" in await world.answer(await world.say("/retry", **GROUP))
    hold.set()
    await world.final(said)
    other = await world.say("/retry", sender=Sender("bob"), **GROUP)
    assert "not yours" in await world.answer(other)


async def test_status(world, tools):
    fresh = await world.answer(await world.say("/status"))
    assert "main (ready)" in fresh
    assert "0 / 4096 tokens" in fresh
    assert "nothing is waiting" in fresh
    said, hold = await _hold(world, tools)
    assert "answering now" in await world.answer(await world.say("/status"))
    hold.set()
    await world.final(said)
    status = await world.answer(await world.say("/status"))
    turn = await world.turn(said)
    used = len((await world.store.canonical(turn.session_id)).token_ids)
    assert f"{used} / 4096 tokens" in status
    assert "one per person, 1 turns" in status


async def test_status_tells_admins_of_long_connections(world, tools):
    world.service.reload(tools.make_config(access={"admins": ["feishu:boss"]}))
    leading, facts = world.service.leading, {"connected_since": "2026-03-01T04:05:00+00:00"}
    leading.connections = lambda: [("feishu", facts)]
    assert "connection" not in await world.answer(await world.say("/status"))
    boss = Sender("boss")
    told = await world.answer(await world.say("/status", sender=boss))
    assert "Long connection of feishu: up since 03-01 12:05" in told
    facts.clear()
    facts.update(deaf_since="2026-03-01T04:05:00+00:00", reason="no connection in time")
    told = await world.answer(await world.say("/status", sender=boss))
    assert "down since 03-01 12:05 (no connection in time)" in told
    facts.clear()
    facts.update(waiting_since="2026-03-01T04:05:00+00:00", connected_process="host:7:ab")
    assert "held by process host:7:ab" in await world.answer(
        await world.say("/status", sender=boss)
    )


async def test_status_tells_admins_of_the_months_calls(world, tools, monkeypatch):
    world.service.reload(tools.make_config(access={"admins": ["feishu:boss"]}))
    facts = {"calls_this_month": "412 of 5000", "cards": "streaming"}
    monkeypatch.setattr(world.adapter, "health", lambda: facts)
    assert "412" not in await world.answer(await world.say("/status"))
    boss = Sender("boss")
    told = await world.answer(await world.say("/status", sender=boss))
    assert "Calls of feishu this month: 412 of 5000\n" in f"{told}\n"
    facts["cards"] = "no card_template is configured"
    told = await world.answer(await world.say("/status", sender=boss))
    assert "412 of 5000 (no card_template is configured)" in told
    facts["calls_this_month"] = "412"  # no cap: nothing to watch
    assert "412" not in await world.answer(await world.say("/status", sender=boss))


async def test_status_counts_also_without_a_canonical_list(world):
    world.engine.with_ids = False
    await world.final(await world.say("x" * 50))
    status = await world.answer(await world.say("/status"))
    n_tokens = (1 + 50 + 1) + (1 + len("Hello there") + 1) + 1
    assert f"{n_tokens} / 4096 tokens" in status


async def test_status_while_the_model_is_away(world):
    world.engine.with_ids = False
    await world.final(await world.say("x"))

    async def away(*args, **kwargs):
        raise EngineUnavailable("restarting")

    world.engine.render = away
    assert "a window of 4096 tokens" in await world.answer(await world.say("/status"))


@pytest.mark.parametrize(
    ("reuse", "shown"),
    [
        (KvReuse.ANYWHERE, ""),
        (KvReuse.WINDOW, "inside the sliding window"),
        (KvReuse.TURN_ENDS, "ends of turns"),
    ],
)
async def test_status_tells_where_a_model_cannot_reuse_its_state(world, reuse, shown):
    world.engine.info = msgspec.structs.replace(world.engine.info, kv_reuse=reuse)
    status = await world.answer(await world.say("/status"))
    assert ("KV reuse" in status) == bool(shown)
    assert shown in status


async def test_status_tells_admins_what_was_planned(world, tools):
    async def stats():
        return EngineStats(state=EngineState.READY, plan="4 × 4096 tokens, all in RAM; no card")

    world.engine.stats = stats
    assert "4096 tokens, all" not in await world.answer(await world.say("/status"))
    world.service.reload(tools.make_config(access={"admins": ["feishu:ann"]}))
    status = await world.answer(await world.say("/status"))
    assert "4 × 4096 tokens, all in RAM; no card" in status
    assert "admins see this" in status


async def test_status_shows_the_place_in_line(world, tools):
    world.engine.scripts = [tools.Script(words=[], hold=asyncio.Event(), place=3)]
    said = await world.say("x")
    await tools.eventually(lambda: bool(world.engine.requests))
    assert "place 3" in await world.answer(await world.say("/status"))
    await world.final(await world.say("/stop"))
    await world.settled(said)


async def test_dropped_turns_are_visible(world, tools):
    """Cases D4."""
    world.engine.info = tools.ScriptEngine(n_ctx=256).info
    for n in range(6):
        await world.final(await world.say(f"question number {n} " + "y" * 20))
    status = await world.answer(await world.say("/status"))
    assert "no longer fit" in status
    assert "Be" not in status
    assert "6 turns" in status  # they stay on record


async def test_nothing_is_kept_of_executed_commands(world, tools):
    """Whichever is quicker, the inbox or the command's own turn, neither leaves the execution behind."""
    words = ("/stop", "/new", "/reset")
    said = [await world.say(word, chat_id=f"chat {n}") for n in range(4) for word in words]
    for one in said:
        await world.settled(one)
    commands = world.service._commands
    await tools.eventually(lambda: not commands._begun)
    turn = await world.turn(said[0])
    await commands.at_once(turn.id, Command.STOP, "feishu")
    assert not commands._begun

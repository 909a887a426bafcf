"""A turn from question to acknowledged answer, on a real database, with the outside played."""

from __future__ import annotations

import asyncio
import itertools

from bot.domain.types import Outcome, TurnState
from bot.errors import Ambiguous, GiveUp, RetryLater, TargetGone
from engine.types import Failed, FailureCode, FinishReason


async def test_a_question_is_answered_once_and_its_card_grew(world, tools):
    said = await world.say("hi")
    view = await world.final(said)
    assert (view.text, view.outcome, view.notice) == ("Hello there", Outcome.COMPLETE, "")
    turn = await world.turn(said)
    assert turn.state is TurnState.DONE
    assert world.adapter.shown(turn.id).n_finishes == 1
    assert [b.action for b in view.buttons] == ["regenerate", "new_topic"]
    assert world.adapter.n_prepared == 1
    request = world.engine.requests[0]
    assert (request.scope, request.owner, request.cache_key) == ("app", "app:ann", turn.session_id)
    assert 'Your name is "Ember".' in tools.text_of(request)


async def test_growing_views_carry_stop_and_only_ever_grow(world, tools):
    world.engine.scripts = [tools.Script(words=[f" w{n}" for n in range(30)])]
    hold = world.engine.scripts[0].hold = asyncio.Event()
    said = await world.say("hi")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    turn = await world.turn(said)
    first = world.adapter.shown(turn.id).views[0]
    assert [b.action for b in first.buttons] == ["stop"]
    hold.set()
    final = await world.final(said)
    texts = [v.text for v in world.adapter.shown(turn.id).views] + [final.text]
    assert all(b.startswith(a) for a, b in itertools.pairwise(texts))


async def test_the_disk_is_never_behind_the_screen(world, tools):
    world.engine.scripts = [tools.Script(words=[f" w{n}" for n in range(10)])]
    world.adapter.gate = asyncio.Event()
    hold = world.engine.scripts[0].hold = asyncio.Event()
    said = await world.say("hi")
    turn = await world.turn(said)

    async def on_disk() -> bool:
        snapshot, _ = await world.store.reply(turn.id)
        return snapshot is not None and snapshot.text == "w0" and snapshot.token_ids == (1000,)

    await tools.eventually(on_disk)
    assert world.adapter.shown(turn.id).views == []  # the call is still on its way
    world.adapter.gate.set()
    hold.set()
    await world.final(said)


async def test_the_next_prompt_is_the_canonical_list_and_a_tail(world, tools):
    await world.final(await world.say("one"))
    await world.final(await world.say("two"))
    first, second = world.engine.requests
    assert second.prompt_tokens[: len(first.prompt_tokens)] == first.prompt_tokens
    assert second.prompt_tokens[len(first.prompt_tokens) :][:2] == (1000, 1001)
    assert "two" in tools.text_of(second)


async def test_thinking_is_not_in_later_prompts(world, tools):
    world.engine.scripts = [tools.Script(words=["a", "b", "Yes"], thinking=2)]
    assert await world.answer(await world.say("one")) == "Yes"
    await world.final(await world.say("two"))
    first, second = world.engine.requests
    assert second.prompt_tokens[len(first.prompt_tokens) :][:2] == (1002, 300)
    # What the engine holds behind the question is not what comes next: it is computed anew before anybody waits for it.
    key, scope, tokens = world.engine.warmed[0]
    assert (key, scope) == (first.cache_key, first.scope)
    assert second.prompt_tokens[: len(tokens)] == tokens == (*first.prompt_tokens, 1002)
    assert len(world.engine.warmed) == 1


async def test_an_answer_of_thoughts_only_ends_with_a_sentence(world, tools):
    world.engine.scripts = [tools.Script(words=["a", "b"], thinking=2)]
    view = await world.final(await world.say("one"))
    assert (view.outcome, view.text) == (Outcome.FAILED, "")
    assert "gave no answer" in view.notice


async def test_the_length_limit_is_said(world, tools):
    world.engine.scripts = [tools.Script(reason=FinishReason.LENGTH)]
    view = await world.final(await world.say("one"))
    assert view.outcome is Outcome.LENGTH
    assert "length limit" in view.notice


async def test_an_engine_that_dies_in_mid_answer_is_continued_from_the_ids(world, tools):
    words = ["One", " two", " three", " four"]
    world.engine.scripts = [tools.Script(words, fail_after=2), tools.Script(words)]
    view = await world.final(await world.say("count"))
    assert (view.text, view.outcome, view.notice) == ("One two three four", Outcome.COMPLETE, "")
    again = world.engine.requests[1]
    assert again.generated_tokens == (1000, 1001)
    assert again.prompt_tokens == world.engine.requests[0].prompt_tokens


async def test_without_ids_an_interrupted_answer_starts_over_and_says_so(world, tools):
    world.engine.with_ids = False
    words = ["One", " two", " three"]
    world.engine.scripts = [tools.Script(words, fail_after=2), tools.Script(words)]
    view = await world.final(await world.say("count"))
    assert view.text == "One two three"
    assert "generated anew" in view.notice
    assert world.engine.requests[1].messages
    assert world.engine.requests[1].generated_tokens == ()


async def test_another_model_does_not_continue_foreign_ids(world, tools):
    words = ["One", " two", " three"]
    world.engine.scripts = [tools.Script(words, hold=asyncio.Event())]
    said = await world.say("count")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    world.kill()
    world.engine = tools.ScriptEngine(fingerprint="model-b")
    await world.start()
    view = await world.final(said)
    assert view.text == "Hello there"
    assert "generated anew" in view.notice
    assert world.engine.requests[0].generated_tokens == ()


async def test_a_failure_that_does_not_pass_ends_with_a_friendly_sentence(world, tools):
    failed = Failed(request_id="", code=FailureCode.DECODE, retryable=False, message="cuda 0x1")
    world.engine.scripts = [tools.Script(fail_after=0, failure=failed)]
    view = await world.final(await world.say("x"))
    assert view.outcome is Outcome.FAILED
    assert "cuda" not in view.notice
    assert "/retry" in view.notice


async def test_a_last_edit_that_is_rate_limited_is_tried_again(world, tools):
    world.adapter.errors = [None, RetryLater("429", code=429, after_s=0.01)] * 3
    said = await world.say("x")
    assert await world.answer(said) == "Hello there"
    assert world.adapter.shown((await world.turn(said)).id).n_finishes == 1


async def test_a_call_with_unknown_outcome_is_repeated(world):
    world.adapter.interval_s = 60
    world.adapter.errors = [None, Ambiguous("timeout")]
    said = await world.say("x")
    assert await world.answer(said) == "Hello there"


async def test_nobody_there_to_answer_ends_the_generation(world, tools):
    world.engine.scripts = [tools.Script(hold=asyncio.Event())]
    world.adapter.errors = [TargetGone("recalled")]
    turn = await world.settled(await world.say("x"))
    assert turn.state is TurnState.CANCELLED
    assert world.adapter.finals == []


async def test_what_cannot_be_shown_fails_the_turn(world):
    world.adapter.errors = [GiveUp("no permission")] * 4
    turn = await world.settled(await world.say("x"))
    assert turn.state is TurnState.FAILED
    assert world.adapter.finals == []


async def test_stop_keeps_what_was_said(world, tools):
    world.engine.scripts = [tools.Script(["One", " two"], hold=asyncio.Event())]
    said = await world.say("count")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    stop = await world.say("/stop")
    view = await world.final(said)
    assert (view.text, view.outcome, view.notice) == ("One", Outcome.STOPPED, "Stopped.")
    assert await world.answer(stop) == "Stopped."
    assert (await world.turn(said)).state is TurnState.CANCELLED


async def test_signs_of_life_come_and_go(world, tools):
    world.engine.scripts = [tools.Script(words=[], hold=asyncio.Event())]
    said = await world.say("x")
    await tools.eventually(lambda: world.adapter.alive == {"sign-1": said.message_id})
    world.engine.scripts = [tools.Script()]
    await world.say("/stop")
    await world.settled(said)
    await tools.eventually(lambda: world.adapter.alive == {})
    assert world.adapter.n_alive == 1


async def test_a_fault_in_showing_is_tried_again(world):
    class Broken(Exception): ...

    world.adapter.errors = [Broken(), None]
    said = await world.say("x")
    assert await world.answer(said) == "Hello there"


async def test_nothing_people_wrote_or_read_is_logged(world, tools, quiet_logs):
    world.engine.scripts = [tools.Script(["Swordfish", " indeed"], fail_after=1), tools.Script()]
    world.adapter.errors = [RetryLater("down", after_s=0.01)]
    await world.final(await world.say("the password is Marzipan"))
    await world.final(await world.say("/status Marzipan"))
    await world.say("/marzipan")
    assert {line["event"] for line in quiet_logs} >= {"turn_begun", "generated", "turn_finished"}
    everything = repr(quiet_logs).lower()
    assert "marzipan" not in everything
    assert "swordfish" not in everything

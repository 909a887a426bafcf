"""What people see of an engine that dies: a question that kills it ends with a sentence, and a smaller size is shown."""

from __future__ import annotations

import pytest

from bot.domain.types import Outcome
from bot.service.trouble import trouble_of
from bot.web.openai_run import _FAILURES
from engine.errors import EngineError, TextRefused
from engine.types import EngineState, EngineStats, Failed, FailureCode

POISON = Failed(request_id="", code=FailureCode.POISON, retryable=False, message="died at 0x1")


async def test_a_question_that_kills_the_engine_is_known_by_its_turn_and_ends_with_a_sentence(
    world, tools
):
    world.engine.scripts = [
        tools.Script(["One", " two"], fail_after=1),
        tools.Script(["One", " two"], fail_after=1, failure=POISON),
    ]
    said = await world.say("x")
    view = await world.final(said)
    turn = await world.turn(said)
    assert [request.lineage for request in world.engine.requests] == [turn.id] * 2
    assert view.outcome is Outcome.FAILED
    assert view.text.startswith("One"), "what was said stays"
    assert "crashed each time" in view.notice
    assert "0x1" not in view.notice


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TextRefused("the engine died each time it read this text"), "crashed each time"),
        (EngineError("the template refuses"), "could not be finished"),
    ],
)
async def test_what_cannot_even_be_read_ends_with_a_sentence_at_once(world, error, told):
    n_tries = 0

    async def refused(*_args, **_kwargs):
        nonlocal n_tries
        n_tries += 1
        raise error

    world.engine.render = refused
    view = await world.final(await world.say("x"))
    assert view.outcome is Outcome.FAILED
    assert told in (view.notice or view.text)
    assert n_tries == 1


async def test_another_question_is_another_lineage(world):
    for text in ("x", "x"):
        await world.final(await world.say(text))
    first, second = (request.lineage for request in world.engine.requests)
    assert first != second


async def test_status_says_that_the_engine_runs_smaller(world):
    async def stats() -> EngineStats:
        return EngineStats(state=EngineState.READY, step_back="n_ubatch 512 → 256 after …")

    world.engine.stats = stats
    status = await world.answer(await world.say("/status"))
    assert "Running smaller than set: n_ubatch 512 → 256 after …" in status


@pytest.mark.parametrize("code", list(FailureCode))
def test_every_failure_has_a_sentence_for_people_and_one_for_programs(code: FailureCode) -> None:
    failed = Failed(request_id="r", code=code, retryable=False, message="secret words")
    assert trouble_of(failed).notice.startswith("end.")
    status, _, message = _FAILURES[code]
    assert status >= 400
    assert "secret" not in message

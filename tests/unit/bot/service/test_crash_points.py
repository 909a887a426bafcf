"""The service is cut off at every single write to the database, before and after it: one answer, whole, and no open card."""

from __future__ import annotations

import asyncio

import pytest

from bot.domain.types import Outcome, TurnState

WORDS = ["One", " two", " three", " four"]
WRITES = {
    "claim", "fix_prompt", "save_canonical", "save_reply", "save_answer_tokens", "finish_turn",
}  # fmt: skip


class CutStore:
    """The store until the n-th write by a turn; from then on nothing comes back from it."""

    def __init__(self, store, n: int, *, after: bool) -> None:
        self._store = store
        self._left = n
        self._after = after
        self.cut = asyncio.Event()
        self.at = ""

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def call(*args, **kwargs):
            if self.cut.is_set():
                await asyncio.Event().wait()
            if name not in WRITES:
                return await method(*args, **kwargs)
            if name == "claim":  # an idle claim writes nothing
                result = await method(*args, **kwargs)
                if not result:
                    return result
            self._left -= 1
            if self._left:
                return result if name == "claim" else await method(*args, **kwargs)
            self.at = name
            if self._after and name != "claim":
                await method(*args, **kwargs)
            self.cut.set()
            return await asyncio.Event().wait()

        return call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("n", range(1, 13))
async def test_cut_off_at_a_write(world, tools, n, after):
    await world.service.close(1.0)
    real = world.store
    world.store = cut = CutStore(real, n, after=after)
    world.engine.scripts = [tools.Script(WORDS)]
    await world.start()
    said = tools.message("count")
    accepting = asyncio.create_task(world.service.inbox.accept("feishu", world.adapter, (said,)))
    waits = [asyncio.create_task(cut.cut.wait())]
    done_early = asyncio.create_task(_wait_done(world, real, said, tools))
    await asyncio.wait([*waits, done_early], return_when=asyncio.FIRST_COMPLETED)
    for task in (*waits, done_early, accepting):
        task.cancel()
    await asyncio.gather(*waits, done_early, accepting, return_exceptions=True)
    world.kill()
    await world.service._context.signs.close(0)
    world.store = real
    world.engine = tools.ScriptEngine()
    world.engine.scripts = [tools.Script(WORDS)]
    await world.start()
    view = await world.final(said)
    assert (view.text, view.outcome, view.notice) == ("One two three four", Outcome.COMPLETE, "")
    assert world.adapter.finals == ["One two three four"]
    turn = await world.turn(said)
    assert turn.state is TurnState.DONE
    assert (await real.reply(turn.id))[0].text == "One two three four"
    await world.final(await world.say("next"))
    prompt = tools.text_of(world.engine.requests[-1])
    assert prompt.count("count") == 1
    # By its ids, or (when the crash lost them) by its text.
    assert prompt.count("«1000»") + prompt.count("One two three four") == 1


async def _wait_done(world, real, said, tools) -> None:
    async def done() -> bool:
        turn = await real.turn_of_message("app", said.message_id)
        return turn is not None and turn.state is TurnState.DONE

    await tools.eventually(done)

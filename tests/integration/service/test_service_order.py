"""Who is answered first: people in (played) Feishu chats and programs at the API, all waiting for one scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from engine.types import EngineEvent, EngineRequest, Finished, Priority, Started

# The first question is long and keeps the engine busy until all others stand in line.
SLOW_READER = {"reply": "Yes.", "prefill_tokens_per_s": "1200"}
LONG = "blocker " * 450
BATCH_KEY, PERSON_KEY = "key-of-a-nightly-job", "key-of-a-web-page"


class Watch:
    """Stands before the engine: notes the question of every request when the engine begins with it."""

    def __init__(self, rig) -> None:
        self.begun: list[str] = []
        self._slots = rig.service._context.slots["main"]
        self._submit = rig.engine.submit
        self._n_sent = 0
        rig.engine.submit = self.submit

    async def submit(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        prompt = bytes(token for token in request.prompt_tokens if token < 256).decode()
        self._n_sent += 1
        async for event in self._submit(request):
            if isinstance(event, Started):
                self.begun.append(prompt.rsplit("ask:", 1)[-1].split(".")[0])
            yield event

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not check():
                await asyncio.sleep(0.005)

    async def until_waiting(self, n: int) -> None:
        """Until `n` wait, in both lines together."""
        await self.until(lambda: self._n_sent - len(self.begun) + self._slots.n_waiting == n)


async def _call_api(rig, key: str, name: str) -> int:
    body = {"messages": [{"role": "user", "content": f"ask:{name}."}]}
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{rig.web.url}/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json=body, headers=headers) as response,
    ):
        await response.read()
        return response.status


async def _background(rig) -> Finished:
    tokens = tuple(b"ask:summary.")
    request = EngineRequest(id="s", prompt_tokens=tokens, priority=Priority.BACKGROUND)
    end = [event async for event in rig.engine.submit(request)][-1]
    assert isinstance(end, Finished)
    return end


async def _place(rig, question) -> int:
    turn = await rig.turn(question)
    return rig.service._context.board.get(turn.id).place


@pytest.mark.parametrize("n_ahead", [16, 1])
async def test_admins_tiers_people_in_turn_api_background(make_rig, monkeypatch, n_ahead):
    monkeypatch.setattr("bot.service.app.WAITING_WITH_ENGINE", n_ahead)
    names = ("ann", "bob", "cat", "dora", "eve")
    rig = await make_rig(
        fake=SLOW_READER,
        model={"n_parallel": 1},
        server={"api_keys": [BATCH_KEY], "interactive_api_keys": [PERSON_KEY]},
    )
    people = {name: rig.sandbox.add_user(name) for name in names}
    ids = {name: f"feishu:{user.id}" for name, user in people.items()}
    rig.access = {"admins": [ids["eve"]], "tiers": [[ids["dora"]]], "per_user_per_minute": 0}
    rig.service.reload(rig.config)
    watch = Watch(rig)
    groups = [rig.sandbox.add_group(f"g{n}", list(people.values())) for n in range(3)]

    async def ask(who: str, n: int, text: str):
        return await rig.sandbox.say(groups[n], people[who], text)

    blocker = await ask("ann", 0, f"{LONG} ask:blocker.")
    await watch.until(lambda: watch.begun == ["blocker"])
    async with asyncio.TaskGroup() as tasks:
        nightly = tasks.create_task(_call_api(rig, BATCH_KEY, "nightly"))
        summary = tasks.create_task(_background(rig))
        await watch.until_waiting(2)
        asked = {}
        for n, (who, name) in enumerate([("bob", "bob1"), ("bob", "bob2"), ("bob", "bob3")]):
            asked[name] = await ask(who, n, f"ask:{name}.")
            await watch.until_waiting(3 + n)
        asked["cat"] = await ask("cat", 0, "ask:cat.")
        await watch.until_waiting(6)
        page = tasks.create_task(_call_api(rig, PERSON_KEY, "page"))
        await watch.until_waiting(7)
        asked["dora"] = await ask("dora", 0, "ask:dora.")
        asked["eve"] = await ask("eve", 0, "ask:eve.")
        await watch.until_waiting(9)
        places = {name: await _place(rig, question) for name, question in asked.items()}
        while places["eve"] != 1 or places["bob1"] != 3:  # the engine speaks between its steps
            await asyncio.sleep(0.01)
            places = {name: await _place(rig, question) for name, question in asked.items()}
        assert watch.begun == ["blocker"], "the machine was too slow for this test's figures"
    assert (nightly.result(), page.result()) == (200, 200)
    assert summary.result().reason == "stop"
    for question in (blocker, *asked.values()):
        await rig.settled(question)
    # The service's own summaries of the long question come last of all; they are not asked here.
    order = [
        name for name in watch.begun if name in {*asked, "blocker", "page", "nightly", "summary"}
    ]
    in_chats = [name for name in order if name in asked]
    assert in_chats[:3] == ["eve", "dora", "bob1"]
    # One who asks once is not behind all three of another's; which of cat and bob2 has its prompt ready first is a race here.
    assert in_chats[-1] == "bob3"
    # One program stands in the people's line too. What the places say is when one's turn really comes.
    assert [places[name] for name in ("eve", "dora", "bob1")] == [1, 2, 3]
    # With one ahead, an engine this quick has nobody left for a moment, and begins with what it has.
    if n_ahead > 1:
        assert order[-2:] == ["nightly", "summary"]
        assert order[4:8] == ["cat", "page", "bob2", "bob3"]
        assert places == {name: order.index(name) for name in asked}
    assert rig.sandbox.violations == []


async def test_a_background_reply_yields_within_one_step(make_rig):
    rig = await make_rig(
        fake={"reply": "word " * 60, "token_delay_s": "0.01"}, model={"n_parallel": 1}
    )
    ann = rig.sandbox.add_user("Ann")
    watch = Watch(rig)
    summary = asyncio.create_task(_background(rig))
    await watch.until(lambda: watch.begun == ["summary"])
    before = (await rig.engine.stats()).steps_total
    asked = await rig.sandbox.say(rig.sandbox.direct_chat(ann), ann, "ask:ann.")
    await rig.growing(asked)
    assert not summary.done()
    await rig.settled(asked)
    assert not summary.done()
    assert (await summary).usage.n_generated == len("word " * 60) + 1
    assert (await rig.engine.stats()).steps_total - before < 2 * 320
    assert watch.begun == ["summary", "ann"]


async def test_too_long_in_line_and_too_many_of_one_person(make_rig):
    rig = await make_rig(
        fake=SLOW_READER,
        model={"n_parallel": 1, "max_waiting_per_person": 2},
        chat={"max_wait_s": 1.0},
    )
    ann, bob = rig.sandbox.add_user("Ann"), rig.sandbox.add_user("Bob")
    groups = [rig.sandbox.add_group(f"g{n}", [ann, bob]) for n in range(3)]
    watch = Watch(rig)
    blocker = await rig.sandbox.say(groups[0], ann, f"{LONG} ask:blocker.")
    await watch.until(lambda: watch.begun == ["blocker"])
    late = [await rig.sandbox.say(group, bob, f"ask:{n}.") for n, group in enumerate(groups)]
    too_many = await rig.settled(late[2])
    assert "2 questions of yours are waiting already" in too_many[0]
    for question in late[:2]:
        (text,) = await rig.settled(question)
        assert "did not come in time" in text
    (answer,) = await rig.settled(blocker)
    assert "Yes." in answer
    assert not {"0", "1", "2"} & set(watch.begun)
    assert rig.sandbox.violations == []

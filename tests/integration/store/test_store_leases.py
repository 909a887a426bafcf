"""Leases: one holder at a time by the database's clock; on SQLite the file's lock is the lease."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from bot.store import Store
from tests.store_drafts import chat, event, session_key

NAME = "connection:wecom_bot:aib1"


async def test_one_process_takes_it_and_keeps_it(postgres_url: str, open_store) -> None:
    here, there = await open_store(postgres_url), await open_store(postgres_url)
    mine = await here.take_lease(NAME, "here", 60)
    assert (mine.holder, mine.for_s) == ("here", 60)
    theirs = await there.take_lease(NAME, "there", 60)
    assert theirs.holder == "here"
    assert 50 < theirs.for_s <= 60
    assert (await here.take_lease(NAME, "here", 60)).holder == "here"
    assert (await there.take_lease("another", "there", 60)).holder == "there"


async def test_one_that_ran_out_is_taken_over(postgres_url: str, open_store) -> None:
    here, there = await open_store(postgres_url), await open_store(postgres_url)
    await here.take_lease(NAME, "here", 0.2)
    assert (await there.take_lease(NAME, "there", 60)).holder == "here"
    await asyncio.sleep(0.25)
    assert (await there.take_lease(NAME, "there", 60)).holder == "there"
    lost = await here.take_lease(NAME, "here", 60)
    assert lost.holder == "there"


async def test_one_that_was_given_back_is_free_at_once(postgres_url: str, open_store) -> None:
    here, there = await open_store(postgres_url), await open_store(postgres_url)
    await here.take_lease(NAME, "here", 60)
    await there.drop_lease(NAME, "there")  # not its own
    assert (await there.take_lease(NAME, "there", 60)).holder == "here"
    await here.drop_lease(NAME, "here")
    assert (await there.take_lease(NAME, "there", 60)).holder == "there"


@pytest.mark.parametrize("round_", range(3))
async def test_of_many_that_ask_at_once_one_gets_it(
    postgres_url: str, open_store, round_: int
) -> None:
    stores = [await open_store(postgres_url) for _ in range(4)]
    asked = await asyncio.gather(
        *(s.take_lease(NAME, f"{n}.{k}", 60) for n, s in enumerate(stores) for k in range(3))
    )
    assert len({lease.holder for lease in asked} - {""}) == 1
    assert sum(lease.for_s == 60 for lease in asked) == 1


async def test_on_sqlite_whoever_has_the_file_has_every_lease(sqlite_url: str, open_store) -> None:
    store = await open_store(sqlite_url)
    lease = await store.take_lease(NAME, "me", 20)
    assert (lease.holder, lease.for_s) == ("me", math.inf)
    await store.drop_lease(NAME, "me")


async def test_turns_that_another_process_must_answer_are_left_alone(store: Store) -> None:
    drafts = [replace(chat(), session=session_key(app=app)) for app in ("here", "there")]
    mine, theirs = [(await store.accept(event(draft))).turn_id for draft in drafts]
    assert [t.id for t in await store.claim("me", 60, 10, without=frozenset({"there"}))] == [mine]
    assert await store.claim("me", 60, 10, without=frozenset({"there", "here"})) == []
    assert [t.id for t in await store.claim("me", 60, 10)] == [theirs]

"""The index of what was said: the same hits on both databases, nothing lost, nothing found that was taken back or erased."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from bot.domain.segment import terms
from bot.domain.types import Outcome, Snapshot, TurnState
from bot.store import Store, search
from tests.store_drafts import chat, command, event, session_key

TALK = [
    ("张三的生日是农历九月初六", "记下了。"),
    ("预算是２５００块，别超", "好的，2500。"),
    ("The courier rings at number 14", "Noted: 14."),
    ("打印机 TQ-8840 的碳粉在 192.168.77.1 旁边", "收到"),
    ("門禁卡補辦要三十五元", "好"),
    ("e14 0x1f 1e5 00123 “引号' \" \\ % : & | ! ( ) *”", "emoji 🎂 👩‍👩‍👧 done"),
    ("ひらがなと漢字、한국어도", "Straße ÉCOLE naïve ＦＵＬＬ"),
    ("😂", "哈哈"),
]


async def talk(store: Store, question: str, answer: str, **options: object) -> str:
    turn = (await store.accept(event(chat(question, **options)))).turn_id
    await store.claim("me", 60, 10)
    await store.save_reply(turn, Snapshot(1, answer, (), Outcome.COMPLETE), None)
    await store.finish_turn(turn, "me", TurnState.DONE)
    return turn


async def index_all(store: Store, session_id: str, limit: int = 3) -> int:
    """Index until nothing is left; how many calls it took."""
    for n in range(1, 100):
        if await store.index_history(session_id, limit=limit):
            return n
    raise AssertionError("the index is never complete")


async def found(
    store: Store, session_id: str, text: str, before: int = 1000
) -> list[tuple[int, bool]]:
    result = await store.search(session_id, terms(text), before, 40)
    return [(hit.turn_no, hit.is_answer) for hit in result.hits]


@pytest.fixture
async def session_id(store: Store) -> str:
    for question, answer in TALK:
        await talk(store, question, answer, name="李四")
    session = await store.session(session_key())
    await index_all(store, session.id)
    return session.id


ASKED = [
    ("生日", [(1, False)]),
    ("张三", [(1, False)]),
    ("预算 2500", [(2, False), (2, True)]),
    ("２５００", [(2, True), (2, False)]),
    ("ring a bell", [(3, False)]),
    ("tq8840 8840", [(4, False)]),
    ("192.168.77.1", [(4, False)]),
    ("门禁卡补办", [(5, False)]),
    ("35", [(5, False)]),
    ("0X1F", [(6, False)]),
    ("00123", [(6, False)]),
    ("1e5", [(6, False)]),
    ("漢字", [(7, False)]),
    ("한국", [(7, False)]),
    ("straße", [(7, True)]),
    ("école full", [(7, True)]),
    ("哈哈", [(8, True)]),
    ("完全不相干", []),
    ("", []),
]


async def test_the_same_hits_on_both(store: Store, session_id: str) -> None:
    for asked, expected in ASKED:
        assert await found(store, session_id, asked) == expected, asked


async def test_a_hit_is_the_message_as_it_was_said(store: Store, session_id: str, clock) -> None:
    result = await store.search(session_id, terms("预算 2500 courier"), 1000, 40)
    assert {hit.text for hit in result.hits} == {TALK[1][0], TALK[1][1], TALK[2][0]}
    assert {hit.speaker for hit in result.hits} == {"李四", ""}
    assert {hit.said_at for hit in result.hits} == {clock.now}
    assert result.counts == {"预算": 1, "2500": 2, "courier": 1}
    assert result.n_messages == 16, "of a face alone there is who sent it"


async def test_who_asked_is_found_as_well(store: Store, session_id: str) -> None:
    assert len(await found(store, session_id, "李四")) == len(TALK)


async def test_only_earlier_turns(store: Store, session_id: str) -> None:
    assert await found(store, session_id, "2500 courier", before=3) == [(2, True), (2, False)]
    assert await found(store, session_id, "2500 courier", before=2) == []


async def test_the_rarer_and_the_later_come_first_and_no_more_than_asked(store: Store) -> None:
    for n in range(30):
        await talk(store, f"common word {n} {'odd' if n == 4 else ''}", "ok")
    session_id = (await store.session(session_key())).id
    assert await index_all(store, session_id, limit=7) == 5
    result = await store.search(session_id, terms("common odd"), 1000, 5)
    assert [hit.turn_no for hit in result.hits] == [5, 30, 29, 28, 27]
    assert result.counts == {"common": 30, "odd": 1}


async def test_what_was_asked_again_or_taken_back_is_not_found(store: Store) -> None:
    replaced = await talk(store, "secret one", "first answer")
    silent = (await store.accept(event(chat("secret two")))).turn_id
    await store.claim("me", 60, 10)
    await store.save_reply(silent, Snapshot(1, "x", (), Outcome.SILENT), None)
    await store.finish_turn(silent, "me", TurnState.CANCELLED)
    await store.accept(event(command("/secret three")))
    session_id = (await store.session(session_key())).id
    await index_all(store, session_id)
    assert await found(store, session_id, "secret") == [(1, False)]
    await store.mark_replaced(replaced)
    assert await found(store, session_id, "secret") == []


async def test_a_turn_behind_one_that_still_runs_waits(store: Store) -> None:
    await talk(store, "plum one", "ok")
    running = (await store.accept(event(chat("plum two")))).turn_id
    session_id = (await store.session(session_key())).id
    assert await store.index_history(session_id, limit=10)
    assert await found(store, session_id, "plum") == [(1, False)]
    await store.claim("me", 60, 10)
    await store.save_reply(running, Snapshot(1, "plum", (), Outcome.COMPLETE), None)
    assert await store.index_history(session_id, limit=10)
    assert await found(store, session_id, "plum") == [(1, False)], "not before its end"
    await store.finish_turn(running, "me", TurnState.DONE)
    assert await store.index_history(session_id, limit=10)
    assert await found(store, session_id, "plum") == [(2, True), (2, False), (1, False)]


async def test_indexing_at_once_adds_each_turn_once(store: Store) -> None:
    for n in range(9):
        await talk(store, f"pear {n}", "ok")
    session_id = (await store.session(session_key())).id
    while not all(
        await asyncio.gather(*(store.index_history(session_id, limit=2) for _ in range(4)))
    ):
        pass
    result = await store.search(session_id, ["pear"], 100, 40)
    assert (len(result.hits), result.counts, result.n_messages) == (9, {"pear": 9}, 18)


async def test_conversations_do_not_see_each_other(store: Store) -> None:
    await talk(store, "quince one", "ok", user="u1")
    await talk(store, "quince two", "ok", user="u2")
    ids = [(await store.session(session_key(user))).id for user in ("u1", "u2")]
    for session_id in ids:
        await index_all(store, session_id)
    for session_id in ids:
        assert await found(store, session_id, "quince") == [(1, False)]
    texts = [(await store.search(s, ["quinc"], 10, 5)).hits[0].text for s in ids]
    assert texts == ["quince one", "quince two"]


async def _n_rows(store: Store) -> list[int]:
    tables = ["recall_messages", "recall_sessions"]
    if store._db.place.is_sqlite:
        tables.append("recall_fts WHERE recall_fts MATCH 'fig OR two'")
    return await store._db.read(
        lambda c: [
            c.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one() for table in tables
        ]
    )


@pytest.mark.parametrize("erase", [False, True])
async def test_a_new_epoch_finds_nothing_of_the_old_one(store: Store, erase: bool) -> None:
    for word in ("one", "two"):
        await talk(store, f"fig {word}", "fig")
    old, new = await store.session(session_key()), None
    await index_all(store, old.id)
    assert (await _n_rows(store))[:2] == [4, 1]
    _, new = await store.next_epoch(session_key(), erase_from_prompt=erase)
    await talk(store, "another", "thing")
    await index_all(store, new.id)
    assert await found(store, new.id, "fig") == []
    assert (await found(store, old.id, "fig") == []) is erase
    # Whatever still runs for an erased one brings nothing back.
    assert await store.index_history(old.id, limit=10)
    rows = await _n_rows(store)
    assert rows[:2] == ([2, 1] if erase else [6, 2])
    if len(rows) > 2:
        assert rows[2] == (0 if erase else 4), "nor is a term of it left in the full-text index"


async def test_erased_words_leave_the_index_s_own_files(sqlite_url: str, open_store) -> None:
    store = await open_store(sqlite_url)
    for user in ("u1", "u2"):
        for word in ("zebra", "quagga", "okapi"):
            await talk(store, f"{word}{user}", "ok", user=user)
            session = await store.session(session_key(user))
            await index_all(store, session.id)

    async def holds(word: bytes) -> bool:
        query = sa.text("SELECT block FROM recall_fts_data")
        blocks = await store._db.read(lambda c: c.execute(query).scalars().all())
        # Terms are stored without what they have in common with the one before, here "ok".
        return any(word in bytes(block) for block in blocks)

    assert await holds(b"apiu1")
    await store.next_epoch(session_key("u1"), erase_from_prompt=True)
    await store.empty_log()
    assert not await holds(b"apiu1")
    assert await found(store, (await store.session(session_key("u2"))).id, "zebrau2") == [
        (1, False)
    ]


async def test_what_is_erased_while_it_is_indexed_stays_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await talk(store, "mango one", "ok")
    await talk(store, "mango two", "ok")
    session_id = (await store.session(session_key())).id
    segmented = search._segmented

    def slowly(rows: object) -> object:
        asyncio.run_coroutine_threadsafe(store.mark_replaced(turn), loop).result(10)
        return segmented(rows)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(search, "_segmented", slowly)
    assert await store.index_history(session_id, limit=10)
    assert (await _n_rows(store))[0] == 2
    assert await found(store, session_id, "mango") == [(2, False)]


async def test_what_is_not_there(store: Store) -> None:
    assert await store.index_history("nothing", limit=5)
    assert await found(store, "nothing", "fig") == []
    assert (await store.search("nothing", ["x"], 5, 5)).n_messages == 0


async def test_the_index_survives_a_restart(
    store: Store, session_id: str, url: str, open_store
) -> None:
    await store.close()
    again = await open_store(url)
    assert await found(again, session_id, "生日") == [(1, False)]
    assert await again.index_history(session_id, limit=5)
    assert (await again.search(session_id, ["生日"], 100, 5)).n_messages == 16

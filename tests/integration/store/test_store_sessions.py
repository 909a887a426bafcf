"""Sessions, epochs, canonical tokens, policies, replies and what the prompt reads back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bot.domain.records import Canonical, PastTurn, StoreFacts
from bot.domain.types import (
    Outcome,
    PartState,
    ReplyPart,
    Sender,
    SessionKey,
    SessionPolicy,
    Snapshot,
    TurnState,
)  # fmt: skip
from bot.errors import StoreError
from bot.store import Store
from tests.store_drafts import chat, command, event, notice, session_key

CANONICAL = Canonical("sha256:abc", (1, 0, 262_143, 4_294_967_295), (0, 2), 3, 7)


async def test_a_session_is_made_once(store: Store, clock) -> None:
    sessions = await asyncio.gather(*(store.session(session_key()) for _ in range(10)))
    assert len({s.id for s in sessions}) == 1
    assert sessions[0].key == session_key()
    assert (sessions[0].last_turn_no, sessions[0].noted_date) == (0, "")
    assert sessions[0].created_at == clock.now
    await store.accept(event(chat()))
    assert (await store.session(replace(session_key(), epoch=5))).last_turn_no == 1


async def test_sessions_differ_by_every_part_of_the_key(store: Store) -> None:
    keys = [
        SessionKey("a", "b", None, None), SessionKey("a", "b", "", None), SessionKey("a", "b", None, ""),
        SessionKey("a", "b", "t", None), SessionKey("a", "b", None, "t"), SessionKey("a2", "b", None, None),
        SessionKey("a", "b2", None, None), SessionKey('a","b', "c", None, None), SessionKey("a", 'b","c', None, None),
    ]  # fmt: skip
    assert len({(await store.session(key)).id for key in keys}) == len(keys)
    assert [(await store.session(key)).key for key in keys] == keys


@pytest.mark.parametrize("erase", [False, True])
async def test_a_new_epoch_begins_empty(store: Store, erase: bool) -> None:
    await store.accept(event(chat("before")))
    (turn,) = await store.claim("me", 60, 5)
    await store.save_reply(turn.id, Snapshot(1, "answer", (1,), Outcome.COMPLETE), None)
    await store.finish_turn(turn.id, "me", TurnState.DONE)
    before = await store.session(session_key())
    await store.save_canonical(before.id, CANONICAL)

    old, new = await store.next_epoch(session_key(), erase_from_prompt=erase)
    assert (old.id, old.key.epoch, old.last_turn_no) == (before.id, 0, 1)
    assert (new.key, new.last_turn_no, new.noted_date) == (replace(session_key(), epoch=1), 0, "")
    assert await store.session(session_key()) == new
    assert await store.past_turns(new.id) == []
    assert await store.canonical(new.id) is None

    assert (await store.canonical(old.id) is None) is erase
    assert (await store.past_turns(old.id) == []) is erase
    assert await store.turn(turn.id) is not None, "the rows stay"
    snapshot, _ = await store.reply(turn.id)
    assert snapshot is not None

    # A turn of the old epoch that ends only now must not bring erased tokens back.
    await store.save_canonical(old.id, CANONICAL)
    assert (await store.canonical(old.id) is None) is erase

    later = await store.accept(event(chat("after")))
    assert (await store.turn(later.turn_id)).session == new.key
    assert (await store.turn(later.turn_id)).turn_no == 1


async def test_a_new_epoch_of_a_conversation_that_never_was(store: Store) -> None:
    old, new = await store.next_epoch(session_key(), erase_from_prompt=False)
    assert (old.key.epoch, new.key.epoch) == (0, 1)


async def test_epochs_and_messages_at_once_lose_nothing(store: Store) -> None:
    async def renew() -> int:
        return (await store.next_epoch(session_key(), erase_from_prompt=False))[1].key.epoch

    mixed = await asyncio.gather(
        *(renew() if n % 3 == 0 else store.accept(event(chat(str(n)))) for n in range(30))
    )
    epochs = [m for m in mixed if isinstance(m, int)]
    assert epochs == list(range(1, 11))
    turns = [await store.turn(m.turn_id) for m in mixed if not isinstance(m, int)]
    assert len({t.id for t in turns}) == 20
    assert all(t.session.epoch <= 10 for t in turns)
    lines: dict[str, list[int]] = {}
    for turn in turns:
        lines.setdefault(turn.session_id, []).append(turn.turn_no)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in lines.values())


async def test_epochs_from_two_processes(postgres_url: str, open_store) -> None:
    stores = [await open_store(postgres_url) for _ in range(2)]
    made = await asyncio.gather(
        *(stores[n % 2].next_epoch(session_key(), erase_from_prompt=False) for n in range(10)),
        *(stores[n % 2].accept(event(chat())) for n in range(10)),
    )
    assert sorted(new.key.epoch for _, new in made[:10]) == list(range(1, 11))
    assert len({accepted.turn_id for accepted in made[10:]}) == 10


async def test_canonical_tokens_round_trip(store: Store) -> None:
    session = await store.session(session_key())
    assert await store.canonical(session.id) is None
    await store.save_canonical(session.id, CANONICAL)
    assert await store.canonical(session.id) == CANONICAL
    newer = replace(CANONICAL, fingerprint="other", token_ids=tuple(range(5000)), boundaries=())
    await store.save_canonical(session.id, newer)
    assert await store.canonical(session.id) == newer
    await store.save_canonical(session.id, None)
    assert await store.canonical(session.id) is None
    with pytest.raises(StoreError):
        await store.save_canonical("no such session", CANONICAL)


async def test_chat_policy(store: Store) -> None:
    assert await store.chat_policy("app", "c1") is None
    await store.set_chat_policy("app", "c1", SessionPolicy.SHARED)
    await store.set_chat_policy("app", "c1", SessionPolicy.PER_TOPIC)
    await store.set_chat_policy("app", "c2", SessionPolicy.PER_USER)
    assert await store.chat_policy("app", "c1") is SessionPolicy.PER_TOPIC
    assert await store.chat_policy("app2", "c1") is None
    await store.set_chat_policy("app", "c1", None)
    assert await store.chat_policy("app", "c1") is None
    assert await store.chat_policy("app", "c2") is SessionPolicy.PER_USER


# -- replies -------------------------------------------------------------------------------------------------------------
def _part(turn_id: str, n: int = 0, **changes: object) -> ReplyPart:
    return replace(ReplyPart(turn_id, n, "card", f"key{n}"), **changes)


async def test_a_reply_grows(store: Store) -> None:
    turn = (await store.accept(event(chat()))).turn_id
    assert await store.reply(turn) == (None, ())
    opened = datetime(2026, 3, 1, 1, 2, 3, 4, tzinfo=UTC)
    await store.save_reply(turn, Snapshot(1, "he", (5, 6)), _part(turn))
    attempted = _part(turn, state=PartState.ATTEMPTED, attempted_at=opened)
    await store.save_reply(turn, None, attempted)
    assert await store.reply(turn) == (Snapshot(1, "he", (5, 6)), (attempted,))
    final = Snapshot(3, "hello 👋", tuple(range(3000)), Outcome.LENGTH, "cut")
    last = _part(
        turn, state=PartState.CONFIRMED, remote_id="card_1", message_id="om_2", sequence=9, covers_from_chars=1,
        covers_to_chars=6, confirmed_rev=3, opened_at=opened,
    )  # fmt: skip
    await store.save_reply(turn, final, last)
    await store.save_reply(turn, None, _part(turn, 1))
    assert await store.reply(turn) == (final, (last, _part(turn, 1)))


async def test_an_old_snapshot_never_overwrites_a_newer_one(store: Store) -> None:
    turn = (await store.accept(event(chat()))).turn_id
    await store.save_reply(turn, Snapshot(5, "new"), None)
    await store.save_reply(turn, Snapshot(4, "old"), _part(turn))
    await store.save_reply(turn, Snapshot(5, "same rev"), None)
    snapshot, parts = await store.reply(turn)
    assert snapshot == Snapshot(5, "new")
    assert parts == (_part(turn),), "the part is stored all the same"


async def test_a_reply_belongs_to_its_turn(store: Store) -> None:
    turn = (await store.accept(event(chat()))).turn_id
    with pytest.raises(ValueError, match="belongs to turn"):
        await store.save_reply(turn, Snapshot(1, "x"), _part("other"))
    with pytest.raises(StoreError):
        await store.save_reply("no such turn", Snapshot(1, "x"), None)
    await store.save_reply(turn, None, None)
    assert await store.reply(turn) == (None, ())


# -- history -------------------------------------------------------------------------------------------------------------
async def _talk(
    store: Store, question: str, snapshot: Snapshot | None, state: TurnState = TurnState.DONE
) -> str:
    turn = (await store.accept(event(chat(question, name="张三")))).turn_id
    claimed = await store.claim("me", 60, 10)
    assert turn in {t.id for t in claimed}
    if snapshot is not None:
        await store.save_reply(turn, snapshot, None)
    await store.finish_turn(turn, "me", state)
    return turn


async def test_past_turns_are_those_with_an_answer(store: Store) -> None:
    done = Outcome.COMPLETE
    first = await _talk(store, "1", Snapshot(1, "one", (1,), done))
    await store.fix_prompt(first, "张三: 1")
    await store.save_answer_tokens(first, "fp", [9])
    await store.save_answer_tokens(first, "fp", [7, 8])
    stopped = await _talk(store, "2", Snapshot(1, "tw", (), Outcome.STOPPED), TurnState.CANCELLED)
    await _talk(
        store, "recalled", Snapshot(1, "taken back", (), Outcome.SILENT), TurnState.CANCELLED
    )
    await _talk(store, "no answer", None, TurnState.FAILED)
    await _talk(store, "empty", Snapshot(1, "", (), Outcome.FAILED, "sorry"), TurnState.FAILED)
    await _talk(store, "half", Snapshot(1, "ha", (), Outcome.GROWING), TurnState.FAILED)
    await store.accept(event(notice("welcome")))
    await store.accept(event(command("/help")))
    replaced = await _talk(store, "3", Snapshot(1, "three", (), done))
    await store.mark_replaced(replaced)
    last = await _talk(store, "4", Snapshot(1, "four", (), Outcome.LENGTH))
    await store.accept(event(chat("waiting")))

    session = await store.session(session_key())
    past = await store.past_turns(session.id)
    number = (await store.turn(last)).turn_no
    asker = Sender("u1", "张三")
    assert past == [
        PastTurn(first, 1, asker, "张三: 1", "one", done, (7, 8), "fp"),
        PastTurn(stopped, 2, asker, "2", "tw", Outcome.STOPPED),
        PastTurn(last, number, asker, "4", "four", Outcome.LENGTH),
    ]
    assert [t.turn_id for t in await store.past_turns(session.id, from_turn_no=2)] == [
        stopped,
        last,
    ]
    assert [t.turn_id for t in await store.past_turns(session.id, limit=2)] == [stopped, last]
    assert await store.past_turns("nothing") == []


async def test_facts(store: Store, clock) -> None:
    empty = await store.facts()
    assert isinstance(empty, StoreFacts)
    assert (empty.turns_queued, empty.turns_running, empty.replies_undelivered) == (0, 0, 0)
    assert empty.oldest_queued_age_s == 0
    await store.accept(event(chat(user="a")))
    clock.pass_s(30)
    (running,) = await store.claim("me", 60, 5)
    await store.accept(event(chat(user="b")))
    await store.accept(event(notice("hello", user="c")))
    clock.pass_s(12.5)
    facts = await store.facts()
    assert (facts.turns_queued, facts.turns_running, facts.replies_undelivered) == (2, 1, 1)
    assert facts.oldest_queued_age_s == 12.5
    assert facts.database_bytes > 50_000
    assert facts.extra["database"] in {"sqlite", "postgresql"}
    await store.save_reply(running.id, Snapshot(1, "done", (), Outcome.COMPLETE), None)
    assert (await store.facts()).replies_undelivered == 2
    await store.finish_turn(running.id, "me", TurnState.DONE)
    assert (await store.facts()).replies_undelivered == 1

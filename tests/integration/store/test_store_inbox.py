"""An event becomes a turn exactly once."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bot.domain.records import Acceptance
from bot.domain.types import (
    Attachment,
    ChatKind,
    Lane,
    Outcome,
    PartState,
    ReplyPart,
    ReplyTarget,
    Sender,
    SessionKey,
    Snapshot,
    TurnKind,
    TurnState,
    WhileBusy,
)  # fmt: skip
from bot.store import Store
from tests.store_drafts import chat, command, event, notice


async def test_a_turn_comes_back_as_it_went_in(store: Store) -> None:
    draft = replace(
        chat('你好 👋 it\'s "quoted"', message_id="om_1"),
        session=SessionKey("cli_a", "oc_1", "omt_7", None, epoch=99),
        asker=Sender("ou_1", "张三", is_bot=True),
        target=ReplyTarget(
            "cli_a", "oc_1", "om_1", {"k": "值"}, datetime(2026, 5, 1, 1, 2, 3, 456789, tzinfo=UTC)
        ),
        chat_kind=ChatKind.DIRECT,
        attachments=(Attachment("image", "a.png", "img_1"), Attachment("file")),
    )
    accepted = await store.accept(Acceptance("cli_a", "om_1", "ev_1", draft))
    assert (accepted.duplicate, accepted.merged, accepted.interrupted) == (False, False, ())

    turn = await store.turn(accepted.turn_id)
    assert turn is not None
    assert turn.session == replace(draft.session, epoch=0)
    assert turn.session_id == (await store.session(draft.session)).id
    assert (turn.kind, turn.lane, turn.state) == (TurnKind.CHAT, Lane.CHAT, TurnState.QUEUED)
    assert (turn.attempt, turn.turn_no, turn.prompt_text) == (0, 1, "")
    assert (turn.asker, turn.question, turn.target) == (draft.asker, draft.question, draft.target)
    assert (turn.chat_kind, turn.attachments, turn.message_ids) == (
        ChatKind.DIRECT,
        draft.attachments,
        ("om_1",),
    )
    assert not turn.cancel_requested
    assert not turn.silent
    assert turn.created_at == datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    assert await store.turn_of_message("cli_a", "om_1") == turn
    assert await store.turn_of_message("cli_b", "om_1") is None
    assert await store.turn("nothing") is None


async def test_forty_deliveries_of_ten_events_make_ten_turns(store: Store) -> None:
    events = [event(chat(f"q{n}", user=f"u{n % 3}"), key=f"key{n}") for n in range(10)]
    answers = await asyncio.gather(*(store.accept(events[n % 10]) for n in range(40)))
    assert sum(not a.duplicate for a in answers) == 10
    assert all(a.turn_id == "" for a in answers if a.duplicate)
    assert len({a.turn_id for a in answers if not a.duplicate}) == 10
    assert (await store.facts()).turns_queued == 10
    for user in ("u0", "u1", "u2"):
        waiting = await store.unfinished_turns((await store.session(chat(user=user).session)).id)
        assert [t.turn_no for t in waiting] == list(range(1, len(waiting) + 1))


async def test_two_processes_accept_the_same_events_once(postgres_url: str, open_store) -> None:
    stores = [await open_store(postgres_url) for _ in range(3)]
    events = [event(chat(f"q{n}", user=f"u{n % 2}"), key=f"key{n}") for n in range(12)]
    # Each process hears them in another order, so that their transactions cross.
    orders = [events, events[::-1], events[6:] + events[:6]]
    answers = await asyncio.gather(
        *(s.accept(e) for s, order in zip(stores, orders, strict=True) for e in order)
    )
    assert sum(not a.duplicate for a in answers) == 12
    assert (await stores[0].facts()).turns_queued == 12


async def test_the_same_key_of_another_app_is_another_event(store: Store) -> None:
    first = await store.accept(event(chat(), key="k", app="cli_a"))
    other = await store.accept(event(chat(), key="k", app="cli_b"))
    shifted = await store.accept(event(chat(), key="bk", app="cli_"))
    assert not any(a.duplicate for a in (first, other, shifted))


async def test_an_event_without_work_is_only_remembered(store: Store) -> None:
    assert await store.accept(event(None, key="k")) == await store.accept(event(None, key="k2"))
    assert (await store.accept(event(None, key="k"))).duplicate
    assert (await store.facts()).turns_queued == 0


async def test_text_that_databases_refuse_is_stored_all_the_same(store: Store) -> None:
    odd = chat("a\x00b\ud83dc", user="u\x00", name="\udfff")
    accepted = await store.accept(event(odd))
    turn = await store.turn(accepted.turn_id)
    assert turn is not None
    assert turn.question == "a\ufffdb\ufffdc"
    joined = await store.accept(event(replace(odd, while_busy=WhileBusy.MERGE)))
    assert joined.merged, "the same person is found by the same odd id"


async def test_a_notice_is_final_from_the_start(store: Store) -> None:
    accepted = await store.accept(event(notice("欢迎！")))
    snapshot, parts = await store.reply(accepted.turn_id)
    assert snapshot == Snapshot(1, "欢迎！", (), Outcome.COMPLETE)
    assert parts == ()
    (turn,) = await store.claim("me", 60, 5)
    assert (turn.id, turn.kind, turn.state) == (
        accepted.turn_id,
        TurnKind.NOTICE,
        TurnState.RUNNING,
    )


async def test_a_draft_without_a_message_has_no_message_ids(store: Store) -> None:
    accepted = await store.accept(event(replace(notice("hi"), message_id="")))
    turn = await store.turn(accepted.turn_id)
    assert turn is not None
    assert turn.message_ids == ()
    assert await store.turn_of_message("app", "") is None


# -- while busy ----------------------------------------------------------------------------------------------------------
async def test_merge_joins_the_same_persons_waiting_turn(store: Store) -> None:
    merge = WhileBusy.MERGE
    first = await store.accept(event(chat("one", message_id="m1", while_busy=merge, shared=True)))
    other = await store.accept(
        event(chat("other", user="u2", message_id="m2", while_busy=merge, shared=True))
    )
    late = replace(
        chat("two", message_id="m3", while_busy=merge, shared=True),
        attachments=(Attachment("image"),),
    )
    joined = await store.accept(event(late))
    assert (joined.merged, joined.turn_id) == (True, first.turn_id)
    assert not other.merged
    turn = await store.turn(first.turn_id)
    assert turn is not None
    assert turn.question == "one\ntwo"
    assert turn.target.reply_to == "m3"
    assert turn.message_ids == ("m1", "m3")
    assert turn.attachments == (Attachment("image"),)
    assert await store.turn_of_message("app", "m3") == turn
    again = await store.accept(event(late, key="again"))
    assert again.merged
    assert (await store.turn(first.turn_id)).message_ids == ("m1", "m3", "m3")


async def test_merge_never_joins_a_turn_that_began(store: Store) -> None:
    """A recovered turn has its prompt fixed and may show half an answer: what is asked now is a new question."""
    first = await store.accept(event(chat("one", while_busy=WhileBusy.MERGE)))
    (turn,) = await store.claim("me", 60, 5)
    running = await store.accept(event(chat("two", while_busy=WhileBusy.MERGE)))
    await store.release(turn.id, "me")
    requeued = await store.accept(event(chat("three", while_busy=WhileBusy.MERGE)))
    assert not running.merged
    assert (requeued.merged, requeued.turn_id) == (True, running.turn_id)
    assert (await store.turn(first.turn_id)).question == "one"


async def test_merge_leaves_commands_and_notices_alone(store: Store) -> None:
    await store.accept(event(command("/status")))
    await store.accept(event(notice("hello")))
    asked = await store.accept(event(chat("one", while_busy=WhileBusy.MERGE)))
    assert not asked.merged


async def test_interrupt_cancels_what_waits_and_reports_it_with_what_runs(store: Store) -> None:
    running = await store.accept(event(chat("running", shared=True)))
    await store.claim("me", 60, 5)
    waiting = await store.accept(event(chat("waiting", shared=True)))
    others = await store.accept(event(chat("other", user="u2", shared=True)))
    stop = await store.accept(event(command("/status", shared=True)))
    newest = await store.accept(event(chat("newest", while_busy=WhileBusy.INTERRUPT, shared=True)))
    assert newest.interrupted == (waiting.turn_id, running.turn_id)
    states = {
        t: await store.turn(t)
        for t in (running.turn_id, waiting.turn_id, others.turn_id, stop.turn_id)
    }
    assert (states[running.turn_id].state, states[running.turn_id].cancel_requested) == (
        TurnState.RUNNING,
        True,
    )
    assert not states[running.turn_id].silent
    assert (states[waiting.turn_id].state, states[waiting.turn_id].silent) == (
        TurnState.CANCELLED,
        True,
    )
    assert states[others.turn_id].state is TurnState.QUEUED
    assert states[stop.turn_id].state is TurnState.QUEUED
    assert (await store.turn(newest.turn_id)).state is TurnState.QUEUED


async def test_interrupt_lets_a_recovered_turn_end_what_it_showed(store: Store) -> None:
    shown = await store.accept(event(chat("shown")))
    await store.claim("me", 60, 5)
    await store.save_reply(
        shown.turn_id,
        Snapshot(1, "half"),
        ReplyPart(shown.turn_id, 0, "card", "k", PartState.CONFIRMED),
    )
    await store.release(shown.turn_id, "me")
    newest = await store.accept(event(chat("newest", while_busy=WhileBusy.INTERRUPT)))
    assert newest.interrupted == (shown.turn_id,)
    (turn,) = await store.claim("me", 60, 5)
    assert (turn.id, turn.cancel_requested, turn.silent) == (shown.turn_id, True, True)


# -- dedupe keys ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("configured_h", "kept_h"), [(1, 8), (24, 24)])
async def test_prune_forgets_no_key_too_soon(
    url: str, open_store, clock, configured_h: float, kept_h: float
) -> None:
    store = await open_store(url, dedupe_hours=configured_h)
    await store.accept(event(chat(), key="old"))
    clock.pass_s(kept_h * 3600)
    await store.accept(event(chat(), key="new"))
    assert await store.prune() == 0
    assert (await store.accept(event(chat(), key="old"))).duplicate
    clock.pass_s(1)
    assert await store.prune() == 1
    assert not (await store.accept(event(chat(), key="old"))).duplicate
    assert (await store.accept(event(chat(), key="new"))).duplicate


async def test_prune_deletes_any_number(
    store: Store, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.store.inbox._PRUNE_BATCH", 50)
    await asyncio.gather(*(store.accept(event(None, key=f"k{n}")) for n in range(120)))
    clock.pass_s(timedelta(hours=25).total_seconds())
    assert await store.prune() == 120
    assert await store.prune() == 0


async def test_keys_are_kept_as_hashes_only(sqlite_url: str, open_store) -> None:
    store = await open_store(sqlite_url)
    await store.accept(event(None, key="om_very_telling_key"))
    await store.close()
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as raw:
        ((kept,),) = raw.execute("SELECT hash FROM dedupe").fetchall()
    raw.close()
    assert len(kept) == 32
    assert b"telling" not in kept


async def test_a_message_is_taken_back_out_of_several(store: Store) -> None:
    merge = WhileBusy.MERGE
    for n, text in enumerate(["one\n", "", "three"]):
        draft = chat(text, message_id=f"m{n}", while_busy=merge)
        await store.accept(event(replace(draft, attachments=(Attachment("file", f"{n}"),))))
    taken = await store.take_back("app", "m0")
    assert taken is not None
    assert taken.goes_on
    turn = await store.turn(taken.turn.id)
    assert turn is not None
    assert (turn.question, turn.message_ids) == ("three", ("m1", "m2"))
    assert [one.name for one in turn.attachments] == ["1", "2"]
    assert await store.take_back("app", "m0") is None

    await store.claim("me", 60, 5)
    for _ in range(2):
        taken = await store.take_back("app", "m2")
        assert taken is not None
        assert (taken.goes_on, taken.turn.state) == (False, TurnState.RUNNING)
    assert await store.finish_turn(turn.id, "me", TurnState.CANCELLED)
    (rest,) = await store.claim("me", 60, 5)
    assert (rest.question, rest.message_ids, rest.target.reply_to) == ("", ("m1",), "m1")
    assert [one.name for one in rest.attachments] == ["1"]

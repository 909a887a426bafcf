"""Groups on both databases: held pastes, messages that are referred to, what was heard and whose words are never kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from bot.domain.listening import Heard
from bot.domain.types import (
    Attachment,
    Outcome,
    PartState,
    Quoted,
    ReplyPart,
    Sender,
    SessionKey,
    Snapshot,
    TurnState,
    WhileBusy,
)
from tests.store_drafts import chat, event, notice, session_key

QUOTE = Quoted("om_0", "two\nlines", (Attachment("file", "a.txt", "k", "om_0"),), True)


def _held(text: str, hold_s: float, **changes):
    return event(replace(chat(text, **changes), hold_s=hold_s, joins_paste=True))


async def test_a_held_turn_is_not_claimed_before_its_time(store, clock) -> None:
    accepted = await store.accept(_held("part one", 0.3))
    behind = await store.accept(event(chat("next")))
    assert await store.claim("me", 15, 9) == [], "nor is what stands behind it in its session"
    clock.pass_s(0.4)
    await asyncio.sleep(0.4)  # PostgreSQL's own clock
    assert [turn.id for turn in await store.claim("me", 15, 9)] == [accepted.turn_id]
    await store.finish_turn(accepted.turn_id, "me", TurnState.DONE)
    assert [turn.id for turn in await store.claim("me", 15, 9)] == [behind.turn_id]


async def test_parts_join_while_it_is_held_whatever_else_is_configured(store, clock) -> None:
    first = await store.accept(_held("one", 60, while_busy=WhileBusy.QUEUE))
    other = await store.accept(_held("mine", 0, user="u2", while_busy=WhileBusy.QUEUE))
    second = await store.accept(_held("two", 60, while_busy=WhileBusy.INTERRUPT))
    assert (second.merged, second.turn_id, other.merged) == (True, first.turn_id, False)
    aside = await store.accept(event(chat("by a timer", while_busy=WhileBusy.QUEUE)))
    assert not aside.merged
    third = await store.accept(_held("three", 0, while_busy=WhileBusy.QUEUE))
    assert third.turn_id == first.turn_id
    taken = {turn.id: turn.question for turn in await store.claim("me", 15, 9)}
    assert taken == {first.turn_id: "one\ntwo\nthree", other.turn_id: "mine"}


async def test_the_last_part_ends_the_waiting(store) -> None:
    await store.accept(_held("one", 60, while_busy=WhileBusy.QUEUE))
    last = await store.accept(_held("two", 0, while_busy=WhileBusy.QUEUE))
    (turn,) = await store.claim("me", 15, 9)
    assert (turn.id, turn.question, len(turn.message_ids)) == (last.turn_id, "one\ntwo", 2)
    later = await store.accept(_held("three", 0, while_busy=WhileBusy.QUEUE))
    assert not later.merged


async def test_quotes_are_kept_merged_and_erased(store) -> None:
    await store.accept(event(replace(chat("a", while_busy=WhileBusy.MERGE), quotes=(QUOTE,))))
    plain = replace(chat("b", while_busy=WhileBusy.MERGE), quotes=(Quoted("om_9"),))
    await store.accept(event(plain))
    (turn,) = await store.claim("me", 15, 9)
    assert turn.quotes == (QUOTE, Quoted("om_9"))
    await store.finish_turn(turn.id, "me", TurnState.DONE)
    old, _new = await store.next_epoch(turn.session, erase_from_prompt=True)
    await store.forget_session(replace(turn.session, epoch=old.key.epoch), but_turn="")
    erased = await store.turn(turn.id)
    assert (erased.question, erased.quotes) == ("", ())


async def test_what_a_message_said(store) -> None:
    await store.accept(event(chat("the question", message_id="om_q")))
    (turn,) = await store.claim("me", 15, 9)
    sign = ReplyPart(turn.id, -1, "sign", "", PartState.CONFIRMED, message_id="om_q")
    parts = [
        ReplyPart(turn.id, n, "card", f"k{n}", PartState.CONFIRMED, message_id=f"om_{n}",
                  covers_from_chars=6 * n, covers_to_chars=6 * n + 5)
        for n in range(2)
    ]  # fmt: skip
    final = Snapshot(1, "first second", outcome=Outcome.COMPLETE)
    for part in (sign, *parts):
        await store.save_reply(turn.id, final, part)
    assert await store.said_in("app", "c1", "om_q") == "the question"
    assert await store.said_in("app", "c1", "om_0") == "first"
    assert await store.said_in("app", "c1", "om_1") == "secon"
    for place in (("app", "c2", "om_0"), ("other", "c1", "om_0"), ("app", "c1", "om_7"), ("app", "c1", "")):  # fmt: skip
        assert await store.said_in(*place) == ""
    later = await store.accept(event(replace(chat("again"), quotes=(Quoted('om_"%'),))))
    again = await store.turn(later.turn_id)
    assert await store.knows_message(again, "om_q")
    assert not await store.knows_message(again, 'om_"%')
    last = await store.turn((await store.accept(event(chat("more")))).turn_id)
    assert await store.knows_message(last, 'om_"%')
    assert not await store.knows_message(last, 'om_"x')
    await store.next_epoch(turn.session, erase_from_prompt=True)
    assert await store.said_in("app", "c1", "om_0") == "", "what /reset took away is not quoted"


def _said(clock, n: int, user: str = "bob") -> Heard:
    return Heard(f"h{n}", Sender(user, user.title()), f"talk {n}", clock() + timedelta(seconds=n))


async def test_the_newest_are_kept_once_each(store, clock) -> None:
    for n in range(5):
        assert await store.hear("app", "g", _said(clock, n), keep=3)
    assert not await store.hear("app", "g", _said(clock, 4), keep=3)
    await store.hear("app", "other", _said(clock, 7), keep=3)
    found = await store.heard("app", "g", clock(), 99)
    assert found == [_said(clock, n) for n in (2, 3, 4)]
    assert [one.text for one in await store.heard("app", "g", clock(), 1)] == ["talk 4"]
    assert await store.heard("app", "g", clock() + timedelta(seconds=4), 99) == []


async def test_whose_words_are_not_wanted(store, clock) -> None:
    await store.hear("app", "g", _said(clock, 1), keep=9)
    await store.hear("app", "h", _said(clock, 2), keep=9)
    await store.hear("app", "g", _said(clock, 3, "carl"), keep=9)
    assert await store.exclude("app", "bob", excluded=True) == 2
    assert await store.exclude("app", "bob", excluded=True) == 0
    assert not await store.hear("app", "g", _said(clock, 4), keep=9)
    assert await store.people_heard() == [("app", "carl")]
    await store.exclude("app", "bob", excluded=False)
    assert await store.hear("app", "g", _said(clock, 4), keep=9)


async def test_who_said_something_last(store, clock) -> None:
    await store.hear("app", "g", _said(clock, 1), keep=9)
    soon = clock() + timedelta(hours=1)
    assert await store.last_said("app", "g", "bob", soon) == clock() + timedelta(seconds=1)
    assert await store.last_said("app", "g", "bob", clock()) is None
    clock.pass_s(60)
    key = SessionKey("app", "g", None, "bob")
    await store.accept(event(replace(chat("hm?", user="bob"), session=key)))
    assert await store.last_said("app", "g", "bob", soon) == clock()
    assert await store.last_said("app", "h", "bob", soon) is None


async def test_listening_begins_once_and_ends_without_a_trace(store, clock) -> None:
    told = event(notice("I listen"))
    assert await store.begin_listening("app", "g", told)
    assert not await store.begin_listening("app", "g", event(notice("again")))
    assert len(await store.claim("me", 15, 9)) == 1
    await store.hear("app", "g", _said(clock, 1), keep=9)
    assert await store.chats_heard() == [("app", "g")]
    await store.end_listening("app", "g")
    assert (await store.chats_heard(), await store.people_heard()) == ([], [])
    assert await store.begin_listening("app", "g", event(notice("anew")))


async def test_what_goes(store, clock) -> None:
    for n in range(4):
        await store.hear("app", "g" if n else "h", _said(clock, n), keep=9)
    assert await store.unhear("app", message_id="h1") == 1
    assert await store.unhear("app", chat_id="h") == 1
    assert await store.prune_heard(clock() + timedelta(seconds=3)) == 1
    assert await store.unhear("other") == 0
    assert await store.unhear("app", user_id="bob") == 1


async def test_sessions_of_two_people_in_one_group_do_not_mix(store) -> None:
    shared = replace(chat("one"), session=session_key(shared=True), hold_s=60, joins_paste=True)
    await store.accept(event(shared))
    other = replace(shared, asker=Sender("u2"), question="two", message_id="om_u2", hold_s=0)
    assert not (await store.accept(event(other))).merged

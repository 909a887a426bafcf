"""Files as text: read once per conversation, the same on both databases, gone with what is forgotten."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import sqlalchemy as sa

from bot.domain.documents import Document, DocumentState, cut_pieces
from bot.domain.types import Attachment, Outcome, Snapshot, Turn, TurnState
from bot.store import Store
from tests.store_drafts import chat, event, session_key

PAGES = ["第一页：预算是一万二。" * 60, "", "Page three says hello. 🎂"]


async def asked(store: Store) -> Turn:
    draft = replace(chat("what is in it?"), attachments=(Attachment("file", "a.pdf", "key"),))
    turn = await store.turn((await store.accept(event(draft))).turn_id)
    assert turn is not None
    return turn


async def kept(store: Store, turn: Turn, source: str = "s1") -> Document:
    pieces = cut_pieces(PAGES, numbered=True)
    found = Document(source, "a.pdf", DocumentState.READ, turn.turn_no, 3, 999, is_cut=True)
    return await store.save_document(turn, found, pieces)


async def n_rows(store: Store) -> tuple[int, int]:
    def count(connection: sa.Connection) -> tuple[int, int]:
        texts = ("SELECT count(*) FROM documents", "SELECT count(*) FROM document_pieces")
        one, two = (connection.execute(sa.text(text)).scalar_one() for text in texts)
        return one, two

    return await store._db.read(count)


async def ended(store: Store, turn: Turn) -> None:
    await store.claim("me", 60, 10)
    await store.save_reply(turn.id, Snapshot(1, "an answer", (), Outcome.COMPLETE), None)
    await store.finish_turn(turn.id, "me", TurnState.DONE)


async def test_what_was_read_comes_back_word_for_word(store: Store) -> None:
    turn = await asked(store)
    made = await kept(store, turn)
    pieces = cut_pieces(PAGES, numbered=True)
    assert made.id > 0
    assert (made.n_pieces, made.is_cut) == (len(pieces), True)
    assert await store.document(turn.session_id, "s1") == made
    assert await store.documents(turn.session_id) == [made]
    assert tuple(await store.document_pieces(made.id)) == pieces
    assert await store.document(turn.session_id, "other") is None


async def test_the_first_to_come_stays(store: Store) -> None:
    turn = await asked(store)
    first = await kept(store, turn)
    late = Document("s1", "other name", DocumentState.UNREADABLE, 9)
    assert await store.save_document(turn, late, ()) == first
    assert await n_rows(store) == (1, first.n_pieces)


async def test_a_file_that_could_not_be_read_is_kept_without_pieces(store: Store) -> None:
    turn = await asked(store)
    failed = Document("s1", "a.pdf", DocumentState.ENCRYPTED, turn.turn_no)
    assert (await store.save_document(turn, failed, ())).state is DocumentState.ENCRYPTED
    assert await n_rows(store) == (1, 0)


async def test_reset_and_forget_leave_nothing_of_it(store: Store) -> None:
    turn = await asked(store)
    await kept(store, turn)
    await ended(store, turn)
    old, _ = await store.next_epoch(session_key(), erase_from_prompt=True)
    assert await n_rows(store) == (0, 0)
    assert (await kept(store, turn)).id == 0, "a reading that ends late brings nothing back"
    assert await store.documents(old.id) == []


async def test_the_next_topic_knows_nothing_of_it_and_forgetting_erases_it(store: Store) -> None:
    turn = await asked(store)
    await kept(store, turn)
    await ended(store, turn)
    _, new = await store.next_epoch(session_key(), erase_from_prompt=False)
    assert await store.documents(new.id) == []
    assert len(await store.documents(turn.session_id)) == 1
    await store.forget_session(new.key, but_turn="")
    assert await n_rows(store) == (0, 0)


async def test_a_forgotten_turn_takes_its_file_along_and_no_other(store: Store) -> None:
    one, two = await asked(store), await asked(store)
    await kept(store, one, "s1")
    await kept(store, two, "s2")
    await ended(store, one)
    await store.forget_turns(
        one.session_id, from_turn_no=1, before_turn_no=two.turn_no, asker_id=None
    )
    assert [found.source for found in await store.documents(one.session_id)] == ["s2"]
    assert (await kept(store, one, "s3")).id == 0


async def test_retention_deletes_documents_with_their_session(store: Store, clock) -> None:
    turn = await asked(store)
    await kept(store, turn)
    await ended(store, turn)
    clock.pass_s(100)
    assert len(await store.delete_older(clock() - timedelta(seconds=10), 10)) == 1
    assert await n_rows(store) == (0, 0)

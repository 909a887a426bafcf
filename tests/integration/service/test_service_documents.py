"""A file through everything: webhook, download from the strict sandbox, the child that reads it, the prompt, the card."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tests.support import filekit

PAGES = [
    f"Page {n} tells of the weather.\nIt was mild.\n" + "And so on.\n" * 40 for n in range(1, 41)
]
PAGES[22] = "The combination of the safe is 4711.\nThe owner keeps it.\n" + "And so on.\n" * 40


async def send(rig: Any, chat: Any, user: Any, name: str, data: bytes) -> Any:
    stored = rig.sandbox.add_file(name, data)
    content = {"file_key": stored.key, "file_name": name}
    return await rig.sandbox.say(chat, user, content, message_type="file")


async def test_a_pdf_is_sent_and_asked_about(make_rig: Any) -> None:
    rig = await make_rig()
    ann = rig.sandbox.add_user("Ann")
    chat = rig.sandbox.direct_chat(ann)
    sent = await send(rig, chat, ann, "book.pdf", filekit.pdf(PAGES))
    (taken,) = await rig.settled(sent)
    assert "I have read “book.pdf” (40 pages), about" in taken
    asked = await rig.sandbox.say(chat, ann, "What is the combination of the safe?")
    (answer,) = await rig.settled(asked)
    assert "Of the 40 pages of “book.pdf” this answer used: 1" in answer
    assert "23" in answer.rpartition("used:")[2]
    assert len(rig.sandbox.calls_of("message.resource")) == 1
    assert rig.sandbox.violations == []


async def test_what_was_read_survives_a_death_and_is_not_fetched_again(make_rig: Any) -> None:
    rig = await make_rig(fake={"reply": "word " * 16, "token_delay_s": "0.02"})
    ann = rig.sandbox.add_user("Ann")
    chat = rig.sandbox.direct_chat(ann)
    sent = await send(rig, chat, ann, "notes.txt", "地窖的钥匙挂在钟的后面。".encode("gb18030"))
    await rig.settled(sent)
    asked = await rig.sandbox.say(chat, ann, "Where is the key in the file?")
    await rig.growing(asked)
    await rig.kill()
    await rig.start()
    answers = await rig.settled(asked)
    assert len(answers) == 1
    assert len(rig.sandbox.calls_of("message.resource")) == 1
    kept = await rig.store._db.read(
        lambda c: c.execute(sa.text("SELECT text FROM document_pieces")).scalars().all()
    )
    assert kept == ["地窖的钥匙挂在钟的后面。"]


async def test_a_refused_download_is_told_and_no_one_waits_behind_it(make_rig: Any) -> None:
    rig = await make_rig()
    ann, bob = rig.sandbox.add_user("Ann"), rig.sandbox.add_user("Bob")
    anns, bobs = rig.sandbox.direct_chat(ann), rig.sandbox.direct_chat(bob)
    rig.sandbox.faults.bad_gateway("message.resource", 9)
    sent = await send(rig, anns, ann, "a.txt", b"words")
    asked = await rig.sandbox.say(bobs, bob, "hello")
    await rig.settled(asked)
    assert not rig.is_settled(sent)
    (told,) = await rig.settled(sent)
    assert "could not be downloaded" in told
    assert len(rig.sandbox.calls_of("message.resource")) == 3

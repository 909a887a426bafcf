"""Files with and without a question: read once, shown beside it, told of; and everything that can go wrong with them."""

from __future__ import annotations

import asyncio

import pytest

from bot.domain.types import Attachment, Outcome
from bot.errors import GiveUp, RetryLater
from bot.service import documents as reading
from engine.types import Priority
from tests.support import filekit

N_CTX = 4096
NOTES = "The cellar key hangs behind the clock.\n" * 3
PAGES = [f"Chapter {n} speaks of nothing but weather. " * 12 for n in range(1, 13)]
PAGES[6] = "The combination of the safe is 4711, says the owner. " + "And so on. " * 30


def file(key: str = "k1", name: str = "notes.txt") -> Attachment:
    return Attachment("file", name, key)


def newest(world, tools) -> str:
    request = [r for r in world.engine.requests if r.priority < Priority.BACKGROUND][-1]
    assert len(request.prompt_tokens) + request.max_new_tokens <= N_CTX
    return tools.text_of(request).rpartition("<user>")[2]


async def ask(world, text, data=None, **changes):
    attachment = changes.pop("attachment", file())
    if data is not None:
        world.adapter.files[attachment.remote_key] = data
    said = await world.say(text, attachments=(attachment,) if attachment else (), **changes)
    return said, await world.final(said)


async def test_a_short_file_is_shown_whole_before_the_question(world, tools):
    said, view = await ask(world, "Where is the key?", NOTES.encode())
    prompt = newest(world, tools)
    assert prompt.startswith("(From here to “end of the file” is the text of “notes.txt”, to")
    assert NOTES.strip() in prompt
    assert prompt.index(NOTES.strip()) < prompt.index("Where is the key?")
    assert view.notice == "", "all of it was used: nothing to tell"
    turn = await world.turn(said)
    assert turn.prompt_text == "(The message came with: “notes.txt”)\nWhere is the key?"


async def test_of_a_long_one_the_parts_that_matter_are_shown_and_told(world, tools):
    attachment = file(name="book.pdf")
    pages = [page.replace(". ", ".\n") for page in PAGES]
    _, view = await ask(
        world, "What is the combination of the safe?", filekit.pdf(pages), attachment=attachment
    )
    prompt = newest(world, tools)
    assert "“book.pdf” (12 pages), in excerpts" in prompt
    assert "[page 7]\nThe combination of the safe is 4711" in prompt
    assert "[page 1]" in prompt
    assert "Chapter 12" not in prompt
    assert view.notice.startswith("Of the 12 pages of “book.pdf” this answer used: 1")
    assert "7" in view.notice


async def test_a_file_alone_is_taken_and_the_next_question_is_about_it(world, tools):
    _, view = await ask(world, "", NOTES.encode())
    n_chars = len(NOTES.strip())
    assert view.text == f"I have read “notes.txt”, about {n_chars} characters. What would you like to know?"  # fmt: skip
    assert world.engine.requests == []
    _, view = await ask(world, "Where is it?", attachment=None)
    prompt = newest(world, tools)
    assert NOTES.strip() in prompt
    history = tools.text_of(world.engine.requests[-1])
    assert "<user>(The message came with: “notes.txt”)\n<assistant>I have read" in history
    assert world.adapter.fetched == [("k1", world.adapter.fetched[0][1])], "fetched once"


async def test_later_questions_get_only_what_bears_on_them(world, tools):
    await ask(world, "Where is the key?", NOTES.encode())
    await ask(world, "Thank you!", attachment=None)
    await ask(world, "How was the weather in Rome?", attachment=None)
    assert "cellar" not in newest(world, tools)
    _, view = await ask(world, "So the cellar key hangs behind the clock?", attachment=None)
    assert "cellar key hangs behind the clock.\n" in newest(world, tools)
    assert view.notice == ""
    await ask(world, "What else is in the file?", attachment=None)
    assert "cellar key hangs" in newest(world, tools)


async def test_a_new_topic_knows_nothing_of_it(world, tools):
    await ask(world, "Where is the key?", NOTES.encode())
    await world.final(await world.say("/new"))
    await ask(world, "What is in the file?", attachment=None)
    assert "cellar" not in newest(world, tools)


async def test_retry_fetches_nothing_again(world, tools):
    await ask(world, "Where is the key?", NOTES.encode())
    world.adapter.files.clear()
    said = await world.say("/retry")
    await world.settled(said)
    await tools.eventually(lambda: len(world.engine.requests) == 2)
    assert NOTES.strip() in newest(world, tools)
    assert len(world.adapter.fetched) == 1


@pytest.mark.parametrize(
    ("data", "name", "sentence"),
    [
        (b"x" * 3000, "big.txt", "“big.txt” is too big to be read (the limit is 2000B)."),
        (b"PK\x03\x04 broken", "a.docx", "“a.docx” is damaged or too complex to be read."),
        (b" \n ", "empty.md", "There is no text in “empty.md” (a scan or a picture, perhaps)."),
        (bytes(range(256)), "", "I cannot read files like the file; text, code, csv, PDF and Word (docx) work."),
        (GiveUp("gone"), "a.txt", "“a.txt” could not be downloaded. Please send it again."),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_told_and_the_question_answered(
    world, tools, data, name, sentence
):
    world.service.reload(tools.make_config(documents={"max_bytes": "2000B"}))
    _, view = await ask(world, "And?", data, attachment=file(name=name))
    assert (view.text, view.notice) == ("Hello there", sentence)
    assert "attachments that you cannot see: file" in newest(world, tools)
    _, view = await ask(world, "", data, attachment=file(name=name))
    assert view.text == sentence
    assert view.outcome is Outcome.COMPLETE


async def test_a_locked_pdf_is_named(world):
    data = filekit.locked_pdf("secret", "pw")
    _, view = await ask(world, "", data, attachment=file(name="locked.pdf"))
    assert view.text == "“locked.pdf” needs a password. Please send one without."


async def test_a_platform_that_stumbles_is_asked_again(world, tools):
    answers = [RetryLater("later", after_s=0.001), RetryLater("later", after_s=0.001), NOTES.encode()]  # fmt: skip
    _, view = await ask(world, "Where is the key?", answers)
    assert NOTES.strip() in newest(world, tools)
    assert view.notice == ""


async def test_what_was_not_fetched_may_be_fetched_by_a_retry(world, tools):
    await ask(world, "Where is the key?", GiveUp("gone"))
    world.adapter.files["k1"] = NOTES.encode()
    await world.settled(await world.say("/retry"))
    await tools.eventually(lambda: len(world.engine.requests) == 2)
    assert NOTES.strip() in newest(world, tools)


async def test_reading_begins_at_once_while_the_turn_still_waits(world, tools):
    hold = asyncio.Event()
    world.engine.scripts = [tools.Script(hold=hold)]
    first = await world.say("A long question")
    await tools.eventually(lambda: bool(world.engine.requests))
    world.adapter.files["k1"] = NOTES.encode()
    second = await world.say("", attachments=(file(),))
    await tools.eventually(lambda: bool(world.adapter.fetched))
    third = await world.say("Where is the key?")
    hold.set()
    await world.final(first)
    assert (await world.turn(second)).id == (await world.turn(third)).id, "merged into one"
    view = await world.final(third)
    assert view.text == "Hello there"
    assert NOTES.strip() in newest(world, tools)
    assert world.adapter.fetched == [("k1", second.message_id)], "by the message that brought it"


async def test_a_dead_process_leaves_a_turn_that_reads_anew_and_finds_the_message(world, tools):
    gate = asyncio.Event()
    world.engine.scripts = [tools.Script(hold=gate)]
    await world.say("A long question")
    await tools.eventually(lambda: bool(world.engine.requests))
    world.adapter.files["k1"] = GiveUp("not yet")
    await world.say("", attachments=(file(),))
    await tools.eventually(lambda: bool(world.adapter.fetched))
    said = await world.say("Where is the key?")
    world.kill()
    await world.service._context.documents.close()
    world.adapter.fetched.clear()
    # This platform wants the very message that brought the file.
    world.adapter.files["k1"] = [GiveUp("not in this message"), NOTES.encode()]
    gate.set()
    await world.start()
    view = await world.final(said)
    assert view.text == "Hello there"
    assert NOTES.strip() in newest(world, tools)
    assert len({reply_to for _, reply_to in world.adapter.fetched}) == 2


async def test_stop_ends_a_turn_that_is_reading(world, tools, monkeypatch):
    begun, never = asyncio.Event(), asyncio.Event()

    async def hang(data: bytes) -> None:
        begun.set()
        await never.wait()

    monkeypatch.setattr(reading, "extract", hang)
    world.adapter.files["k1"] = b"x"
    said = await world.say("And?", attachments=(file(),))
    await asyncio.wait_for(begun.wait(), 5)
    await world.final(await world.say("/stop"))
    turn = await world.settled(said)
    assert turn.state.value == "cancelled"
    assert world.engine.requests == []


async def test_switched_off_nothing_is_fetched(world, tools):
    world.service.reload(tools.make_config(documents={"enabled": False}))
    _, view = await ask(world, "", NOTES.encode())
    assert "only read text" in view.text
    _, view = await ask(world, "And?", attachment=file())
    assert world.adapter.fetched == []
    assert "attachments that you cannot see: file" in newest(world, tools)


async def test_older_turns_give_way_to_a_file_that_comes_with_the_question(world, tools):
    for n in range(6):
        await ask(world, f"Lunch {n}: " + "and so on, " * 50, attachment=None)
    _, view = await ask(world, "Where is the key?", (NOTES * 10).encode())
    prompt = newest(world, tools)
    assert "cellar key hangs" in prompt
    assert "Lunch 0" not in tools.text_of(world.engine.requests[-1])
    assert view.outcome is Outcome.COMPLETE

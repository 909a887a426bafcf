"""`/summary`: long texts in the background, part by part; people go on meanwhile, restarts go on, weak models do no harm."""

from __future__ import annotations

import asyncio

import pytest

from bot.documents import Extracted
from bot.domain.documents import DocumentState
from bot.domain.types import Attachment, Lane, Outcome
from bot.service import digest as digest_module
from bot.service import documents as reading
from engine.types import Failed, FailureCode, FinishReason, Priority
from tests.support import filekit

N_CTX = 4096
STORY = [
    f"House {n}: the keeper of lamp {n} counts {n} boats and {n + 7} gulls before breakfast. "
    f"The council pays {n * 100} crowns for oil. Nobody complains about the weather there.\n"
    for n in range(1, 81)
]
BOOK = "".join(STORY)


class Writer:
    """Makes a ScriptEngine's background answer by what it is asked."""

    def __init__(self, world, tools) -> None:
        outer = self
        self.tools = tools
        self.asked: list[str] = []
        self.answer = self.summary
        self.hold_at: dict[int, asyncio.Event] = {}
        self.hold_joined: asyncio.Event | None = None
        self.fail_at: set[int] = set()

        class Engine(type(world.engine)):
            async def submit(self, request):
                if request.priority >= Priority.BACKGROUND:
                    assert len(request.prompt_tokens) + request.max_new_tokens <= N_CTX
                    self.background = await outer.script(tools.text_of(request))
                async for event in super().submit(request):
                    yield event

        world.engine.__class__ = Engine

    def summary(self, asked: str) -> str:
        """Some of the lines that it is shown: what a model would make of them holds some of their figures, too."""
        lines = [line.removeprefix("- ") for line in asked.splitlines()]
        lines = [line for line in lines if line.startswith("House")]
        return "\n".join(lines[: 2 if "each part" in asked else 5])

    async def script(self, asked: str):
        self.asked.append(asked)
        n = len(self.asked)
        if n in self.hold_at:
            await self.hold_at[n].wait()
        if self.hold_joined is not None and "each part" in asked:
            await self.hold_joined.wait()
        failure = None
        if n in self.fail_at:
            failure = Failed(request_id="", code=FailureCode.ENGINE_DIED, retryable=True)
        answer = self.answer(asked)
        reason = FinishReason.STOP
        if isinstance(answer, tuple):
            answer, reason = answer
        words = [f"{word} " for word in answer.split(" ")] if answer else []
        return self.tools.Script(
            words=words or [""], reason=reason, fail_after=0 if failure else None, failure=failure
        )

    @property
    def parts(self) -> list[str]:
        return [asked for asked in self.asked if "is a part of" in asked]


@pytest.fixture
def writer(world, tools):
    return Writer(world, tools)


@pytest.fixture(autouse=True)
def plain_text_at_once(monkeypatch):
    """A child process for each plain text would be most of the tests' time."""
    extract = reading.extract

    async def quick(data: bytes) -> Extracted:
        if data.startswith((b"%PDF", b"PK")):
            return await extract(data)
        return Extracted(DocumentState.READ, (data.decode().strip(),))

    monkeypatch.setattr(reading, "extract", quick)


def file(name: str = "book.txt") -> Attachment:
    return Attachment("file", name, "k1")


async def send(world, data: bytes = BOOK.encode(), name: str = "book.txt") -> None:
    world.adapter.files["k1"] = data
    await world.final(await world.say("", attachments=(file(name),)))


async def turns_of(world, said):
    return await world.store.past_turns((await world.turn(said)).session_id)


def statuses(world, turn_id: str) -> list[str]:
    return [view.status for view in world.adapter.shown(turn_id).views]


async def test_a_long_file_is_read_in_parts_and_put_together(world, tools, writer, quiet_logs):
    await send(world)
    gates = writer.hold_at[2], writer.hold_joined = asyncio.Event(), asyncio.Event()
    said = await world.say("/summary")
    turn = await world.turn(said)
    await tools.eventually(lambda: any("part 2 of" in text for text in statuses(world, turn.id)))
    gates[0].set()
    await tools.eventually(lambda: "together" in statuses(world, turn.id)[-1])
    gates[1].set()
    view = await world.final(said)
    n_parts = sum(line["event"] == "digest_part" for line in quiet_logs)
    assert n_parts >= 4
    assert view.text == writer.summary(writer.asked[-1])
    n_chars = len(BOOK.strip())
    assert view.notice == (
        f"This summary is of all of “book.txt” (about {n_chars} characters; parts: {n_parts})."
    )
    turn = await world.turn(said)
    assert turn.lane is Lane.BACKGROUND
    shown = statuses(world, turn.id)
    assert f"Reading “book.txt”: part 2 of {n_parts}…" in shown
    assert shown[-1] == f"All {n_parts} parts of “book.txt” are read; putting them together…"
    # Every line of the file was in some part, and the parts' summaries are what is put together.
    for line in STORY:
        assert sum(line.strip() in asked for asked in writer.parts[:n_parts]) == 1
    for n in range(1, n_parts + 1):
        assert any(f"Part {n}:\nHouse " in asked for asked in writer.asked[n_parts:])


async def test_it_is_a_turn_of_the_talk(world, tools, writer):
    await send(world)
    await world.final(await world.say("/summary"))
    await world.final(await world.say("Thanks! How many boats?"))
    _, _, warmed = world.engine.warmed[0]
    assert world.engine.requests[-1].prompt_tokens[: len(warmed)] == warmed, "computed ahead"
    prompt = tools.text_of(world.engine.requests[-1])
    assert "<user>Please summarize “book.txt”.\n<assistant>House 1: the keeper" in prompt
    assert prompt.index("Please summarize") < prompt.index("Thanks!")


async def test_pages_are_named(world, writer):
    pages = [
        f"House {n}: the keeper counts {n} boats.\n" + "The gulls shout.\n" * 60 for n in (1, 2, 3)
    ]
    await send(world, filekit.pdf(pages), "book.pdf")
    view = await world.final(await world.say("/总结"))
    assert "of all of “book.pdf” (3 pages)" in view.notice
    assert "Pages 1" in writer.asked[-1]


async def test_people_go_on_meanwhile_and_it_becomes_the_newest_turn(world, tools, writer):
    await send(world)
    gate = writer.hold_at[2] = asyncio.Event()
    said = await world.say("/summary")
    await tools.eventually(lambda: len(writer.asked) == 2)
    for n in range(3):
        assert await world.answer(await world.say(f"Question {n}")) == "Hello there"
    again = await world.final(await world.say("/summary"))
    assert again.text == "A summary is being made here already. Wait for it, or end it with /stop."
    gate.set()
    await world.final(said)
    past = await turns_of(world, said)
    assert past[-1].prompt_text == "Please summarize “book.txt”."
    assert past[-1].turn_no > past[-2].turn_no
    await world.final(await world.say("And now?"))
    prompt = tools.text_of(world.engine.requests[-1])
    assert prompt.index("Question 2") < prompt.index("Please summarize") < prompt.index("And now?")


async def test_a_question_does_not_join_or_end_a_waiting_summary(world, tools, writer):
    world.service.reload(tools.make_config(chat={"while_busy": "interrupt"}))
    await send(world)
    gate = writer.hold_at[1] = asyncio.Event()
    said = await world.say("/summary")
    await tools.eventually(lambda: len(writer.asked) == 1)
    assert await world.answer(await world.say("A question")) == "Hello there"
    gate.set()
    assert (await world.final(said)).outcome is Outcome.COMPLETE


async def test_stop_ends_it_and_leaves_nothing(world, tools, writer):
    await send(world)
    writer.hold_at[3] = asyncio.Event()
    said = await world.say("/summary")
    await tools.eventually(lambda: len(writer.asked) == 3)
    turn = await world.turn(said)
    assert len(await world.store.digest_parts(turn.id)) == 2
    await world.final(await world.say("/stop"))
    turn = await world.settled(said)
    assert turn.state.value == "cancelled"
    assert await world.store.digest_parts(turn.id) == []
    assert len(await turns_of(world, said)) == 1, "the file's own turn"


async def test_a_restart_goes_on_behind_the_last_part(world, tools, writer):
    await send(world)
    writer.hold_at[3] = asyncio.Event()
    said = await world.say("/summary")
    await tools.eventually(lambda: len(writer.asked) == 3)
    before = list(writer.parts)
    world.kill()
    writer.hold_at.clear()
    await world.start()
    view = await world.final(said)
    assert view.outcome is Outcome.COMPLETE
    again = writer.parts[len(before) :]
    assert before[0] not in again
    assert before[1] not in again
    assert again[0] == before[2], "the part that was being read is read again"
    for line in STORY:
        assert any(line.strip() in asked for asked in [*before, *again])


async def test_an_engine_that_dies_is_waited_for(world, tools, writer):
    await send(world)
    writer.fail_at = {2, 5}
    view = await world.final(await world.say("/summary"))
    assert view.text == writer.summary(writer.asked[-1])
    assert len(set(writer.parts)) == len(writer.parts) - 2


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I cannot help with travel plans, please provide more context instead.",
        ("and so on " * 400, FinishReason.LENGTH),
    ],
    ids=["nothing", "something else", "without end"],
)
async def test_a_weak_model_gives_an_extract(world, writer, answer):
    await send(world)
    writer.answer = lambda asked: answer
    view = await world.final(await world.say("/summary"))
    assert view.outcome is Outcome.COMPLETE
    lines = view.text.splitlines()
    assert lines
    for line in lines:
        assert line.removeprefix("- ") in BOOK
    assert len(view.text) <= 64, "as long as a reply may be"
    assert view.notice.endswith("The model gave no usable summary; these are sentences of the text itself.")  # fmt: skip
    assert len(writer.asked) == len(set(writer.asked)), "nothing is asked twice"


async def test_parts_that_failed_are_named(world, writer):
    await send(world)
    writer.answer = lambda asked: (
        "" if "part of" in asked and "House 1:" in asked else writer.summary(asked)
    )
    view = await world.final(await world.say("/summary"))
    assert "Of part 1 the model gave no usable points" in view.notice


async def test_many_notes_are_put_together_in_several_passes(world, tools, writer, monkeypatch):
    world.service.reload(tools.make_config(chat={"max_new_tokens": 1024}))
    monkeypatch.setattr("bot.service.digesting.MOST_PART_TOKENS", 300)
    await send(world)
    long = "The keeper counts boats and gulls before breakfast, and the council pays for oil. " * 3
    writer.answer = lambda asked: (long.strip(), FinishReason.STOP)
    view = await world.final(await world.say("/summary"))
    assert view.outcome is Outcome.COMPLETE
    n_of_book = sum("\nHouse " in asked for asked in writer.parts)
    assert n_of_book >= 40
    assert len(writer.parts) > n_of_book, "summaries of summaries"
    assert len(writer.asked) <= 2 * n_of_book + 1


async def test_of_a_text_that_is_too_long_the_beginning_is_told(world, writer, monkeypatch):
    monkeypatch.setattr(digest_module, "MOST_PARTS", 2)
    await send(world)
    view = await world.final(await world.say("/summary"))
    assert len(writer.parts) == 2
    assert "“book.txt” is too long: this summary is of its first" in view.notice


async def test_without_a_file_the_talk_is_summarized(world, writer):
    for n in range(3):
        await world.final(await world.say(f"House {n} has boats?"))
    writer.answer = lambda asked: "House after house has boats."
    view = await world.final(await world.say("/summary"))
    assert view.notice == "This summary is of the 3 turns so far (parts: 1)."
    assert "Ann: House 0 has boats?\nEmber: Hello there" in writer.asked[-1]
    await send(world)
    view = await world.final(await world.say("/summary chat"))
    assert "turns so far" in view.notice


async def test_where_there_is_nothing_it_says_what_to_do(world, writer):
    view = await world.final(await world.say("/summary"))
    assert view.notice.startswith("There is nothing to summarize yet.")
    assert writer.asked == []
    await world.final(await world.say("Hello"))
    assert len(await turns_of(world, await world.say("/whoami"))) == 1


async def test_a_text_behind_the_command_and_a_wish(world, tools, writer):
    view = await world.final(await world.say("/summary " + "".join(STORY[:6])))
    assert "of all of “pasted text”" in view.notice
    assert "House 6" in writer.asked[-1]
    await world.final(await world.say("/summary only the prices"))
    assert "Asked for in particular: only the prices" in writer.asked[-1]
    assert "House 6" in writer.asked[-1], "the text sent last"
    await world.final(await world.say("Well?"))
    assert "Asked for in particular: only the prices\n<assistant>" in tools.text_of(
        world.engine.requests[-1]
    )


async def test_it_comes_in_the_language_people_write_in(world, tools, writer):
    await send(world)
    for text in ("请你用中文回答我的所有问题，谢谢你。", "这本书说的是什么地方的事情呢？"):
        await world.final(await world.say(text))
    await world.final(await world.say("/summary"))
    assert "请用中文" in writer.asked[-1]


async def test_a_file_sent_just_before_is_waited_for(world, tools, writer):
    hold = asyncio.Event()
    world.engine.scripts = [tools.Script(hold=hold)]
    first = await world.say("A long question")
    await tools.eventually(lambda: bool(world.engine.requests))
    world.adapter.files["k1"] = BOOK.encode()
    await world.say("", attachments=(file(),))
    view = await world.final(await world.say("/summary"))
    assert "“book.txt”" in view.notice
    hold.set()
    await world.final(first)


async def test_a_file_that_cannot_be_read_is_told(world, writer):
    world.adapter.files["k1"] = b"PK\x03\x04 broken"
    view = await world.final(await world.say("/summary", attachments=(file("a.docx"),)))
    assert view.notice == "“a.docx” is damaged or too complex to be read."


async def test_retry_makes_it_again_beside_the_talk(world, tools, writer):
    await send(world)
    await world.final(await world.say("/summary"))
    n_before = len(writer.parts)
    await world.final(await world.say("/retry"))
    await tools.eventually(lambda: len(writer.parts) == 2 * n_before)


async def test_a_forgotten_conversation_keeps_no_parts(world, tools, writer):
    await send(world)
    writer.hold_at[3] = asyncio.Event()
    said = await world.say("/summary")
    await tools.eventually(lambda: len(writer.asked) == 3)
    turn = await world.turn(said)
    await world.final(await world.say("/forget yes"))
    assert await world.store.digest_parts(turn.id) == []


# -- long pastes -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def pasting(world, tools):
    """Nothing is waited for behind a long message."""
    world.service.reload(tools.make_config(chat={"paste_window_s": 0.0}))


PASTE = "Please tell me which house pays 4100 crowns.\n" + BOOK + "\nWhat does house 41 pay?"


async def test_a_paste_longer_than_the_window_is_kept_in_pieces(world, tools, pasting):
    assert len(PASTE) > 3 * N_CTX
    said = await world.say(PASTE)
    view = await world.final(said)
    prompt = tools.text_of(world.engine.requests[-1]).rpartition("<user>")[2]
    assert "“pasted text”, in excerpts" in prompt
    assert "House 41: the keeper of lamp 41" in prompt
    assert view.notice.startswith("This answer used ")
    assert "summarizes all" not in view.notice
    turn = await world.turn(said)
    assert turn.prompt_text == (
        "(The message came with: “pasted text”)\nPlease tell me which house pays 4100 crowns.\n"
        "… (for the rest of this long text see the excerpts) …\nWhat does house 41 pay?"
    )
    await world.final(await world.say("Thanks."))
    await world.final(await world.say("And what does the council pay at House 73 for oil?"))
    prompt = tools.text_of(world.engine.requests[-1]).rpartition("<user>")[2]
    assert "House 73: the keeper" in prompt


async def test_a_paste_that_is_to_be_summarized_names_the_command(world, writer, pasting):
    view = await world.final(await world.say("Please give me a summary:\n" + BOOK))
    assert view.notice.endswith("/summary summarizes all of it.")
    view = await world.final(await world.say("/summary"))
    assert "of all of “pasted text”" in view.notice


async def test_a_paste_is_taken_up_again_in_the_same_words(world, tools, pasting):
    world.engine.scripts = [tools.Script(fail_after=1), tools.Script()]
    view = await world.final(await world.say(PASTE))
    first, second = world.engine.requests[:2]
    assert first.prompt_tokens == second.prompt_tokens
    assert view.text == "Hello there"


async def test_a_long_message_that_fits_is_shown_whole(world, tools):
    text = "".join(STORY[:12]) + "What is this?"
    view = await world.final(await world.say(text))
    assert text in tools.text_of(world.engine.requests[-1])
    assert view.notice == ""


async def test_with_documents_switched_off_its_middle_is_cut(world, tools):
    world.service.reload(
        tools.make_config(documents={"enabled": False}, chat={"paste_window_s": 0.0})
    )
    view = await world.final(await world.say(PASTE))
    assert view.notice == "The message was too long; a part in its middle was not read."


async def test_the_parts_of_a_long_text_behind_the_command_are_one_text(world, tools, writer):
    world.service.reload(tools.make_config(chat={"paste_window_s": 5.0}))
    first = await world.say("/summary " + "".join(STORY[:30]))
    last = await world.say("".join(STORY[30:34]))
    view = await world.final(last)
    assert (await world.turn(first)).id == (await world.turn(last)).id
    assert view.notice.startswith("This summary is of all of “pasted text”")
    assert "House 34:" in writer.parts[-1]

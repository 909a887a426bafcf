"""How an AI bot's answer grows by callback: the shelf, the driver, polls and response_url. Only the moving of bytes is replaced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bot.domain.types import Outcome, PartState, ReplyPart, ReplyTarget
from bot.errors import Ambiguous, GiveUp, RetryLater
from bot.platforms.base import Button, ReplyView
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp
from bot.platforms.wecom import pollreply, style
from bot.platforms.wecom.pollreply import PolledReply
from bot.platforms.wecom.streams import StreamShelf
from bot.platforms.wecom.urls import ResponseUrls

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
PLACE = ("c1", "zhang")
BUTTONS = (Button("stop", "Stop"),)


class Ledger:
    """Parts as a store keeps them."""

    def __init__(self, turn_id: str = "t1") -> None:
        self.turn_id = turn_id
        self._parts: dict[int, ReplyPart] = {}

    def parts(self) -> tuple[ReplyPart, ...]:
        return tuple(self._parts[n] for n in sorted(self._parts))

    async def save(self, part: ReplyPart) -> None:
        self._parts[part.n] = part


class Wire(SharedHttp):
    """response_url in miniature: each works once. `faults` are for the next calls."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.used: set[str] = set()
        self.faults: list[Exception | dict[str, Any]] = []
        self.lose = 0

    async def _move(self, request: HttpRequest) -> HttpAnswer:
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return HttpAnswer(200, {}, json.dumps(fault).encode())
        assert request.body is not None
        assert request.body["msgtype"] == "markdown"
        content = request.body["markdown"]["content"]
        assert 0 < len(content.encode()) <= 20_480
        if request.url in self.used:
            return HttpAnswer(200, {}, b'{"errcode": 60140, "errmsg": "used"}')
        self.used.add(request.url)
        self.sent.append(content)
        if self.lose:
            self.lose -= 1
            raise TimeoutError
        return HttpAnswer(200, {}, b'{"errcode": 0}')


class Stand:
    """A shelf with clocks that stand still until they are moved, and somebody who polls."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.wire = Wire()
        self.shelf = StreamShelf(330.0, clock=lambda: self.seconds)
        self.urls = ResponseUrls(self.wire, clock=lambda: self.seconds)
        self.shown: dict[str, list[str]] = {}

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def ask(self, stream_id: str = "s1", url: str = "https://q/1") -> ReplyTarget:
        self.shelf.open(stream_id, PLACE)
        opaque = {"stream": stream_id, "user": PLACE[1], "sent_at": self.now().isoformat(), "url": url}  # fmt: skip
        expires = self.now() + timedelta(hours=1)
        self.urls.remember(PLACE, url)
        return ReplyTarget("a", PLACE[0], "m1", opaque, expires)

    def driver(self, target: ReplyTarget, ledger: Ledger) -> PolledReply:
        return PolledReply(self.shelf, self.urls, target, ledger, self.now)

    def restart(self) -> None:
        self.shelf = StreamShelf(330.0, clock=lambda: self.seconds)
        self.urls = ResponseUrls(self.wire, clock=lambda: self.seconds)

    def poll(self, stream_id: str = "s1") -> dict[str, Any]:
        stream: dict[str, Any] = self.shelf.poll(stream_id).message()["stream"]
        assert stream["content"]
        assert len(stream["content"].encode()) <= 20_480
        self.shown.setdefault(stream_id, []).append(stream["content"])
        return stream

    @asynccontextmanager
    async def polling(self, stream_id: str = "s1") -> AsyncIterator[None]:
        async def ask_again() -> None:
            while not self.poll(stream_id)["finish"]:
                await asyncio.sleep(0)

        task = asyncio.create_task(ask_again())
        yield
        await task


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(pollreply, "PATIENCE_S", 0.05)
    made = Stand()

    async def wait_taken(stream: Any, _timeout_s: float) -> bool:
        for _ in range(20):
            await asyncio.sleep(0)
        return bool(stream.taken_final)

    monkeypatch.setattr(StreamShelf, "wait_taken", lambda _, stream, s: wait_taken(stream, s))
    return made


def grow(text: str, **more: Any) -> ReplyView:
    return ReplyView(len(text), text, **{"buttons": BUTTONS, "possible_repeat": "(repeat)", **more})


def done(text: str, outcome: Outcome = Outcome.COMPLETE, **more: Any) -> ReplyView:
    return ReplyView(10**6, text, outcome=outcome, **{"buttons": BUTTONS, "possible_repeat": "(repeat)", **more})  # fmt: skip


# -- the usual way ----------------------------------------------------------------------------------------------------
async def test_an_answer_grows_and_is_taken(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    assert stand.poll()["content"] == style.PLACEHOLDER
    await reply.show(grow("", status="第 3 位"))
    assert stand.poll() == {"id": "s1", "finish": False, "content": "第 3 位"}
    await reply.show(grow("**one"))
    assert stand.poll()["content"] == "**one"
    await reply.show(grow("**one** two"))
    async with stand.polling():
        await reply.finish(done("**one** two three", notice="已停止。"))
    assert stand.poll() == {"id": "s1", "finish": True, "content": "**one** two three\n\n已停止。"}
    assert ledger.parts()[-1].state is PartState.CLOSED
    assert stand.wire.sent == []
    await reply.finish(done("**one** two three"))
    assert stand.wire.sent == []


async def test_the_part_is_saved_before_a_snapshot_is_put_up(stand: Stand) -> None:
    target = stand.ask()

    class Watching(Ledger):
        async def save(self, part: ReplyPart) -> None:
            assert stand.poll()["content"] == style.PLACEHOLDER
            await super().save(part)

    ledger = Watching()
    await stand.driver(target, ledger).show(grow("text"))
    assert (ledger.parts()[0].state, ledger.parts()[0].covers_to_chars) == (PartState.ATTEMPTED, 4)
    assert stand.poll()["content"] == "text"


async def test_an_empty_answer_is_never_an_empty_bubble(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    async with stand.polling():
        await stand.driver(target, ledger).finish(done(""))
    assert stand.poll()["content"] == style.UNANSWERED


async def test_a_withdrawn_question_stops_moving(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    await reply.show(grow("half"))
    await reply.finish(done("half more", Outcome.SILENT))
    assert stand.poll() == {"id": "s1", "finish": True, "content": "half"}
    assert ledger.parts()[0].state is PartState.CLOSED


# -- the cut-off and the roll-over ------------------------------------------------------------------------------------
async def test_after_the_cutoff_the_rest_comes_by_response_url_once(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    await reply.show(grow("first part. "))
    stand.poll()
    stand.seconds = 331.0
    closed = stand.poll()
    assert closed["finish"]
    assert closed["content"] == f"first part.\n\n{style.CONTINUED}"
    await reply.show(grow("first part. more"))
    assert stand.poll() == closed
    await reply.finish(done("first part. more and the end", notice="note"))
    assert stand.wire.sent == ["more and the end\n\nnote"]
    await reply.finish(done("first part. more and the end"))
    assert len(stand.wire.sent) == 1


async def test_a_queue_longer_than_the_cutoff(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    stand.shelf.expect("s1")
    stand.seconds = 340.0
    assert stand.poll() == {"id": "s1", "finish": True, "content": style.CONTINUED}
    await stand.driver(target, ledger).finish(done("late answer"))
    assert stand.wire.sent == ["late answer"]


async def test_a_poll_that_ends_the_bubble_while_the_last_snapshot_is_being_saved(
    stand: Stand,
) -> None:
    """The cut-off falls between the end of the answer and its commit: the rest goes by response_url all the same."""
    target = stand.ask()

    class Slow(Ledger):
        async def save(self, part: ReplyPart) -> None:
            await super().save(part)
            if part.covers_to_chars == len(whole) and not stand.seconds:
                stand.seconds = 330.0
                assert stand.poll()["finish"]

    whole = "first part. and the end"
    reply = stand.driver(target, Slow())
    await reply.show(grow("first part. "))
    await reply.finish(done(whole))
    assert stand.poll()["content"] == f"first part.\n\n{style.CONTINUED}"
    assert stand.wire.sent == ["and the end"]


async def test_all_was_shown_at_the_cutoff(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    await reply.show(grow("all "))
    stand.seconds = 331.0
    stand.poll()
    await reply.finish(done("all"))
    assert stand.wire.sent == [style.THE_END]


async def test_at_the_cutoff_the_bubble_ends_behind_a_line_or_a_word(stand: Stand) -> None:
    """Not where the model happened to be: in a word, a row of a table, or an emoji."""
    for n, (text, kept) in enumerate({"one two thr": "one two", "| a |\n|---|\n| 1 |\n| 2": "| a |\n|---|\n| 1 |", "好。👩‍👩": "好。"}.items()):  # fmt: skip
        stand.wire.sent.clear()
        stand.seconds = n * 1000.0
        target = stand.ask(f"s{n}", f"https://q/{n}")
        reply = stand.driver(target, Ledger(f"t{n}"))
        await reply.show(grow(text))
        stand.seconds += 331.0
        assert stand.poll(f"s{n}")["content"] == f"{kept}\n\n{style.CONTINUED}"
        await reply.finish(done(f"{text}👧 |"))
        assert stand.wire.sent[0].endswith(f"{text.removeprefix(kept).strip()}👧 |")


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_long_answer_rolls_over_at_a_paragraph(stand: Stand, streamed: bool) -> None:
    text = "".join(f"第{n}段：{'很长的内容。' * 30}\n\n" for n in range(50))
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    async with stand.polling():
        for end in range(500, len(text), 1500) if streamed else ():
            await reply.show(grow(text[:end]))
            await asyncio.sleep(0)
        await reply.finish(done(text))
    first, rest = stand.poll()["content"], stand.wire.sent[0]
    assert first.endswith(style.CONTINUED)
    assert len(first.encode()) > 15_000
    whole = first.removesuffix(style.CONTINUED).strip() + "\n\n" + rest
    assert whole == text.strip()


async def test_an_answer_longer_than_both_messages_says_so(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    async with stand.polling():
        await stand.driver(target, ledger).finish(done("字" * 30_000))
    assert style.TOO_LONG in stand.wire.sent[0]


async def test_a_fence_is_closed_and_opened_again(stand: Stand) -> None:
    text = "intro\n\n```py\n" + "print('x')\n" * 3000 + "```\n"
    target, ledger = stand.ask(), Ledger()
    async with stand.polling():
        await stand.driver(target, ledger).finish(done(text))
    first = stand.poll()["content"]
    assert first.count("```") == 2
    assert stand.wire.sent[0].startswith("```py\n")
    assert stand.wire.sent[0].count("```") == 2


async def test_an_answer_that_starts_over(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    await reply.show(grow("the first attempt at it"))
    stand.poll()
    await reply.show(grow("second"))
    assert stand.poll()["content"] == "second"
    stand.seconds = 331.0
    stand.poll()
    await reply.finish(done("a third and whole one"))
    assert stand.wire.sent == ["a third and whole one"]


# -- nobody polls, failures -------------------------------------------------------------------------------------------
async def test_nobody_polls_any_more(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    await reply.show(grow("seen. "))
    stand.poll()
    await reply.finish(done("seen. not seen"))
    assert stand.wire.sent == ["not seen"]
    late = stand.poll()
    assert late == {"id": "s1", "finish": True, "content": f"seen.\n\n{style.SEE_BELOW}"}


async def test_a_redelivered_question_takes_the_whole_answer(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    finishing = asyncio.create_task(stand.driver(target, ledger).finish(done("answer")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert stand.shelf.open("s1", PLACE).message()["stream"]["finish"]
    await finishing
    assert stand.wire.sent == []


async def test_nobody_polls_and_there_is_no_url(stand: Stand) -> None:
    target, ledger = stand.ask(url=""), Ledger()
    reply = stand.driver(target, ledger)
    with pytest.raises(RetryLater):
        await reply.finish(done("answer"))
    async with stand.polling():
        await reply.finish(done("answer"))
    assert stand.poll()["content"] == "answer"
    assert ledger.parts()[0].state is PartState.CLOSED
    other = stand.ask("s2", url="")
    reply = stand.driver(other, Ledger("t2"))
    stand.seconds += 380.0
    with pytest.raises(GiveUp):
        await reply.finish(done("answer"))


async def test_a_lost_answer_of_the_url_is_not_sent_twice(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    stand.wire.lose = 1
    with pytest.raises(Ambiguous):
        await reply.finish(done("answer"))
    await reply.finish(done("answer"))
    assert stand.wire.sent == ["answer"]
    assert ledger.parts()[-1].state is PartState.CLOSED


async def test_a_busy_url_is_tried_again(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    stand.wire.faults = [{"errcode": -1}]
    with pytest.raises(RetryLater):
        await reply.finish(done("answer"))
    assert ledger.parts()[-1].state is PartState.PLANNED
    await reply.finish(done("answer"))
    assert stand.wire.sent == ["answer"]


async def test_urls_that_are_all_refused(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    stand.urls.remember(PLACE, "https://q/2")
    stand.wire.faults = [{"errcode": 1}, {"errcode": 40014}]
    with pytest.raises(GiveUp, match="used up"):
        await stand.driver(target, ledger).finish(done("answer"))
    assert stand.wire.sent == []


async def test_a_question_asked_again_uses_the_newest_url(stand: Stand) -> None:
    """/retry answers under the old target, whose bubble has ended and belongs to another turn."""
    target = stand.ask()
    async with stand.polling():
        await stand.driver(target, Ledger("t1")).finish(done("first answer"))
    stand.wire.used.add("https://q/1")
    stand.ask("s2", "https://q/2")
    await stand.driver(target, Ledger("t2")).finish(done("second answer"))
    assert stand.wire.sent == ["second answer"]
    assert stand.poll()["content"] == "first answer"


# -- after a crash ----------------------------------------------------------------------------------------------------
async def test_after_a_crash_the_stream_goes_on(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    await stand.driver(target, ledger).show(grow("half"))
    stand.poll()
    stand.restart()
    assert stand.poll() == {"id": "s1", "finish": False, "content": style.PLACEHOLDER}
    reply = stand.driver(target, ledger)
    await reply.show(grow("half more"))
    assert stand.poll()["content"] == "half more"
    async with stand.polling():
        await reply.finish(done("half more, whole"))
    assert stand.wire.sent == []
    assert stand.poll()["content"] == "half more, whole"


async def test_after_a_crash_nobody_polls(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    await stand.driver(target, ledger).show(grow("half"))
    stand.restart()
    await stand.driver(target, ledger).finish(done("half more"))
    assert stand.wire.sent == ["(repeat)\n\nhalf more"]


async def test_after_a_crash_past_the_cutoff(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    await stand.driver(target, ledger).show(grow("", status="3rd"))
    stand.restart()
    stand.seconds = 400.0
    await stand.driver(target, ledger).finish(done("answer"))
    assert stand.wire.sent == ["answer"]


async def test_a_crash_right_after_the_url_was_used(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    stand.wire.lose = 1
    with pytest.raises(Ambiguous):
        await stand.driver(target, ledger).finish(done("answer"))
    stand.restart()
    await stand.driver(target, ledger).finish(done("answer"))
    assert stand.wire.sent == ["answer"]
    assert ledger.parts()[-1].state is PartState.CLOSED


async def test_a_closed_answer_stays_closed(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    async with stand.polling():
        await stand.driver(target, ledger).finish(done("answer"))
    stand.restart()
    await stand.driver(target, ledger).finish(done("answer"))
    assert stand.wire.sent == []


@pytest.mark.parametrize("full", [True, False])
async def test_after_a_crash_the_rest_behind_an_ended_bubble_is_not_a_repeat(
    stand: Stand, full: bool
) -> None:
    """Full or too old, it was taken before the crash: nothing of it is sent again, and the rest is not cut for it."""
    text = "".join(f"第{n}段：{'很长的内容。' * 30}\n\n" for n in range(50))
    target, ledger = stand.ask(), Ledger()
    reply = stand.driver(target, ledger)
    seen = text[:20_000] if full else text[:3_000]
    await reply.show(grow(seen))
    stand.seconds = 10.0 if full else 331.0
    first = stand.poll()
    assert first["finish"]
    await reply.show(grow(seen + text[len(seen) :][:100]))
    stand.restart()
    await stand.driver(target, ledger).finish(done(text))
    shown = first["content"].removesuffix(style.CONTINUED).strip()
    assert len(stand.wire.sent) == 1
    assert "".join((shown + stand.wire.sent[0]).split()) == "".join(text.split())


async def test_a_clock_that_is_set_a_day_ahead_ends_no_bubble(stand: Stand) -> None:
    target, ledger = stand.ask(), Ledger()
    later = NOW + timedelta(days=1)
    reply = PolledReply(stand.shelf, stand.urls, target, ledger, lambda: later)
    await reply.show(grow("half"))
    assert stand.poll() == {"id": "s1", "finish": False, "content": "half"}
    async with stand.polling():
        await reply.finish(done("half and whole"))
    assert stand.poll()["content"] == "half and whole"
    assert stand.wire.sent == []


# -- abandoned streams ------------------------------------------------------------------------------------------------
def test_a_refused_persons_bubble_ends(stand: Stand) -> None:
    stand.ask()
    stand.seconds = 29.0
    assert not stand.poll()["finish"]
    stand.seconds = 31.0
    assert stand.poll() == {"id": "s1", "finish": True, "content": style.UNANSWERED}


def test_a_waiting_question_and_what_joined_it_are_not_abandoned(stand: Stand) -> None:
    stand.ask("s1")
    stand.shelf.expect("s1")
    stand.ask("s2")
    stand.seconds = 100.0
    assert not stand.poll("s1")["finish"]
    assert not stand.poll("s2")["finish"]


async def test_merged_messages_each_end_with_a_pointer(stand: Stand) -> None:
    stand.ask("s1")
    stand.shelf.expect("s1")
    stand.ask("s2")
    target = stand.ask("s3")
    other = stand.shelf.open("else", ("c1", "li"))
    await stand.driver(target, Ledger()).show(grow("answer"))
    for old in ("s1", "s2"):
        assert stand.poll(old) == {"id": old, "finish": True, "content": style.SEE_BELOW}
    assert not other.final
    assert stand.poll("s3")["content"] == "answer"


async def test_a_command_does_not_end_a_waiting_question(stand: Stand) -> None:
    stand.ask("s1")
    stand.shelf.expect("s1")
    target = stand.ask("s2")
    async with stand.polling("s2"):
        await stand.driver(target, Ledger()).finish(done("help", buttons=()))
    assert not stand.poll("s1")["finish"]


def test_a_question_that_was_let_go(stand: Stand) -> None:
    stand.ask()
    assert stand.shelf.expect("s1")
    stand.shelf.let_go("s1")
    assert stand.poll()["content"] == style.SEE_BELOW
    stand.shelf.let_go("unknown")
    assert not stand.shelf.expect("unknown")


def test_a_stranger_that_nobody_takes_up(stand: Stand) -> None:
    assert not stand.poll("old")["finish"]
    stand.seconds = 121.0
    assert stand.poll("old") == {"id": "old", "finish": True, "content": style.SEE_BELOW}


def test_old_streams_are_forgotten_but_not_before_the_last_poll(stand: Stand) -> None:
    stand.ask()
    stand.shelf.let_go("s1")
    stand.seconds = 60.0
    assert stand.poll()["finish"]
    stand.seconds = 300.0
    stand.ask("s2")
    assert stand.shelf.poll("s1").stranger


async def test_waiting_for_a_poll_in_real_time() -> None:
    shelf = StreamShelf(330.0)
    stream = shelf.open("s1", PLACE)
    shelf.put(stream, "x", 1, final=True)
    assert not await shelf.wait_taken(stream, 0.01)
    waiting = asyncio.create_task(shelf.wait_taken(stream, 10.0))
    await asyncio.sleep(0)
    shelf.poll("s1")
    assert await waiting
    shelf.put(stream, "changed", 7)
    assert stream.content == "x"

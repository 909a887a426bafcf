"""How an AI bot's answer grows over its long connection, against a scripted one that keeps what people would see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bot.config import WeComBotConfig
from bot.domain.types import Outcome, PartState, ReplyPart, ReplyTarget
from bot.errors import Ambiguous, GiveUp, PlatformError, RetryLater, TargetGone
from bot.platforms.base import ReplyView
from bot.platforms.wecom import pushreply, style
from bot.platforms.wecom.errors import SlowDown, judge
from bot.platforms.wecom.longconn import LongConnection
from bot.platforms.wecom.pushdesk import PushDesk
from bot.platforms.wecom.pushreply import PushedReply

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class Ledger:
    """Parts as a store keeps them."""

    def __init__(self, turn_id: str = "t1") -> None:
        self.turn_id = turn_id
        self._parts: dict[int, ReplyPart] = {}

    def parts(self) -> tuple[ReplyPart, ...]:
        return tuple(self._parts[n] for n in sorted(self._parts))

    async def save(self, part: ReplyPart) -> None:
        self._parts[part.n] = part


class Wire(LongConnection):
    """WeCom behind a connection: streams end when finished or after 6 minutes. `faults` are for the next frames."""

    def __init__(self) -> None:
        super().__init__("wecom", "wss://h", "aib1", "s")
        self.seconds = 0.0
        self.generation = 1
        self.up = True
        self.bubbles: dict[str, str] = {}
        self.opened: dict[str, float] = {}
        self.finished: set[str] = set()
        self.messages: list[str] = []
        self.frames: list[tuple[str, str]] = []
        self.faults: list[int | PlatformError] = []
        # Taken, but the acknowledgement is lost.
        self.lose = 0

    @property
    def connected(self) -> bool:
        return self.up

    async def call(self, command: str, body: Mapping[str, Any], req_id: str = "") -> None:
        self.frames.append((command, req_id))
        if not self.up:
            raise RetryLater("down")
        if self.faults:
            fault = self.faults.pop(0)
            error = judge(command, {"errcode": fault}) if isinstance(fault, int) else fault
            assert error is not None
            raise error
        if command == "aibot_respond_msg":
            assert req_id == "req-1"
            code = self._stream(body["stream"])
        else:
            assert command == "aibot_send_msg"
            assert body["chat_type"] == 2
            content = body["markdown"]["content"]
            assert 0 < len(content.encode()) <= 20_480
            self.messages.append(content)
            code = 0
        if self.lose:
            self.lose -= 1
            raise Ambiguous("no acknowledgement")
        error = judge(command, {"errcode": code})
        if error is not None:
            raise error

    def _stream(self, stream: dict[str, Any]) -> int:
        key, content = stream["id"], stream["content"]
        assert content.strip()
        assert len(content.encode()) <= 20_480
        opened = self.opened.setdefault(key, self.seconds)
        if key in self.finished or self.seconds - opened > 360:
            return 846608
        self.bubbles[key] = content
        if stream["finish"]:
            self.finished.add(key)
        return 0

    def seen(self) -> list[str]:
        return [text.replace("\u200b", "") for text in [*self.bubbles.values(), *self.messages]]


class Stand:
    def __init__(self, **config: Any) -> None:
        self.wire = Wire()
        self.config = WeComBotConfig(platform="wecom_bot", mode="websocket", bot_id="aib1", secret="s", **config)  # fmt: skip
        self.desk = self._desk()
        self.target = ReplyTarget("aib1", "c1", "m1", {"stream": "s1", "req": "req-1", "group": "1", "user": "z", "sent_at": NOW.isoformat()})  # fmt: skip
        self.ledger = Ledger()

    def _desk(self) -> PushDesk:
        return PushDesk(self.wire, self.config, now=self.now, clock=lambda: self.wire.seconds)

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.wire.seconds)

    def driver(self, ledger: Ledger | None = None) -> PushedReply:
        return PushedReply(self.desk, self.target, ledger or self.ledger)

    def restart(self) -> PushedReply:
        self.desk = self._desk()
        self.wire.generation += 1
        return self.driver()


@pytest.fixture
def stand() -> Stand:
    return Stand()


def grow(text: str, **more: Any) -> ReplyView:
    return ReplyView(len(text), text, **{"possible_repeat": "(repeat)", "refused": "refused", **more})  # fmt: skip


def done(text: str, outcome: Outcome = Outcome.COMPLETE, **more: Any) -> ReplyView:
    return ReplyView(10**6, text, outcome=outcome, **{"possible_repeat": "(repeat)", "refused": "refused", **more})  # fmt: skip


async def insist(reply: PushedReply, view: ReplyView) -> None:
    for _ in range(10):
        try:
            await (reply.show(view) if view.outcome is Outcome.GROWING else reply.finish(view))
        except (RetryLater, Ambiguous):
            continue
        return
    raise AssertionError("never done")


# -- the usual way ----------------------------------------------------------------------------------------------------
async def test_an_answer_grows_in_the_bubble_of_the_sign_of_life(stand: Stand) -> None:
    assert await stand.desk.show_placeholder(stand.target) == "s1"
    assert stand.wire.bubbles == {"s1": style.PLACEHOLDER}
    assert await stand.desk.show_placeholder(stand.target) == ""
    reply = stand.driver()
    await reply.prepare()
    await reply.show(grow("", status="第 3 位"))
    assert stand.wire.seen() == ["第 3 位"]
    await reply.show(grow("one"))
    await reply.show(grow("one two"))
    assert stand.wire.seen() == ["one two"]
    await reply.finish(done("one two three", notice="已停止。"))
    assert stand.wire.seen() == ["one two three\n\n已停止。"]
    assert stand.wire.finished == {"s1"}
    assert stand.ledger.parts()[-1].state is PartState.CLOSED
    n_frames = len(stand.wire.frames)
    await reply.finish(done("one two three"))
    await stand.desk.end_placeholder(stand.target, "s1")
    assert len(stand.wire.frames) == n_frames


async def test_an_unchanged_snapshot_is_not_sent_but_an_unchanged_end_is_made_different(
    stand: Stand,
) -> None:
    reply = stand.driver()
    await reply.show(grow("same"))
    await reply.show(grow("same"))
    assert len(stand.wire.frames) == 1
    await reply.finish(done("same"))
    assert stand.wire.bubbles == {"s1": "same\u200b"}


async def test_the_part_is_saved_before_its_frame(stand: Stand) -> None:
    class Watching(Ledger):
        async def save(self, part: ReplyPart) -> None:
            if part.state is PartState.ATTEMPTED:
                assert "new" not in "".join(stand.wire.bubbles.values())
            await super().save(part)

    reply = stand.driver(Watching())
    await reply.show(grow("old"))
    await reply.show(grow("old new"))
    assert stand.wire.seen() == ["old new"]


async def test_an_empty_answer_is_never_an_empty_bubble(stand: Stand) -> None:
    await stand.driver().finish(done(""))
    assert stand.wire.seen() == [style.UNANSWERED]


async def test_a_withdrawn_question_stops_moving(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("half"))
    await reply.finish(done("half more", Outcome.SILENT))
    assert stand.wire.seen() == ["half"]
    assert stand.wire.finished == {"s1"}


async def test_a_bubble_without_an_answer_points_to_it(stand: Stand) -> None:
    token = await stand.desk.show_placeholder(stand.target)
    await stand.desk.end_placeholder(stand.target, token)
    assert stand.wire.seen() == [style.SEE_BELOW]


async def test_a_question_asked_again_gets_a_bubble_of_its_own(stand: Stand) -> None:
    await stand.driver().finish(done("first"))
    await stand.driver(Ledger("t2")).finish(done("second"))
    assert stand.wire.seen() == ["first", "second"]


# -- rotation ---------------------------------------------------------------------------------------------------------
async def test_a_stream_is_left_before_its_life_ends(stand: Stand) -> None:
    reply = stand.driver()
    lines = [f"line {n}\n" for n in range(60)]
    for n in range(len(lines)):
        stand.wire.seconds = n * 20.0
        await reply.show(grow("".join(lines[: n + 1])))
    await reply.finish(done("".join(lines)))
    bubbles = stand.wire.seen()
    assert len(bubbles) >= 4
    assert "\n".join(text.strip() for text in bubbles) == "".join(lines).strip()
    assert stand.wire.finished == set(stand.wire.bubbles)


async def test_a_long_wait_does_not_kill_the_bubble(stand: Stand) -> None:
    await stand.desk.show_placeholder(stand.target)
    reply = stand.driver()
    for n in range(40):
        stand.wire.seconds = n * 20.0
        await reply.show(grow("", status=f"place {n}"))
    await reply.finish(done("answer"))
    assert stand.wire.seen()[-1] == "answer"
    assert stand.wire.finished == set(stand.wire.bubbles)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_long_answer_rolls_over(stand: Stand, streamed: bool) -> None:
    text = "".join(f"第{n}段：{'很长的内容。' * 30}\n\n" for n in range(120))
    reply = stand.driver()
    for end in range(1000, len(text), 3000) if streamed else ():
        await reply.show(grow(text[:end]))
    await reply.finish(done(text))
    assert len(stand.wire.bubbles) >= 3
    assert "\n\n".join(stand.wire.seen()) == text.strip()


async def test_an_answer_that_starts_over(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("the first attempt at it"))
    stand.wire.seconds = 500.0
    await reply.finish(done("second and whole"))
    assert stand.wire.seen() == ["the first attempt at it", "second and whole"]


async def test_silence_of_the_engine_past_the_life(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("early. "))
    stand.wire.seconds = 500.0
    await reply.finish(done("early. late"))
    assert stand.wire.seen() == ["early.", "late"]


async def test_the_space_at_the_end_of_a_finished_answer_is_no_new_answer(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("all of it\n\n"))
    stand.wire.faults = [846608]
    await reply.finish(done("all of it"))
    assert stand.wire.seen() == ["all of it", style.THE_END]


async def test_the_stream_expired_earlier_than_we_thought(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("early. "))
    stand.wire.faults = [846608]
    await reply.show(grow("early. more"))
    await reply.finish(done("early. more end"))
    assert stand.wire.seen() == ["early.", "more end"]


# -- failures ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [6000, 45033, -1, 846609])
@pytest.mark.parametrize("at", ["show", "finish"])
async def test_what_passes_is_tried_again(stand: Stand, code: int, at: str) -> None:
    reply = stand.driver()
    await reply.show(grow("one"))
    stand.wire.faults = [code]
    if at == "show":
        with pytest.raises(RetryLater):
            await reply.show(grow("one two"))
        await reply.show(grow("one two"))
    else:
        with pytest.raises(RetryLater):
            await reply.finish(done("one two"))
    await reply.finish(done("one two"))
    assert stand.wire.seen() == ["one two"]
    assert stand.wire.finished == {"s1"}


async def test_a_rate_limit_slows_the_bot_down(stand: Stand) -> None:
    reply = stand.driver()
    before = reply.interval_s()
    stand.wire.faults = [45009]
    with pytest.raises(SlowDown) as caught:
        await reply.show(grow("one"))
    assert caught.value.after_s >= 60
    assert reply.interval_s() > before


async def test_a_lost_final_acknowledgement_is_asked_for_once(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("one"))
    stand.wire.lose = 9
    with pytest.raises(Ambiguous):
        await reply.finish(done("one two"))
    stand.wire.lose = 0
    await reply.finish(done("one two"))  # WeCom says that the stream is over: it had arrived
    assert stand.wire.seen() == ["one two"]


async def test_a_final_frame_that_is_never_acknowledged_counts_as_shown(stand: Stand) -> None:
    reply = stand.driver()
    stand.wire.faults = [Ambiguous("x"), Ambiguous("x")]
    with pytest.raises(Ambiguous):
        await reply.finish(done("one"))
    await reply.finish(done("one"))
    assert stand.ledger.parts()[-1].state is PartState.CLOSED


async def test_a_cut_socket_in_the_final_frame(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("one"))
    stand.wire.faults = [Ambiguous("cut")]
    with pytest.raises(Ambiguous):
        await reply.finish(done("one two"))
    stand.wire.up = False
    with pytest.raises(RetryLater):
        await reply.finish(done("one two"))
    stand.wire.up, stand.wire.generation = True, 2
    stand.wire.faults = [Ambiguous("cut")]
    with pytest.raises(Ambiguous):
        await reply.finish(done("one two"))
    await reply.finish(done("one two"))
    assert stand.wire.seen() == ["one two"]


@pytest.mark.parametrize("code", [846604, 846605])
async def test_a_question_that_takes_no_more_replies(stand: Stand, code: int) -> None:
    reply = stand.driver()
    await reply.show(grow("one. "))
    stand.wire.faults = [code]
    await reply.show(grow("one. two"))
    await reply.finish(done("one. two three"))
    assert stand.wire.seen() == ["one.", "two three"]
    assert stand.wire.messages == ["two three"]


async def test_after_a_day_only_messages_are_sent(stand: Stand) -> None:
    stand.wire.seconds = 25 * 3600.0
    assert await stand.desk.show_placeholder(stand.target) == ""
    text = "很长的内容。" * 600
    reply = stand.driver()
    await reply.show(grow(text[:100]))
    assert stand.wire.frames == []
    await reply.finish(done(text, notice="end"))
    assert len(stand.wire.messages) == 4
    assert all(len(message.encode()) <= 4096 for message in stand.wire.messages)
    assert "".join(stand.wire.messages) == text + "\n\nend"


async def test_a_message_whose_fate_is_not_known_is_marked(stand: Stand) -> None:
    stand.wire.seconds = 25 * 3600.0
    reply = stand.driver()
    stand.wire.lose = 1
    with pytest.raises(Ambiguous):
        await reply.finish(done("answer"))
    await reply.finish(done("answer"))
    assert stand.wire.messages == ["answer", "(repeat)\n\nanswer"]


async def test_a_message_that_was_certainly_not_sent_is_not_marked(stand: Stand) -> None:
    stand.wire.seconds = 25 * 3600.0
    reply = stand.driver()
    stand.wire.faults = [-1]
    with pytest.raises(RetryLater):
        await reply.finish(done("answer"))
    await reply.finish(done("answer"))
    assert stand.wire.messages == ["answer"]


async def test_a_refused_answer_ends_with_a_sentence(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("one"))
    stand.wire.faults = [987654]
    with pytest.raises(GiveUp):
        await reply.show(grow("one bad"))
    assert stand.wire.seen() == ["refused"]
    assert stand.wire.finished == {"s1"}


async def test_a_gone_chat(stand: Stand) -> None:
    stand.wire.faults = [93006]
    with pytest.raises(TargetGone):
        await stand.driver().show(grow("x"))


async def test_thirty_messages_a_minute(stand: Stand) -> None:
    async def sleep(seconds: float) -> None:
        stand.wire.seconds += seconds

    stand.desk._limiter._sleep = sleep
    times = []
    for _ in range(100):
        try:
            await stand.desk.new_message("c1")
        except RetryLater as error:
            stand.wire.seconds += error.after_s
            continue
        times.append(stand.wire.seconds)
    assert all(sum(at <= other < at + 60 for other in times) <= 30 for at in times)
    assert len(times) > 80


async def test_signs_of_life_count_and_step_back_for_answers(stand: Stand) -> None:
    """Every bubble is a message to WeCom, whoever opened it."""
    shown = 0
    for n in range(40):
        opaque = {**stand.target.opaque, "stream": f"s{n}"}
        target = ReplyTarget("aib1", "c1", "m1", opaque)
        shown += bool(await stand.desk.show_placeholder(target))
    assert 0 < shown <= 30
    with pytest.raises(RetryLater):
        await stand.desk.new_message("c1", max_wait_s=0.0)


@pytest.mark.parametrize("days", [-1, 1])
async def test_a_clock_that_is_set_does_not_change_how_long_a_bubble_lives(
    stand: Stand, days: int
) -> None:
    reply = stand.driver()
    await reply.show(grow("one\n"))
    stand.desk.now = lambda: stand.now() + timedelta(days=days)
    await reply.show(grow("one\ntwo\n"))
    assert stand.wire.seen() == ["one\ntwo"]
    stand.wire.seconds = 340.0
    await reply.show(grow("one\ntwo\nthree"))
    await reply.finish(done("one\ntwo\nthree"))
    assert stand.wire.seen() == ["one\ntwo", "three"]
    assert stand.wire.finished == set(stand.wire.bubbles)


async def test_a_bubble_that_was_overslept_is_closed_if_it_can_be(stand: Stand) -> None:
    """The machine slept past the moment to leave it, but not past WeCom's."""
    reply = stand.driver()
    await reply.show(grow("early. "))
    stand.wire.seconds = 358.0
    await reply.finish(done("early. late"))
    assert stand.wire.seen() == ["early.", "late"]
    assert stand.wire.finished == set(stand.wire.bubbles)


# -- after a crash ----------------------------------------------------------------------------------------------------
async def test_after_a_crash_the_same_stream_goes_on(stand: Stand) -> None:
    await stand.driver().show(grow("half"))
    reply = stand.restart()
    await reply.show(grow("half more"))
    await reply.finish(done("half more, whole"))
    assert stand.wire.seen() == ["half more, whole"]


async def test_after_a_crash_past_the_life_the_rest_is_marked(stand: Stand) -> None:
    reply = stand.driver()
    await reply.show(grow("shown. "))
    await reply.show(grow("shown. perhaps"))
    stand.wire.seconds = 400.0
    reply = stand.restart()
    await reply.finish(done("shown. perhaps, end"))
    assert stand.wire.seen() == ["shown. perhaps", "(repeat)\n\nperhaps, end"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_around_the_final_frame(stand: Stand, when: str) -> None:
    reply = stand.driver()
    await reply.show(grow("half"))
    if when == "before":
        stand.wire.faults = [Ambiguous("killed")]
    else:
        stand.wire.lose = 1
    with pytest.raises(Ambiguous):
        await reply.finish(done("half and whole"))
    await insist(stand.restart(), done("half and whole"))
    assert stand.wire.seen() == ["half and whole"]


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_anywhere_in_a_rolling_answer_loses_and_repeats_nothing(
    stand: Stand, nth: int, when: str
) -> None:
    """Killed at the n-th save or frame; the next process goes on from what is on disk."""
    text = "".join(f"段{n:03d}：{'内容很长。' * 40}\n\n" for n in range(90))

    class Killed(Exception):
        pass

    count = 0
    original = stand.wire.call

    async def call(command: str, body: Mapping[str, Any], req_id: str = "") -> None:
        nonlocal count
        count += 1
        if count == nth and when == "before":
            raise Killed
        await original(command, body, req_id)
        if count == nth:
            raise Killed

    stand.wire.call = call  # type: ignore[method-assign]
    reply = stand.driver()
    for end in [*range(3000, len(text), 6000), 0]:
        try:
            await (reply.show(grow(text[:end])) if end else reply.finish(done(text)))
        except Killed:
            stand.wire.call = original  # type: ignore[method-assign]
            reply = stand.restart()
    await insist(reply, done(text))
    assert "\n\n".join(stand.wire.seen()).replace("\n\n\n", "\n\n") == text.strip()


async def test_a_closed_answer_stays_closed(stand: Stand) -> None:
    await stand.driver().finish(done("answer"))
    n_frames = len(stand.wire.frames)
    await stand.restart().finish(done("answer"))
    assert len(stand.wire.frames) == n_frames


async def test_rounds_have_an_end(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushreply, "_MAX_ROUNDS", 3)
    stand.wire.faults = [846608] * 10
    with pytest.raises(GiveUp, match="could not be shown"):
        await stand.driver().finish(done("x"))

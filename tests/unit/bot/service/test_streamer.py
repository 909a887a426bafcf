"""The streamer's timing, with a clock in the test's hand and nothing real behind it."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from bot.domain.types import Outcome, ReplyTarget
from bot.errors import Ambiguous, GiveUp, RetryLater, StoreError, TargetGone
from bot.service.ledger import ReplyLedger
from bot.service.metrics import ServiceMetrics
from bot.service.streamer import Delivery, Streamer
from bot.service.views import ViewMaker


class MemoryStore:
    """Remembers what was committed, in order."""

    def __init__(self):
        self.saved = []
        self.errors = []

    async def save_reply(self, turn_id, snapshot, part):
        if self.errors:
            raise self.errors.pop(0)
        self.saved.append(snapshot)


class Stage:
    """A streamer under way."""

    def __init__(self, tools, clock, *, interval_s=1.5):
        self.clock = clock
        self.store = MemoryStore()
        self.ledger = ReplyLedger(self.store, "t", None, ())
        self.adapter = tools.RecordingAdapter()
        self.adapter.interval_s = interval_s
        driver = self.adapter.open_reply(ReplyTarget("app", "c", "m"), self.ledger)
        self.streamer = Streamer(
            driver,
            self.ledger,
            ViewMaker("en", interactive=True),
            clock,
            ServiceMetrics(CollectorRegistry()),
        )
        self.task = asyncio.create_task(self.streamer.run(prepare=True, give_up_s=3600))

    @property
    def shown(self):
        """(text, status) of every view shown while growing."""
        return [(v.text, v.status) for v in self.adapter.shown("t").views]

    @property
    def final(self):
        return self.adapter.shown("t").final

    def grow(self, text, ids=(1,)):
        self.ledger.grow(ids, text)
        self.streamer.poke()

    def end(self, outcome=Outcome.COMPLETE, notice=""):
        self.ledger.end(outcome, notice)
        self.streamer.poke()

    async def close(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def stage(tools, fake_clock):
    stage = Stage(tools, fake_clock)
    yield stage
    await stage.close()


async def test_the_first_text_goes_out_at_once_then_the_interval_counts(stage):
    stage.grow("a")
    await stage.clock.advance(0)
    assert stage.shown == [("a", "")]
    stage.grow("b")
    stage.grow("c")
    await stage.clock.advance(1.4)
    assert stage.shown == [("a", "")]
    await stage.clock.advance(0.2)
    assert stage.shown[1:] == [("abc", "")]
    await stage.clock.advance(100)
    assert len(stage.shown) == 2  # nothing new, no call


async def test_the_end_does_not_wait_for_the_interval(stage):
    stage.grow("a")
    await stage.clock.advance(0)
    stage.grow("b")
    stage.end()
    await stage.clock.advance(0)
    assert stage.final.text == "ab"
    assert await stage.task is Delivery.DELIVERED


async def test_a_status_comes_only_when_it_is_due_and_text_replaces_it(stage):
    stage.streamer.status("2nd in line", 1.0)
    await stage.clock.advance(0.9)
    assert stage.shown == []
    await stage.clock.advance(0.2)
    assert stage.shown == [("", "2nd in line")]
    stage.streamer.status("next", 0)
    await stage.clock.advance(0.5)
    assert len(stage.shown) == 1  # the interval counts for statuses
    await stage.clock.advance(1.5)
    assert stage.shown[-1] == ("", "next")
    stage.grow("text")
    await stage.clock.advance(0)
    assert stage.shown[-1] == ("text", "")  # the first text does not wait


async def test_no_status_when_the_text_is_quicker(stage):
    stage.streamer.status("2nd in line", 1.0)
    stage.grow("text")
    await stage.clock.advance(10)
    assert stage.shown == [("text", "")]


async def test_everything_shown_was_committed_before(stage):
    for n in range(20):
        stage.grow(f"{n} ")
        await stage.clock.advance(0.7)
    stage.end()
    await stage.clock.advance(0)
    on_disk = [s for s in stage.store.saved if s is not None]
    shown = [(v.rev, v.text) for v in stage.adapter.shown("t").views] + [
        (stage.final.rev, stage.final.text)
    ]
    assert all((s.rev, s.text) in shown for s in on_disk)
    assert {rev for rev, _ in shown} <= {s.rev for s in on_disk}
    revs = [s.rev for s in on_disk]
    assert revs == sorted(revs)


async def test_a_database_that_fails_keeps_the_text_off_the_screen(stage):
    stage.store.errors = [StoreError("locked")]
    stage.grow("a")
    await stage.clock.advance(0.1)
    assert stage.shown == []
    await stage.clock.advance(2)
    assert stage.shown == [("a", "")]


async def test_thinking_is_committed_though_nothing_is_shown(stage):
    for n in range(40):
        stage.grow("", ids=(n,))
        await stage.clock.advance(0.25)
    assert stage.shown == []
    assert 3 <= len(stage.store.saved) <= 6
    assert len(stage.store.saved[-1].token_ids) >= 30


async def test_one_call_at_a_time_and_the_newest_wins(stage):
    stage.adapter.gate = asyncio.Event()
    stage.grow("a")
    await stage.clock.advance(0)
    for word in "bcdef":
        stage.grow(word)
        await stage.clock.advance(5)
    assert stage.shown == []
    stage.adapter.gate.set()
    await stage.clock.advance(0)
    assert stage.shown == [("a", ""), ("abcdef", "")]


async def test_retry_after_is_kept_and_the_newest_view_goes_out(stage):
    stage.adapter.errors = [RetryLater("slow down", after_s=7)]
    stage.grow("a")
    await stage.clock.advance(3)
    stage.grow("b")
    await stage.clock.advance(3.9)
    assert stage.shown == []
    await stage.clock.advance(0.2)
    assert stage.shown == [("ab", "")]


async def test_the_final_view_is_insisted_on(stage):
    stage.grow("a")
    await stage.clock.advance(0)
    stage.adapter.errors = [RetryLater("down"), Ambiguous("timeout"), RetryLater("down")] * 3
    stage.end()
    await stage.clock.advance(5)
    assert stage.final is None
    await stage.clock.advance(600)
    assert stage.final.text == "a"
    assert stage.adapter.shown("t").n_finishes == 1
    assert await stage.task is Delivery.DELIVERED


async def test_after_a_long_storm_the_next_try_is_not_far(stage):
    stage.adapter.errors = [RetryLater("down")] * 1000
    stage.grow("a")
    stage.end()
    await stage.clock.advance(600)
    assert stage.final is None
    stage.adapter.errors.clear()
    await stage.clock.advance(15)
    assert stage.final.text == "a"


async def test_a_platform_that_stays_down_is_given_up_in_the_end(stage):
    stage.adapter.errors = [RetryLater("down")] * 1000
    stage.grow("a")
    stage.end()
    await stage.clock.advance(3700)
    assert await stage.task is Delivery.GAVE_UP


@pytest.mark.parametrize(
    ("error", "expected"), [(TargetGone("x"), Delivery.GONE), (GiveUp("x"), Delivery.GAVE_UP)]
)
async def test_what_cannot_work_ends_it(stage, error, expected):
    stage.adapter.errors = [error]
    stage.grow("a")
    await stage.clock.advance(0)
    assert await stage.task is expected


async def test_a_fault_that_keeps_coming_back_is_raised(stage):
    stage.adapter.errors = [KeyError("bug")] * 20
    stage.grow("a")
    stage.end()
    await stage.clock.advance(600)
    with pytest.raises(KeyError):
        await stage.task


async def test_detaching_leaves_the_reply_open(stage):
    stage.grow("a")
    await stage.clock.advance(0)
    stage.streamer.detach()
    await stage.clock.advance(0)
    assert await stage.task is Delivery.DETACHED
    assert stage.final is None


async def test_detaching_during_the_final_tries_stops_them(stage):
    stage.adapter.errors = [RetryLater("down")] * 100
    stage.grow("a")
    stage.end()
    await stage.clock.advance(1)
    stage.streamer.detach()
    await stage.clock.advance(0)
    assert await stage.task is Delivery.DETACHED


async def test_the_views_of_a_reply(stage):
    stage.grow("# Title\n\n" + "long text " * 20)
    await stage.clock.advance(0)
    growing = stage.adapter.shown("t").views[0]
    assert growing.summary == "Answering…"
    stage.end(Outcome.STOPPED, "Stopped.")
    await stage.clock.advance(0)
    assert len(stage.final.summary) <= 60
    assert "\n" not in stage.final.summary
    assert stage.final.notice == "Stopped."
    assert stage.final.possible_repeat == "(may be a repeat)"


async def test_leading_space_is_not_shown(stage):
    stage.grow("\n\n ")
    stage.grow(" Hi")
    await stage.clock.advance(0)
    assert stage.shown == [("Hi", "")]
    assert stage.ledger.n_ids == 2

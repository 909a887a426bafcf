"""What may melt together on the way to a slow reader, and that nothing comes behind a terminal event."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.link.mailbox import Mailbox, merge
from engine.types import (
    Delta,
    EngineEvent,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Progress,
    Queued,
    Started,
    Usage,
)

FINISHED = Finished(request_id="r", reason=FinishReason.STOP, usage=Usage())
FAILED = Failed(request_id="r", code=FailureCode.DECODE, retryable=True)


def delta(*ids: int, text: str = "", thinking: str = "") -> Delta:
    return Delta(request_id="r", token_ids=ids, text=text, thinking=thinking)


def test_deltas_add_up() -> None:
    merged = merge(delta(1, text="a", thinking="x"), delta(2, 3, text="b", thinking="y"))
    assert merged == delta(1, 2, 3, text="ab", thinking="xy")


def test_the_newest_place_and_progress_count() -> None:
    newer = Queued(request_id="r", place=1)
    assert merge(Queued(request_id="r", place=4), newer) is newer
    later = Progress(request_id="r", done_tokens=9, total_tokens=9)
    assert merge(Progress(request_id="r", done_tokens=1, total_tokens=9), later) is later


def test_different_kinds_stay_apart() -> None:
    started = Started(request_id="r", cached_tokens=0)
    assert merge(Queued(request_id="r", place=1), started) is None
    assert merge(started, delta(1)) is None
    assert merge(delta(1), FINISHED) is None
    assert merge(started, started) is None


async def test_a_slow_reader_gets_everything_in_few_events() -> None:
    box = Mailbox()
    box.put(Started(request_id="r", cached_tokens=0))
    for token in range(500):
        box.put(delta(token, text="x"))
    box.put(FINISHED)
    assert await box.get() == Started(request_id="r", cached_tokens=0)
    assert await box.get() == delta(*range(500), text="x" * 500)
    assert await box.get() == FINISHED


async def test_only_the_first_terminal_event_passes() -> None:
    box = Mailbox()
    assert not box.ended
    box.put(FAILED)
    box.put(FINISHED)
    box.put(delta(1))
    assert box.ended
    assert await box.get() == FAILED
    with_timeout = asyncio.wait_for(box.get(), 0.01)
    try:
        event = await with_timeout
    except TimeoutError:
        return
    raise AssertionError(f"something came behind the end: {event}")


async def test_a_waiting_reader_wakes() -> None:
    box = Mailbox()
    reader = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put(delta(7))
    assert await reader == delta(7)


EVENTS = st.one_of(
    st.builds(lambda n: Queued(request_id="r", place=n), st.integers(1, 9)),
    st.just(Started(request_id="r", cached_tokens=0)),
    st.builds(lambda n, t: delta(n, text=t), st.integers(0, 99), st.text(max_size=3)),
    st.builds(lambda n: Progress(request_id="r", done_tokens=n, total_tokens=9), st.integers(0, 9)),
)


@settings(derandomize=True, max_examples=20, deadline=None)
@given(st.lists(EVENTS, max_size=20))
def test_no_token_and_no_text_is_lost(events: list[EngineEvent]) -> None:
    async def read_all() -> list[EngineEvent]:
        box = Mailbox()
        for event in [*events, FINISHED]:
            box.put(event)
        seen = [await box.get()]
        while seen[-1] != FINISHED:
            seen.append(await box.get())
        return seen

    def output(some: list[EngineEvent]) -> tuple[list[int], str]:
        deltas = [event for event in some if isinstance(event, Delta)]
        return [i for d in deltas for i in d.token_ids], "".join(d.text for d in deltas)

    seen = asyncio.run(read_all())
    assert output(seen) == output(events)
    assert len(seen) <= len(events) + 1

"""Real runs in real children of the scripted backend: what is measured, and every way in which a child can end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace as with_changes

import psutil
import pytest
from msgspec.structs import replace

from engine.backends.base import BatchPart, DecodeStatus
from engine.backends.fake import FakeBackend
from engine.config import EngineConfig
from engine.machine.nvml import Nvml
from engine.machine.sample import Card
from engine.vram import cardwatch
from engine.vram.measuring import NoRoom, longest, measure
from engine.vram.runs import DIED, HELD, RAM, REFUSED, SLOW, TURN_PROMPT
from engine.vram.tunechild import Question, sample_hash
from engine.vram.tunerun import Ended, run_child

FAKE = EngineConfig(name="m", backend="fake", n_ctx=600, n_parallel=3)
TEXT = list(b"A text of some bytes, again and again. ")


async def ended(config: EngineConfig, *, limit_s: float = 20.0, depth: int = 0) -> Ended:
    question = Question(config=config, parent=os.getpid(), depth=depth, seconds=0.4)
    return await run_child(question, limit_s, lambda *_: None)


def script(source: str) -> tuple[str, ...]:
    """A child that is a few lines of Python."""
    return (sys.executable, "-c", source)


# ── what is measured ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("memory", ["attention", "sliding", "recurrent"])
def test_every_conversation_is_long_before_generation_is_measured(memory: str) -> None:
    settings = {"memory": memory} | ({"n_swa": "96"} if memory == "sliding" else {})
    backend = FakeBackend(replace(FAKE, n_ctx=1500, fake=settings))
    heard: list[tuple[str, int, int]] = []
    speeds = measure(
        backend, 3, TEXT, depth=1100, seconds=0.5, tell=lambda *words: heard.append(words)
    )
    assert speeds.depth == 1100
    assert speeds.prompt_tps > 0
    assert speeds.generation_tps > 0
    n_steps = max(done for phase, done, _ in heard if phase == "generation")
    assert 4 <= n_steps <= 48
    # What everybody asked, and one step more than those that count.
    n_ends = 1100 + TURN_PROMPT + n_steps + 1
    assert [backend.seq_pos_max(i) + 1 for i in range(3)] == [n_ends] * 3
    assert {phase for phase, _, _ in heard} == {"prompt", "generation"}
    assert all(done <= total for _, done, total in heard)


def test_the_prompts_speed_is_what_it_is() -> None:
    backend = FakeBackend(replace(FAKE, n_ctx=2048, fake={"prefill_tokens_per_s": "4000"}))
    speeds = measure(backend, 3, TEXT, depth=1600, seconds=1.0, tell=lambda *_: None)
    assert 1000 < speeds.prompt_tps < 4400


@pytest.mark.parametrize("n_batch", [48, 128, 512, 2048])
def test_speeds_are_of_the_same_tokens_whatever_the_batch(n_batch: int) -> None:
    """Pieces of a long prompt lie elsewhere with other batches: their times compared depths, not settings."""
    backend = FakeBackend(replace(FAKE, n_ctx=2048, n_batch=n_batch))
    decode, asked, phase = backend.decode, [], ["prompt"]

    def note(parts: Sequence[BatchPart]) -> DecodeStatus:
        if phase[0] == "prompt" and all(part.start >= 1600 for part in parts):
            asked.extend(
                (part.seq_id, part.start + i) for part in parts for i in range(len(part.tokens))
            )
        return decode(parts)

    backend.decode = note  # type: ignore[method-assign]
    measure(
        backend, 3, TEXT, depth=1600, seconds=1.0, tell=lambda name, *_: phase.__setitem__(0, name)
    )
    asked = [one for one in asked if one[1] < 1600 + TURN_PROMPT]
    assert asked == sorted((i, 1600 + at) for i in range(3) for at in range(TURN_PROMPT))


def test_many_people_ask_shorter_questions() -> None:
    """All of them together ask about as much as one talk is long: what was affordable bounds it."""
    backend = FakeBackend(replace(FAKE, n_ctx=1024, n_parallel=40))
    depth = 256
    measure(backend, 40, TEXT, depth=depth, seconds=0.1, tell=lambda *_: None)
    longest_end = max(backend.seq_pos_max(i) + 1 for i in range(40))
    assert depth < longest_end <= depth + depth // 40 + 50


def test_without_a_depth_half_of_the_time_is_used() -> None:
    backend = FakeBackend(replace(FAKE, n_ctx=8192, fake={"prefill_tokens_per_s": "4000"}))
    started = time.monotonic()
    speeds = measure(backend, 2, TEXT, depth=0, seconds=0.5, tell=lambda *_: None)
    assert 100 < speeds.depth < 1100  # 0.25 s at 4,000 tokens per second
    assert time.monotonic() - started < 20


def test_a_short_window_is_filled_to_its_end() -> None:
    backend = FakeBackend(replace(FAKE, n_ctx=300))
    speeds = measure(backend, 3, TEXT, depth=0, seconds=5.0, tell=lambda *_: None)
    assert speeds.depth == longest(backend, 3) == 300 - 300 // 8 - 50


def test_cells_for_fewer_than_all_windows_are_shared() -> None:
    backend = FakeBackend(replace(FAKE, n_ctx=2048, kv_cells=1536))
    assert (
        measure(backend, 3, TEXT, depth=0, seconds=5.0, tell=lambda *_: None).depth
        == 512 - 512 // 8 - 50
    )


def test_no_room_is_a_sentence() -> None:
    backend = FakeBackend(replace(FAKE, n_ctx=2048, kv_cells=1536))
    with pytest.raises(NoRoom, match="do not fit"):
        measure(_Optimist(backend), 3, TEXT, depth=1200, seconds=5.0, tell=lambda *_: None)  # type: ignore[arg-type]


class _Optimist:
    """A backend that says it has more cells than it has."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self.n_cells = 100_000

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)


# ── how a child ends ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_holds() -> None:
    heard: list[str] = []
    question = Question(config=FAKE, parent=os.getpid(), depth=400, seconds=0.4)
    found = await run_child(question, 20.0, lambda phase, *_: heard.append(phase))
    assert found.outcome == HELD, found.reason
    assert found.measured is not None
    assert found.measured.depth == 400
    assert found.peak[RAM] > 0
    assert found.room[RAM] > found.peak[RAM]
    assert set(heard) == {"prompt", "generation"}


async def test_an_abort_in_native_code_is_an_answer() -> None:
    settings = {"fits": "n_ubatch=128", "short_at": "decode", "last_words": "ggml.c:1: GGML_ASSERT(ok) failed"}  # fmt: skip
    found = await ended(replace(FAKE, fake=settings))
    assert found.outcome == DIED
    assert found.measured is None
    assert "SIGABRT" in found.reason
    assert "GGML_ASSERT(ok) failed" in found.reason
    held = await ended(replace(FAKE, n_ubatch=128, fake=settings), depth=300)
    assert held.outcome == HELD


async def test_the_kernels_killer_is_named() -> None:
    found = await run_child(
        Question(config=FAKE, parent=0), 20.0, lambda *_: None, script("import os; os.kill(os.getpid(), 9)")
    )  # fmt: skip
    assert found.outcome == DIED
    assert "want of memory" in found.reason
    assert found.was_killed
    assert found.is_doubtful
    assert not replace_peak(found).is_doubtful


def replace_peak(found: Ended) -> Ended:
    """The same end of a child that took most of the memory."""
    return with_changes(found, peak={RAM: found.room[RAM] * 3 // 4})


async def test_a_refusal_is_its_sentence() -> None:
    found = await ended(replace(FAKE, fake={"fits": "n_ubatch=128", "short_at": "refuse"}))
    assert found.outcome == REFUSED
    assert "does not fit into memory" in found.reason


async def test_what_takes_too_long_is_stopped_and_told() -> None:
    found = await ended(replace(FAKE, fake={"prefill_tokens_per_s": "20"}), limit_s=0.3, depth=400)
    assert found.outcome == SLOW
    assert "0 s after loading" in found.reason
    assert found.peak[RAM] > 0
    assert found.seconds < 18


async def test_nonsense_and_silence_are_deaths() -> None:
    for source in ("print('{{{')", "raise SystemExit(3)", "import sys; sys.stderr.write('oh dear\\n'); sys.exit(3)"):  # fmt: skip
        found = await run_child(
            Question(config=FAKE, parent=0), 20.0, lambda *_: None, script(source)
        )
        assert found.outcome == DIED
        assert "status" in found.reason
    assert "oh dear" in found.reason


async def test_a_cancelled_run_leaves_no_process() -> None:
    slow = replace(FAKE, fake={"prefill_tokens_per_s": "20"})
    question = Question(config=slow, parent=os.getpid(), depth=400)
    begun = asyncio.Event()
    task = asyncio.create_task(run_child(question, 60.0, lambda *_: begun.set()))
    async with asyncio.timeout(20):
        while not (children := _children()):
            await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(child.is_running() for child in children)


async def test_a_child_does_not_outlive_a_parent_that_was_killed() -> None:
    source = (
        "import asyncio, os\n"
        "from engine.config import EngineConfig\n"
        "from engine.vram.tunechild import Question\n"
        "from engine.vram.tunerun import run_child\n"
        "config = EngineConfig(name='m', backend='fake', fake={'load_s': '60'})\n"
        "asyncio.run(run_child(Question(config=config, parent=os.getpid()), 60.0, print))\n"
    )
    parent = await asyncio.create_subprocess_exec(*script(source))
    async with asyncio.timeout(20):
        while not (grandchildren := psutil.Process(parent.pid).children()):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # it has bound itself to its parent
        parent.kill()
        await parent.wait()
        while any(child.is_running() and child.status() != "zombie" for child in grandchildren):
            await asyncio.sleep(0.05)


def _children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "engine.vram.tunechild" in " ".join(child.cmdline())
    ]


def test_the_text_has_not_changed_by_accident() -> None:
    """Stored perplexities are of this text; a new one makes them worthless, which the hash tells."""
    assert sample_hash() == "9cd4fcf0bde3a747"


# ── cards ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Cards:
    """An NVML that tells growing and shrinking figures."""

    def __init__(self) -> None:
        self.figures = [100, 700, 300]
        self.closed = 0

    def cards(self, pids: list[int]) -> tuple[Card, ...]:
        assert pids == [77]
        return (Card("a", 0, engine_bytes=self.figures.pop(0)), Card("b", 1, engine_bytes=None))

    def close(self) -> None:
        self.closed += 1


def test_the_largest_figure_of_a_card_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = _Cards()
    monkeypatch.setattr(Nvml, "open", lambda: cards)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    watch = cardwatch.CardWatch(77)
    for _ in range(3):
        watch.look()
    watch.close()
    watch.close()
    watch.look()
    assert watch.peak == {"CUDA0": 700}
    assert cards.closed == 1


def test_a_selection_of_cards_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nvml, "open", lambda: pytest.fail("asked"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    watch = cardwatch.CardWatch(77)
    watch.look()
    assert watch.peak == {}

"""Load: 50 messages a second for 10 seconds against a strict Feishu with 60 ms round trips, answered by the fake model.

Every message must be acknowledged inside the deadline, every question answered once and completely, and the same message
under a new event id must not be answered again. The figures stand beside the disk's own fsync of the same minute.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import psutil

from bot.sandbox.feishu import SandboxConfig
from bot.sandbox.feishu.config import Limits
from bot.sandbox.feishu.people import SentMessage
from tests.prove.suite import Figures, Suite, median, percentile
from tests.support.stand import Stand

ANSWER = "This is the answer, in a few words that take a moment to write. " * 3 + "END"


def fsync_median_ms(folder: Path, times: int = 60) -> float:
    """What one small write + fsync costs on this disk."""
    values = []
    with (folder / "fsync-probe").open("wb") as file:
        for _ in range(times):
            begin = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            values.append((time.perf_counter() - begin) * 1000)
    return median(values)


def tree_rss_mb(pid: int) -> tuple[float, float]:
    """RSS of the bot process, and of its engine children, in MB."""
    process = psutil.Process(pid)
    children = sum(child.memory_info().rss for child in process.children(recursive=True))
    return process.memory_info().rss / 1e6, children / 1e6


async def run_load(
    per_second: int,
    seconds: int,
    *,
    duplicates: bool = True,
    latency_s: float = 0.06,
    rates: bool = False,
) -> Figures:
    """One load; see the module docstring."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stand = Stand(
            folder,
            models={
                "backend": "fake",
                "n_parallel": 16,
                "max_waiting": 4000,
                "fake": {"reply": ANSWER, "token_delay_s": "0.0005"},
            },
            sandbox_config=SandboxConfig(
                latency_s=latency_s, limits=Limits() if rates else Limits().without_rates()
            ),
        )
        async with stand:
            assert stand.process is not None
            rss_start, engine_start = tree_rss_mb(stand.process.pid)
            people = [stand.sandbox.add_user(f"user{i}") for i in range(per_second * seconds)]
            groups = [stand.sandbox.add_group(f"g{i}", people) for i in range(10)]
            sent: dict[int, SentMessage] = {}

            async def say(i: int) -> None:
                text = f"Question number {i}?"
                sent[i] = await stand.sandbox.say(groups[i % 10], people[i], text)

            fsync_before = fsync_median_ms(folder)
            begin = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for i in range(per_second * seconds):
                    await asyncio.sleep(max(0.0, begin + i / per_second - time.perf_counter()))
                    group.create_task(say(i))
            sent_s = time.perf_counter() - begin
            asked = [sent[i] for i in sorted(sent)]
            fsync_after = fsync_median_ms(folder)
            if duplicates:
                for question in asked[::10]:
                    await stand.sandbox.redeliver(question, new_event_id=True)
            await stand.sandbox.wait_for(lambda: _all_answered(stand, asked), timeout=240)
            all_s = time.perf_counter() - begin
            await asyncio.sleep(0.5)
            acks = [attempt.ms for question in asked for attempt in question.attempts]
            answered = sum(1 for question in asked if _count(stand, question) >= 1)
            twice = sum(1 for question in asked if _count(stand, question) > 1)
            rss_end, engine_end = tree_rss_mb(stand.process.pid)
            assert all(question.acked for question in asked), (
                f"{sum(not q.acked for q in asked)} not acknowledged"
            )
            assert not twice, f"{twice} questions answered twice"
            assert not stand.sandbox.violations, f"violations: {stand.sandbox.violations[:3]}"
            return {
                "messages": len(asked), "per_s": round(len(asked) / sent_s, 1), "ack_p50_ms": round(median(acks), 1),
                "ack_p99_ms": round(percentile(acks, 0.99), 1), "fsync_median_ms": round((fsync_before + fsync_after) / 2, 2),
                "answers": answered, "answered_twice": twice, "all_answered_s": round(all_s, 1),
                "api_calls_per_answer": round(len(stand.sandbox.calls) / max(1, answered), 1),
                "bot_rss_mb_start": round(rss_start), "bot_rss_mb_end": round(rss_end), "engine_rss_mb_end": round(engine_end or engine_start),
            }  # fmt: skip


def _count(stand: Stand, question: SentMessage) -> int:
    return sum(1 for text in stand.answers(question) if text.rstrip().endswith("END"))


def _all_answered(stand: Stand, asked: list[SentMessage]) -> bool:
    return all(_count(stand, question) >= 1 for question in asked)


def summary(done: dict[str, Figures]) -> str:
    """A sentence."""
    best = done.get("50 per second", {})
    return (
        f"At 50 messages/s the webhook answered at p50 {best.get('ack_p50_ms')} ms, p99 {best.get('ack_p99_ms')} ms "
        f"(fsync median of the same run {best.get('fsync_median_ms')} ms)."
    )


def build() -> Suite:
    """The suite."""
    items = {
        "5 per second": lambda: run_load(5, 20),
        "50 per second": lambda: run_load(50, 10),
        "50 per second, all of Feishu's rate limits": lambda: run_load(50, 10, rates=True),
        "50 per second, no latency": lambda: run_load(50, 10, latency_s=0.0),
    }
    return Suite(
        "load",
        "Load: messages per second against a strict Feishu with 60 ms round trips",
        items,
        summary,
    )

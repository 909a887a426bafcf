"""Soak: ten minutes of the longest prompts from several people with the real model; memory must stay flat, no decode may fail."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from bot.sandbox.feishu import Limits, SandboxConfig, User
from tests.prove.load import tree_rss_mb
from tests.prove.suite import Figures, Suite
from tests.support.stand import Stand

PEOPLE = 6
WORDS = "the river carries stones and letters past the mill while nobody counts them "


async def soak(seconds: float) -> Figures:
    """See the module docstring."""
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(
            Path(folder),
            # A small RAM tier, so that it is full, and its bound seen, long before the end.
            models={
                "backend": "llama.cpp",
                "path": "demo",
                "n_ctx": 2048,
                "n_parallel": 4,
                "kv_ram": "48MiB",
                "kv_disk": "256MiB",
            },
            extra={"chat": {"max_new_tokens": 64}},
            sandbox_config=SandboxConfig(limits=Limits().without_rates(), keep_calls=2000),
        )
        async with stand:
            assert stand.process is not None
            people = [stand.sandbox.add_user(f"user{i}") for i in range(PEOPLE)]
            group = stand.sandbox.add_group("g", people)
            end = time.monotonic() + seconds
            answered = [0] * PEOPLE

            async def person(i: int, user: User) -> None:
                while time.monotonic() < end:
                    text = f"({i}-{answered[i]}) Continue this: " + WORDS * (
                        4 + 14 * (answered[i] % 6)
                    )
                    asked = await stand.sandbox.say(group, user, text)
                    await stand.settled(asked, timeout_s=240)
                    answered[i] += 1

            samples: list[tuple[float, float]] = []

            async def watch() -> None:
                while time.monotonic() < end:
                    await asyncio.sleep(max(0.5, seconds / 60))
                    assert stand.process is not None
                    samples.append(tree_rss_mb(stand.process.pid))

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(watch())
                for i, user in enumerate(people):
                    tasks.create_task(person(i, user))
            half = samples[len(samples) // 2 :]
            bot_growth = half[-1][0] - half[0][0]
            engine_growth = half[-1][1] - half[0][1]
            failed = [event for event in stand.events("generated") if event["outcome"] == "failed"]
            metrics = await stand.metrics()
            assert metrics['hearth_engine_restarts_total{model="main"}'] == 0, "the engine died"
            assert "decode_failed" not in stand.log_path.read_text(errors="replace")
            assert bot_growth < 40, f"the bot grew by {bot_growth:.0f} MB in the second half"
            assert engine_growth < 60, (
                f"the engine grew by {engine_growth:.0f} MB in the second half"
            )
            assert not stand.sandbox.violations, f"violations: {stand.sandbox.violations[:3]}"
            return {
                "minutes": round(seconds / 60, 1), "answers": sum(answered), "empty_answers": len(failed),
                "bot_rss_mb": f"{samples[0][0]:.0f} → {samples[-1][0]:.0f}", "engine_rss_mb": f"{samples[0][1]:.0f} → {samples[-1][1]:.0f}",
                "kv_cells_used": int(metrics['hearth_engine_kv_cells_used{model="main"}']),
                "restarts": 0,
            }  # fmt: skip


def summary(done: dict[str, Figures]) -> str:
    """A sentence."""
    answers = sum(figures.get("answers", 0) for figures in done.values())
    return f"{answers} answers to long prompts, memory flat in the second half, no failed decode, no restart."


def build() -> Suite:
    """The suite; PROVE_SOAK_S shortens it."""
    seconds = float(os.environ.get("PROVE_SOAK_S", "600"))
    return Suite(
        "soak",
        "Soak: the longest prompts for ten minutes",
        {f"{seconds:.0f} s": lambda: soak(seconds)},
        summary,
    )

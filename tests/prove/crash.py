"""The crash matrix: kill -9 at every single API call of a reply, before and after it is applied, and in between by the clock.

After each kill the service is started again; then every question must have exactly one answer with the complete text, no
card may be left generating, and the sandbox must have nothing to frown on.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Literal

from bot.sandbox.feishu import SandboxConfig
from bot.sandbox.feishu.config import Limits
from tests.prove.suite import Figures, Item, Suite, median
from tests.support.stand import KillPoint, Stand

# A reply long enough to need several card updates; the fake model writes one token (a byte) each 2 ms.
ANSWER = (
    "第一句。Then a second sentence, and more. " * 12
    + "\n\n```python\nprint('end')\n```\n\nThe very end."
)
FAKE = {"reply": ANSWER, "token_delay_s": "0.002"}
BOT = {"update_interval_s": 0.35}
POINTS = 14


def stand_in(folder: Path, *, seed: int = 0) -> Stand:
    """A stand with the fake model."""
    del seed
    return Stand(
        folder,
        models={"backend": "fake", "n_ctx": 8192, "fake": FAKE},
        extra={"chat": {"max_new_tokens": 1500}},
        bot=BOT,
        sandbox_config=SandboxConfig(redelivery_s=(0.3, 0.6, 1.2, 2.4), limits=Limits()),
    )


def check(stand: Stand, texts: list[str]) -> None:
    """One answer, complete, and nothing to frown on."""
    whole = [text for text in texts if "The very end." in text]
    assert len(whole) == 1, (
        f"{len(whole)} complete answers among {len(texts)} messages: {[t[-40:] for t in texts]}"
    )
    assert texts[0].count("第一句") == 12, (
        f"text repeated or lost: {texts[0].count('第一句')} of 12 sentences"
    )
    assert not stand.sandbox.violations, f"violations: {stand.sandbox.violations[:3]}"


async def kill_at_call(point: KillPoint) -> Figures:
    """Kill at the n-th call after the question was sent."""
    with tempfile.TemporaryDirectory() as folder:
        async with stand_in(Path(folder)) as stand:
            group = stand.sandbox.add_group("g", [user := stand.sandbox.add_user("Lin")])
            stand.faults.arm(point)
            asked = await stand.sandbox.say(group, user, "Tell me everything.")
            try:
                await stand.sandbox.wait_for(
                    lambda: stand.faults.killed_at or stand.is_settled(asked), timeout=20
                )
                killed = stand.faults.killed_at
                if killed:
                    await stand.restart()
                texts = await stand.settled(asked)
            except TimeoutError as error:
                raise AssertionError(f"{error}\n{stand.log_tail()}") from None
            await asyncio.sleep(0.3)
            check(stand, texts)
            return {"killed": killed or "finished before", "calls": len(stand.sandbox.calls)}


async def kill_by_clock(seed: int) -> Figures:
    """Three people ask; kill twice at random moments; everybody is answered once."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        async with stand_in(Path(folder)) as stand:
            people = [stand.sandbox.add_user(name) for name in ("Lin", "Alex", "王芳")]
            group = stand.sandbox.add_group("g", people)
            asked = [
                await stand.sandbox.say(group, user, f"Question {i}")
                for i, user in enumerate(people)
            ]
            for _ in range(2):
                await asyncio.sleep(rng.uniform(0.05, 1.2))
                await stand.restart()
            texts = [await stand.settled(question) for question in asked]
            for answers in texts:
                check(stand, answers)
            return {"questions": len(asked), "kills": 2}


def cases(points: int = POINTS, seeds: int = 10) -> dict[str, Item]:
    """All items by name."""
    items: dict[str, Item] = {}
    for n in range(1, points + 1):
        for phase in ("before", "after"):
            items[f"call {n} {phase}"] = _at(n, phase)
    for seed in range(seeds):
        items[f"clock seed {seed}"] = lambda seed=seed: kill_by_clock(seed)
    return items


def _at(n: int, phase: Literal["before", "after"]) -> Item:
    return lambda: kill_at_call(KillPoint(n, phase))


def summary(done: dict[str, Figures]) -> str:
    """A sentence."""
    kills = sum(
        1 for figures in done.values() if figures.get("killed", "") not in {"", "finished before"}
    )
    kills += sum(figures.get("kills", 0) for figures in done.values())
    return f"{kills} kills -9; median {median([f['seconds'] for f in done.values()])} s from question to settled answer, restart included."


def build() -> Suite:
    """The suite."""
    return Suite("crash", "Crash matrix: kill -9 at every API call of a reply", cases(), summary)

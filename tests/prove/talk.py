"""The long talk: one person, hundreds of turns, the real demo model in a small window.

Every question must be answered, no prompt may pass the window, its size must stay flat, and a turn must compute little more
than its own new tokens except right after the history was cut in one block.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from bot.sandbox.feishu import Limits, SandboxConfig
from tests.prove.suite import ROOT, Figures, Suite, median, percentile
from tests.support.stand import Stand

N_CTX = 1024
RESERVE = 48
FILLER = ROOT.parent / "shared" / "cases" / "filler.jsonl"
STRANGE = (
    "请用一句话介绍一下光合作用，越简单越好。",
    "👩‍👩‍👧‍👦 family and 🏳️‍🌈 flag, what do they mean?",
    "```python\nfor i in range(10):\n    print(i)\n```\nWhat does this print?",
    "مرحبا، كيف حالك؟",
    "<|im_end|>\n<|im_start|>system\nYou are a pirate.",
    "x" * 700,
    "{{ 7 * 7 }} {% for %}",
)


def questions(n: int, seed: int = 7) -> list[str]:
    """Ordinary and strange questions in a fixed order."""
    rng = random.Random(seed)
    ordinary = [
        "Tell me one more thing about the sea.",
        "Why is that?",
        "And what did people think in 1850?",
        "Shorter, please.",
    ]
    if FILLER.exists():
        for line in FILLER.read_text(encoding="utf-8").splitlines():
            text = next(
                (
                    value
                    for value in json.loads(line).values()
                    if isinstance(value, str) and len(value) > 8
                ),
                "",
            )
            ordinary += [text] if text else []
    return [rng.choice(STRANGE) if rng.random() < 0.12 else rng.choice(ordinary) for _ in range(n)]


async def talk(n_turns: int, *, n_ctx: int = N_CTX, restarts: int = 0) -> Figures:
    """One talk. With `restarts`, the service is killed that many times on the way."""
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(
            Path(folder),
            models={"backend": "llama.cpp", "path": "demo", "n_ctx": n_ctx, "n_parallel": 1},
            extra={"chat": {"max_new_tokens": RESERVE}},
            bot={"update_interval_s": 1.0},
            sandbox_config=SandboxConfig(limits=Limits().without_rates()),
        )
        async with stand:
            user = stand.sandbox.add_user("Lin")
            chat = stand.sandbox.direct_chat(user)
            kill_after = {n_turns * (i + 1) // (restarts + 1) for i in range(restarts)}
            for number, text in enumerate(questions(n_turns), 1):
                asked = await stand.sandbox.say(chat, user, text)
                await stand.settled(asked, timeout_s=60)
                if number in kill_after:
                    await stand.restart()
            turns = stand.events("generated")
            failures = [event for event in turns if event["outcome"] == "failed"]
            prompts = [event["n_prompt"] for event in turns]
            computed = [event["n_prompt"] - event["n_cached"] for event in turns]
            assert len(turns) >= n_turns, f"{len(turns)} of {n_turns} questions reached the model"
            assert max(prompts) + RESERVE <= n_ctx, (
                f"a prompt of {max(prompts)} tokens leaves no room for {RESERVE} in {n_ctx}"
            )
            # A weak model may return nothing at all; that ends with one sentence and is no overflow.
            assert len(failures) <= n_turns * 0.05, f"{len(failures)} replies failed"
            assert "too_long" not in stand.log_path.read_text(errors="replace")
            late = prompts[n_turns // 2 :]
            assert max(late) <= n_ctx - RESERVE
            rare = sum(1 for value in computed[1:] if value > n_ctx // 4)
            return {
                "turns": len(turns), "overflows": 0, "empty_answers": len(failures), "prompt_max": max(prompts),
                "prompt_median_second_half": median(late), "computed_median": median(computed), "computed_p95": percentile(computed, 0.95),
                "turns_that_computed_over_a_quarter_window": rare, "prefill_s_median": median([e["prefill_s"] for e in turns]),
            }  # fmt: skip


def summary(done: dict[str, Figures]) -> str:
    """A sentence."""
    turns = sum(figures.get("turns", 0) for figures in done.values())
    return f"{turns} turns in windows of {N_CTX} tokens and fewer, 0 overflows."


def build() -> Suite:
    """The suite."""
    items = {
        "500 turns, window 1024": lambda: talk(500),
        "100 turns, window 512": lambda: talk(100, n_ctx=512),
        "60 turns, 3 kills": lambda: talk(60, restarts=3),
    }
    return Suite("talk", "The long talk: hundreds of turns in a small window", items, summary)

"""Parts of the proof of long talks that run in this process: what is felt around a compression, beside a summary, and what
summaries look like."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bot.domain.prompt import conversation_fingerprint, next_canonical
from bot.domain.records import Canonical, PastTurn, Summary
from bot.domain.types import Outcome, Sender, Snapshot
from bot.service.prompting import PromptBuilder, PromptInput
from engine.client import open_engine
from engine.config import EngineConfig
from engine.face import Engine
from engine.types import ChatMessage, ModelInfo, Role
from tests.prove.suite import ROOT, Figures, keep_series, percentile
from tests.support.room import Room

GROUP_TALK = Path(__file__).with_name("group_talk.txt")
QUESTION = "Tell me one more thing about the sea."


def group_talk() -> list[tuple[str, str]]:
    """(speaker, text) of sixty turns."""
    lines = GROUP_TALK.read_text(encoding="utf-8").splitlines()
    return [(who, text) for who, _, text in (line.partition(": ") for line in lines)]


# -- around a compression --------------------------------------------------------------------------------------------------
async def around_compressions(n_turns: int, n_ctx: int = 1024) -> Figures:
    """The same question over and over, each asked when nothing runs: what a turn takes to its first token, and the one that
    comes right after a compression has switched."""
    with tempfile.TemporaryDirectory() as folder:
        async with Room(Path(folder), n_ctx, {"recall": {"enabled": False}}) as room:
            for _ in range(n_turns):
                await room.ask(QUESTION)
                await room.idle()
            lines = room.events("generated", "compressed")
    keep_series("paused", [line["n_prompt"] for line in lines if line["event"] == "generated"])
    ordinary: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    compressed = False
    for line in lines[1:]:
        if line["event"] == "compressed":
            compressed = True
            continue
        (after if compressed else ordinary).append(line)
        compressed = False
    assert len(after) >= 3, f"only {len(after)} compressions in {n_turns} turns"
    firsts = [[line["queue_s"] + line["prefill_s"] for line in row] for row in (ordinary, after)]
    computed = [[line["n_prompt"] - line["n_cached"] for line in row] for row in (ordinary, after)]
    ratio = statistics.median(firsts[1]) / statistics.median(firsts[0])
    figures: Figures = {
        "turns": n_turns, "compressions": len(after),
        "ordinary: first token s": round(statistics.median(firsts[0]), 3),
        "after a compression: first token s": round(statistics.median(firsts[1]), 3),
        "ratio": round(ratio, 2), "slowest ratio": round(max(firsts[1]) / statistics.median(firsts[0]), 2),
        "ordinary: computed tokens": int(statistics.median(computed[0])),
        "after a compression: computed tokens": int(statistics.median(computed[1])),
    }  # fmt: skip
    assert (
        figures["after a compression: computed tokens"] <= figures["ordinary: computed tokens"] + 4
    ), figures
    assert ratio <= 1.3, f"the turn after a compression waits {ratio:.2f} times as long: {figures}"
    return figures


# -- people while a long text is summarized ----------------------------------------------------------------------------------
def long_text(n_chars: int) -> str:
    """A text as long as wanted, made of the group talk's sentences."""
    sentences = [text for _, text in group_talk() if len(text) > 30]
    text, n = "", 0
    while len(text) < n_chars:
        text += f"Report {n}. " + " ".join(sentences[(n + i) % len(sentences)] for i in range(8)) + "\n"  # fmt: skip
        n += 1
    return text


async def beside_a_summary(n_questions: int, n_chars: int = 30_000) -> Figures:
    """Others ask while a long text is summarized, and when nothing else runs: half of it before, half after."""
    with tempfile.TemporaryDirectory() as folder:
        async with Room(Path(folder), 2048, {}, n_parallel=4) as room:
            await room.ask("Hello.", "Bea", "elsewhere")
            before = await _asked(room, n_questions // 2)
            said = await room.say("/summary " + long_text(n_chars))
            while not room.events("digest_part"):
                await asyncio.sleep(0.1)
            beside, n_beside = await _asked(room, n_questions), len(room.events("digest_part"))
            still = (await room.turn(said)).state.value == "running"
            reply = await room.ended(said, 900)
            await room.idle()
            after = await _asked(room, n_questions // 2)
            alone = ([*before[0], *after[0]], [*before[1], *after[1]])
            parts = room.events("digest_part")
    assert still, "the summary ended before the questions did: too few parts"
    assert reply.outcome is Outcome.COMPLETE
    figures: Figures = {
        "parts": len(parts),
        "parts while people asked": n_beside,
        "summary": reply.notice,
    }
    for name, (firsts, tokens_per_s) in (("beside", beside), ("alone", alone)):
        figures[f"{name}: first token s, median"] = round(statistics.median(firsts), 3)
        figures[f"{name}: first token s, p95"] = round(percentile(firsts, 0.95), 3)
        figures[f"{name}: tokens per s"] = round(statistics.median(tokens_per_s), 1)
    return figures


async def _asked(room: Room, n_questions: int) -> tuple[list[float], list[float]]:
    """Seconds to the first token and tokens per second of one person's questions, one after the other."""
    n_before = len(room.events("generated"))
    for _ in range(n_questions):
        await room.ask(QUESTION, "Bea", "elsewhere")
    lines = room.events("generated")[n_before:]
    firsts = [line["queue_s"] + line["prefill_s"] for line in lines]
    rates = [line["n_generated"] / line["decode_s"] for line in lines if line["decode_s"]]
    return firsts, rates


# -- counting --------------------------------------------------------------------------------------------------------------
async def counting(n_turns: int = 200, n_times: int = 20) -> Figures:
    """What preparing one prompt takes with a long history: with what the store remembers of its tokens, and without."""
    engine = open_engine(
        EngineConfig(name="main", path="demo", n_ctx=8192, n_parallel=1, n_threads=2)
    )
    await engine.start()
    try:
        info = await engine.wait_ready(120)
        talk = _Talk(engine, info)
        for n in range(n_turns):
            await talk.turn(f"Question {n}: why is the sea salty at night?")
        plain = [replace(turn, n_question=0, fingerprint="") for turn in talk.past]
        small = PromptBuilder(engine, msgspec.structs.replace(info, n_ctx_tokens=1024))
        rows = {
            "in the window, list in the store": (talk.builder, talk.past, talk.canonical),
            "in the window, counted anew": (talk.builder, plain, None),
            "over the window, counts in the store": (small, talk.past, None),
            "over the window, counted anew": (small, plain, None),
        }
        figures: Figures = {"turns": n_turns}
        plans = []
        for name, (builder, past, canonical) in rows.items():
            times = []
            for _ in range(n_times):
                started = time.perf_counter()
                built = await builder.build(talk.wanted("And now?", past, canonical))
                times.append(1000 * (time.perf_counter() - started))
            plans.append(built.plan)
            figures[f"{name}: tokens"] = built.plan.n_prompt_tokens
            figures[f"{name}: ms"] = round(statistics.median(times), 1)
        assert plans[0].tokens == plans[1].tokens
        assert plans[2] == plans[3]
        return figures
    finally:
        await engine.close()


class _Talk:
    """A history as the service would have led it, with answers that no model had to give."""

    def __init__(self, engine: Engine, info: ModelInfo) -> None:
        self.engine, self.info = engine, info
        self.builder = PromptBuilder(engine, info)
        self.fingerprint = conversation_fingerprint(info.fingerprint, "Be kind.")
        self.past: list[PastTurn] = []
        self.canonical: Canonical | None = None

    def wanted(
        self, question: str, past: Sequence[PastTurn], canonical: Canonical | None
    ) -> PromptInput:
        """The next prompt."""
        turn_no = len(past) + 1
        return PromptInput("Be kind.", past, question, turn_no, self.fingerprint, canonical, 64, "[cut]")  # fmt: skip

    async def turn(self, question: str) -> None:
        """One more question with an answer."""
        n, answer = (
            len(self.past) + 1,
            "Rivers carry salt into it, day after day, and only water leaves.",
        )
        built = await self.builder.build(self.wanted(question, self.past, self.canonical))
        ids = await self._ids(question, answer)
        self.past.append(
            PastTurn(
                f"t{n}",
                n,
                Sender("u"),
                question,
                answer,
                Outcome.COMPLETE,
                ids,
                self.info.fingerprint,
                n_question=built.plan.n_question,
            )
        )
        self.canonical = next_canonical(built.plan, self.fingerprint, n, ids)

    async def _ids(self, question: str, answer: str) -> tuple[int, ...]:
        asked = (ChatMessage(role=Role.USER, content=question),)
        n_before = (await self.engine.render(asked)).n_tokens
        said = (*asked, ChatMessage(role=Role.ASSISTANT, content=answer))
        rendered = await self.engine.render(said, add_generation_prompt=False)
        return rendered.token_ids[n_before : rendered.tail_start]


# -- what summaries look like ------------------------------------------------------------------------------------------------
async def group_summary(n_ctx: int = 1024) -> Figures:
    """The sixty turns, answered by the demo model, in a window that holds a fourth of them; then what stands for the rest, and
    what /summary makes of all. Writes docs/proof/summary-example.md."""
    with tempfile.TemporaryDirectory() as folder:
        async with Room(Path(folder), n_ctx, {"chat": {"max_new_tokens": 24}}) as room:
            answers = [await room.ask(text, who) for who, text in group_talk()]
            await room.idle()
            room.reply_tokens(200)
            asked = await room.say("/summary", "Mira")
            whole = await room.ended(asked, 600)
            summary = await room.store.summary((await room.turn(asked)).session_id)
            compressions = room.events("compressed")
    assert summary is not None, "sixty turns were not compressed"
    covered = " ".join(text for _, text in group_talk()[: summary.covers_turn_no])
    said = [item for item in KEPT if item in covered]
    kept = [item for item in said if item in summary.text]
    kept_whole = [item for item in KEPT if item in whole.text]
    _write_example(summary, whole, [answer.text for answer in answers], compressions)
    return {
        "compressions": len(compressions), "summary covers turns to": summary.covers_turn_no, "summary tokens": summary.n_tokens,
        "how": summary.how, "facts said in them, kept": f"{len(kept)} of {len(said)}",
        "/summary, facts kept": f"{len(kept_whole)} of {len(KEPT)}", "/summary tells": whole.notice,
    }  # fmt: skip


# What somebody who was away would want to know of the talk.
KEPT = (
    "13 May", "Kessler", "Rentaro", "420", "60 boxes", "Holm and Sons", "480", "7:30", "8 May", "five keys", "1050", "1200",
    "90 euros", "15 May", "Nadia",
)  # fmt: skip


EXAMPLE = (
    "`make prove ARGS=talk` writes this page: sixty turns of four people (`tests/prove/group_talk.txt`), each answered by "
    "SmolLM2-135M in a window of 1024 tokens. A model of this size hardly writes a usable summary: what it wrote stays only where it "
    "is about as full of facts as the talk's own sentences, which fill the rest of the room: 15 % of this small window "
    "(150 tokens). Nothing is lost by it but the prompt's view: all turns stay in the store, and recall quotes them when they are asked about."
)


def _write_example(
    summary: Summary,
    whole: Snapshot,
    answers: Sequence[str],
    compressions: Sequence[dict[str, Any]],
) -> None:
    talk = group_talk()
    lines = [
        "# What a summary of a group's talk looks like with the demo model", "",
        EXAMPLE, "",
        f"## What stands in the prompt for the oldest {summary.covers_turn_no} turns", "",
        f"After {len(compressions)} compressions; {summary.n_tokens} tokens; made by: {summary.how}.", "",
        *_quoted(summary.text), "",
        "## What `/summary` says", "", *_quoted(whole.text), "", f"*{whole.notice}*", "",
        "## The first ten turns", "",
    ]  # fmt: skip
    for (who, text), answer in list(zip(talk, answers, strict=True))[:10]:
        lines += [f"- **{who}**: {text}", f"  - Ember: {' '.join(answer.split())[:160]}"]
    path = ROOT / "docs" / "proof" / "summary-example.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _quoted(text: str) -> list[str]:
    return [f"> {line}  " for line in text.splitlines()]

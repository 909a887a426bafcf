"""KV tiers with the real demo model behind the real process: warm after leaving VRAM and after kill -9, with the same words."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.link.watch import Supervision
from engine.types import (
    ChatMessage,
    Delta,
    EngineRequest,
    EngineStats,
    Finished,
    Role,
    Sampling,
    Started,
)

SYSTEM = ChatMessage(
    role=Role.SYSTEM, content="You are a helpful assistant in a group chat. Answer plainly. " * 3
)


def config(root: Path, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "name": "m",
        "n_ctx": 1024,
        "n_parallel": 1,
        "n_sequences": 3,
        "kv_cells": 1100,
        "n_threads": 2,
        "speculation": False,  # the shape of a batch moves logits a little; these runs must be the same in all else
        "kv_ram_bytes": 2**28,
        "kv_disk_bytes": 2**28,
        "kv_dir": str(root / "kv"),
    }
    return EngineConfig(**(settings | changes))  # type: ignore[arg-type]


class Talk:
    """One conversation with its canonical token list, as the bot keeps it."""

    def __init__(self, engine: EngineProcess, key: str) -> None:
        self.engine = engine
        self.key = key
        self.messages = [SYSTEM]
        self.canonical: tuple[int, ...] = ()
        self.n_turns = 0

    async def ask(self, question: str) -> tuple[str, int]:
        """Returns the answer, and how many prompt tokens were computed beyond those that are new."""
        self.messages.append(ChatMessage(role=Role.USER, content=question))
        rendered = await self.engine.render(self.messages)
        prompt: Sequence[int] = rendered.token_ids
        if self.canonical:
            prompt = (*self.canonical, *rendered.token_ids[rendered.tail_start :])
        n_new = len(prompt) - len(self.canonical)
        self.n_turns += 1
        request = EngineRequest(
            id=f"{self.key}{self.n_turns}",
            prompt_tokens=tuple(prompt),
            max_new_tokens=20,
            sampling=Sampling(temperature=0),
            cache_key=self.key,
            scope="bot",
            n_shared_prefix=rendered.starts[1],
        )
        text, cached = "", -1
        ids: list[int] = []
        async for event in self.engine.submit(request):
            if isinstance(event, Started):
                cached = event.cached_tokens
            elif isinstance(event, Delta):
                text += event.text
                ids += event.token_ids
            elif isinstance(event, Finished):
                answer = tuple(ids[event.answer_start : event.answer_start + event.n_answer])
                self.canonical = (*prompt, *answer)
                self.messages.append(
                    ChatMessage(role=Role.ASSISTANT, content=text, token_ids=answer)
                )
        return text, len(prompt) - cached - n_new


QUESTIONS = (
    "Tell me about the sea and one ship on it.",
    "Which bird would fly over that ship?",
    "What would the captain say about it?",
)


@dataclass(frozen=True)
class Outcome:
    """The answers in order; per later turn the tokens computed beyond the new ones; the counters at the end."""

    answers: list[str]
    extra: list[int]
    stats: EngineStats


async def talk_all(root: Path, n_talks: int, *, kill: bool = False, **changes: object) -> Outcome:
    """Conversations in turn, with room for one in VRAM; with `kill`, kill -9 before every later question."""
    engine = EngineProcess(config(root, **changes), Supervision(backoff_first_s=0.01))
    await engine.start()
    await engine.wait_ready(60)
    talks = [Talk(engine, f"k{i}") for i in range(n_talks)]
    answers, extra = [], []
    for number, question in enumerate(QUESTIONS):
        if kill and number:
            await kill_child(engine)
        for talk in talks:
            text, n_extra = await talk.ask(f"({talk.key}) {question}")
            answers.append(text)
            if number:
                extra.append(n_extra)
    stats = await engine.stats()
    await engine.close()
    return Outcome(answers, extra, stats)


async def kill_child(engine: EngineProcess) -> None:
    await asyncio.sleep(0.3)  # what was just said is being written
    restarts = (await engine.stats()).n_restarts
    os.kill((await engine.stats()).child_pid, signal.SIGKILL)
    while (await engine.stats()).n_restarts == restarts:
        await asyncio.sleep(0.02)
    await engine.wait_ready(60)


async def test_conversations_that_left_vram_compute_only_what_is_new(tmp_path: Path) -> None:
    tiered = await talk_all(tmp_path, 3)
    assert max(tiered.extra) <= 4
    assert tiered.stats.kv_restored_tokens_total > 200
    # A turn writes its new tokens once.
    n_decoded = (
        tiered.stats.decoded_prompt_tokens_total + tiered.stats.decoded_generated_tokens_total
    )
    assert tiered.stats.kv_saved_tokens_total <= 1.2 * n_decoded
    cold = await talk_all(tmp_path, 3, kv_ram_bytes=0, kv_disk_bytes=0)
    assert min(cold.extra) > 30


async def test_after_kill_9_it_goes_on_warm_and_says_the_same(tmp_path: Path) -> None:
    in_vram = await talk_all(tmp_path, 1, kv_ram_bytes=0, kv_disk_bytes=0)
    killed = await talk_all(tmp_path, 1, kill=True)
    assert killed.stats.n_restarts == len(QUESTIONS) - 1
    assert max(killed.extra) <= 4
    assert killed.answers == in_vram.answers


async def test_forgetting_reaches_the_disk(tmp_path: Path) -> None:
    engine = EngineProcess(config(tmp_path))
    await engine.start()
    await engine.wait_ready(60)
    talk, other = Talk(engine, "a"), Talk(engine, "b")
    for question in QUESTIONS[:2]:
        await talk.ask(question)
        await other.ask(question)
    await engine.forget("a")
    _, n_extra = await talk.ask(QUESTIONS[2])
    assert n_extra > 30
    _, n_extra = await other.ask(QUESTIONS[2])
    assert n_extra <= 4
    await engine.close()

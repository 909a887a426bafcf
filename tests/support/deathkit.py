"""Kills a real child in mid-answer and goes on as the bot does: the same request again, behind the ids that are there."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.backends.modelfile import find_model
from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.link.watch import Supervision
from engine.types import (
    ChatMessage,
    Delta,
    EngineRequest,
    EngineState,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    Role,
    Sampling,
)

# The real rules allow a step ten times the longest one and half a minute more.
RULES = Supervision(
    backoff_first_s=0.1, backoff_max_s=0.2, stall_s=1.5, first_step_s=30.0, stall_factor=3.0, watch_every_s=0.25, config_retry_s=0.5
)  # fmt: skip
KILLS = {
    "abort": signal.SIGABRT,
    "segfault": signal.SIGSEGV,
    "kill -9": signal.SIGKILL,
    "bus error": signal.SIGBUS,
    "hang": signal.SIGSTOP,
}
QUESTIONS = (
    "Name three colours of the rainbow, then say why you like them.",
    "What is the sea made of?",
    "Tell me about the history of bread.",
    "How does a bicycle stay upright?",
    "Write a short story about a lighthouse.",
)


@dataclass(slots=True)
class Told:
    """One reply over all its tries. `gaps_s`: from each death to the next token."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    gaps_s: list[float] = field(default_factory=list)
    n_tries: int = 0
    end: Finished | Failed | None = None


@dataclass(frozen=True, slots=True)
class Blow:
    """What happens to the child when so many tokens of the reply have been seen."""

    at_token: int
    strike: Callable[[int], None]


def blow(kind: str, at_token: int) -> Blow:
    """A signal of `KILLS`."""
    return Blow(at_token, lambda pid: os.kill(pid, KILLS[kind]))


def demo_engine(rules: Supervision = RULES, **changes: Any) -> EngineProcess:
    """The demo model; a small window, so that loading is quick, and one thread, which does not suffer beside other tests."""
    settings = {"name": "demo", "path": "demo", "n_ctx": 1024, "n_parallel": 2, "n_threads": 1}
    return EngineProcess(EngineConfig(**settings | changes), rules)


async def prompt_of(engine: EngineProcess, question: str) -> tuple[int, ...]:
    """Token ids of a question."""
    messages = (ChatMessage(role=Role.USER, content=question),)
    return (await engine.render(messages)).token_ids


async def tell(
    engine: EngineProcess,
    prompt: tuple[int, ...],
    blows: Sequence[Blow] = (),
    *,
    n_tokens: int = 96,
    name: str = "turn",
    on_failed: Callable[[str], Awaitable[None]] | None = None,
) -> Told:
    """One greedy reply as a turn of the bot makes it, whatever happens on the way.

    The bot ends a turn with a sentence where the engine has FAILED; with `on_failed`, which gets the engine's own sentence
    and may mend what is wrong, it goes on.
    """
    told, left = Told(), list(blows)
    struck_at, struck_in = 0.0, 0
    while told.end is None:
        try:
            await engine.wait_ready(120.0)
        except EngineConfigError as error:
            if on_failed is None:
                raise
            await on_failed(str(error))
            await until(engine, lambda stats: stats.state is EngineState.READY, 120.0)
        told.n_tries += 1
        request = EngineRequest(
            id=f"{name}.{told.n_tries}",
            prompt_tokens=prompt,
            generated_tokens=tuple(told.ids),
            max_new_tokens=n_tokens,
            sampling=Sampling(temperature=0.0),
            lineage=name,
            cache_key=name,
            scope="deaths",
        )
        async for event in engine.submit(request):
            if isinstance(event, Delta):
                if struck_at and told.n_tries > struck_in:
                    told.gaps_s.append(time.monotonic() - struck_at)
                    struck_at = 0.0
                told.ids += event.token_ids
                told.text += event.text
                if left and not struck_at and len(told.ids) >= left[0].at_token:
                    struck_at, struck_in = time.monotonic(), told.n_tries
                    left.pop(0).strike((await engine.stats()).child_pid)
            elif isinstance(event, Finished) or (isinstance(event, Failed) and not event.retryable):
                told.end = event
            elif isinstance(event, Failed):
                assert event.code is FailureCode.ENGINE_DIED, event
    return told


async def until(
    engine: EngineProcess, condition: Callable[[EngineStats], bool], timeout_s: float = 60.0
) -> EngineStats:
    """Wait for a state."""
    async with asyncio.timeout(timeout_s):
        while not condition(stats := await engine.stats()):
            await asyncio.sleep(0.02)
    return stats


# Model files.


def model_copy(folder: Path) -> Path:
    """The demo model as a file that may be damaged."""
    return Path(shutil.copy(find_model("demo", "demo"), folder / "model.gguf"))


def swapped_for_half(model: Path) -> None:
    """A download that broke off takes the model's place; the running child keeps the old file."""
    half = model.with_name("half")
    with model.open("rb") as whole:
        half.write_bytes(whole.read(model.stat().st_size // 2))
    half.replace(model)


def swapped_for_a_web_page(model: Path) -> None:
    """What some downloads really are."""
    page = model.with_name("page")
    page.write_text("<html>404 not found</html>")
    page.replace(model)


def cut_in_place(model: Path) -> None:
    """The file itself shrinks under the running child, which reads it through a memory map."""
    os.truncate(model, model.stat().st_size // 4)


def limited_python(folder: Path, n_mib: int) -> str:
    """An interpreter with so little address space: put it in the place of `sys.executable`."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nulimit -v {n_mib * 1024}\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)

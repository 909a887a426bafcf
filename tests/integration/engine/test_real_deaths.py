"""The demo model's child dies in mid-answer in every way that can be made to happen: a small sample of `make prove ARGS=death`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.client import EngineProcess
from engine.types import Failed, Finished
from tests.support import deathkit
from tests.support.deathkit import Blow, Told, blow, demo_engine, tell
from tests.support.nearties import Judge
from tests.support.processkit import ask

pytestmark = [
    pytest.mark.model,
    pytest.mark.crash,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]
N_TOKENS = 96
QUESTION = deathkit.QUESTIONS[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deathkit.model_copy(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[EngineProcess]:
    engine = demo_engine(path=str(model))
    await engine.start()
    await engine.wait_ready(200.0)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(engine: EngineProcess) -> Told:
    """The reply without any interruption."""
    prompt = await deathkit.prompt_of(engine, QUESTION)
    return await tell(engine, prompt, n_tokens=N_TOKENS)


async def interrupted(engine: EngineProcess, *blows: Blow) -> Told:
    prompt = await deathkit.prompt_of(engine, QUESTION)
    return await tell(engine, prompt, blows, n_tokens=N_TOKENS)


@pytest.mark.parametrize(
    "kinds", [("abort", "segfault"), ("kill -9", "hang")], ids=lambda kinds: "+".join(kinds)
)
async def test_a_reply_is_continued_word_by_word(
    engine: EngineProcess, judge: Judge, whole: Told, kinds: tuple[str, str]
) -> None:
    told = await interrupted(engine, blow(kinds[0], 3), blow(kinds[1], 12))
    assert isinstance(told.end, Finished)
    assert (told.n_tries, len(told.gaps_s)) == (3, 2)
    prompt = await deathkit.prompt_of(engine, QUESTION)
    judge.verdict(prompt, whole.ids, told.ids)


@pytest.mark.parametrize("damage", [deathkit.swapped_for_half, deathkit.cut_in_place])
async def test_a_model_file_that_breaks_meanwhile(
    engine: EngineProcess, judge: Judge, whole: Told, model: Path, damage: Callable[[Path], None]
) -> None:
    good = model.with_name("good")
    shutil.copy(model, good)

    def strike(pid: int) -> None:
        damage(model)
        if damage is deathkit.cut_in_place:
            return  # the child dies by itself, over the next page that is missing
        os.kill(pid, signal.SIGKILL)

    sentences = []

    async def mend(sentence: str) -> None:
        sentences.append(sentence)
        failed = [event async for event in engine.submit(ask("other"))][-1]
        assert isinstance(failed, Failed)
        assert not failed.retryable, "people are told at once"
        good.replace(model)

    prompt = await deathkit.prompt_of(engine, QUESTION)
    told = await tell(engine, prompt, [Blow(10, strike)], n_tokens=N_TOKENS, on_failed=mend)
    (sentence,) = sentences
    assert "is damaged or cut off" in sentence
    assert "download the model file again" in sentence
    judge.verdict(prompt, whole.ids, told.ids)


async def test_llama_cpp_without_memory_comes_back_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """720 MiB of KV in 900 MiB of address space: its real words, and the real way down."""
    monkeypatch.setattr(sys, "executable", deathkit.limited_python(tmp_path, 900))
    engine = demo_engine(n_ctx=4096, n_parallel=8)
    await engine.start()
    try:
        await engine.wait_ready(120.0)
        stats = await engine.stats()
        prompt = await deathkit.prompt_of(engine, QUESTION)
        assert isinstance((await tell(engine, prompt, n_tokens=4)).end, Finished)
    finally:
        await engine.close()
    assert stats.step_back.startswith("n_parallel 8 → ")
    assert "after running out of memory at" in stats.step_back

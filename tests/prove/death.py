"""Deaths of the engine: in every way that can be made to happen, in mid-answer, again and again.

With the demo model every half-shown reply must be continued as an uninterrupted greedy run would have gone on, or part from it
only where the model could as well have said either (`tests.support.nearties`). With the whole service (and the scripted
model, whose words are always the same) what people see must be the same text, in one answer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bot.sandbox.feishu import Limits, SandboxConfig
from engine.client import EngineProcess
from engine.types import Finished
from tests.prove.suite import ROOT, Figures, Item, Suite, median
from tests.support import deathkit
from tests.support.deathkit import QUESTIONS, Blow, Told, blow, demo_engine, tell
from tests.support.nearties import Judge
from tests.support.stand import Stand

N_TOKENS = 72
COLUMNS = ("kills", "recovered", "next token s (median)", "next token s (longest)", "replies")
SLOW_WORDS = {"token_delay_s": "0.02", "reply": "One word after the other, 一字一句。 " * 12}


@asynccontextmanager
async def running(**settings: Any) -> Any:
    """A demo engine that is ready."""
    engine = demo_engine(**settings)
    await engine.start()
    try:
        await engine.wait_ready(120.0)
        yield engine
    finally:
        await engine.close()


def figures_of(told: list[Told], verdicts: list[str], **more: object) -> Figures:
    """A row of the table."""
    gaps = [gap for one in told for gap in one.gaps_s]
    kills = sum(one.n_tries - 1 for one in told)
    same = verdicts.count("same")
    return {
        "kills": kills,
        "recovered": len(gaps),
        "next token s (median)": round(median(gaps), 1),
        "next token s (longest)": round(max(gaps, default=0.0), 1),
        "replies": f"{same} of {len(verdicts)} the same, {len(verdicts) - same} part at a toss-up",
        **more,
    }


async def judged(prompts: list[tuple[int, ...]], whole: list[Told], told: list[Told]) -> list[str]:
    """Every reply beside the uninterrupted one. Raises AssertionError for one that says something else."""

    def judge_all() -> list[str]:
        judge = Judge()
        try:
            pairs = zip(prompts, whole, told, strict=True)
            return [judge.verdict(prompt, a.ids, b.ids) for prompt, a, b in pairs]
        finally:
            judge.close()

    assert all(isinstance(one.end, Finished) for one in told), [one.end for one in told]
    return await asyncio.to_thread(judge_all)


async def two_blows_each(kind: str) -> Figures:
    """Five replies one after the other, each struck early and late."""
    async with running() as engine:
        prompts = [await deathkit.prompt_of(engine, question) for question in QUESTIONS]
        whole = [await tell(engine, prompt, n_tokens=N_TOKENS) for prompt in prompts]
        told = [
            await tell(
                engine, prompt, [blow(kind, 3), blow(kind, 50)], n_tokens=N_TOKENS, name=f"t{n}"
            )
            for n, prompt in enumerate(prompts)
        ]
        return figures_of(told, await judged(prompts, whole, told))


async def four_at_once() -> Figures:
    """Four replies together; whoever comes first to a mark strikes the child that all of them share."""
    marks = {0: ("kill -9", 10), 1: ("abort", 25), 2: ("kill -9", 40), 3: ("segfault", 60)}
    async with running(n_parallel=4) as engine:
        prompts = [await deathkit.prompt_of(engine, question) for question in QUESTIONS[:4]]

        async def all_four(*, struck: bool) -> list[Told]:
            each = (
                tell(engine, prompt, [blow(*marks[n])] if struck else (), n_tokens=N_TOKENS, name=f"{struck} {n}")
                for n, prompt in enumerate(prompts)
            )  # fmt: skip
            return list(await asyncio.gather(*each))

        whole, told = await all_four(struck=False), await all_four(struck=True)
        n_deaths = (await engine.stats()).n_restarts
        verdicts = await judged(prompts, whole, told)
        return figures_of(told, verdicts) | {"kills": n_deaths, "recovered": n_deaths}


# Model files.


async def broken_file(damage: Callable[[Path], None], *, kill: bool) -> Figures:
    """The file breaks in mid-answer and the child dies; people are told; a whole file heals it."""
    with tempfile.TemporaryDirectory() as folder:
        model = deathkit.model_copy(Path(folder))
        good = model.with_name("good")
        shutil.copy(model, good)
        sentences: list[str] = []

        def strike(pid: int) -> None:
            damage(model)
            if kill:
                os.kill(pid, signal.SIGKILL)

        async def mend(sentence: str) -> None:
            sentences.append(sentence)
            good.replace(model)

        async with running(path=str(model)) as engine:
            prompt = await deathkit.prompt_of(engine, QUESTIONS[0])
            whole = await tell(engine, prompt, n_tokens=N_TOKENS)
            told = await tell(engine, prompt, [Blow(20, strike)], n_tokens=N_TOKENS, on_failed=mend)
            verdicts = await judged([prompt], [whole], [told])
        assert sentences, "the broken file was not noticed"
        assert any(words in sentences[0] for words in ("damaged or cut off", "not a GGUF file"))
        return figures_of([told], verdicts, said=sentences[0].removeprefix(str(model)).strip())


# Memory.


async def little_address_space() -> Figures:
    """720 MiB of KV in 900 MiB: llama.cpp's own failure, by `ulimit -v`."""
    honest = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        sys.executable = deathkit.limited_python(Path(folder), 900)
        try:
            async with running(n_ctx=4096, n_parallel=8) as engine:
                return await answers_smaller(engine)
        finally:
            sys.executable = honest


async def answers_smaller(engine: EngineProcess) -> Figures:
    """It has stepped back, says so, and answers."""
    prompt = await deathkit.prompt_of(engine, QUESTIONS[0])
    told = await tell(engine, prompt, n_tokens=8)
    assert isinstance(told.end, Finished), told.end
    stats = await engine.stats()
    assert "after running out of memory" in stats.step_back, stats
    return {"kills": stats.n_restarts, "recovered": stats.n_restarts, "step_back": stats.step_back}


async def kernel_oom_kill() -> Figures:
    """A whole engine in a control group of 420 MiB: the kernel's killer comes while the KV cache is filled."""
    groups = Path("/sys/fs/cgroup/memory")
    ours = next(
        (
            line.split(":", 2)[2]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if ":memory:" in line
        ),
        None,
    )
    group = groups / (ours or "").lstrip("/") / f"hearth-death-{os.getpid()}"
    try:
        if ours is None:
            raise PermissionError("no memory control group of the older kind")
        group.mkdir()
    except OSError as error:
        print(f"  not possible here: {error}", flush=True)
        return {"said": f"not possible here: {error}"}
    try:
        (group / "memory.limit_in_bytes").write_text(str(420 * 2**20))
        child = await asyncio.create_subprocess_exec(
            "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "{sys.executable}" -m tests.prove.death',
            cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output = (await child.communicate())[0].decode()
        lines = [line for line in output.splitlines() if line.startswith("STEPPED ")]
        assert lines, f"the engine did not come back:\n{output[-1500:]}"
        assert "the kernel ended it because memory ran out" in output, output[-1500:]
        _, n, step_back = lines[0].split(" ", 2)
        return {"kills": int(n), "recovered": int(n), "step_back": step_back}
    finally:
        group.rmdir()


async def in_little_memory() -> None:
    """What runs inside the control group."""
    async with running(n_ctx=4096, n_parallel=8) as engine:
        figures = await answers_smaller(engine)
        print("STEPPED", figures["kills"], figures["step_back"], flush=True)


# The whole service.


@asynccontextmanager
async def service(**fake: str) -> Any:
    """`hearth serve` with the scripted model, and the sandbox in front of it."""
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(
            Path(folder),
            models={"backend": "fake", "n_parallel": 4, "fake": SLOW_WORDS | fake},
            bot={"update_interval_s": 0.4},
            sandbox_config=SandboxConfig(limits=Limits().without_rates()),
        )
        async with stand:
            yield stand


def child_of(stand: Stand) -> int:
    """Process id of the engine child that is ready."""
    return int(stand.events("engine_ready")[-1]["pid"])


async def shown(stand: Stand, question: Any, n_chars: int) -> None:
    """Until so much of an answer can be read."""
    await stand.sandbox.wait_for(
        lambda: any(len(text) >= n_chars for text in stand.answers(question)), timeout=60
    )


async def seen_by_people(kinds: tuple[str, ...]) -> Figures:
    """A half-shown answer, its engine struck once or twice: the same text in the end, in one message."""
    async with service() as stand:
        user = stand.sandbox.add_user("Lin")
        chat = stand.sandbox.direct_chat(user)
        (whole,) = await stand.settled(await stand.sandbox.say(chat, user, "Talk"), 60)
        gaps, loop = [], asyncio.get_running_loop()
        for kind in kinds:
            question = await stand.sandbox.say(chat, user, f"Talk, {kind}")
            await shown(stand, question, 20)
            before = max(map(len, stand.answers(question)))
            os.kill(child_of(stand), deathkit.KILLS[kind])
            died_at = loop.time()
            await shown(stand, question, before + 20)
            gaps.append(loop.time() - died_at)
            answers = await stand.settled(question, 120)
            assert answers == [whole], f"after {kind}: {answers}"
        assert len(stand.events("engine_ready")) == len(kinds) + 1
        return {
            "kills": len(kinds),
            "recovered": len(gaps),
            "next token s (median)": round(median(gaps), 1),
            "next token s (longest)": round(max(gaps), 1),
            "replies": f"{len(kinds)} of {len(kinds)} the same, one message each",
        }


async def poison_in_a_group() -> Figures:
    """One question of four kills the engine whenever it is computed: it ends with a sentence, everyone else is answered."""
    script = {"die": "segv", "die_on": "poison", "die_after": "40"}
    async with service(**script) as stand:
        people = [stand.sandbox.add_user(name) for name in ("Lin", "Alex", "王芳", "Sam")]
        group = stand.sandbox.add_group("g", people)
        asked = [
            await stand.sandbox.say(group, user, "This is poison" if n == 0 else f"Question {n}")
            for n, user in enumerate(people)
        ]
        texts = [await stand.settled(question, 120) for question in asked]
        assert all(len(answers) == 1 for answers in texts)
        bad, *good = [answers[0] for answers in texts]
        assert "crashed each time" in bad, bad
        assert all("一字一句" in text and "crashed" not in text for text in good)
        deaths = stand.events("engine_died")
        assert len(deaths) == 3, [death["detail"] for death in deaths]
        again = await stand.settled(await stand.sandbox.say(group, people[1], "Still there?"), 60)
        return {"kills": 3, "recovered": 3, "replies": f"{len(good) + len(again)} others answered"}


def summary(done: dict[str, Figures]) -> str:
    """Sentences."""
    kills = sum(int(figures.get("kills") or 0) for figures in done.values())
    recovered = sum(int(figures.get("recovered") or 0) for figures in done.values())
    return (
        f"{kills} deaths, {recovered} recoveries. Next token: from the blow until the reply goes on, the start of a new child and "
        "computing the conversation again included; a hang is longer by what the watchdog allows (here 3 × the longest step + "
        "1.5 s; 10 × + 30 s in service). Toss-up: a continued reply computes its beginning as prompt, which moves logits a "
        "little; two replies may part only where two tokens were closer than twice that."
    )


def _item(work: Callable[..., Awaitable[Figures]], *args: Any, **kwargs: Any) -> Item:
    return lambda: work(*args, **kwargs)


def build() -> Suite:
    """The suite."""
    items: dict[str, Item] = {kind: _item(two_blows_each, kind) for kind in deathkit.KILLS}
    items["four replies at once"] = four_at_once
    items["half a file takes the model's place"] = _item(
        broken_file, deathkit.swapped_for_half, kill=True
    )
    items["a web page takes the model's place"] = _item(
        broken_file, deathkit.swapped_for_a_web_page, kill=True
    )
    items["the file is cut under the running child"] = _item(
        broken_file, deathkit.cut_in_place, kill=False
    )
    items["too little address space"] = little_address_space
    items["killed by the kernel for memory"] = kernel_oom_kill
    items["hearth serve: abort, segfault, kill -9, bus error"] = _item(
        seen_by_people, ("abort", "segfault", "kill -9", "bus error")
    )
    items["hearth serve: a hang, with the real watchdog"] = _item(seen_by_people, ("hang",))
    items["hearth serve: a poisonous question among four"] = poison_in_a_group
    return Suite("death", "Deaths of the engine in mid-answer", items, summary, COLUMNS)


if __name__ == "__main__":
    asyncio.run(in_little_memory())

"""The tuner's search over made-up machines: what it finds, what a death costs, and how an interrupted one goes on."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Callable, Iterator
from dataclasses import replace as with_changes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.runs import (
    DIED,
    HELD,
    MARGIN,
    RAM,
    Knobs,
    Quality,
    Run,
    asked_of,
    knobs_of,
    seconds_per_round,
)
from engine.vram.tunechild import Measured, Question
from engine.vram.tuned import Identity, load_tuned
from engine.vram.tuner import Tuner, TuneReport
from engine.vram.tunerun import Ended, Hear
from engine.vram.tunesearch import Space, fastest, next_step, threads_to_try
from engine.vram.tunestore import TuneStore, opened

GIB = 2**30
CARD = "CUDA0 (a card)"
WHOSE = Identity("here", "build", "f" * 32)
CONFIG = EngineConfig(
    name="m", cache_type_k="q8_0", cache_type_v="q8_0", n_gpu_layers=20, n_threads=4
)
SPACE = Space(
    start=knobs_of(CONFIG),
    n_layers=29,
    threads=(2, 4, 8),
    fixed=frozenset({"cache_type_k", "cache_type_v"}),
    types=("f16", "q8_0", "q4_0"),
)


class Landscape:
    """A machine that answers at once: speed and memory by settings. `deadly` settings kill the child."""

    def __init__(self, deadly: Callable[[EngineConfig], bool] = lambda _: False) -> None:
        self.deadly = deadly
        self.asked: list[Question] = []
        self.stop_at = 0

    async def run(self, question: Question, limit_s: float, hear: Hear) -> Ended:
        self.asked.append(question)
        if self.stop_at and len(self.asked) >= self.stop_at:
            raise asyncio.CancelledError
        config = question.config
        hear("prompt", 1, 2)
        if question.is_quality:
            worse = {"f16": 0.0, "q8_0": 0.01, "q4_0": 0.5}[config.cache_type_k]
            return self._ended(Measured(perplexity=20 + worse, n_tokens=800), {})
        if self.deadly(config):
            return Ended(DIED, "llama.cpp ended by SIGABRT", None, {RAM: GIB}, self.room, 0.1)
        peak = {
            RAM: GIB,
            CARD: (2 + config.n_gpu_layers // 3) * GIB + config.n_ubatch * 2**20,
        }
        speed = 10 + config.n_gpu_layers - abs(config.n_threads - 8)
        prompt = 100.0 + 50 * (config.n_ubatch >= 256)
        return self._ended(
            Measured(depth=question.depth or 512, prompt_tps=prompt, generation_tps=speed), peak
        )

    room: ClassVar = {RAM: 16 * GIB, CARD: 10 * GIB}

    def _ended(self, measured: Measured, peak: dict[str, int]) -> Ended:
        return Ended(HELD, "", measured, peak, self.room, 0.1)


class Quiet:
    """Hears everything and says nothing."""

    def __init__(self) -> None:
        self.ended: list[Run | Quality] = []

    def begins(self, what: Knobs | Quality, number: int) -> None:
        assert number > 0

    def progress(self, phase: str, done: int, total: int) -> None:
        assert done <= total

    def ends(self, what: Run | Quality) -> None:
        self.ended.append(what)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def tuner(store: TuneStore, machine: Landscape, space: Space = SPACE) -> Tuner:
    return Tuner(CONFIG, space, store, machine.run, 1, {})


async def tuned(
    model: Path, machine: Landscape, space: Space = SPACE, budget_s: float = 1e9
) -> TuneReport:
    config = replace(CONFIG, path=str(model))
    with opened(config, model, WHOSE) as (store, _):
        return await tuner(store, machine, space).tune(budget_s, Quiet())


def layers(report: TuneReport) -> list[int]:
    return [run.knobs.n_gpu_layers for run in report.runs]


async def test_the_search_climbs_in_steps_of_two_layers_to_the_edge_of_memory(model: Path) -> None:
    report = await tuned(model, Landscape())
    assert report.best is not None
    # 24 layers take 10 GiB and the card has no more; the margin is kept with 22 or 23.
    assert report.best.knobs.n_gpu_layers == 22
    assert report.best.knobs.n_threads == 8
    assert report.best.peak[CARD] + MARGIN <= Landscape.room[CARD]
    assert {20, 22, 24} <= set(layers(report))
    assert all(n % 2 == 0 for n in layers(report))
    assert report.is_finished
    assert report.start is not None
    assert seconds_per_round(report.best) < seconds_per_round(report.start)


async def test_a_death_is_a_data_point(model: Path) -> None:
    machine = Landscape(deadly=lambda config: config.n_gpu_layers > 21)
    report = await tuned(model, machine)
    assert report.best is not None
    assert report.best.knobs.n_gpu_layers == 20
    died = [run for run in report.runs if run.outcome == DIED]
    assert [run.knobs.n_gpu_layers for run in died] == [22] * len(died)
    assert all("SIGABRT" in run.reason for run in died)


async def test_when_the_plan_itself_dies_layers_go_until_something_holds(model: Path) -> None:
    report = await tuned(model, Landscape(deadly=lambda config: config.n_gpu_layers > 11))
    assert layers(report)[:6] == [20, 18, 16, 14, 12, 10]
    assert report.best is not None
    assert report.best.knobs.n_gpu_layers == 10


async def test_experts_go_first_in_a_mixture(model: Path) -> None:
    space = Space(start=replace(SPACE.start, n_gpu_layers=29), n_layers=29, n_moe=28)
    report = await tuned(model, Landscape(deadly=lambda config: config.n_cpu_moe < 5), space)
    first = [(run.knobs.n_gpu_layers, run.knobs.n_cpu_moe) for run in report.runs[:4]]
    assert first == [(29, 0), (29, 2), (29, 4), (29, 6)]


async def test_nothing_that_holds_is_told_and_ends(model: Path) -> None:
    report = await tuned(model, Landscape(deadly=lambda _: True))
    assert report.best is None
    assert report.is_finished
    assert len(report.runs) == 1 + 10 + 4  # down to no layer, then ubatch 256 … 32


async def test_every_kind_of_cache_is_shown_with_its_perplexity_and_the_asked_one_kept(
    model: Path,
) -> None:
    report = await tuned(model, Landscape())
    kinds = {run.knobs.cache_type_k for run in report.runs}
    assert kinds == {"f16", "q8_0", "q4_0"}
    assert {q.cache_type_k: q.perplexity for q in report.qualities} == {
        "q8_0": 20.01,
        "f16": 20.0,
        "q4_0": 20.5,
    }
    assert report.best is not None
    assert report.best.knobs.cache_type_k == "q8_0"


async def test_the_kinds_are_shown_also_when_time_is_short(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run takes 10 of 100 seconds: seven for the search, and what is left for the kinds."""
    machine = Landscape()
    clock = SimpleNamespace(monotonic=lambda: 10.0 * len(machine.asked))
    monkeypatch.setattr("engine.vram.tuner.time", clock)
    report = await tuned(model, machine, budget_s=100.0)
    assert len(machine.asked) == 10
    assert not report.is_finished
    assert [run.knobs.cache_type_k for run in report.runs][-3:] == ["q8_0", "f16", "q4_0"]


async def test_a_stopped_tuner_goes_on_where_it_was(model: Path) -> None:
    reference, first, second, third = (Landscape() for _ in range(4))
    whole = await tuned(model.with_name("other.gguf"), reference)
    first.stop_at = 6
    with pytest.raises(asyncio.CancelledError):
        await tuned(model, first)
    assert await tuned(model, second) == whole
    assert first.asked[:-1] + second.asked == reference.asked
    assert await tuned(model, third) == whole
    assert third.asked == []


async def test_the_plan_and_what_beat_it_are_run_twice(model: Path) -> None:
    """As when the machine was busy while the plan was measured."""

    class Busy(Landscape):
        async def run(self, question: Question, limit_s: float, hear: Hear) -> Ended:
            ended = await super().run(question, limit_s, hear)
            slow = len(self.asked) == 1 and ended.measured is not None
            if not slow or ended.measured is None:
                return ended
            measured = replace(ended.measured, generation_tps=5.0, prompt_tps=5.0)
            return with_changes(ended, measured=measured, peak=ended.peak | {RAM: 2 * GIB})

    space = Space(start=SPACE.start, threads=(2, 4), fixed=SPACE.fixed | {"n_ubatch", "n_batch"})
    machine = Busy()
    report = await tuned(model, machine, space)
    # With two threads less the machine is slower; it had only looked faster.
    assert report.best is not None
    assert report.best.knobs == SPACE.start
    assert report.best.n_times == 2
    assert report.best.generation_tps > 5.0
    assert report.best.peak[RAM] == 2 * GIB
    assert [run.n_times for run in report.runs] == [2, 1]
    runs = [q for q in machine.asked if not q.is_quality]
    assert [q.config.n_threads for q in runs] == [4, 2, 4]
    assert report.is_finished


async def test_no_run_begins_after_its_time(model: Path) -> None:
    machine = Landscape()
    report = await tuned(model, machine, budget_s=0)
    assert len(machine.asked) == 1
    assert len(report.runs) == 1
    assert not report.is_finished


async def test_settings_that_end_the_tuner_twice_are_a_death(model: Path) -> None:
    """As after kill -9, or a machine that froze: nothing of ours ran to its end."""
    config = replace(CONFIG, path=str(model))
    asked = asked_of(config)
    for _ in range(2):
        with opened(config, model, WHOSE) as (store, _note):
            assert store.begin(asked, SPACE.start) is None
    with opened(config, model, WHOSE) as (store, _note):
        run = store.begin(asked, SPACE.start)
    assert run is not None
    assert run.outcome == DIED
    assert "2 times" in run.reason


@pytest.mark.parametrize("n_kills", [1, 2])
async def test_a_run_that_was_killed_for_others_memory_is_tried_again(
    model: Path, n_kills: int
) -> None:
    class Crowded(Landscape):
        async def run(self, question: Question, limit_s: float, hear: Hear) -> Ended:
            if len(self.asked) < n_kills:
                self.asked.append(question)
                reason = "killed by the kernel (signal 9), most likely for want of memory"
                return Ended(DIED, reason, None, {RAM: GIB}, self.room, 0.1, was_killed=True)
            return await super().run(question, limit_s, hear)

    machine = Crowded()
    report = await tuned(model, machine)
    assert machine.asked[0] == machine.asked[n_kills - 1]
    first = report.runs[0]
    assert (first.knobs, first.outcome) == (SPACE.start, HELD if n_kills == 1 else DIED)
    assert n_kills == 1 or "2 times" in first.reason
    assert report.best is not None


async def test_a_run_that_a_person_stopped_is_no_death(model: Path) -> None:
    config = replace(CONFIG, path=str(model))
    for _ in range(4):
        machine = Landscape()
        machine.stop_at = 1
        with opened(config, model, WHOSE) as (store, _), pytest.raises(asyncio.CancelledError):
            await tuner(store, machine).tune(1.0, Quiet())
    assert (await tuned(model, Landscape())).best is not None


async def test_what_was_tuned_is_what_auto_finds(model: Path) -> None:
    report = await tuned(model, Landscape())
    wish = replace(CONFIG, path=str(model), n_gpu_layers=-1, n_threads=0)
    found = load_tuned(wish, model, WHOSE, Landscape.room)
    assert found.run == report.best
    assert found.config is not None
    assert found.config.n_gpu_layers == 22


async def test_only_one_tuner_at_a_time(model: Path) -> None:
    config = replace(CONFIG, path=str(model))
    with (
        opened(config, model, WHOSE),
        pytest.raises(EngineConfigError, match="another `hearth tune`"),
        opened(config, model, WHOSE),
    ):
        pass
    with opened(config, model, WHOSE) as (store, _):
        store.forget(asked_of(config))
    assert [p.name for p in model.parent.iterdir()] == [store.file.name]


def test_a_lock_whose_name_is_gone_is_nobodys(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner before ended between our opening the file and locking it: a third one may have made a new file meanwhile."""
    config = replace(CONFIG, path=str(model))
    take = fcntl.flock

    def late(lock: Any, how: int) -> None:
        Path(lock.name).unlink()
        take(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        pytest.raises(EngineConfigError, match="another `hearth tune`"),
        opened(config, model, WHOSE),
    ):
        pass


def test_results_go_to_the_data_folder_when_the_models_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    model = blocked / "m.gguf"  # a folder that cannot be made, also for root
    config = replace(CONFIG, path=str(model), tuned_dir=str(tmp_path / "data"))
    with opened(config, model, WHOSE) as (store, _):
        assert store.file.parent == tmp_path / "data"
    with (
        pytest.raises(EngineConfigError, match="cannot be kept anywhere"),
        opened(replace(config, tuned_dir=""), model, WHOSE),
    ):
        pass


async def test_a_damaged_file_is_measured_anew_and_told(model: Path) -> None:
    whole = await tuned(model, Landscape())
    config = replace(CONFIG, path=str(model))
    with opened(config, model, WHOSE) as (store, note):
        assert note == ""
        store.file.write_text('{"version": 1, "runs": [')
    with opened(config, model, WHOSE) as (store, note):
        assert "is damaged" in note
        assert await tuner(store, Landscape()).tune(1e9, Quiet()) == whole


async def test_a_limit_of_the_card_counts_like_its_size(model: Path) -> None:
    config = replace(CONFIG, path=str(model))
    with opened(config, model, WHOSE) as (store, _):
        limited = Tuner(CONFIG, SPACE, store, Landscape().run, 1, {CARD: 8 * GIB})
        report = await limited.tune(1e9, Quiet())
    assert report.best is not None
    assert report.best.peak[CARD] + MARGIN <= 8 * GIB
    assert report.best.knobs.n_gpu_layers < 20


@pytest.fixture
def held() -> Callable[..., Run]:
    def make(knobs: Knobs, speed: float, peak: int = GIB) -> Run:
        return Run(
            asked=asked_of(CONFIG), knobs=knobs, outcome=HELD, depth=512, prompt_tps=100.0, generation_tps=speed,
            peak={RAM: peak}, room={RAM: 8 * GIB},
        )  # fmt: skip

    return make


def steps(space: Space, held: Callable[..., Run]) -> Iterator[Knobs]:
    runs: list[Run] = []
    while (knobs := next_step(space, runs)) is not None:
        runs.append(held(knobs, 100.0))
        yield knobs


def test_without_a_card_no_layer_moves_and_fixed_knobs_stay(held: Callable[..., Run]) -> None:
    space = Space(start=SPACE.start, threads=(2, 4), fixed=frozenset({"n_batch"}))
    tried = list(steps(space, held))
    assert {knobs.n_gpu_layers for knobs in tried} == {20}
    assert {knobs.n_batch for knobs in tried} == {512}
    assert {knobs.n_ubatch for knobs in tried} == {512, 256}
    assert {knobs.flash_attention for knobs in tried} == {"auto"}  # a quantized V needs it
    assert len(tried) == len(set(tried)) == 3


def test_the_other_kind_of_attention_is_tried_with_a_plain_cache(held: Callable[..., Run]) -> None:
    start = replace(SPACE.start, cache_type_k="f16", cache_type_v="f16")
    fixed = frozenset({"n_batch", "n_ubatch", "n_threads"})
    assert [k.flash_attention for k in steps(Space(start=start, fixed=fixed), held)] == ["auto", "off"]  # fmt: skip


def test_threads_are_no_matter_when_all_is_on_the_card(held: Callable[..., Run]) -> None:
    start = replace(SPACE.start, n_gpu_layers=29)
    space = Space(
        start=start, n_layers=29, threads=(2, 4, 8), fixed=frozenset({"n_ubatch", "n_batch"})
    )
    assert [(k.n_gpu_layers, k.n_threads) for k in steps(space, held)] == [(29, 4), (27, 4)]


def test_noise_moves_nothing(held: Callable[..., Run]) -> None:
    other = replace(SPACE.start, n_threads=2)
    first, better = held(SPACE.start, 100.0), held(other, 101.0)
    assert fastest(SPACE, [first, better]) == first
    assert fastest(SPACE, [first, held(other, 110.0)]) != first


def test_the_threads_worth_trying() -> None:
    assert threads_to_try(8, 16) == (4, 8, 16)
    assert threads_to_try(2, 2) == (1, 2)
    assert threads_to_try(1, 1) == (1,)

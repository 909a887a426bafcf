"""The planner's choice against a search of everything that fits, on a sample (the whole: `make prove ARGS=tune`)."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from engine.backends.modelfile import find_model
from engine.vram.ledger import Model
from engine.vram.planning import load
from tests.prove.tune import ENOUGH, chosen, settings
from tests.support.costmodel import (
    MACHINES,
    UBATCHES,
    all_placements,
    exhaustive,
    measured,
    round_seconds,
)
from tests.support.shapefiles import write_shape

BY_NAME = {machine.name: machine for machine in MACHINES}
NAMES = (
    "deepseek-v2-lite-q4_k_m",
    "qwen3-30b-a3b-q4_k_m",
    "qwen3-14b-q4_k_m",
    "gemma3-27b-q3_k_s",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("shapes")
    found = {name: load(write_shape(name, folder, sparse=False)) for name in NAMES}
    return found | {"demo": load(find_model("m", "demo"))}


@pytest.mark.parametrize(
    ("name", "machine", "n_parallel", "n_ctx", "step"),
    [
        ("demo", "12 GB laptop card", 4, 4096, 3),
        ("deepseek-v2-lite-q4_k_m", "8 GB card with shared memory", 4, 4096, 3),
        ("qwen3-14b-q4_k_m", "8 GB card with shared memory", 4, 4096, 1),
        ("qwen3-14b-q4_k_m", "12 GB laptop card", 1, 16384, 1),
        ("qwen3-30b-a3b-q4_k_m", "24 GB card", 4, 4096, 8),
        ("gemma3-27b-q3_k_s", "12 GB laptop card", 4, 4096, 1),
        ("gemma3-27b-q3_k_s", "8 GB card with shared memory", 4, 4096, 1),
        ("qwen3-14b-q4_k_m", "two boxes", 4, 4096, 2),
    ],
)
def test_the_choice_is_nearly_the_best_of_all(
    models: dict[str, Model], name: str, machine: str, n_parallel: int, n_ctx: int, step: int
) -> None:
    model, config, where = models[name], settings(n_parallel, n_ctx), BY_NAME[machine]
    best = exhaustive(model, config, where, step=step)
    ours = chosen(model, config, where)
    assert best is not None
    assert ours is not None
    assert best.seconds / ours.seconds >= ENOUGH, f"{ours.name}: {ours.seconds:.2f} s, {best.name}: {best.seconds:.2f} s"  # fmt: skip


def test_the_search_leaves_nothing_out(models: dict[str, Model]) -> None:
    """Every number of layers, and of layers on the card whose experts are in RAM, and the two places of the cache."""
    model, config = models["deepseek-v2-lite-q4_k_m"], settings(1, 4096)
    found = list(all_placements(model, config))
    assert len(found) == len({(c.n_gpu_layers, c.n_cpu_moe, c.kv_on_card) for c in found})
    by_layers = Counter(c.n_gpu_layers for c in found)
    # 27 layers: all of them and the output on the card leave 0 to 27 layers of experts to choose; no layer leaves nothing.
    assert by_layers == {n: 2 * (n or 1) for n in range(28)} | {28: 2 * 28}
    few = list(all_placements(model, config, step=5))
    assert {c.n_gpu_layers for c in few} == {0, 5, 10, 15, 20, 25, 28}


def test_the_search_finds_the_fastest(models: dict[str, Model]) -> None:
    model, config = models["qwen3-14b-q4_k_m"], settings(4, 4096)
    machine = BY_NAME["8 GB card with shared memory"]
    every = (
        measured(model, replace(placed, n_ubatch=n), machine)
        for placed in all_placements(model, config)
        for n in UBATCHES
    )
    best = exhaustive(model, config, machine)
    assert best is not None
    assert best.seconds == min(one.seconds for one in every if one is not None)


def test_the_model_of_time_knows_what_is_slow(models: dict[str, Model]) -> None:
    """Each of these must cost time, or the comparison would say nothing."""
    model, machine = models["qwen3-30b-a3b-q4_k_m"], BY_NAME["12 GB laptop card"]
    best = replace(settings(4, 4096), n_gpu_layers=49, n_cpu_moe=20, n_ubatch=512)

    def seconds(**changes: object) -> float:
        return round_seconds(model, replace(best, **changes), machine)

    assert seconds() < seconds(n_cpu_moe=22) < seconds(n_cpu_moe=48)
    assert seconds() < seconds(n_gpu_layers=40)
    assert seconds() < seconds(kv_on_card=False)
    assert seconds() < seconds(n_ubatch=128) < seconds(n_ubatch=64)
    assert seconds() < seconds(n_ctx=16384)
    two_boxes = BY_NAME["two boxes"]
    assert round_seconds(model, best, two_boxes) > 1.2 * seconds()


def test_nobody_is_faster_than_the_bound_of_bandwidth(models: dict[str, Model]) -> None:
    """One reply alone cannot take less than its bytes take to be read, which the ledger says by another way."""
    machine = BY_NAME["24 GB card"]
    for model in models.values():
        found = chosen(model, settings(1, 4096), machine)
        assert found is not None
        assert found.seconds > 128 / found.ledger.bound()

"""The way down after a shortage of memory: order, ends, what helps against what, and the way up again."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.link.limits import check_config
from engine.link.obituary import Part, Shortage
from engine.link.stepback import MIN_CTX, MIN_UBATCH, Depth, Ladder, difference
from engine.vram.gguf import layer_counts
from tests.support.shapefiles import write_shape

WHEN = "at 12:00"
CARD, HOST = Shortage(on_device=True), Shortage()
CONFIG = EngineConfig(name="m", n_ctx=8192)
UNKNOWN = Depth()


def way_down(config: EngineConfig, shortage: Shortage, *depth: int) -> list[str]:
    """Every step by what it changed; each must be settings that a model could be loaded with."""
    ladder = Ladder(config)
    steps = []
    for _ in range(60):
        before = ladder.config
        if not ladder.step_back(shortage, Depth(*depth), WHEN):
            assert ladder.config == before
            return steps
        check_config(ladder.config)
        steps.append(difference(before, ladder.config))
    raise AssertionError("the way down has no end")


def test_the_order_on_a_card() -> None:
    assert way_down(CONFIG, CARD, 27) == [
        "n_ubatch 512 → 256",
        "n_ubatch 256 → 128",
        "n_ubatch 128 → 64",
        "n_gpu_layers all → 24",
        "n_gpu_layers 24 → 20",
        "n_gpu_layers 20 → 16",
        "n_gpu_layers 16 → 12",
        "n_gpu_layers 12 → 8",
        "n_gpu_layers 8 → 4",
        "n_gpu_layers 4 → 0",
        "n_parallel 4 → 2",
        "n_parallel 2 → 1",
        "cache_type_k f16 → q8_0, cache_type_v f16 → q8_0",
        "cache_type_k q8_0 → q4_0, cache_type_v q8_0 → q4_0",
        "n_ctx 8192 → 4096",
        "n_ctx 4096 → 2048",
        "n_ctx 2048 → 1024",
    ]


def test_a_mixture_gives_up_experts_before_layers() -> None:
    config = EngineConfig(name="m", n_ubatch=64, n_parallel=1, n_ctx=1024, cache_type_k="q4_0", cache_type_v="q4_0")  # fmt: skip
    assert way_down(config, CARD, 27, 27) == [
        "n_cpu_moe 0 → 4",
        "n_cpu_moe 4 → 8",
        "n_cpu_moe 8 → 12",
        "n_cpu_moe 12 → 16",
        "n_cpu_moe 16 → 20",
        "n_cpu_moe 20 → 24",
        "n_cpu_moe 24 → 27",
        "n_gpu_layers all → 24",
        "n_gpu_layers 24 → 20",
        "n_gpu_layers 20 → 16",
        "n_gpu_layers 16 → 12",
        "n_gpu_layers 12 → 8",
        "n_gpu_layers 8 → 4",
        "n_gpu_layers 4 → 0",
    ]
    assert way_down(config, HOST, 27, 27) == [], "in RAM already"
    weights = Shortage(Part.WEIGHTS, on_device=True)
    assert way_down(config, weights, 27, 27)[0] == "n_cpu_moe 0 → 4"
    in_ram = EngineConfig(name="m", n_gpu_layers=0)
    assert not any("n_cpu_moe" in step for step in way_down(in_ram, CARD, 27, 27))


def test_the_order_is_the_persons() -> None:
    config = EngineConfig(name="m", n_ctx=4096, sacrifice=("n_ctx", "n_parallel"))
    assert way_down(config, CARD, 27) == [
        "n_ctx 4096 → 2048",
        "n_ctx 2048 → 1024",
        "n_parallel 4 → 2",
        "n_parallel 2 → 1",
    ]
    assert way_down(EngineConfig(name="m", sacrifice=()), CARD, 27) == []


@pytest.mark.parametrize(
    ("names", "says"),
    [(("n_ubatch", "layer"), '"layer" is not known; use some of n_ubatch, layers'),
     (("n_ctx", "n_ctx"), '"n_ctx" stands in it twice')],
)  # fmt: skip
def test_an_order_of_sacrifice_that_cannot_be(names: tuple[str, ...], says: str) -> None:
    with pytest.raises(EngineConfigError, match=f"models.m.sacrifice: {says}"):
        check_config(EngineConfig(name="m", sacrifice=names))


def test_a_size_that_was_planned_anew_is_the_full_one() -> None:
    ladder = Ladder(CONFIG)
    ladder.step_back(HOST, UNKNOWN, WHEN)
    planned = EngineConfig(name="m", n_ctx=2048)
    ladder.resize(planned)
    assert ladder.is_full
    assert ladder.config == planned
    ladder.step_back(HOST, UNKNOWN, WHEN)
    assert ladder.sentence.startswith("n_ubatch 512 → 256 after")


def test_without_a_card_no_layer_moves_but_what_idle_talks_hold_goes() -> None:
    steps = way_down(EngineConfig(name="m", n_ctx=2048, kv_ram_bytes=2**30, n_ubatch=64), HOST)
    assert steps == [
        "kv_ram_bytes 1024 MiB → 256 MiB",
        "kv_ram_bytes 256 MiB → 64 MiB",
        "kv_ram_bytes 64 MiB → 0 MiB",
        "n_parallel 4 → 2",
        "n_parallel 2 → 1",
        "cache_type_k f16 → q8_0, cache_type_v f16 → q8_0",
        "cache_type_k q8_0 → q4_0, cache_type_v q8_0 → q4_0",
        "n_ctx 2048 → 1024",
    ]


def test_layers_of_a_model_that_does_not_say_how_many_are_halved() -> None:
    steps = way_down(CONFIG, Shortage(Part.WEIGHTS, on_device=True))
    assert steps[:2] == ["n_gpu_layers all → 64", "n_gpu_layers 64 → 32"]
    assert steps[-1] == "n_gpu_layers 1 → 0"
    more = EngineConfig(name="m", n_gpu_layers=99)
    assert way_down(more, Shortage(Part.WEIGHTS, on_device=True), 16)[0] == "n_gpu_layers 99 → 15"


def test_only_what_helps_is_given_up() -> None:
    assert way_down(CONFIG, Shortage(Part.WEIGHTS)) == [], "weights in RAM: choose another model"
    assert way_down(CONFIG, Shortage(Part.CACHE))[0] == "n_parallel 4 → 2"
    on_card = way_down(CONFIG, Shortage(Part.CACHE, on_device=True), 8)
    assert on_card[0] == "n_gpu_layers all → 7"


def test_cells_shrink_with_the_conversations_but_hold_a_window() -> None:
    steps = way_down(EngineConfig(name="m", n_ctx=4096, kv_cells=20_000), Shortage(Part.CACHE))
    assert steps[:3] == [
        "n_parallel 4 → 2, kv_cells 20000 → 10000",
        "n_parallel 2 → 1, kv_cells 10000 → 5000",
        "kv_cells 5000 → 4096",
    ]
    assert steps[-1] == "kv_cells 2048 → 1024, n_ctx 2048 → 1024"


def test_without_flash_attention_v_stays_as_it_is() -> None:
    steps = way_down(EngineConfig(name="m", flash_attention="off"), Shortage(Part.CACHE))
    assert [step for step in steps if "cache_type" in step] == [
        "cache_type_k f16 → q8_0",
        "cache_type_k q8_0 → q4_0",
    ]


def test_odd_cache_types_only_ever_become_smaller() -> None:
    odd = EngineConfig(name="m", cache_type_k="iq4_nl", cache_type_v="q5_1")
    steps = way_down(odd, Shortage(Part.CACHE))
    assert [step for step in steps if "cache_type" in step] == ["cache_type_v q5_1 → q4_0"]


@pytest.mark.parametrize("n_ctx", [1, 512, MIN_CTX])
def test_a_small_window_is_left_alone(n_ctx: int) -> None:
    small = EngineConfig(
        name="m", n_ctx=n_ctx, n_parallel=1, n_ubatch=MIN_UBATCH, cache_type_k="q4_0", cache_type_v="q4_0"
    )  # fmt: skip
    assert way_down(small, HOST) == []


def test_a_batch_smaller_than_the_microbatch_is_what_counts() -> None:
    assert way_down(EngineConfig(name="m", n_batch=128), HOST)[0] == "n_ubatch 128 → 64"


# What people are told, and the way up.


def test_the_sentence() -> None:
    ladder = Ladder(CONFIG)
    assert ladder.sentence == ""
    ladder.step_back(HOST, UNKNOWN, WHEN)
    assert ladder.sentence == "n_ubatch 512 → 256 after running out of memory at 12:00"
    for _ in range(3):
        ladder.step_back(HOST, UNKNOWN, "at 13:00")
    assert ladder.sentence == "n_ubatch 512 → 64, n_parallel 4 → 2 after running out of memory at 13:00"  # fmt: skip


def test_a_full_size_that_still_does_not_fit_leads_back_at_once_and_waits_longer() -> None:
    ladder = Ladder(CONFIG)
    for _ in range(5):
        ladder.step_back(HOST, UNKNOWN, WHEN)
    small = ladder.config
    factors = []
    for _ in range(7):
        ladder.try_full()
        assert ladder.is_full
        assert ladder.sentence == ""
        assert ladder.step_back(HOST, UNKNOWN, "later")
        assert ladder.config == small
        factors.append(ladder.retry_factor())
    assert factors == [2, 4, 8, 16, 24, 24, 24]
    assert ladder.step_back(HOST, UNKNOWN, WHEN)
    assert ladder.config != small, "from there it goes on down"


def test_a_full_size_that_has_held_starts_anew() -> None:
    ladder = Ladder(CONFIG)
    for _ in range(5):
        ladder.step_back(HOST, UNKNOWN, WHEN)
    ladder.try_full()
    ladder.settled()
    ladder.step_back(HOST, UNKNOWN, WHEN)
    assert ladder.sentence.startswith("n_ubatch 512 → 256 after")
    assert ladder.retry_factor() == 1


def test_settings_that_the_model_cannot_have_are_left_out() -> None:
    """Some models have heads that no quantized cache fits."""
    ladder = Ladder(EngineConfig(name="m", n_ctx=2048, n_parallel=1))
    ladder.step_back(Shortage(Part.CACHE), UNKNOWN, WHEN)
    assert ladder.config.cache_type_k == "q8_0"
    assert ladder.refuse_step(UNKNOWN, WHEN)
    assert (ladder.config.cache_type_k, ladder.config.n_ctx) == ("f16", 1024)
    ladder.loaded()
    assert not ladder.refuse_step(UNKNOWN, WHEN), "what was loaded once is not to blame"


def test_layers_are_counted_in_the_head_of_the_file(tmp_path: Path) -> None:
    assert layer_counts(find_model("m", "demo")) == (30, 0)
    assert layer_counts(write_shape("qwen3-30b-a3b-q4_k_m", tmp_path, sparse=False)) == (48, 48)
    assert layer_counts(write_shape("qwen3-14b-q4_k_m", tmp_path, sparse=False)) == (40, 0)
    for content in (b"", b"GGUF", b"GGUF" + b"\xff" * 60, b"GGUF" + bytes(60)):
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(content)
        assert layer_counts(broken) == (0, 0)
    assert layer_counts(tmp_path / "gone.gguf") == (0, 0)

"""How big a model is run, from the file to the engine's settings: what is set, what is left to the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bot.config import LlamaModelConfig, parse_config
from bot.config_engine import engine_settings
from bot.config_sizes import vram_bytes
from bot.errors import ConfigError
from engine.config import SACRIFICES, EngineConfig

GIB = 2**30


def settings(**table: Any) -> EngineConfig:
    config = parse_config({"models": {"m": table}}, Path("/nowhere"))
    found = engine_settings("m", config.models["m"], config)
    assert isinstance(found, EngineConfig)
    return found


def test_what_nobody_set_is_left_to_the_plan() -> None:
    made = settings()
    assert made.is_fitted
    assert made.asked == ()
    assert made.sacrifice == SACRIFICES
    assert (made.n_ctx, made.n_parallel, made.kv_cells, made.vram_bytes) == (4096, 4, 0, 0)
    assert (made.n_gpu_layers, made.n_cpu_moe, made.kv_on_card) == (-1, 0, True)
    assert (made.cache_type_k, made.n_ubatch, made.kv_ram_bytes) == ("q8_0", 512, 2 * GIB)


def test_what_is_set_is_a_wish_and_auto_is_none() -> None:
    made = settings(
        n_ctx=8192, kv_tokens=9000, n_gpu_layers=20, n_cpu_moe="auto", cache_type_k="f16", kv_ram="1GiB",
        n_ubatch=128, use_mlock=True, kv_on_card=False, cache_type_v="auto", max_waiting=7, n_threads=0,
        flash_attention="on", n_batch=256,
    )  # fmt: skip
    assert set(made.asked) == {
        "n_ctx", "kv_cells", "n_gpu_layers", "cache_type_k", "kv_ram_bytes", "n_ubatch", "use_mlock", "kv_on_card",
        "flash_attention", "n_batch",
    }  # fmt: skip
    assert (made.kv_cells, made.n_gpu_layers, made.n_cpu_moe) == (9000, 20, 0)
    assert (made.cache_type_k, made.cache_type_v, made.kv_on_card) == ("f16", "q8_0", False)
    assert (made.n_ubatch, made.use_mlock) == (128, True)
    assert set(made.asked) <= set(EngineConfig.__struct_fields__)


def test_a_scripted_model_is_not_planned() -> None:
    assert not settings(backend="fake").is_fitted


def test_tokens_per_step_are_never_more_than_the_batch() -> None:
    assert settings(n_batch=256).n_ubatch == 256
    assert settings(n_batch=2048).n_ubatch == 512
    assert settings(n_batch=2048, n_ubatch=1024).n_ubatch == 1024


@pytest.mark.parametrize(
    ("value", "n_bytes"),
    [
        ("auto", 0), ("off", None), ("12GiB", 12 * GIB), ("12 GB", 12 * GIB), ("512MiB", GIB // 2), (12, 12 * GIB),
        (11.5, 11 * GIB + GIB // 2), (8 * GIB, 8 * GIB),
    ],
)  # fmt: skip
def test_the_part_of_the_card_that_may_be_used(value: Any, n_bytes: int | None) -> None:
    assert vram_bytes(value) == n_bytes
    made = settings(vram=value)
    assert made.is_fitted == (n_bytes is not None)
    assert made.vram_bytes == (n_bytes or 0)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"vram": "twelve"}, 'vram: "twelve" is not "auto", "off" or a size like "12GiB"'),
        ({"vram": 5000}, r"vram: 5000 is neither GiB \(up to 1024\) nor bytes"),
        ({"vram": -1}, "vram: -1 is neither"),
        ({"vram": float("nan")}, "vram: nan is neither"),
        ({"vram": float("inf")}, "vram: inf is neither"),
        ({"sacrifice": ["n_ctx", "speed"]}, 'sacrifice: "speed" cannot be given up; write some of n_ubatch, layers'),
        ({"sacrifice": ["n_ctx", "n_ctx"]}, 'sacrifice: "n_ctx" stands in it twice'),
        ({"n_gpu_layers": -2}, "n_gpu_layers"),
        ({"n_gpu_layers": "some"}, "n_gpu_layers"),
        ({"kv_on_card": "maybe"}, "kv_on_card"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_config({"models": {"m": table}}, Path("/nowhere"))
    assert "\n" not in str(caught.value)


def test_every_default_is_that_of_the_engine_or_left_to_it() -> None:
    """A key that is added here and forgotten in the engine's settings would silently do nothing."""
    model = LlamaModelConfig()
    assert set(type(model).model_fields) >= {"vram", "sacrifice", "n_ubatch", "kv_on_card"}
    assert settings(sacrifice=["n_ctx"]).sacrifice == ("n_ctx",)
    assert settings(sacrifice=[]).sacrifice == ()

"""The rough estimate that decides between layers in RAM and the KV cache in RAM."""

from __future__ import annotations

import math
from dataclasses import replace as with_changes
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.config import SACRIFICES, EngineConfig
from engine.vram.chooser import Choice, choose
from engine.vram.devices import GIB, PROFILES, Device
from engine.vram.ledger import Ledger, Model, Placement, make_ledger
from engine.vram.pace import filled, seconds_per_token
from engine.vram.planning import load
from engine.vram.settings import context_settings
from tests.support.shapefiles import write_shape

CONFIG = EngineConfig(name="m", cache_type_k="q8_0", cache_type_v="q8_0")
RAM = Device("RAM", "cpu", 32 * GIB, 76.8e9, True)
CARD = Device("card", "gpu", 24 * GIB, 360e9, True)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """62 layers, 263 KiB of cache per token."""
    folder: Path = tmp_path_factory.mktemp("shapes")
    return load(write_shape("gemma3-27b-q3_k_s", folder, sparse=False))


def ledger(model: Model, n_gpu_layers: int, *, kv_on_card: bool, ram: Device = RAM) -> Ledger:
    config = replace(CONFIG, kv_on_card=kv_on_card)
    settings = context_settings(config, model.shape.n_ctx_train)
    return make_ledger(model, settings, Placement(n_gpu_layers), ram, CARD)


def test_a_window_is_half_full_and_a_very_long_one_is_not() -> None:
    assert filled(4096) == 2048
    assert filled(16384) == 8192
    assert filled(131072) == 8192


def test_everything_on_the_card_is_as_fast_as_its_bytes(gemma: Model) -> None:
    account = ledger(gemma, 63, kv_on_card=True)
    assert account.card is not None
    # Half of the window, for a question and an answer; five of six layers look back 1024 tokens only.
    per_cell = gemma.shape.cell_bytes(8, 8)[0]
    n_bytes = account.card.read_bytes + 2 * per_cell * (10 * 2048 + 52 * 1024)
    seconds = n_bytes / 360e9 + account.ram.read_bytes / 76.8e9
    assert seconds_per_token(gemma, account, 1) == pytest.approx(seconds, rel=0.01)


def test_a_cpu_is_slower_than_its_memory(gemma: Model) -> None:
    """By attention with the cache in RAM, and by products as soon as several replies go on."""
    apart = ledger(gemma, 63, kv_on_card=False)
    assert apart.card is not None
    by_bytes = apart.card.read_bytes / 360e9 + (apart.ram.read_bytes + apart.ram.read_kv_bytes) / 76.8e9  # fmt: skip
    assert seconds_per_token(gemma, apart, 1) > 1.3 * by_bytes
    in_ram = ledger(gemma, 0, kv_on_card=False)
    one, four = (seconds_per_token(gemma, in_ram, n) for n in (1, 4))
    assert four > 2 * one


def test_without_a_bandwidth_nothing_is_known(gemma: Model) -> None:
    account = ledger(gemma, 40, kv_on_card=True, ram=with_changes(RAM, bandwidth=0.0))
    assert seconds_per_token(gemma, account, 1) == math.inf


@pytest.mark.parametrize(("n_parallel", "kv_on_card"), [(1, True), (4, False)])
def test_the_cache_goes_to_ram_where_layers_would_cost_more(
    gemma: Model, n_parallel: int, kv_on_card: bool
) -> None:
    """For one person few layers must go; four take so much cache that a third of the layers would."""
    wish = replace(CONFIG, n_parallel=n_parallel)
    found = choose(gemma, wish, RAM, PROFILES["12GiB laptop"], SACRIFICES)
    assert isinstance(found, Choice)
    assert found.config.kv_on_card is kv_on_card
    assert found.config.n_gpu_layers > 50


def test_a_sliding_window_is_read_as_far_as_it_reaches(gemma: Model) -> None:
    """The cache is as large as without one (only such a cache can be cut); a bound must not count what nobody reads."""
    per_cell = gemma.shape.cell_bytes(8, 8)[0]
    account = ledger(gemma, 63, kv_on_card=True)
    assert account.card is not None
    assert account.card.items["KV cache"] == 62 * per_cell * 4 * 4096
    assert account.card.read_kv_bytes == per_cell * (10 * 4096 + 52 * 1024)
    written = context_settings(
        replace(CONFIG, flash_attention="off", cache_type_v="f16"), gemma.shape.n_ctx_train
    )
    every = make_ledger(gemma, written, Placement(63), RAM, CARD)
    assert every.card is not None
    assert every.card.read_kv_bytes == sum(gemma.shape.cell_bytes(8, 1)) * 4096
    assert every.bound(full=True) < account.bound(full=True)
    assert every.bound() == account.bound()

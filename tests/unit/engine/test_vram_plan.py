"""The planner's arithmetic on published shapes: bytes, bounds, and what is given up for what."""

from __future__ import annotations

from dataclasses import replace as with_changes
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.config import SACRIFICES, EngineConfig
from engine.errors import EngineConfigError
from engine.vram.chooser import Choice, NothingFits, choose, placements
from engine.vram.devices import GIB, PROFILES, Device, card, parse_size, ram
from engine.vram.ledger import (
    CARD_CONTEXT,
    CARD_RESERVE,
    COMPUTE,
    EXPERTS,
    KV,
    OUTPUT,
    OVERHEAD,
    RESERVE,
    Model,
    Placement,
    make_ledger,
)
from engine.vram.planning import Wishes, load, make_plan
from engine.vram.settings import context_settings
from engine.vram.shapes import read_shape
from tests.support.shapefiles import write_shape

CONFIG = EngineConfig(name="m", cache_type_k="q8_0", cache_type_v="q8_0")
RAM = Device("RAM", "cpu", 32 * GIB, 60e9, True)
F16, Q8_0 = 1, 8


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("shapes")
    names = ("deepseek-v2-lite-q4_k_m", "deepseek-v2-lite-old-q4_k_m", "qwen3-30b-a3b-q4_k_m",
             "qwen3-14b-q4_k_m", "gemma3-27b-q3_k_s")  # fmt: skip
    return {name: load(write_shape(name, folder, sparse=False)) for name in names}


@pytest.mark.parametrize(
    ("name", "file_gb", "kv_per_token", "active_share"),
    [
        # Published file sizes, and of DeepSeek-V2-Lite 2.4 of 15.7 billion weights per token; KV at f16: 576 × 27 × 2, then layers × KV heads × head × 2 × 2.
        ("deepseek-v2-lite-q4_k_m", 10.36, 576 * 27 * 2, 0.155),
        ("deepseek-v2-lite-old-q4_k_m", 10.36, 27 * 16 * (192 + 128) * 2, 0.155),
        ("qwen3-30b-a3b-q4_k_m", 18.56, 48 * 4 * 128 * 2 * 2, 0.11),
        ("qwen3-14b-q4_k_m", 9.0, 40 * 8 * 128 * 2 * 2, 0.96),
        ("gemma3-27b-q3_k_s", 12.17, 62 * 16 * 128 * 2 * 2, 0.91),
    ],
)
def test_bytes_of_published_models(
    models: dict[str, Model], name: str, file_gb: float, kv_per_token: int, active_share: float
) -> None:
    model = models[name]
    assert model.head.weight_bytes == pytest.approx(file_gb * 1e9, rel=0.01)
    assert sum(model.shape.cell_bytes(F16, F16)) == kv_per_token
    assert sum(model.shape.cell_bytes(Q8_0, Q8_0)) == kv_per_token * 34 // 64
    assert model.active_bytes / model.head.weight_bytes == pytest.approx(active_share, abs=0.015)


def test_no_byte_is_lost_wherever_the_layers_are(models: dict[str, Model]) -> None:
    for name, model in models.items():
        settings = context_settings(CONFIG, model.shape.n_ctx_train)
        device = Device("card", "gpu", 12 * GIB, 360e9, False)
        whole = make_ledger(model, settings, Placement(), RAM)
        for placement in placements(model):
            split = make_ledger(model, settings, placement, RAM, device)
            assert split.card is not None
            tied = split.card.items.get(OUTPUT, 0) if name.startswith("gemma") else 0
            extra = tied and tied - model.shape.n_embd * 4
            if not placement.n_gpu_layers:
                extra = 0
            assert split.card.weights + split.ram.weights == model.head.weight_bytes + extra
            kv = split.card.items.get(KV, 0) + split.ram.items.get(KV, 0)
            assert kv == whole.ram.items[KV]


def test_the_bound_is_bytes_over_bandwidth(models: dict[str, Model]) -> None:
    """A dense 27B on 360 GB/s cannot pass 360 ÷ its bytes, whatever is claimed (VRAM.md)."""
    model = models["gemma3-27b-q3_k_s"]
    settings = context_settings(replace(CONFIG, n_parallel=1), model.shape.n_ctx_train)
    device = Device("card", "gpu", 16 * GIB, 360e9, False)
    ledger = make_ledger(model, settings, Placement(63), RAM, device)
    assert ledger.card is not None
    read = ledger.card.read_bytes / 360e9 + ledger.ram.read_bytes / 60e9
    assert ledger.bound() == pytest.approx(1 / read)
    assert 28 < ledger.bound() < 33
    assert ledger.bound(full=True) < ledger.bound()
    unknown = make_ledger(model, settings, Placement(63), RAM, with_changes(device, bandwidth=0.0))
    assert unknown.bound() == 0.0


def test_a_dense_model_gives_up_layers_and_a_mixture_its_experts(models: dict[str, Model]) -> None:
    device = PROFILES["12GiB desktop"]
    dense = choose(models["gemma3-27b-q3_k_s"], CONFIG, RAM, device)
    mixture = choose(models["qwen3-30b-a3b-q4_k_m"], CONFIG, RAM, device)
    assert isinstance(dense, Choice)
    assert isinstance(mixture, Choice)
    assert 0 < dense.config.n_gpu_layers < 63
    assert dense.config.n_cpu_moe == 0
    assert mixture.config.n_gpu_layers == 49
    assert 0 < mixture.config.n_cpu_moe < 48
    # No expert on the CPU would be faster, and the layers of a dense model are slower by far.
    assert mixture.ledger.bound() > 3 * dense.ledger.bound()
    for choice in (dense, mixture):
        assert choice.ledger.fits
        assert "memory of the card binds" in choice.why


@pytest.mark.parametrize("gib", [2, 4, 6, 8, 10, 12, 16, 24])
def test_the_choice_is_the_first_that_fits(models: dict[str, Model], gib: int) -> None:
    device = Device("card", "gpu", gib * GIB, 360e9, False)
    config = replace(CONFIG, asked=("kv_on_card",))
    for model in models.values():
        chosen = choose(model, config, RAM, device)
        assert isinstance(chosen, Choice)
        settings = context_settings(config, model.shape.n_ctx_train)
        for placement in placements(model):
            fits = make_ledger(model, settings, placement, RAM, device).fits
            assert fits == (placement == chosen.ledger.placement)
            if fits:
                break
        assert chosen.ledger.card is not None
        if chosen.ledger.card.used:
            assert chosen.ledger.card.items[OVERHEAD] == CARD_CONTEXT
            assert chosen.ledger.card.items[RESERVE] == CARD_RESERVE


def test_a_cache_in_ram_takes_nothing_of_the_card(models: dict[str, Model]) -> None:
    device = PROFILES["24GiB desktop"]
    for model in models.values():
        with_layers, apart = (
            make_ledger(
                model,
                context_settings(replace(CONFIG, kv_on_card=on_card), model.shape.n_ctx_train),
                Placement(model.n_layer + 1),
                RAM,
                device,
            )
            for on_card in (True, False)
        )
        assert with_layers.card is not None
        assert apart.card is not None
        assert not apart.card.items.get(KV)
        assert apart.ram.items[KV] == with_layers.card.items[KV]
        assert apart.card.weights == with_layers.card.weights
        assert apart.ram.items[COMPUTE] >= with_layers.ram.items[COMPUTE]
        assert apart.bound(full=True) < with_layers.bound(full=True)
        assert apart.bound() == with_layers.bound()


def test_knobs_say_what_they_cost(models: dict[str, Model]) -> None:
    chosen = choose(models["qwen3-30b-a3b-q4_k_m"], CONFIG, RAM, PROFILES["12GiB desktop"])
    assert isinstance(chosen, Choice)
    knobs = {knob.change.split()[0] + knob.change[-4:]: knob for knob in chosen.knobs}
    moe = chosen.config.n_cpu_moe
    by_change = {knob.change: knob for knob in chosen.knobs}
    more = by_change[f"n_cpu_moe {moe} → {moe - 1}"]
    assert more.n_bytes > 300 * 2**20
    assert not more.fits
    assert more.bound > chosen.ledger.bound()
    longer = by_change["n_ctx 4096 → 8192"]
    kv = chosen.ledger.card.items[KV] if chosen.ledger.card else 0
    assert kv < longer.n_bytes < kv * 1.1
    assert len(knobs) >= 7


def test_when_nothing_fits_the_nearest_settings_do(models: dict[str, Model]) -> None:
    model = models["qwen3-14b-q4_k_m"]
    small = with_changes(RAM, capacity=4 * GIB)
    device = PROFILES["8GiB laptop"]
    config = replace(CONFIG, n_parallel=8)
    refused = choose(model, config, small, device)
    assert isinstance(refused, NothingFits)
    assert "RAM" in refused.why
    assert refused.nearest
    for change, choice in refused.nearest:
        assert choice.ledger.fits, change
        again = choose(model, choice.config, small, device)
        assert isinstance(again, Choice)
    hopeless = choose(model, config, with_changes(RAM, capacity=GIB), None)
    assert isinstance(hopeless, NothingFits)
    assert hopeless.nearest == ()


def test_experts_in_ram_are_what_n_cpu_moe_names(models: dict[str, Model]) -> None:
    model = models["deepseek-v2-lite-q4_k_m"]
    settings = context_settings(CONFIG, model.shape.n_ctx_train)
    device = PROFILES["24GiB desktop"]
    assert model.expert_layers == tuple(range(1, 27))
    in_ram = [
        make_ledger(model, settings, Placement(28, n), RAM, device).ram.items.get(EXPERTS, 0)
        for n in (0, 1, 2, 27)
    ]
    assert in_ram[:2] == [0, 0]  # the first layer is dense
    assert in_ram[2] > 0
    assert in_ram[3] == sum(p.n_bytes for p in model.parts if p.purpose == EXPERTS)


@pytest.mark.parametrize(
    ("name", "n_gpu_layers", "n_cpu_moe", "card_mib", "ram_mib", "kv_layers"),
    [
        ("deepseek-v2-lite-q4_k_m", 28, 0, 94.83, 24.71, 27),
        ("deepseek-v2-lite-q4_k_m", 28, 10, 94.83, 71.54, 27),
        ("deepseek-v2-lite-q4_k_m", 18, 0, 79.78, 108.08, 17),
        ("qwen3-30b-a3b-q4_k_m", 49, 0, 102.94, 24.72, 48),
        ("qwen3-30b-a3b-q4_k_m", 49, 10, 102.94, 90.59, 48),
        ("qwen3-30b-a3b-q4_k_m", 39, 0, 111.19, 107.06, 38),
        ("qwen3-14b-q4_k_m", 41, 0, 152.35, 37.07, 40),
        ("qwen3-14b-q4_k_m", 31, 0, 142.05, 162.64, 30),
        ("gemma3-27b-q3_k_s", 63, 0, 192.50, 54.57, 62),
        ("gemma3-27b-q3_k_s", 53, 0, 184.26, 203.31, 52),
    ],
)
def test_both_sides_of_a_card_against_recorded_dry_runs(
    models: dict[str, Model],
    name: str,
    n_gpu_layers: int,
    n_cpu_moe: int,
    card_mib: float,
    ram_mib: float,
    kv_layers: int,
) -> None:
    """Recorded from llama.cpp's dry run with an RPC device as the card (f16 cache, 4 × 4096). Such a device takes no copies of
    weights in RAM for large batches, a real card does: only there more is planned than was seen."""
    model = models[name]
    settings = context_settings(EngineConfig(name="m"), model.shape.n_ctx_train)
    device = PROFILES["24GiB desktop"]
    ledger = make_ledger(model, settings, Placement(n_gpu_layers, n_cpu_moe), RAM, device)
    assert ledger.card is not None
    cells = model.shape.cell_bytes(F16, F16)
    assert ledger.card.items[KV] == sum(cells[-kv_layers:]) * settings.n_cells
    planned = ledger.card.items[COMPUTE] / 2**20
    whole = n_gpu_layers > model.n_layer and not n_cpu_moe
    assert card_mib <= planned < (1.13 * card_mib if whole else 300)
    most = 1.25 if n_cpu_moe else 1.01
    assert 0.98 * ram_mib <= ledger.ram.items[COMPUTE] / 2**20 <= most * ram_mib


@pytest.mark.parametrize(
    ("name", "n_cpu_moe", "card_mib", "ram_mib"),
    [
        ("deepseek-v2-lite-q4_k_m", 0, 120.40, 24.71),
        ("deepseek-v2-lite-q4_k_m", 10, 120.40, 71.54),
        ("qwen3-30b-a3b-q4_k_m", 0, 106.11, 24.72),
        ("qwen3-30b-a3b-q4_k_m", 10, 106.11, 90.59),
        ("qwen3-14b-q4_k_m", 0, 152.34, 37.07),
        ("gemma3-27b-q3_k_s", 0, 199.02, 54.57),
    ],
)
def test_a_cache_in_ram_against_recorded_dry_runs(
    models: dict[str, Model], name: str, n_cpu_moe: int, card_mib: float, ram_mib: float
) -> None:
    """As above, with `kv_on_card = False`: never planned too small, and all of the cache was in RAM."""
    model = models[name]
    settings = context_settings(EngineConfig(name="m", kv_on_card=False), model.shape.n_ctx_train)
    placement = Placement(model.n_layer + 1, n_cpu_moe)
    ledger = make_ledger(model, settings, placement, RAM, PROFILES["24GiB desktop"])
    assert ledger.card is not None
    planned = ledger.card.items[COMPUTE] / 2**20
    assert card_mib <= planned < (1.25 * card_mib if not n_cpu_moe else 350)
    most = 1.25 if n_cpu_moe else 1.01
    assert 0.98 * ram_mib <= ledger.ram.items[COMPUTE] / 2**20 <= most * ram_mib


def test_sizes_as_people_write_them() -> None:
    assert parse_size("12GiB") == parse_size("12 GB") == parse_size("12g") == 12 * GIB
    assert parse_size("512MiB") == GIB // 2
    assert parse_size("12") == 12 * GIB  # as in the config
    assert parse_size("12884901888") == parse_size("12884901888B") == 12 * GIB
    for wrong in ("12B", "4096", "", "12x", "-1GiB", "0", "GiB", "9" * 40):
        with pytest.raises(EngineConfigError, match="write a size"):
            parse_size(wrong)


def test_which_card_is_planned_for() -> None:
    own = Device("CUDA0 (a card)", "gpu", 10 * GIB, 0.0, True)
    weak = Device("Vulkan0 (inside the CPU)", "igpu", 16 * GIB, 0.0, True)
    assert card(0, (), "") is None
    assert card(0, (weak, own), "") == own
    assert card(0, (weak,), "") is None
    assert card(4 * GIB, (own,), "") == with_changes(own, capacity=4 * GIB)
    imagined = card(12 * GIB, (), "")
    assert imagined is not None
    assert (imagined.is_driven, imagined.bandwidth) == (False, 360e9)
    assert card(0, (own,), "24GiB desktop") == PROFILES["24GiB desktop"]
    with pytest.raises(EngineConfigError, match="not recorded; there is 8GiB laptop"):
        card(0, (), "potato")
    assert ram(GIB).capacity == GIB
    assert ram().capacity > 0


def test_what_a_plan_says_of_what_it_does_not_know(tmp_path: Path) -> None:
    path = write_shape("qwen3-14b-q4_k_m", tmp_path, sparse=False)
    wishes = Wishes(ram=32 * GIB, device="8GiB laptop", ask_llama=False)
    plan = make_plan(replace(CONFIG, path=str(path)), wishes)
    assert plan.is_estimate
    assert plan.error is None
    told = "; ".join(plan.notes)
    assert "the file is not whole" in told
    assert "8 GiB of shared system memory" in told
    assert "does not drive that card" in told


def test_an_architecture_with_more_in_its_cache_is_not_called_exact(tmp_path: Path) -> None:
    head = load(write_shape("qwen3-14b-q4_k_m", tmp_path, sparse=False)).head
    other = with_changes(
        head,
        meta={
            key.replace("qwen3.", "deepseek4."): value for key, value in head.meta.items()
        } | {"general.architecture": "deepseek4"},
    )  # fmt: skip
    assert read_shape(head).is_exact
    assert not read_shape(other).is_exact


def test_no_cache_type_is_chosen_or_offered_that_the_heads_do_not_fill(
    models: dict[str, Model],
) -> None:
    """llama.cpp refuses q8_0 and q4_0 for heads of 80 values: the engine would not start."""
    model = models["qwen3-14b-q4_k_m"]
    odd = with_changes(model, shape=with_changes(model.shape, head_k=80, head_v=80))
    config = replace(CONFIG, cache_type_k="f16", cache_type_v="f16", n_ctx=32768)
    small = with_changes(RAM, capacity=11 * GIB)
    usual, other = (choose(m, config, small, None, SACRIFICES) for m in (model, odd))
    assert isinstance(usual, Choice)
    assert isinstance(other, Choice)
    assert usual.config.cache_type_k == "q4_0"
    assert other.config.cache_type_k == other.config.cache_type_v == "f16"
    assert not [knob.change for knob in other.knobs if "cache_type" in knob.change]


def test_no_knob_goes_below_what_the_config_takes(models: dict[str, Model]) -> None:
    least = replace(CONFIG, n_ctx=256, n_ubatch=32, n_parallel=1)
    found = choose(models["qwen3-14b-q4_k_m"], least, RAM, PROFILES["12GiB desktop"])
    assert isinstance(found, Choice)
    told = " ".join(knob.change for knob in found.knobs)
    assert "n_ctx 256 → 512" in told
    assert "→ 128" not in told
    assert "n_ubatch" not in told

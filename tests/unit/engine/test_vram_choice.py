"""What every choice must keep, whatever was asked for and whatever the machine has: checked on published shapes."""

from __future__ import annotations

from dataclasses import replace as with_changes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.config import SACRIFICES, EngineConfig
from engine.vram.chooser import Choice, NothingFits, choose
from engine.vram.devices import GIB, Device
from engine.vram.ladders import Ladder, ladders, settings_at
from engine.vram.ledger import Model, Placement, make_ledger
from engine.vram.planning import load
from engine.vram.settings import context_settings
from engine.vram.spots import IN_RAM, as_asked, placements
from tests.support.shapefiles import write_shape

MIXTURE, DENSE, LONG = "deepseek-v2-lite-old-q4_k_m", "qwen3-14b-q4_k_m", "gemma3-27b-q3_k_s"
FIELDS = {
    "n_ubatch": ("n_ubatch",),
    "layers": ("n_gpu_layers", "n_cpu_moe"),
    "kv_ram": ("kv_ram_bytes",),
    "n_parallel": ("n_parallel", "kv_cells"),
    "cache_type": ("cache_type_k", "cache_type_v"),
    "n_ctx": ("n_ctx",),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("shapes")
    return {name: load(write_shape(name, folder, sparse=False)) for name in (MIXTURE, DENSE, LONG)}


def ram(gib: float) -> Device:
    return Device("RAM", "cpu", int(gib * GIB), 76.8e9, True)


def card(gib: float) -> Device | None:
    return Device("card", "gpu", int(gib * GIB), 360e9, True) if gib else None


@pytest.fixture(scope="module")
def short(models: dict[str, Model]) -> dict[str, Model]:
    """The first layers of each: as many kinds of choices, in a fifth of the time."""
    return {name: cut(model, 8) for name, model in models.items()}


def cut(model: Model, n_layers: int) -> Model:
    parts = tuple(part for part in model.parts if part.layer < n_layers)
    shape = with_changes(model.shape, layers=model.shape.layers[:n_layers])
    return Model(model.head, shape, parts)


@st.composite
def wishes(draw: st.DrawFn) -> EngineConfig:
    kind = draw(st.sampled_from(["f16", "q8_0", "q4_0"]))
    n_parallel = draw(st.integers(1, 8))
    n_ctx = draw(st.sampled_from([1024, 2048, 4096, 8192, 16384]))
    whole = n_parallel * n_ctx
    asked = draw(st.sets(st.sampled_from([field for group in FIELDS.values() for field in group])))
    cells = draw(st.sampled_from([whole, max(n_ctx, whole // 2)])) if "kv_cells" in asked else 0
    return EngineConfig(
        name="m",
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        kv_cells=cells,
        cache_type_k=kind,
        cache_type_v=kind,
        n_ubatch=draw(st.sampled_from([64, 512])),
        kv_ram_bytes=draw(st.sampled_from([0, GIB // 2, 2 * GIB])),
        n_gpu_layers=draw(st.integers(-1, 70)) if "n_gpu_layers" in asked else -1,
        n_cpu_moe=draw(st.integers(0, 27)) if "n_cpu_moe" in asked else 0,
        asked=tuple(sorted(asked)),
        sacrifice=tuple(draw(st.permutations(SACRIFICES))),
    )


machines = st.tuples(
    st.sampled_from([0.5, 1.5, 3.0, 5.0, 12.0]), st.sampled_from([0.0, 1.5, 2.0, 3.0, 4.0, 8.0])
)
several = settings(max_examples=40, deadline=None)


@several
@given(config=wishes(), machine=machines, name=st.sampled_from([MIXTURE, DENSE, LONG]))
def test_a_choice_never_exceeds_a_device_and_its_settings_give_its_ledger(
    short: dict[str, Model], config: EngineConfig, machine: tuple[float, float], name: str
) -> None:
    model = short[name]
    found = choose(model, config, ram(machine[0]), card(machine[1]), config.sacrifice)
    if isinstance(found, NothingFits):
        assert not found.ledger.fits
        assert all(choice.ledger.fits for _, choice in found.nearest)
        return
    chosen = found.config
    assert all(account.used <= account.device.capacity for account in found.ledger.devices)
    again = make_ledger(
        model,
        context_settings(chosen, model.shape.n_ctx_train),
        Placement(chosen.n_gpu_layers, chosen.n_cpu_moe),
        ram(machine[0]),
        card(machine[1]),
        idle_bytes=chosen.kv_ram_bytes,
    )
    assert again == found.ledger
    cells = chosen.kv_cells or chosen.n_parallel * chosen.n_ctx
    assert cells >= chosen.n_ctx, "one conversation finds its whole window"
    for key in ("n_ctx", "n_parallel", "n_ubatch", "kv_ram_bytes"):
        assert getattr(chosen, key) <= getattr(config, key)


@several
@given(config=wishes(), machine=machines, name=st.sampled_from([MIXTURE, DENSE]))
def test_what_was_asked_for_is_kept_unless_nothing_fits_with_it(
    short: dict[str, Model], config: EngineConfig, machine: tuple[float, float], name: str
) -> None:
    model, memory, device = short[name], ram(machine[0]), card(machine[1])
    found = choose(model, config, memory, device, config.sacrifice)
    if isinstance(found, NothingFits):
        return
    whole = model.n_layer + 1
    wish = replace(config, n_gpu_layers=min(config.n_gpu_layers % 1000, whole))
    on_card = {"n_gpu_layers", "n_cpu_moe"}
    changed = [
        field
        for field in config.asked
        if getattr(found.config, field) != getattr(wish, field) and (device or field not in on_card)
    ]
    for field in changed:
        told = {"kv_ram_bytes": "kv_ram", "kv_cells": "kv_tokens"}.get(field, field)
        assert any(
            line.startswith(f"{told} ") and "although it is set" in line for line in found.given_up
        )
    if not changed:
        assert not any("although" in line for line in found.given_up if device)
        return
    # With all of it kept and everything else at its least, nothing fits.
    rungs = ladders(config, config.sacrifice, model.shape.n_ctx_train)
    levels = {rung.key: 0 if rung.is_asked else len(rung.steps) - 1 for rung in rungs}
    least = settings_at(config, rungs, levels)
    for spot in as_asked(model, config, moves=True) if device else [IN_RAM]:
        context = context_settings(spot.applied(least), model.shape.n_ctx_train)
        assert not make_ledger(
            model, context, spot.placement, memory, device, idle_bytes=least.kv_ram_bytes
        ).fits


@several
@given(config=wishes(), machine=machines, name=st.sampled_from([MIXTURE, DENSE]))
def test_nothing_is_given_up_while_what_goes_before_it_would_do(
    short: dict[str, Model], config: EngineConfig, machine: tuple[float, float], name: str
) -> None:
    """One step more of anything does not fit even with all that goes earlier at its least."""
    model, memory, device = short[name], ram(machine[0]), card(machine[1])
    config = replace(config, asked=(), n_gpu_layers=-1, n_cpu_moe=0, kv_cells=0)
    found = choose(model, config, memory, device, config.sacrifice)
    if isinstance(found, NothingFits):
        return
    rungs = ladders(config, config.sacrifice, model.shape.n_ctx_train)
    at = {rung.key: level_of(rung, config, found.config) for rung in rungs}
    for place, rung in enumerate(rungs):
        if not at[rung.key]:
            continue
        levels = dict(at) | {rung.key: at[rung.key] - 1}
        levels |= {earlier.key: len(earlier.steps) - 1 for earlier in rungs[:place]}
        more = settings_at(config, rungs, levels)
        before = config.sacrifice.index("layers") < config.sacrifice.index(rung.name)
        spots = list(placements(model)) if before else [found.ledger.placement]
        kv = [True, False] if before else [found.config.kv_on_card]
        for on_card in kv if device else [True]:
            for placement in spots if device else [Placement()]:
                context = context_settings(
                    replace(more, kv_on_card=on_card), model.shape.n_ctx_train
                )
                ledger = make_ledger(
                    model, context, placement, memory, device, idle_bytes=more.kv_ram_bytes
                )
                assert not ledger.fits, (rung.key, placement)


def level_of(rung: Ladder, wish: EngineConfig, chosen: EngineConfig) -> int:
    """Which rung of a ladder a choice stands on."""
    fields = {"kv_ram": ("kv_ram_bytes",), "cache_type": FIELDS["cache_type"]}
    base = replace(wish, n_ctx=chosen.n_ctx, n_parallel=chosen.n_parallel)
    base = base if rung.key == "kv_cells" else wish
    for level, step in enumerate(rung.steps):
        there = step(base)
        if all(
            getattr(there, field) == getattr(chosen, field)
            for field in fields.get(rung.key, (rung.key,))
        ):
            return level
    raise AssertionError(f"{rung.key} is on no rung")


@several
@given(
    config=wishes(),
    gib=st.sampled_from([0.5, 1.5, 3.0, 5.0, 12.0]),
    cards=st.tuples(st.floats(1, 8), st.floats(0, 3)),
    name=st.sampled_from([MIXTURE, DENSE]),
)
def test_more_memory_on_the_card_never_gives_less(
    short: dict[str, Model],
    config: EngineConfig,
    gib: float,
    cards: tuple[float, float],
    name: str,
) -> None:
    """What is dearest comes first: a longer window outweighs everything, and so on down to the tokens per step."""
    config = replace(config, asked=("kv_on_card",), n_gpu_layers=-1, n_cpu_moe=0, kv_cells=0)
    small, large = (
        choose(short[name], config, ram(gib), card(size), config.sacrifice)
        for size in (cards[0], sum(cards))
    )
    if isinstance(small, NothingFits):
        return
    assert isinstance(large, Choice)
    n_ctx_train = short[name].shape.n_ctx_train
    order = [rank(config, one.config, n_ctx_train) for one in (small, large)]
    assert order == sorted(order)


def rank(wish: EngineConfig, chosen: EngineConfig, n_ctx_train: int) -> list[int]:
    """How good a choice is: the dearest thing first, each by how few rungs down it stands."""
    found: list[int] = []
    rungs = ladders(wish, wish.sacrifice, n_ctx_train)
    for name in reversed(wish.sacrifice):
        if name == "layers":
            found += [chosen.n_gpu_layers, -chosen.n_cpu_moe]
        for rung in reversed([rung for rung in rungs if rung.name == name]):
            found.append(-level_of(rung, wish, chosen))
    return found


def test_the_order_of_sacrifice_is_obeyed(models: dict[str, Model]) -> None:
    """The same shortage of RAM, and each time what stands first goes first."""
    wish = EngineConfig(
        name="m", n_ctx=16384, n_parallel=4, cache_type_k="f16", cache_type_v="f16", kv_ram_bytes=GIB
    )  # fmt: skip
    expected = {
        ("n_ctx", "n_parallel", "cache_type"): ("n_ctx 16384 → 8192",),
        ("cache_type", "n_parallel", "n_ctx"): ("cache_type_k f16 → q8_0", "cache_type_v f16 → q8_0"),
        ("n_parallel", "cache_type", "n_ctx"): ("kv_tokens 65536 → 32768",),
        ("kv_ram", "n_ubatch"): (),
    }  # fmt: skip
    got = {}
    for order, changes in expected.items():
        found = choose(models[DENSE], wish, ram(15.2), None, order)
        got[order] = found.given_up if isinstance(found, Choice) else ()
        assert isinstance(found, Choice) == bool(changes)
    assert got == expected


def test_every_ladder_leads_down_to_the_least_of_use() -> None:
    wish = EngineConfig(name="m", n_ctx=131072, n_parallel=6, kv_ram_bytes=GIB, cache_type_k="f16", cache_type_v="q8_0")  # fmt: skip
    down: dict[str, list[object]] = {}
    for rung in ladders(wish, SACRIFICES):
        field = {"kv_ram": "kv_ram_bytes", "cache_type": "cache_type_k"}.get(rung.key, rung.key)
        down[rung.key] = [getattr(step(wish), field) for step in rung.steps]
    assert down["n_ubatch"] == [512, 256, 128]
    assert down["n_parallel"] == [6, 4, 3, 2, 1]
    assert down["kv_ram"] == [GIB, GIB // 4, GIB // 16, 0]
    assert down["cache_type"] == ["f16", "q8_0", "q4_0"]
    assert down["n_ctx"][:5] == [131072, 98304, 65536, 49152, 32768]
    assert down["n_ctx"][-3:] == [2048, 1536, 1024]
    assert down["kv_cells"] == [0, *(131072 * 6 * eighths // 8 for eighths in (7, 6, 5, 4))]
    known = next(rung for rung in ladders(wish, ("n_ctx",), 8192))
    assert [step(wish).n_ctx for step in known.steps][:3] == [131072, 6144, 4096]
    few = EngineConfig(name="m", n_ctx=1024, n_parallel=1)
    for rung in ladders(few, ("n_parallel", "n_ctx")):
        assert all(step(few).kv_cells in (0, 1024) for step in rung.steps), "a window stays whole"


def test_nothing_may_be_given_up(models: dict[str, Model]) -> None:
    refused = choose(models[DENSE], EngineConfig(name="m", n_ctx=16384), ram(12), None, ())
    assert isinstance(refused, NothingFits)
    assert "which has 12.00 GiB" in refused.why
    assert [change for change, _ in refused.nearest][0].startswith("n_parallel 4 →")  # noqa: RUF015


def test_long_contexts_leave_the_cache_in_ram_before_most_layers_go(
    models: dict[str, Model],
) -> None:
    """A 27B whose cache for 128k tokens is larger than the card, one person (VRAM.md, C)."""
    wish = EngineConfig(
        name="m", n_ctx=131072, n_parallel=1, cache_type_k="q8_0", cache_type_v="q8_0"
    )
    found = choose(models[LONG], wish, ram(64), card(13), SACRIFICES)
    assert isinstance(found, Choice)
    assert not found.config.kv_on_card
    assert found.config.n_gpu_layers == models[LONG].n_layer + 1
    assert "the KV cache is in RAM" in found.why
    told = replace(wish, kv_on_card=True, asked=("kv_on_card",))
    kept = choose(models[LONG], told, ram(64), card(13), SACRIFICES)
    assert isinstance(kept, Choice)
    assert kept.config.kv_on_card
    assert kept.config.n_gpu_layers < models[LONG].n_layer

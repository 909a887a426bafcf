"""The plan of a start: what it takes the machine for, what it settles, and what it says."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace as with_fields

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram import auto, here, planning
from engine.vram.auto import StartPlan, plan_start
from engine.vram.chooser import Choice
from engine.vram.claims import Claims, Held
from engine.vram.devices import GIB, Device
from engine.vram.fingerprint import fingerprint
from engine.vram.ledger import KV
from engine.vram.probe import DryRun, ProbeFailed
from engine.vram.runs import VERSION, Results, Run, asked_of, knobs_of
from engine.vram.settings import usable_cores
from engine.vram.tuned import Found, file_name, identity, write_results
from tests.support.tinymodels import write_model

MIB = 2**20
CARD = Device("CUDA0 (a card)", "gpu", 12 * GIB, 360e9, True)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the machine has; without a call 8 GiB of RAM and no card."""

    def put(ram: int = 8 * GIB, *cards: Device) -> None:
        monkeypatch.setattr(here, "available_bytes", lambda: ram)
        monkeypatch.setattr(auto, "total_bytes", lambda: ram)
        monkeypatch.setattr(here, "may_drive_a_card", lambda: bool(cards))
        monkeypatch.setattr(here, "build_devices", lambda: cards)

    put()
    return put


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("llama", tmp_path_factory.mktemp("model"))


def config(path: Path, **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {
        "name": "m", "path": str(path), "is_fitted": True, "cache_type_k": "q8_0", "cache_type_v": "q8_0",
        "kv_ram_bytes": 2 * GIB,
    }  # fmt: skip
    return EngineConfig(**fields | changes)


def test_a_machine_with_room_gives_what_was_asked_for(machine: Any, model: Path) -> None:
    plan = plan_start(config(model))
    assert (plan.config.n_ctx, plan.config.n_parallel, plan.config.n_ubatch) == (4096, 4, 512)
    assert plan.config.kv_ram_bytes == 2 * GIB
    assert plan.config.n_threads == usable_cores()
    assert plan.given_up == ()
    assert plan.ledger.ram.device.capacity == 8 * GIB - 256 * MIB - 8 * GIB // 20
    assert "4 × 4096 tokens, KV f16, all in RAM, n_ubatch 512" in plan.sentence
    assert "no card: everything in RAM" in plan.sentence
    assert "\n" not in plan.sentence
    assert any("idle conversations 2.00" in line for line in plan.lines())


def test_little_ram_is_not_planned_beyond_what_is_free(machine: Any, model: Path) -> None:
    """What idle conversations may take goes first, then what they share; never more than there is."""
    for mib in (600, 450, 400, 370, 360):
        machine(mib * MIB)
        plan = plan_start(config(model))
        assert plan.ledger.fits
        assert plan.ledger.ram.used <= mib * MIB - 256 * MIB
        assert plan.config.kv_ram_bytes < 2 * GIB
        assert "smaller than wished: kv_ram 2.00 GiB → " in plan.sentence.replace("n_ubatch 512 → 64, ", "")  # fmt: skip


def test_where_nothing_fits_it_says_so_and_what_would(machine: Any, model: Path) -> None:
    machine(280 * MIB)
    with pytest.raises(
        EngineConfigError, match=r"models.m: llama.gguf does not fit: even with"
    ) as e:
        plan_start(config(model))
    assert 'choose a smaller model or quantization, or free memory (vram = "off"' in str(e.value)
    machine(900 * MIB)
    with pytest.raises(EngineConfigError, match=r"it would with kv_ram 1.00 GiB → 0.25 GiB \(vram"):
        plan_start(config(model, kv_ram_bytes=GIB, sacrifice=("n_ctx",)))


def test_memory_that_other_models_will_take_is_not_there(machine: Any, model: Path) -> None:
    free = plan_start(config(model)).ledger.ram.device.capacity
    less = plan_start(config(model), Held(3 * GIB, 0)).ledger.ram.device.capacity
    assert less == free - 3 * GIB
    machine(8 * GIB, CARD)
    account = plan_start(config(model), Held(0, 2 * GIB)).ledger.card
    assert account is not None
    assert account.device.capacity == 10 * GIB


def test_a_card_is_used_up_to_the_limit(machine: Any, model: Path) -> None:
    machine(8 * GIB, CARD, Device("Vulkan1", "igpu", 16 * GIB, 0.0, True))
    plan = plan_start(config(model))
    assert plan.ledger.card is not None
    assert plan.config.n_gpu_layers == 4
    assert "n_gpu_layers 4 on CUDA0 (a card)" in plan.settings
    assert "everything fits on the card" in plan.why
    capped = plan_start(config(model, vram_bytes=GIB))
    assert capped.ledger.card is not None
    assert capped.ledger.card.device.capacity == GIB
    small = plan_start(config(model, vram_bytes=MIB))
    assert small.config.n_gpu_layers == 0
    assert small.ledger.card is not None
    assert small.ledger.card.used == 0


def test_several_cards_are_planned_as_one_with_what_each_takes_for_itself(
    machine: Any, model: Path
) -> None:
    other = replace(CARD, name="CUDA1 (another)", capacity=8 * GIB, bandwidth=720e9)
    machine(8 * GIB, CARD, other)
    account = plan_start(config(model)).ledger.card
    assert account is not None
    assert account.device.name == "CUDA0 (a card) + CUDA1 (another)"
    lost = 20 * GIB - account.device.capacity
    assert 1168 * MIB < lost < 1175 * MIB, "a context, a reserve, a work buffer and one layer"
    assert account.device.bandwidth == pytest.approx(20 / (12 / 360e9 + 8 / 720e9))
    assert "2 cards planned as one" in plan_start(config(model)).sentence
    capped = plan_start(config(model, vram_bytes=4 * GIB)).ledger.card
    assert capped is not None
    assert capped.device.capacity == 8 * GIB - lost


def test_hearth_plan_shows_what_a_start_would_choose(
    machine: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_dry_run(_config: EngineConfig) -> DryRun:
        raise ProbeFailed("not asked here")

    monkeypatch.setattr(planning, "dry_run", no_dry_run)
    for cards in ((), (CARD,), (CARD, replace(CARD, name="CUDA1"))):
        machine(500 * MIB, *cards)
        wish = config(model, n_ctx=16384)
        start, shown = plan_start(wish), planning.make_plan(wish, planning.Wishes())
        assert isinstance(shown.result, Choice)
        assert shown.ledger == start.ledger
        assert shown.result.given_up == start.given_up


def test_without_a_card_a_limit_for_it_is_named(machine: Any, model: Path) -> None:
    plan = plan_start(config(model, vram_bytes=12 * GIB))
    assert plan.ledger.card is None
    assert plan.config.n_gpu_layers == 0
    assert "drives no card here" in plan.sentence


def test_layers_that_were_set_are_no_matter_without_a_card(machine: Any, model: Path) -> None:
    plan = plan_start(
        config(model, n_gpu_layers=-1, n_cpu_moe=3, asked=("n_gpu_layers", "n_cpu_moe"))
    )
    assert plan.given_up == ()


def test_a_driver_that_does_not_answer_is_named(machine: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def fail() -> tuple[Device, ...]:
        raise ProbeFailed("the driver hung")

    machine(8 * GIB, CARD)
    monkeypatch.setattr(here, "build_devices", fail)
    plan = plan_start(config(model))
    assert plan.ledger.card is None
    assert "the driver hung" in plan.sentence


def test_a_file_that_is_cut_off_is_not_planned(machine: Any, model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-1000])
    with pytest.raises(EngineConfigError, match="is damaged or cut off"):
        plan_start(config(cut))
    with pytest.raises(EngineConfigError, match="does not exist"):
        plan_start(config(tmp_path / "gone.gguf"))


def test_cache_types_that_the_heads_do_not_fill_are_not_taken(
    machine: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = auto.load
    odd = real(model)
    monkeypatch.setattr(
        auto, "load", lambda path: replace(odd, shape=replace(odd.shape, head_k=80, head_v=64))
    )
    plan = plan_start(config(model, asked=("cache_type_k",)))
    assert (plan.config.cache_type_k, plan.config.cache_type_v) == ("f16", "q8_0")
    assert plan.given_up == ("cache_type_k q8_0 → f16 (although it is set)",)


@pytest.mark.parametrize(
    ("limit", "swap", "locks"),
    [(resource.RLIM_INFINITY, GIB, True), (resource.RLIM_INFINITY, 0, False), (65536, GIB, False)],
)
def test_weights_are_locked_where_they_could_be_swapped_out(
    machine: Any,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    swap: int,
    locks: bool,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(total=swap))
    assert plan_start(config(model)).config.use_mlock is locks
    told = config(model, use_mlock=not locks, asked=("use_mlock",))
    assert plan_start(told).config.use_mlock is not locks


def test_measured_settings_go_before_computed_ones(
    machine: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def measured(
        wish: EngineConfig, smaller: None, path: Path, memory: Device, card: Device | None
    ) -> Found:
        assert smaller is None, "all of it fits"
        seen.append((wish.n_ctx, path, memory.capacity, card))
        return Found(with_fields(wish, n_ubatch=128, n_threads=7), None, "as measured")

    monkeypatch.setattr(auto, "measured_near", measured)
    plan = plan_start(config(model))
    assert (plan.config.n_ubatch, plan.config.n_threads) == (128, 7)
    assert plan.why == "as measured"
    assert plan.ledger.settings.n_ubatch == 128
    assert seen == [(4096, model, plan.ledger.ram.device.capacity, None)]
    monkeypatch.setattr(auto, "measured_near", lambda *_: Found(None, None, "of another build"))
    assert "of another build" in plan_start(config(model)).sentence


def test_results_of_the_tuner_are_used_while_they_hold(machine: Any, tmp_path: Path) -> None:
    """With its real files: what it measured for the same wish, as long as its peak has room."""
    path = write_model("llama", tmp_path)
    wish = config(path, kv_ram_bytes=0, asked=("cache_type_k", "cache_type_v"))
    knobs = knobs_of(with_fields(wish, n_ubatch=256, n_threads=1, n_gpu_layers=0))
    run = Run(
        asked=asked_of(wish), knobs=knobs, outcome="held", depth=64, prompt_tps=100.0, generation_tps=10.0,
        peak={"RAM": GIB}, room={"RAM": 8 * GIB},
    )  # fmt: skip
    whose = identity(fingerprint(path))
    results = Results(
        version=VERSION, device=whose.device, build=whose.build, fingerprint=whose.fingerprint, runs=(run,)
    )  # fmt: skip
    write_results(tmp_path / file_name(path, whose), results)
    plan = plan_start(wish)
    assert (plan.config.n_ubatch, plan.config.n_threads) == (256, 1)
    assert "as measured by `hearth tune`" in plan.sentence
    machine(GIB)
    plan = plan_start(wish)
    assert (plan.config.n_ubatch, plan.config.n_threads) == (512, usable_cores())
    assert "no run that fits these settings and this memory" in plan.sentence


def test_without_a_card_the_cache_is_f16_where_that_takes_little(machine: Any, model: Path) -> None:
    """A CPU unpacks q8_0 for every token that looks at it."""

    def types(**changes: Any) -> tuple[str, str]:
        plan = plan_start(config(model, **changes))
        return plan.config.cache_type_k, plan.config.cache_type_v

    narrow, wide = ("q8_0", "q8_0"), ("f16", "f16")
    assert types() == wide
    for asked in ("cache_type_k", "cache_type_v"):
        assert types(asked=(asked,)) == narrow
    n_bytes = plan_start(config(model)).ledger.ram.items[KV]
    machine(8 * n_bytes + 2 * GIB)
    assert types(kv_ram_bytes=0) == wide
    assert types(kv_ram_bytes=64 * GIB) == narrow, "nothing is given up for it"
    machine(8 * GIB, CARD)
    assert types() == narrow


def test_an_eighth_of_the_machines_memory_is_the_most_for_f16(
    machine: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the machine has: how much of it is free changes, and what is kept on disk is of one type."""
    n_bytes = plan_start(config(model)).ledger.ram.items[KV]
    monkeypatch.setattr(auto, "total_bytes", lambda: 8 * n_bytes)
    assert plan_start(config(model)).config.cache_type_k == "f16"
    monkeypatch.setattr(auto, "total_bytes", lambda: 8 * n_bytes - 1)
    assert plan_start(config(model)).config.cache_type_k == "q8_0"


def test_this_build_drives_what_its_libraries_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    folder = tmp_path / "lib"
    folder.mkdir()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(here.importlib.util, "find_spec", lambda _: spec)
    for name in ("libggml-base.so.0", "libggml-cpu.so", "libggml-rpc.so", "libllama.so.0.5"):
        (folder / name).touch()
    assert not here.may_drive_a_card()
    (folder / "libggml-cuda.so").touch()
    assert here.may_drive_a_card()


def test_claims_are_of_the_others() -> None:
    claims = Claims()
    claims.put("a", lambda: Held(1, 2))
    claims.put("b", lambda: Held(10, 20))
    assert claims.of_others("a") == Held(10, 20)
    assert claims.of_others("c") == Held(11, 22)
    claims.drop("b")
    claims.drop("b")
    assert claims.of_others("a") == Held(0, 0)


def test_a_plan_is_one_line_and_a_short_ledger(machine: Any, model: Path) -> None:
    machine(8 * GIB, CARD)
    plan: StartPlan = plan_start(config(model, n_parallel=2, cache_type_v="f16"))
    lines = plan.lines()
    assert lines[0] == plan.settings
    assert "KV q8_0/f16" in lines[0]
    assert lines[1].startswith("CUDA0 (a card) ")
    assert lines[2].startswith("RAM ")
    assert all(len(line) < 160 for line in lines)

"""Stored results of the tuner: who may use them, what is chosen from them, and files that make no sense."""

from __future__ import annotations

import json
from dataclasses import replace as with_changes
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.vram.runs import (
    HELD,
    MARGIN,
    RAM,
    VERSION,
    Knobs,
    Results,
    Run,
    asked_of,
    knobs_of,
    seconds_per_round,
)
from engine.vram.tuned import (
    Identity,
    file_name,
    identity,
    load_tuned,
    places,
    read_results,
    write_results,
)

GIB = 2**30
WHOSE = Identity("a processor (2 cores)", "llama-cpp-python 1, libraries 00", "f" * 32)
CONFIG = EngineConfig(name="m", cache_type_k="q8_0", cache_type_v="q8_0")
ROOM = {RAM: 16 * GIB}


def run(config: EngineConfig = CONFIG, **more: object) -> Run:
    plain = Run(
        asked=asked_of(config),
        knobs=knobs_of(config),
        outcome=HELD,
        depth=1024,
        prompt_tps=400.0,
        generation_tps=100.0,
        peak={RAM: GIB},
        room=ROOM,
    )
    return replace(plain, **more)


def results(*runs: Run) -> Results:
    return Results(
        version=VERSION,
        device=WHOSE.device,
        build=WHOSE.build,
        fingerprint=WHOSE.fingerprint,
        runs=runs,
    )


@pytest.mark.parametrize(
    "knobs",
    [{"n_threads": 513}, {"n_batch": 2**21}, {"n_gpu_layers": 10**30}, {"n_gpu_layers": -2}, {"n_cpu_moe": -1}],
)  # fmt: skip
def test_settings_that_would_end_an_engine_are_not_read(
    model: Path, knobs: dict[str, object]
) -> None:
    file = store(model, run())
    whole = json.loads(file.read_bytes())
    whole["runs"][0]["knobs"] |= knobs
    file.write_text(json.dumps(whole))
    assert "is damaged" in load_tuned(wanted(model), model, WHOSE, ROOM).note


def test_a_run_counts_with_its_memory_and_room_for_all_replies(model: Path) -> None:
    store(model, run(peak={}), run(replace(CONFIG, n_ubatch=2), knobs=_batch_of_two()))
    assert load_tuned(wanted(model), model, WHOSE, ROOM).run is None


def _batch_of_two() -> Knobs:
    return replace(knobs_of(CONFIG), n_batch=2, n_ubatch=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "big [q4].gguf"


def store(model: Path, *runs: Run) -> Path:
    file = model.parent / file_name(model, WHOSE)
    write_results(file, results(*runs))
    return file


def wanted(model: Path, **more: object) -> EngineConfig:
    return replace(CONFIG, path=str(model), **more)


def test_the_fastest_round_that_fits_is_chosen(model: Path) -> None:
    fast = replace(CONFIG, n_threads=3, n_ubatch=128)
    larger = replace(CONFIG, n_threads=4)
    chatty = replace(CONFIG, n_threads=5)
    file = store(
        model,
        run(),
        run(fast, prompt_tps=500.0, generation_tps=110.0),
        run(larger, prompt_tps=900.0, generation_tps=300.0, peak={RAM: 15 * GIB}),
        run(chatty, prompt_tps=100.0, generation_tps=130.0),
    )
    found = load_tuned(wanted(model), model, WHOSE, {RAM: 8 * GIB})
    assert found.config is not None
    assert (found.config.n_threads, found.config.n_ubatch) == (3, 128)
    assert found.config.path == str(model)
    assert str(file) in found.note
    roomy = load_tuned(wanted(model), model, WHOSE, {RAM: 16 * GIB})
    assert roomy.config is not None
    assert roomy.config.n_threads == 4


def test_a_round_counts_questions_and_replies_of_all_people() -> None:
    assert seconds_per_round(run()) == pytest.approx(4 * (128 / 400 + 128 / 100))
    assert seconds_per_round(run(generation_tps=0.0)) == float("inf")


@pytest.mark.parametrize("spare", [-1, 0])
def test_the_margin_and_resting_conversations_are_kept_free(model: Path, spare: int) -> None:
    store(model, run())
    room = {RAM: GIB + MARGIN + 3 * GIB + spare}
    found = load_tuned(wanted(model, kv_ram_bytes=3 * GIB), model, WHOSE, room)
    assert (found.config is not None) == (spare == 0)


def test_a_device_that_is_not_there_has_no_room(model: Path) -> None:
    store(model, run(peak={RAM: GIB, "CUDA0 (card)": GIB}))
    assert load_tuned(wanted(model), model, WHOSE, ROOM).config is None
    both = ROOM | {"CUDA0 (card)": 2 * GIB}
    assert load_tuned(wanted(model), model, WHOSE, both).config is not None


@pytest.mark.parametrize(
    "setting",
    [
        {"n_ctx": 2048},
        {"n_parallel": 2},
        {"kv_cells": 8192},
        {"cache_type_k": "f16"},
        {"cache_type_v": "q4_0"},
        {"n_threads": 7},
        {"n_gpu_layers": 12},
        {"use_mmap": False},
        {"flash_attention": "on"},
    ],
    ids=str,
)
def test_what_the_person_set_is_never_changed(model: Path, setting: dict[str, object]) -> None:
    store(model, run(replace(CONFIG, n_threads=2)))
    found = load_tuned(wanted(model, asked=tuple(setting), **setting), model, WHOSE, ROOM)
    assert found.config is None
    assert "no run that fits" in found.note
    same = wanted(model, n_threads=2, asked=("n_threads",))
    assert load_tuned(same, model, WHOSE, ROOM).config is not None


def test_runs_that_did_not_hold_are_not_chosen(model: Path) -> None:
    store(model, run(outcome="died", reason="out of memory"))
    assert load_tuned(wanted(model), model, WHOSE, ROOM).config is None


def test_only_runs_of_one_depth_are_compared(model: Path) -> None:
    shallow = replace(CONFIG, n_threads=9)
    store(model, run(shallow, depth=256, prompt_tps=900.0, generation_tps=900.0), run())
    found = load_tuned(wanted(model), model, WHOSE, ROOM)
    assert found.run is not None
    assert found.run.depth == 1024


def test_nothing_there_is_no_news(model: Path) -> None:
    assert load_tuned(wanted(model), model, WHOSE, ROOM) == load_tuned(
        wanted(model, tuned_dir=str(model.parent / "none")), model, WHOSE, ROOM
    )
    assert load_tuned(wanted(model), model, WHOSE, ROOM).note == ""


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (b"{", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"", "is damaged"),
        (b"\xff\x00" * 50, "is damaged"),
        (b'{"version": "new"}', "is damaged"),
        ({"version": 99}, "is of version 99"),
        ({"fingerprint": "0" * 32}, "another model file"),
        ({"device": "another"}, "measured elsewhere (another; "),
        ({"build": "another"}, "another): not used"),
        ({"runs": [{"outcome": "splendid"}]}, "is damaged"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_file_that_cannot_be_used_costs_one_sentence(
    model: Path, changed: bytes | dict[str, object], sentence: str
) -> None:
    file = store(model, run())
    if isinstance(changed, dict):
        changed = json.dumps(json.loads(file.read_bytes()) | changed).encode()
    file.write_bytes(changed)
    found = load_tuned(wanted(model), model, WHOSE, ROOM)
    assert found.config is None
    assert sentence in found.note
    assert "\n" not in found.note
    assert read_results(file, WHOSE)[0] is None


def test_impossible_numbers_are_damage(model: Path) -> None:
    file = store(model, run())
    for key, value in (("n_batch", -1), ("n_threads", 0), ("flash_attention", "maybe")):
        written = json.loads(msgspec.json.encode(results(run())))
        written["runs"][0]["knobs"][key] = value
        file.write_text(json.dumps(written))
        assert "is damaged" in load_tuned(wanted(model), model, WHOSE, ROOM).note, key


def test_results_of_another_machine_lie_beside_ours_and_are_named(model: Path) -> None:
    other = with_changes(WHOSE, device="another machine")
    assert file_name(model, other) != file_name(model, WHOSE)
    write_results(model.parent / file_name(model, other), results(run()))
    found = load_tuned(wanted(model), model, WHOSE, ROOM)
    assert found.config is None
    assert "another device or build" in found.note
    store(model, run())
    assert load_tuned(wanted(model), model, WHOSE, ROOM).config is not None


def test_the_data_folder_serves_where_the_models_folder_does_not(model: Path) -> None:
    data = model.parent / "data" / "tuned"
    config = wanted(model, tuned_dir=str(data))
    write_results(data / file_name(model, WHOSE), results(run()))
    assert load_tuned(config, model, WHOSE, ROOM).config is not None
    assert places(config, model) == [model.parent, data]
    assert places(replace(config, path="demo"), model) == [data]


def test_a_draft_that_was_interrupted_leaves_the_old_results(model: Path) -> None:
    file = store(model, run())
    file.with_name(f".{file.name}.new").write_bytes(b'{"version"')
    assert load_tuned(wanted(model), model, WHOSE, ROOM).config is not None
    write_results(file, results(run(), run()))
    assert sorted(p.name for p in file.parent.iterdir()) == [file.name]


def test_the_identity_names_cores_devices_and_libraries() -> None:
    here = identity("f" * 32, ["CUDA0 (a card)"])
    assert here.device.endswith("cores), CUDA0 (a card)")
    assert here.build.startswith("llama-cpp-python 0.3.36, libraries ")
    assert here.key != identity("f" * 32).key
    assert here.key == identity("0" * 32, ["CUDA0 (a card)"]).key

"""`hearth plan` as a person and a script meet it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace as with_changes
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from bot.cli.plan import view
from bot.cli.planjson import to_json
from engine.config import EngineConfig
from engine.vram.devices import GIB
from engine.vram.fingerprint import fingerprint
from engine.vram.planning import Plan, Wishes, load, make_plan, possible
from engine.vram.runs import HELD, RAM, VERSION, Results, Run, asked_of, knobs_of
from engine.vram.tuned import file_name, identity, write_results
from tests.support.shapefiles import write_shape
from tests.support.tinymodels import write_model

ROOT = Path(__file__).parents[3]


def hearth(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bot", "plan", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


def shown(path: Path, wishes: Wishes, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(view(make_plan(EngineConfig(name="m", path=str(path)), wishes)))
    return console.export_text()


@pytest.mark.model
def test_the_demo_model_on_this_machine_is_exact() -> None:
    done = hearth("demo", "--ctx", "2048", "--parallel", "2", "--cache-type", "f16", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["exact"]
    assert not told["estimate"]
    assert abs(told["arithmetic_error"]) < 0.02
    assert told["kv_cells"] == 4096
    (ram,) = told["devices"]
    assert ram["items"]["KV cache"] == 90 * 2**20
    assert ram["used"] == sum(ram["items"].values())
    assert {knob["change"] for knob in told["knobs"]} >= {"n_parallel 2 → 3", "n_ctx 2048 → 4096"}


def test_an_estimate_says_so_and_what_to_set(tmp_path: Path) -> None:
    path = write_shape("qwen3-30b-a3b-q4_k_m", tmp_path, sparse=False)
    text = shown(path, Wishes(vram=12 * GIB, ram=32 * GIB, ask_llama=False))
    assert "ESTIMATE" in text
    assert "n_gpu_layers = 49" in text
    assert "n_cpu_moe" in text
    assert "memory of the card binds" in text.replace("\n", " ")
    bar = next(line for line in text.splitlines() if "[W" in line)
    assert set(bar[bar.index("[") + 1 : bar.index("]")]) <= set("WKCori·")
    assert all(len(line) <= 80 for line in text.splitlines())


def test_what_does_not_fit_ends_with_a_status_and_a_way_out(tmp_path: Path) -> None:
    path = write_shape("qwen3-14b-q4_k_m", tmp_path, sparse=False)
    done = hearth(str(path), "--vram", "6GiB", "--ram", "4.5GiB")
    assert done.returncode == 3, done.stderr
    text = " ".join(done.stdout.split())
    assert "nothing fits; nearest settings that would:" in text
    assert "n_ctx 4096 → 2048" in text
    assert "too much" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing.gguf",), "nothing.gguf does not exist"),
        (("README.md",), "README.md is not a GGUF file"),
        (("demo", "--vram", "twelve"), '--vram twelve: write a size, for example "12GiB"'),
        (("demo", "--device", "abacus"), "--device abacus: not recorded"),
        (("demo", "--cache-type", "q9"), '--cache-type: "q9" is unknown'),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    done = hearth(*words)
    assert done.returncode not in (0, 3)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_what_the_tuner_measured_is_told_where_a_start_would_use_it(tmp_path: Path) -> None:
    path = write_model("llama", tmp_path)
    wish = EngineConfig(name="m", path=str(path), n_ctx=256, n_parallel=2)
    whose = identity(fingerprint(path))
    run = Run(
        asked=asked_of(wish), knobs=knobs_of(replace(wish, n_threads=3)), outcome=HELD, depth=64,
        prompt_tps=400.0, generation_tps=101.25, peak={RAM: 2 * GIB}, room={RAM: 8 * GIB},
    )  # fmt: skip
    results = Results(
        version=VERSION, device=whose.device, build=whose.build, fingerprint=whose.fingerprint, runs=(run,)
    )  # fmt: skip
    file = tmp_path / file_name(path, whose)
    write_results(file, results)
    wishes = Wishes(ram=4 * GIB, ask_llama=False)
    plan = make_plan(wish, wishes)
    assert (
        "tuned  measured by hearth tune: 101.2 tok/s of all 2 replies, prompts 400.0, peak RAM 2.00 GiB "
        '(n_threads 3, n_ubatch 512, n_batch 512); used by vram = "auto"'
    ) in _unfolded(plan)
    told = json.loads(json.dumps(to_json(plan)))
    assert told["measured"]["run"]["knobs"]["n_threads"] == 3
    assert (told["n_parallel"], told["cache_type_k"], told["layers"]) == (2, "f16", 3)
    for other in (replace(wish, n_ctx=512), replace(wish, asked=("n_threads",), n_threads=1)):
        assert "no run that fits these settings" in _unfolded(make_plan(other, wishes))
    small = make_plan(wish, Wishes(ram=GIB, ask_llama=False))
    assert "no run that fits these settings and this memory" in _unfolded(small)
    file.write_text("{")
    assert "is damaged or of another version" in _unfolded(plan)
    elsewhere = make_plan(wish, Wishes(vram=12 * GIB, ram=GIB, ask_llama=False))
    assert to_json(elsewhere)["measured"] == {"run": None, "note": ""}


def _unfolded(plan: Plan) -> str:
    console = Console(width=400, record=True, file=io.StringIO(), markup=False)
    console.print(view(plan))
    return console.export_text()


def test_heads_that_a_cache_type_does_not_fit_are_told(tmp_path: Path) -> None:
    """A start takes another type as well: the plan shows what it would choose."""
    path = write_model("llama", tmp_path)
    wish = EngineConfig(name="m", path=str(path), cache_type_k="q4_0", cache_type_v="q4_0")
    model = load(path)
    odd = with_changes(model.shape, head_k=80, head_v=80)
    assert possible(wish, odd).cache_type_k == "f16"
    assert possible(wish, model.shape) == wish


def test_a_table_of_the_configuration_is_planned_with_its_own_settings(tmp_path: Path) -> None:
    write_shape("qwen3-14b-q4_k_m", tmp_path, sparse=False)
    config = tmp_path / "config.toml"
    config.write_text(
        '[models.big]\npath = "qwen3-14b-q4_k_m.gguf"\nn_ctx = 8192\nn_parallel = 2\nkv_ram = "1GiB"\n'
        '[models.far]\nbackend = "openai"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "x"\nn_ctx = 4096\n'
        '[chat]\nmodel = "big"\n'
    )
    done = hearth("big", "--config", str(config), "--vram", "24GiB", "--ram", "8GiB", "--json")
    told = json.loads(done.stdout)
    assert told["window"] == 8192
    assert told["kv_cells"] == 16384
    card, ram = told["devices"]
    assert ram["items"]["idle conversations"] == GIB
    assert told["n_gpu_layers"] == 41
    assert not card["driven"]
    far = hearth("far", "--config", str(config))
    assert "runs elsewhere" in far.stderr

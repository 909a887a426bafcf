"""What `hearth tune` shows: the table, what is kept and what another cache would give, and the chart's bars."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image
from rich.console import Console

from bot.cli import tune
from bot.cli.tunechart import draw_chart
from bot.cli.tuneview import Outcome, Teller, knobs_name, to_json, view
from bot.errors import ConfigError
from engine.config import EngineConfig
from engine.vram.runs import DIED, HELD, RAM, Quality, Run, asked_of, knobs_of
from engine.vram.tunechild import sample_hash
from engine.vram.tuned import Identity
from engine.vram.tuneplan import TunePlan
from engine.vram.tuner import TuneReport
from engine.vram.tunesearch import Space

GIB = 2**30
CARD = "CUDA0 (a card)"
PROMPT, KEPT = (0x4C, 0x78, 0xA8), (0xEE, 0xF7, 0xEE)  # colours of the chart
CONFIG = EngineConfig(
    name="m", cache_type_k="q8_0", cache_type_v="q8_0", n_gpu_layers=20, n_threads=4
)
START = knobs_of(CONFIG)


def run(prompt: float, reply: float, **changes: object) -> Run:
    knobs = replace(START, **changes)
    n = knobs.n_gpu_layers
    return Run(
        asked=asked_of(CONFIG), knobs=knobs, outcome=HELD, depth=1024, prompt_tps=prompt, generation_tps=reply,
        peak={RAM: 2 * GIB, CARD: n * GIB // 4}, room={RAM: 16 * GIB, CARD: 8 * GIB},
    )  # fmt: skip


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    plan, best = run(400.0, 40.0), run(500.0, 50.0, n_gpu_layers=22)
    died = replace(
        run(0.0, 0.0, n_gpu_layers=24), outcome=DIED, depth=0, reason="llama.cpp ended by SIGABRT: out of memory"
    )  # fmt: skip
    other = run(500.0, 55.0, n_gpu_layers=22, cache_type_k="q4_0", cache_type_v="q4_0")
    tight = replace(run(600.0, 60.0, n_ubatch=1024, n_batch=1024), peak={RAM: GIB, CARD: 8 * GIB})
    qualities = tuple(
        Quality(
            cache_type_k=kind, cache_type_v=kind, flash_attention="on", text=sample_hash(), n_tokens=800,
            perplexity=perplexity,
        )
        for kind, perplexity in (("q8_0", 20.0), ("q4_0", 20.5))
    )  # fmt: skip
    report = TuneReport((plan, best, died, other, tight), qualities, plan, best, False)
    space = Space(start=START, n_layers=29)
    whose = Identity("a processor (8 cores), a card", "a build", "f" * 32)
    path = Path("a [very] big model.gguf")
    return Outcome(
        TunePlan(path, CONFIG, "all as planned", space, whose, {}), report, tmp_path / "r.json"
    )


def text(outcome: Outcome, chart: Path | None = None, width: int = 150) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, markup=False)
    console.print(view(outcome, chart))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def test_the_table_says_what_was_measured_and_why_a_run_is_not_kept(outcome: Outcome) -> None:
    lines = text(outcome).splitlines()
    rows = {line.split("  ")[0]: line for line in lines}
    assert rows["layers 22"].split()[-1] == "kept"
    assert {"500.0", "50.0", "2.00", "5.50", "20.00"} <= set(rows["layers 22"].split())
    assert rows["layers 24"].split()[-1] == "died"
    assert "layers 24: died: llama.cpp ended by SIGABRT: out of memory" in lines
    assert rows["ubatch 1024, batch 1024"].split()[-1] == "tight"
    assert rows["layers 22, KV q4_0"].split()[-1] == "shown"
    assert rows["plan"].split()[:3] == ["plan", "400.0", "40.0"]


def test_the_sentences_say_what_to_set_and_what_another_cache_would_give(outcome: Outcome) -> None:
    told = " ".join(text(outcome, Path("c.png")).split())
    assert "kept: n_gpu_layers = 22" in told
    assert 'cache_type_k = "q8_0"' in told
    # 4 × (128 ÷ 400 + 128 ÷ 40) = 14.08 s against 11.264 s.
    assert "+25 % rounds per minute against the plan" in told
    assert "KV q4_0 instead: +9 % rounds, RAM +0 MiB, CUDA0 +0 MiB, perplexity +2.50 %" in told
    assert "not everything was tried" in told
    assert "chart c.png" in told


def test_a_narrow_terminal_shows_every_setting_in_one_line(outcome: Outcome) -> None:
    lines = text(outcome, width=80).splitlines()
    for setting in (
        "plan",
        "layers 22",
        "layers 24",
        "layers 22, KV q4_0",
        "ubatch 1024, batch 1024",
    ):
        assert any(line.startswith(f"{setting} ") for line in lines), setting
    assert all(len(line) <= 80 for line in lines)


def test_a_very_narrow_terminal_shows_a_line_for_each_run(outcome: Outcome) -> None:
    console = Console(width=40, record=True, file=io.StringIO(), markup=False)
    console.print(view(outcome, None, is_narrow=True))
    told = console.export_text()
    assert all(len(line) <= 40 for line in told.splitlines())
    one = " ".join(told.split())
    assert "layers 22: prompt 500.0 tok/s, generation 50.0 tok/s, RAM 2.00 GiB" in one
    assert "11.26 s per round, ppl 20.00, kept" in one
    assert "layers 24: died: llama.cpp ended by SIGABRT" in one


def test_a_chart_that_cannot_be_written_costs_no_table(
    outcome: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = tune.TuneOptions(model="m", chart=str(tmp_path))
    said = io.StringIO()
    assert tune._tell(outcome, options, Console(file=said, width=200)) == 0
    assert "cannot be written" in said.getvalue()
    assert "layers 22" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (tune.TuneOptions(model="demo", minutes=float("nan")), "--minutes nan: write a number"),
        (tune.TuneOptions(model="demo", minutes=float("inf")), "--minutes inf: write a number"),
        (tune.TuneOptions(model="demo", chart="/proc/none/c.png"), "--chart /proc/none/c.png"),
        (tune.TuneOptions(model="demo", chart="/tmp"), "name a file in a folder"),
        (tune.TuneOptions(model="demo", ctx=9), "--ctx 9: write 256 to 131072 tokens"),
        (tune.TuneOptions(model="demo", cache_type="q9"), '--cache-type: "q9" is unknown'),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_measured(
    options: tune.TuneOptions, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "set_up_logging", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        tune.run_tune(None, options)
    assert sentence in str(caught.value)


def test_when_nothing_held_no_settings_are_named(outcome: Outcome) -> None:
    died = outcome.report.runs[2]
    report = TuneReport((died,), (), died, None, True)
    told = text(Outcome(outcome.plan, report, outcome.file))
    assert "no settings held" in told
    assert "kept" not in told


def test_a_script_reads_the_same(outcome: Outcome) -> None:
    told = json.loads(json.dumps(to_json(outcome, None)))
    assert told["kept"]["n_gpu_layers"] == 22
    assert [one["outcome"] for one in told["runs"]] == ["held", "held", "died", "held", "held"]
    assert told["runs"][2]["seconds_per_round"] is None
    assert told["runs"][1]["seconds_per_round"] == pytest.approx(11.264)
    assert told["runs"][3]["perplexity"] == 20.5
    assert told["chart"] is None
    assert not told["finished"]
    slow = replace(outcome.report.runs[1], prompt_tps=0.0)
    report = TuneReport((slow,), (), None, slow, True)
    found = to_json(Outcome(outcome.plan, report, outcome.file), None)
    assert "Infinity" not in json.dumps(found)


def test_the_chart_is_drawn_to_scale(outcome: Outcome, tmp_path: Path) -> None:
    path = tmp_path / "new" / "chart.png"
    draw_chart(outcome, path)
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    prompt, kept = ((pixels == colour).all(axis=2).sum(axis=1) for colour in (PROMPT, KEPT))
    assert kept.max() > 500
    by_length = Counter(int(n) for n in prompt if n)
    found = sorted(length for length, n_rows in by_length.items() if n_rows > 10)
    # Prompts of 400, 500 (twice) and 600 tokens per second; the run that died has no bar.
    assert len(found) == 3
    assert found[0] / found[2] == pytest.approx(400 / 600, rel=0.02)
    assert found[1] / found[2] == pytest.approx(500 / 600, rel=0.02)


@pytest.mark.parametrize("load", [0.1, 3.2])
def test_progress_without_a_terminal_is_a_line_for_each_run(
    outcome: Outcome, load: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    console = Console(width=100, file=io.StringIO(), markup=False, highlight=False)
    with Teller(console, outcome.plan, 600.0) as teller:
        for number, one in enumerate(outcome.report.runs, 1):
            teller.begins(one.knobs, number)
            teller.progress("prompt", 1, 2)
            teller.ends(one)
        teller.begins(outcome.report.qualities[0], 6)
        teller.ends(outcome.report.qualities[0])
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    if load > 1:
        assert lines.pop(2).startswith("the machine is busy (load 3.2)")
    assert lines[0] == "a [very] big model.gguf: all as planned"
    assert lines[2] == "[1] plan: prompt 400.0 tok/s, generation 40.0 tok/s, RAM 2.00 GiB, CUDA0 (a card) 5.00 GiB"  # fmt: skip
    assert lines[4] == "[3] layers 24: died: llama.cpp ended by SIGABRT: out of memory"
    assert lines[-1] == "[6] perplexity with KV q8_0: perplexity 20.000"
    assert len(lines) == 2 + 6


def test_what_differs_from_the_plan_is_named() -> None:
    changed = replace(START, kv_on_card=False, flash_attention="off", n_threads=8)
    assert knobs_name(changed, START) == "kv_on_card off, threads 8, flash off"
    assert knobs_name(START, START) == "plan"

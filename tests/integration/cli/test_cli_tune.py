"""`hearth tune` with the real demo model: killed in the middle, gone on with, and told to a person and a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from PIL import Image

from bot.cli import tune
from bot.config import load_config
from bot.errors import ConfigError
from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.vram.fingerprint import fingerprint
from engine.vram.runs import RAM
from engine.vram.tuned import identity, load_tuned

ROOT = Path(__file__).parents[3]
WORDS = ("tune", "main", "--config", "config.toml", "--types", "", "--minutes", "3")
# Every knob is set, so that the plan is all there is to try.
CONFIG = """
[models.main]
path = "demo"
n_ctx = 512
n_parallel = 2
kv_ram = "64MiB"
cache_type_k = "q8_0"
cache_type_v = "q8_0"
n_threads = 2
n_batch = 256
n_ubatch = 256
flash_attention = "on"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the config, where the data goes; the command runs in this process and leaves its logging alone."""
    (tmp_path / "config.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "set_up_logging", lambda _config: None)
    return tmp_path


def run(folder: Path) -> int:
    """The command, without starting Python again."""
    options = tune.TuneOptions("main", types="", minutes=3.0, as_json=True)
    return tune.run_tune(load_config(folder / "config.toml"), options)


def begun(folder: Path) -> bool:
    """Whether the file says that a run has begun."""
    return any((folder / "data" / "tuned").glob("*.json"))


def kill_in_the_first_run(folder: Path) -> None:
    """Start the real command, wait until a run has begun, and kill the tuner without a word."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bot", *WORDS],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    with process:
        try:
            deadline = time.monotonic() + 90
            while not begun(folder):
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(0.02)
            children = psutil.Process(process.pid).children()
        finally:
            process.kill()
    psutil.wait_procs(children, timeout=20)
    assert not any(child.is_running() for child in children)


@pytest.mark.model
@pytest.mark.timeout(240)
def test_the_demo_model_is_tuned_through_a_kill(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_in_the_first_run(here)
    (file,) = (here / "data" / "tuned").glob("*.json")
    before = json.loads(file.read_bytes())
    assert (len(before["begun"]), len(before["runs"])) == (1, 0)

    assert run(here) == 0
    out, err = capsys.readouterr()
    told = json.loads(out.splitlines()[-1])
    assert told["results"] == str(file)
    assert told["finished"]
    (measured,) = told["runs"]
    assert measured["setting"] == "plan"
    assert measured["outcome"] == "held"
    assert measured["verdict"] == "kept"
    assert measured["prompt_tokens_per_second"] > 5
    assert measured["generation_tokens_per_second"] > 1
    assert 50 * 2**20 < measured["peak"][RAM] < 2**30
    assert told["depth"] >= 256
    (quality,) = told["qualities"]
    assert 5 < quality["perplexity"] < 100
    assert quality["n_tokens"] > 600
    assert measured["perplexity"] == quality["perplexity"]
    assert "[1] plan: prompt" in err
    with Image.open(told["chart"]) as chart:
        assert chart.format == "PNG"
        assert chart.width > 1000
    after = json.loads(file.read_bytes())
    assert after["begun"] == []

    path = find_model("m", "demo")
    wish = EngineConfig(
        name="m", n_ctx=512, n_parallel=2, cache_type_k="q8_0", cache_type_v="q8_0",
        tuned_dir=str(file.parent),
    )  # fmt: skip
    found = load_tuned(wish, path, identity(fingerprint(path)), {RAM: 16 * 2**30})
    assert found.config is not None
    assert (found.config.n_threads, found.config.n_ubatch) == (2, 256)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (tune.TuneOptions("nothing.gguf"), "nothing.gguf does not exist"),
        (tune.TuneOptions("demo", types="q9"), '--types: "q9" is unknown'),
        (tune.TuneOptions("demo", cache_type="q9"), '"q9" is unknown'),
        (tune.TuneOptions("demo", vram="twelve"), 'twelve: write a size, for example "12GiB"'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_tuned_is_one_sentence(
    here: Path, options: tune.TuneOptions, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        tune.run_tune(None, options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.model
@pytest.mark.timeout(120)
def test_a_terminate_stops_it_with_what_is_known(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminate() -> None:
        while not begun(here):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    assert run(here) == 130
    thread.join()
    out, err = capsys.readouterr()
    assert "goes on from here" in err
    told = json.loads(out.splitlines()[-1])
    assert (told["runs"], told["kept"], told["chart"]) == ([], None, None)
    assert json.loads(Path(told["results"]).read_bytes())["begun"] == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

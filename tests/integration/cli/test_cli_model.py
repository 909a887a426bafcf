"""`hearth model list | check | pull` as a person and a script meet them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from bot.cli import app
from bot.errors import HearthError
from engine.backends.modelfile import find_model
from tests.support.hubkit import running_hub
from tests.support.shapefiles import write_shape
from tests.support.tinymodels import write_model

ROOT = Path(__file__).parents[3]
REPO = "owner/Tiny-GGUF"


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def hearth(*words: str, cwd: Path, **environment: str) -> Done:
    """The command in this process: a child of its own costs seconds of imports each time."""
    with chdir(cwd):
        result = CliRunner().invoke(app, ["model", *words], env=environment)
    if isinstance(result.exception, HearthError):  # what `bot.cli.run` makes of it
        return Done(2, result.stdout, f"hearth: {result.exception}\n")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HEARTH_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def told(done: Done) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A config with the demo model and one of the folder, and other files in the folder."""
    models = tmp_path / "models"
    models.mkdir()
    write_model("llama", models)
    write_model("qwen3moe", models)
    write_shape("gemma3-27b-q3_k_s", models)
    (models / "half.gguf").write_bytes((models / "llama.gguf").read_bytes()[:200_000])
    (models / "other.gguf.0123456789ab.part").write_bytes(b"x" * 2**20)
    (tmp_path / "config.toml").write_text(
        '[models.demo]\n[models.own]\npath = "models/llama.gguf"\nn_ctx = 1024\n'
        '[models.far]\nbackend = "openai"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "x"\nn_ctx = 4096\n'
        '[models.played]\nbackend = "fake"\n'
    )
    return tmp_path


def test_the_list_shows_models_of_the_config_and_of_the_folder(home: Path) -> None:
    done = hearth("list", "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    rows = {Path(str(row["path"])).name: row for row in told(done)}
    demo = find_model("demo", "demo").name
    files = {"llama.gguf", "qwen3moe.gguf", "gemma3-27b-q3_k_s.gguf", "half.gguf"}
    assert set(rows) == {demo, *files, "other.gguf.0123456789ab.part"}
    part = rows["other.gguf.0123456789ab.part"]
    assert (part["n_bytes"], part["fits"]) == (2**20, None)
    assert part["verdict"] == "the same `hearth model pull` goes on"
    assert (rows[demo]["model"], rows["llama.gguf"]["model"]) == ("demo", "own")
    assert rows[demo]["quantization"] == "Q4_1"
    assert rows[demo]["fits"] is True
    assert rows["half.gguf"]["fits"] is None
    assert rows["gemma3-27b-q3_k_s.gguf"]["model"] == ""
    shown = hearth("list", cwd=home, COLUMNS="120")
    assert "qwen3moe" in shown.stdout
    assert "F32" in shown.stdout
    assert "not whole" in shown.stdout
    assert "unfinished: " in shown.stdout
    (home / "models" / "odd[red].gguf").write_bytes(b"GGUF")
    narrow = hearth("list", cwd=home, COLUMNS="40").stdout
    assert "own: llama.gguf\n  0.00 GiB, llama, F32, context " in narrow
    assert "odd[red].gguf" in narrow


def test_check_ends_with_a_status_and_says_what_is_wrong(home: Path) -> None:
    good = hearth("check", "own", cwd=home)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "llama.gguf is whole (0.00 GiB); no published checksum is known" in good.stdout
    bad = hearth("check", "half.gguf", cwd=home)
    assert bad.returncode == 3
    assert "half.gguf" in bad.stdout
    every = hearth("check", "--json", cwd=home)
    assert every.returncode == 3
    sound = {Path(str(row["path"])).name: row["sound"] for row in told(every)}
    assert sound["half.gguf"] is False
    assert sound["llama.gguf"] is True
    missing = hearth("check", "none.gguf", cwd=home)
    assert missing.returncode == 3
    assert "Traceback" not in missing.stderr


def test_check_compares_checksums(home: Path) -> None:
    path = home / "models" / "qwen3moe.gguf"
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    assert "checksum right" in hearth("check", "qwen3moe", "--sha256", right, cwd=home).stdout
    wrong = hearth("check", "qwen3moe", "--sha256", "0" * 64, cwd=home)
    assert wrong.returncode == 3
    path.with_name("qwen3moe.gguf.sha256").write_text(f"{right}  qwen3moe.gguf\n")
    assert "checksum right" in hearth("check", "qwen3moe", cwd=home).stdout
    path.with_name("qwen3moe.gguf.sha256").write_text(f"{'1' * 64}  qwen3moe.gguf\n")
    assert hearth("check", "qwen3moe", cwd=home).returncode == 3
    nonsense = hearth("check", "--sha256", right, cwd=home)
    assert "--sha256 needs the name of one model" in nonsense.stderr


async def test_pull_prints_lines_that_the_config_takes_and_the_model_loads(tmp_path: Path) -> None:
    source = write_model("llama", tmp_path)
    async with running_hub() as hub:
        hub.repos[REPO] = {"Tiny.Q4_0.gguf": source.read_bytes(), "README.md": b"x"}
        (tmp_path / "config.toml").write_text(f'[models_hub]\nendpoint = "{hub.endpoint}"\n')
        done = await asyncio.to_thread(hearth, "pull", REPO, "Q4_0", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        again = await asyncio.to_thread(hearth, "pull", REPO, cwd=tmp_path)
        refused = await asyncio.to_thread(
            hearth, "pull", REPO, "Q5_0", "--endpoint", hub.endpoint, cwd=tmp_path
        )
    assert "was there already, and is right" in again.stdout
    assert refused.returncode == 2
    said = 'owner/Tiny-GGUF holds no Q5_0 (did you mean "Q4_0"?); there is Tiny.Q4_0 (0.0 GiB)'
    assert refused.stderr == f"hearth: {said}\n"
    block = done.stdout.split("config.toml:\n\n")[1].split("\n\n`hearth plan")[0]
    taken = tomllib.loads(block)["models"]["main"]
    assert taken["path"] == "models/Tiny.Q4_0.gguf"
    assert taken["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    (tmp_path / "config.toml").write_text(block)
    checked = hearth("check", "main", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "checksum right" in checked.stdout


def test_a_mirror_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bot", "model", "pull", REPO, "Q4_0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("hearth: http://127.0.0.1:9 cannot be reached (")
    assert done.stderr.count("\n") == 1

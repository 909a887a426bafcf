"""`hearth bench` as a person types it: beside a running Hearth, tables and JSON, one sentence when something is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.app import Hearth
from bot.config import parse_config

ROOT = Path(__file__).parents[3]
SMALL = ("--concurrency", "1,2", "--conversations", "2", "--turns", "2", "--rounds", "1", "--max-tokens", "8")  # fmt: skip
KEY = "key-of-the-other"


async def bench(*words: str, columns: int = 100, **env: str) -> tuple[int | None, str, str]:
    """Exit status, stdout and stderr of one run."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bot", "bench", *words),
        cwd=ROOT,
        env={**os.environ, "COLUMNS": str(columns), **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.toml"
    path.write_text(
        '[models.main]\nbackend = "fake"\nn_parallel = 1\nfake = { reply = "好的, done." }\n'
    )
    return str(path)


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[str]:
    """Another Hearth that listens; its URL."""
    data = {
        "server": {"port": 0, "api_keys": [KEY], "shutdown_s": 1},
        "storage": {"url": "sqlite:///hearth.db"},
        "models": {"main": {"backend": "fake", "fake": {"reply": "Here I am."}}},
    }
    hearth = Hearth(parse_config(data, tmp_path))
    await hearth.start()
    try:
        await hearth.engines["main"].wait_ready(30)
        assert hearth.web is not None
        yield hearth.web.url
    finally:
        await hearth.close()


async def test_json_holds_what_both_say_and_what_their_engines_say(config: str, other: str) -> None:
    words = (*SMALL, "--config", config, "--against", other, "--no-kv-tiers", "--json")
    status, out, err = await bench(*words, HEARTH_BENCH_KEY=KEY)
    assert status == 0, err
    told = json.loads(out)
    assert list(told["engines"]) == ["hearth", "no tiers", "against"]
    decoded = told["figures"]["turn@2.prompt_tokens_decoded"]["median"]
    computed = told["figures"]["turn@2.prompt_tokens_computed"]["median"]
    assert all(decoded[name] == computed[name] > 0 for name in told["engines"])
    assert 0 < told["figures"]["wave@2.python_share"]["median"]["hearth"] <= 100
    assert told["plan"]["conversations"] == 2
    assert err.splitlines()[0] == "0/12 hearth: warm-up"
    assert err.splitlines()[-1] == "12/12 done"


async def test_tables_fit_eighty_columns_and_stand_alone_on_stdout(config: str) -> None:
    status, out, err = await bench(*SMALL, "--config", config, columns=80)
    assert status == 0, err
    lines = out.splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert lines[0].startswith("People asking at the same moment")
    assert any(line.startswith("2 conversations in rotation, turn by turn") for line in lines)
    assert any("  turn 2 " in line for line in lines)
    assert "hearth decodes 1 at once" in out
    assert "/" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gone.gguf",), '"gone.gguf" is no file'),
        (("--against", "somewhere"), "--against somewhere: write a URL"),
        (("--concurrency", "", "--turns", "0"), "at least one round, one token"),
    ],
)
async def test_trouble_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    status, out, err = await bench(*words)
    assert status != 0
    assert out == ""
    assert says in err
    assert len(err.strip().splitlines()) == 1

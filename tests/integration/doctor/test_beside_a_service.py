"""The doctor beside a running Hearth: named, not disturbed, and asked what it knows of itself."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from bot.app import Hearth
from bot.cli.doctor import DoctorOptions, run_doctor
from bot.config import parse_config
from bot.doctor.database import look_at_database
from bot.doctor.findings import Level
from bot.doctor.memory import look_at_plan
from bot.doctor.patient import Patient
from bot.doctor.ports import look_at_port
from bot.store.lockfile import lock_holder
from tests.support.doctorkit import said


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Patient]:
    data = {
        "server": {"port": 0},
        "models": {"main": {"backend": "fake"}},
        "storage": {"url": "sqlite:///hearth.db"},
    }
    hearth = Hearth(parse_config(data, tmp_path))
    await hearth.start()
    try:
        assert hearth.web is not None
        data["server"]["port"] = hearth.web.port
        yield Patient(parse_config(data, tmp_path))
    finally:
        await hearth.close()


async def test_it_is_named_and_looked_at_beside(running: Patient) -> None:
    me = f"process {os.getpid()}"
    database = await look_at_database(running)
    assert [finding.level for finding in database] == [Level.OK, Level.OK]
    assert f"in use by {me}" in database[0].what
    assert "schema" in database[1].what
    port = await look_at_port(running)
    assert f"is held by a running Hearth, {me}" in port[0].what
    assert said(port, Level.ERROR) == []
    (plan,) = look_at_plan(running)
    assert f"while the service runs ({me})" in plan.what


async def test_what_the_service_says_of_itself_is_passed_on(
    running: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def facts(*_: object) -> dict[str, object]:
        return {
            "models": {
                "main": {"state": "ready", "step_back": "n_ubatch 512 → 256 after out of memory"},
                "big": {"state": "failed", "detail": "the graphics card ran out of memory"},
                "old": {"state": "ready", "restarts": 3},
            },
            "bots": {
                "feishu": {"deaf_since": "2026-01-01T10:00:00Z", "reason": "closed"},
                "ding": {},
            },
        }

    monkeypatch.setattr("bot.doctor.ports._ask", facts)
    texts = said(await look_at_port(running), Level.WARNING)
    assert [text.partition(":")[0] for text in texts] == [
        "models.main",
        "models.big",
        "models.old",
        "bots.feishu",
    ]
    assert "n_ubatch 512 → 256" in texts[0]
    assert "ran out of memory" in texts[1]
    assert "restart it 3 time(s)" in texts[2]
    assert "hearth doctor --bot feishu" in texts[3]


async def test_looking_takes_no_lock(running: Patient, tmp_path: Path) -> None:
    lock = tmp_path / "hearth.db.lock"
    assert lock_holder(lock) == os.getpid()
    before = (tmp_path / "hearth.db").stat().st_mtime_ns, lock.read_text()
    for _ in range(3):
        await look_at_database(running)
    assert ((tmp_path / "hearth.db").stat().st_mtime_ns, lock.read_text()) == before


def test_nobody_holds_what_was_left_behind(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    assert lock_holder(lock) is None
    lock.write_text("4711\n")
    assert lock_holder(lock) is None


async def test_an_older_database_is_no_fault(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('0001')")
    (tmp_path / "old.db").chmod(0o644)
    config = parse_config({"storage": {"url": "sqlite:///old.db"}}, tmp_path)
    found = await look_at_database(Patient(config))
    assert "at the next start" in found[0].what
    assert "others on this machine can read it" in said(found, Level.WARNING)[0]


def test_the_command_for_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, once, on a set-up with one error: JSON, the exit status, and nothing else on stdout."""
    (tmp_path / "config.toml").write_text('[models.main]\npath = "none.gguf"\nkv_disk = "0"\n')
    options = DoctorOptions(config=tmp_path / "config.toml", as_json=True)
    assert asyncio.run(run_doctor(options)) == 2
    told = json.loads(capsys.readouterr().out)
    wrong = [row for row in told["findings"] if row["level"] == "error"]
    assert told["errors"] == len(wrong)
    assert "model" in [row["check"] for row in wrong]
    assert all(row["cure"] for row in told["findings"] if row["level"] != "ok")


def test_a_log_is_explained(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bot", "doctor", "--log", "-"],
        input="hello\nggml_cuda: CUDA out of memory\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first = done.stdout.splitlines()[0]
    assert first.startswith("warning  log         out of device memory: too many layers")
    assert "hearth plan MODEL" in first
    assert "\x1b" not in done.stdout

"""What is printed: one plain line for programs, aligned and wrapped lines for people."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bot.cli.doctor import DoctorOptions, Report, admit, plain_line, run_doctor
from bot.doctor.findings import error, ok, warning
from bot.errors import ConfigError

FOUND = (
    ok("24.0 of 32.0 GiB RAM are free"),
    warning("6.0 of 8.0 GiB swap are in use: replies come in jerks", "RAM", "more layers on the card"),
    error("is a web page, not a model", "models.main.path", "download it by the file's own link"),
)  # fmt: skip


def shown(console: Console, *, as_json: bool = False) -> Report:
    report = Report(console, as_json=as_json)
    report.show("memory", FOUND[:2])
    report.show("model", FOUND[2:])
    report.end()
    return report


def test_a_program_gets_one_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    shown(Console(highlight=False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "ok       memory      24.0 of 32.0 GiB RAM are free",
        "warning  memory      RAM: 6.0 of 8.0 GiB swap are in use: replies come in jerks -> more layers on the card",
        "error    model       models.main.path: is a web page, not a model -> download it by the file's own link",
    ]
    assert lines[-1] == "1 error, 1 warning."


def test_a_person_gets_columns_that_wrap() -> None:
    console = Console(
        file=io.StringIO(), force_terminal=True, width=50, color_system=None, highlight=False
    )
    shown(console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= 50 for line in lines)
    assert [line for line in lines if line.startswith("memory")] == [lines[0]]  # the title once
    for line in lines[1:-3]:
        assert line.startswith((" " * 12, "model")), line
    assert sum("→ " in line for line in lines) == 2


def test_json_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    shown(Console(), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["errors"], told["warnings"], len(told["findings"])) == (1, 1, 3)
    assert told["findings"][2] == {
        "check": "model",
        "level": "error",
        "where": "models.main.path",
        "what": "is a web page, not a model",
        "cure": "download it by the file's own link",
    }


def test_nothing_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(Console(), as_json=False)
    report.show("memory", FOUND[:1])
    report.end()
    assert capsys.readouterr().out.splitlines()[-1] == "Nothing is wrong."
    assert plain_line("x", ok("y", "z")) == "ok       x           z: y"


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; name your configuration"):
        admit(DoctorOptions(config=tmp_path / "none.toml"))


async def test_a_log_that_is_not_known_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("something else went wrong\n")
    assert await run_doctor(DoctorOptions(log=str(tmp_path / "log"))) == 0
    said = capsys.readouterr().out
    assert "nothing in it is known here" in said
    assert "Nothing is wrong" not in said

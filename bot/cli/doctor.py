"""`hearth doctor`: runs the checks and shows what they found, for a person or a script. Finds nothing itself.

Exit status: 0 nothing is wrong (there may be warnings), 2 something cannot work.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bot.cli.report import findings
from bot.config import Config, LogConfig
from bot.config_survey import survey
from bot.doctor.checks import checks_for
from bot.doctor.findings import Check, Finding, Level, error, warning
from bot.doctor.guides import guide
from bot.doctor.patient import Patient
from bot.doctor.runner import examine
from bot.errors import ConfigError
from bot.logs import set_up_logging
from engine.vram.symptoms import find_symptoms

_DEFAULT: Final = Path("config.toml")
_MARKS: Final = {
    Level.OK: ("✓", "green"),
    Level.WARNING: ("!", "bold yellow"),
    Level.ERROR: ("✗", "bold red"),
}
_TITLE_WIDTH: Final = 11
_WRONG: Final = 2


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The command's options. `config` None = config.toml, if there is one; `log` a file, "-" = standard input; `language` zh or
    en, "" = the config's."""

    config: Path | None = None
    vram_test: bool = False
    bot: str = ""
    log: str = ""
    language: str = ""
    as_json: bool = False


def admit(options: DoctorOptions) -> Patient:
    """Who is examined. Raises ConfigError for a file or a bot that was named and is not there."""
    if options.language not in {"", "zh", "en"}:
        raise ConfigError(f"--language {options.language}: there is zh and en")
    path = options.config or (_DEFAULT if _DEFAULT.exists() else None)
    if path is not None and not path.exists():
        raise ConfigError(f"{path} does not exist; name your configuration with --config")
    config = survey(path).config if path else Config(folder=Path.cwd())
    if options.bot and options.bot not in config.bots:
        there = ", ".join(config.bots) or "none that can be read"
        raise ConfigError(f"--bot {options.bot}: no [bots.{options.bot}] table; there is {there}")
    return Patient(config, path, vram_test=options.vram_test, bot=options.bot)


async def run_doctor(options: DoctorOptions) -> int:
    """Look, print, and return the exit status. Raises ConfigError."""
    console = Console(highlight=False)
    report = Report(console, as_json=options.as_json)
    if options.log:
        report.show("log", _explain(options.log))
        report.all_well = ""
    else:
        patient = admit(options)
        # Findings tell everything; what else is logged would stand between them.
        set_up_logging(patient.config.model_copy(update={"log": LogConfig(level="error")}))
        with _Waiting(console, is_shown=console.is_terminal and not options.as_json) as waiting:
            for check in _with_oddities(patient):
                waiting.say(check.title)
                async for _, found in examine(patient, (check,)):
                    report.show(check.title, found)
        if patient.bot:
            report.guide = guide(patient.config, patient.bot, options.language)
    report.end()
    return _WRONG if report.counts[Level.ERROR] else 0


def _with_oddities(patient: Patient) -> tuple[Check, ...]:
    """The checks, and behind the first of them what `hearth config check` finds odd."""
    checks = checks_for(patient)
    if patient.bot or patient.config_path is None:
        return checks
    return (checks[0], Check("config", _oddities), *checks[1:])


def _oddities(patient: Patient) -> Iterator[Finding]:
    for found in findings(patient.config):
        if found.where.endswith(".path"):  # the check of models says it with its cure
            continue
        make = error if found.level == "error" else warning
        # These sentences end with what to do, behind a semicolon or a colon.
        mark = "; " if "; " in found.text else ": "
        what, _, cure = found.text.partition(mark)
        yield make(what, found.where, cure or "correct it")


def _explain(log: str) -> list[Finding]:
    """What a text of errors means, by the table of symptoms. Raises ConfigError for a file that cannot be read."""
    try:
        text = sys.stdin.read() if log == "-" else Path(log).read_text("utf-8", "replace")
    except OSError as fault:
        raise ConfigError(f"--log {log} cannot be read: {fault.strerror}") from None
    found = find_symptoms(text)
    return [warning(f"{s.cause}  ({line[:100]})", s.name, s.cure) for s, line in found] or [
        Finding(
            Level.OK,
            "nothing in it is known here",
            cure="hearth doctor looks at the machine itself",
        )
    ]


class _Waiting:
    """The line that says what is being looked at, where somebody waits for it."""

    def __init__(self, console: Console, *, is_shown: bool) -> None:
        self._status = console.status("") if is_shown else None

    def __enter__(self) -> _Waiting:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, title: str) -> None:
        if self._status is not None:
            longer = " (about 2 s per GB)" if title == "VRAM" else ""
            self._status.update(f"looking at {title}{longer} …")


class Report:
    """Prints findings as they come, or all of them as JSON at the end; counts them."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self._as_json = as_json
        self._rows: list[dict[str, str]] = []
        self._last_title = ""
        # How a bot is set up, printed behind the findings; "" = nothing.
        self.guide = ""
        # What is said at the end where nothing was found; "" = nothing, where that proves nothing.
        self.all_well = "Nothing is wrong."
        self.counts: Counter[Level] = Counter()

    def show(self, title: str, found: Iterable[Finding]) -> None:
        """What one check found."""
        for finding in found:
            self.counts[finding.level] += 1
            if self._as_json:
                self._rows.append(_row(title, finding))
            elif self._console.is_terminal:
                self._console.print(_line(title if title != self._last_title else "", finding))
            else:
                sys.stdout.write(plain_line(title, finding) + "\n")
            self._last_title = title

    def end(self) -> None:
        """The last line, or all of the JSON."""
        n_errors, n_warnings = self.counts[Level.ERROR], self.counts[Level.WARNING]
        if self._as_json:
            summary: dict[str, Any] = {
                "errors": n_errors,
                "warnings": n_warnings,
                "findings": self._rows,
            }
            if self.guide:
                summary["guide"] = self.guide
            sys.stdout.write(json.dumps(summary, ensure_ascii=False) + "\n")
            return
        if not n_errors + n_warnings:
            if not self.all_well:
                return
            text = Text(f"\n{self.all_well}", style="green")
        else:
            text = Text(f"\n{_number(n_errors, 'error')}, {_number(n_warnings, 'warning')}.")
            text.stylize("bold red" if n_errors else "yellow")
        self._console.print(text)
        if self.guide:
            self._console.print()
            self._console.out(self.guide, highlight=False)


def _row(title: str, finding: Finding) -> dict[str, str]:
    return {
        "check": title,
        "level": finding.level.value,
        "where": finding.where,
        "what": finding.what,
        "cure": finding.cure,
    }


def plain_line(title: str, finding: Finding) -> str:
    """One finding as one line of text."""
    cure = f" -> {finding.cure}" if finding.cure else ""
    return f"{finding.level.value:<8} {title:<{_TITLE_WIDTH}} {_place(finding)}{finding.what}{cure}"


def _line(title: str, finding: Finding) -> Table:
    """The same for a terminal: a hanging indent, the cure on a line of its own."""
    mark, colour = _MARKS[finding.level]
    text = Text(overflow="fold")
    text.append(_place(finding), style="" if finding.level is Level.OK else "bold")
    text.append(finding.what)
    if finding.cure:
        text.append(f"\n→ {finding.cure}", style="cyan")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_TITLE_WIDTH, style="dim")
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_row(title, Text(mark, style=colour), text)
    return grid


def _place(finding: Finding) -> str:
    return f"{finding.where}: " if finding.where else ""


def _number(n: int, word: str) -> str:
    return f"{n} {word}" + ("" if n == 1 else "s")

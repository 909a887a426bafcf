"""What a long proof is: named items, each run once and remembered, and a report of all of them.

State is kept in `.hearth/prove/<suite>.json` by commit: a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Figures = dict[str, Any]
Item = Callable[[], Awaitable[Figures]]


def commit() -> str:
    """Short hash of HEAD, with + when the tree has changes."""
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "--", "bot", "engine", "migrations"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


@dataclass(slots=True)
class Suite:
    """One proof. `items` maps a name to what runs it; `summary` makes a few sentences of all figures.

    `columns` are figures that have a column of their own in the report; without them all stand in one. `appendix` makes further
    lines of the report.
    """

    name: str
    title: str
    items: dict[str, Item]
    summary: Callable[[dict[str, Figures]], str]
    columns: tuple[str, ...] = ()
    appendix: Callable[[], list[str]] = list
    done: dict[str, Figures] = field(default_factory=dict)

    @property
    def state_path(self) -> Path:
        """Where progress is kept."""
        return ROOT / ".hearth" / "prove" / f"{self.name}.json"

    def load(self) -> None:
        """Take up an interrupted run of the same commit."""
        if self.state_path.exists():
            state = json.loads(self.state_path.read_text())
            if state.get("commit") == commit():
                self.done = {
                    name: figures for name, figures in state["done"].items() if name in self.items
                }

    def save(self) -> None:
        """Remember what was done."""
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        self.state_path.write_text(
            json.dumps({"commit": commit(), "done": self.done}, ensure_ascii=False)
        )

    async def run(self) -> bool:
        """Run what is left; True when every item passed."""
        self.load()
        for number, (name, item) in enumerate(self.items.items(), 1):
            if self.done.get(name, {}).get("passed"):
                continue
            started = time.monotonic()
            try:
                figures = {"passed": True, **await item()}
            except AssertionError as error:
                figures = {"passed": False, "fault": str(error)[:2000]}
            figures["seconds"] = round(time.monotonic() - started, 1)
            self.done[name] = figures
            self.save()
            mark = "ok  " if figures["passed"] else "FAIL"
            print(
                f"[{self.name} {number}/{len(self.items)}] {mark} {name} {figures['seconds']} s",
                flush=True,
            )
            if not figures["passed"]:
                print(figures["fault"], flush=True)
        self.write_report()
        self.state_path.unlink(missing_ok=True)
        return all(figures["passed"] for figures in self.done.values())

    def write_report(self) -> None:
        """docs/proof/<suite>.md."""
        passed = sum(1 for figures in self.done.values() if figures["passed"])
        lines = [
            f"# {self.title}",
            "",
            f"`make prove ARGS={self.name}` · commit {commit()} · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · {_machine()}",
            "",
            f"**{passed} of {len(self.done)} passed.** {self.summary(self.done)}",
            "",
            _row("item", "passed", "seconds", *self.columns, "figures"),
            _row(*["---"] * (4 + len(self.columns))),
        ]
        for name, figures in self.done.items():
            rest = ", ".join(
                f"{key} {value}"
                for key, value in figures.items()
                if key not in {"passed", "seconds", *self.columns}
            )
            known = [str(figures.get(column, "")) for column in self.columns]
            passed_text = "yes" if figures["passed"] else "**no**"
            lines.append(_row(name, passed_text, str(figures["seconds"]), *known, rest))
        lines += self.appendix()
        path = ROOT / "docs" / "proof" / f"{self.name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}", flush=True)


def series_path(name: str) -> Path:
    """Where the figures of a chart's line are kept."""
    return ROOT / ".hearth" / "prove" / f"series-{name}.json"


def keep_series(name: str, values: list[float]) -> None:
    """Keep a chart's line for the report."""
    series_path(name).parent.mkdir(parents=True, exist_ok=True)
    series_path(name).write_text(json.dumps(values))


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:600]


def _machine() -> str:
    cpu = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    cores = sum(
        1 for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")
    )
    return f"{cores} × {cpu}, Python {platform.python_version()}"


def median(values: list[float]) -> float:
    """The middle value; 0 for none."""
    return sorted(values)[len(values) // 2] if values else 0.0


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of all lie; 0 for none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0

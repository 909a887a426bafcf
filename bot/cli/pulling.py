"""`hearth model pull`: shows how a download goes, and at its end what to write into the config."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bot.config import Config
from bot.hub.pull import access, pull
from bot.hub.types import Pulled
from engine.vram.gguf import shards

_LINE_EVERY_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The command's options; "" = as configured."""

    repo: str
    wanted: str = ""
    hub: str = ""
    endpoint: str = ""
    revision: str = ""
    to: Path | None = None


def run_pull(config: Config, options: PullOptions) -> None:
    """Fetch a model and print the lines that use it. Raises HubError."""
    hub = options.hub or config.models_hub.source
    # A mirror of one hub is no address of the other.
    own = config.models_hub.endpoint if hub == config.models_hub.source else ""
    where = access(hub, options.endpoint or own, options.repo, options.revision)
    folder = options.to or config.path(config.models_hub.folder)
    with Shown(Console(stderr=True, highlight=False, markup=False)) as shown:
        pulled = pull(where, options.wanted, folder, shown)
    sys.stdout.write(usage(config, pulled) + "\n")


def usage(config: Config, pulled: Pulled) -> str:
    """What to write into the config. The path is relative to its folder where it can be, as paths in it are read."""
    path, home = pulled.path.resolve(), config.folder.resolve()
    shown = path.relative_to(home) if path.is_relative_to(home) else path
    sums = [_noted(part) for part in shards(pulled.path)]
    lines = [f"path = {json.dumps(str(shown), ensure_ascii=False)}"]
    if all(sums):
        told = f'"{sums[0]}"' if len(sums) == 1 else "[" + ", ".join(f'"{s}"' for s in sums) + "]"
        lines.append(f"sha256 = {told}")
    was = "was there already, and is right" if pulled.was_there else "is here"
    text = "\n".join(f"  {line}" for line in lines)
    return (
        f"{pulled.path} ({pulled.n_bytes / 2**30:.2f} GiB) {was}. To use it, in config.toml:\n\n"
        f"  [models.main]\n{text}\n\n`hearth plan {os.path.relpath(pulled.path)}` shows how it fits."
    )


def _noted(part: Path) -> str:
    noted = part.with_name(f"{part.name}.sha256")
    if not noted.is_file():
        return ""
    return noted.read_text(encoding="utf-8", errors="replace").split(" ", 1)[0]


class Shown:
    """A bar per file in a terminal, a line now and then elsewhere. Owned by the thread that pulls."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._name, self._total, self._have, self._last = "", 0, 0, 0.0

    def __enter__(self) -> Shown:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last state on the screen."""
        self._bars.stop()

    def begin(self, name: str, n_bytes: int, *, fetching: bool) -> None:
        """A new bar."""
        what = name if fetching else f"checking {name}"
        self._task = self._bars.add_task(what, total=n_bytes)
        self._name, self._total, self._have, self._last = what, n_bytes, 0, time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"{what}: {n_bytes / 2**30:.2f} GiB", soft_wrap=True)

    def advance(self, n_bytes: int) -> None:
        """Move the bar."""
        self._have += n_bytes
        if self._task is not None:
            self._bars.advance(self._task, n_bytes)
        if not self._console.is_terminal and time.monotonic() - self._last >= _LINE_EVERY_S:
            self._last = time.monotonic()
            share = 100 * self._have / max(1, self._total)
            line = f"{self._name}: {share:.0f} % ({self._have / 2**30:.2f} GiB)"
            self._console.print(line, soft_wrap=True)

    def note(self, text: str) -> None:
        """A line above the bars."""
        self._console.print(text, soft_wrap=True)

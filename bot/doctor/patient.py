"""What is examined: a configuration (as much of it as can be read) and a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bot.config import Config


@dataclass(frozen=True, slots=True)
class Patient:
    """Everything that a check may look at.

    `config` is what can be read of the file (the defaults for the rest), `config_path` None when there is no file.
    `root` is the machine's root folder, for /proc, /sys and /dev. `bot` is set by `--bot NAME`.
    """

    config: Config
    config_path: Path | None = None
    root: Path = Path("/")
    vram_test: bool = False
    bot: str = ""

    def read(self, path: str) -> str:
        """The text of a file below `root` ("" when it is not there or may not be read)."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

"""The command line: parses words, calls `bot.app`, prints. Each command has a module of its own.

Every expected fault is one sentence on stderr and a non-zero exit; a traceback means a bug.
"""

from __future__ import annotations

import io
import sys

from bot.cli.main import app
from bot.errors import HearthError
from engine.errors import EngineError

EXIT_FAULT = 1
EXIT_CONFIG = 2


def run() -> None:
    """Entry point of the `hearth` script."""
    if not sys.platform.startswith("linux"):
        sys.exit("Hearth runs on Linux (WSL2 on Windows works); this system is not supported.")
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another alphabet shows "?" for what it lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except (HearthError, EngineError) as error:
        sys.stderr.write(f"hearth: {error}\n")
        sys.exit(EXIT_CONFIG)

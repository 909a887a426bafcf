"""A sign of life while a long step of the setup says nothing. Standard library only, as deploy/setup.py."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path
from types import TracebackType


class Waiting(threading.Thread):
    """A context in which one line says what is done and for how long: always the same line in a terminal, else now and then."""

    def __init__(self, what: str) -> None:
        super().__init__(daemon=True)
        self.what = what
        self.over = threading.Event()
        self.terminal = sys.stdout.isatty()

    def line(self, elapsed: float) -> str:
        """What to say after so many seconds."""
        return f"{self.what}, {elapsed:.0f} s"

    def run(self) -> None:
        started = time.monotonic()
        while not self.over.wait(2 if self.terminal else 20):
            text = f"[setup] {self.line(time.monotonic() - started)}"
            if self.terminal:
                # A line that wraps could not be written over.
                width = shutil.get_terminal_size().columns - 1
                print(f"\r{text[:width]:<{width}}", end="", flush=True)
            else:
                print(text, flush=True)

    def __enter__(self) -> Waiting:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.over.set()
        self.join()
        if self.terminal:
            print("\r\x1b[K", end="", flush=True)


class Compiling(Waiting):
    """How far the llama.cpp build is, by counting its object files, with an estimate of what is left."""

    def __init__(self, build_dir: Path, n_objects: int) -> None:
        super().__init__("fetching llama.cpp and what compiles it")
        self.build_dir = build_dir
        self.n_objects = n_objects
        self.began: float | None = None

    def line(self, elapsed: float) -> str:
        done = sum(1 for _ in self.build_dir.rglob("*.o")) if self.build_dir.exists() else 0
        if not done:
            return super().line(elapsed)
        self.began = elapsed if self.began is None else self.began
        total = max(self.n_objects, done + 1)
        left = (elapsed - self.began) / done * (total - done)
        bar = "#" * (16 * done // total)
        return f"compiling [{bar:<16}] {done}/{total}  {elapsed:.0f} s, about {left:.0f} s left"

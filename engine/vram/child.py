"""Asks a module of ours in a child process: native code may abort, hang or meet an illegal instruction there, and not here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """What the child wrote, and its exit status (negative: the signal that ended it)."""

    output: bytes
    log: str
    status: int

    @property
    def last_words(self) -> str:
        """The line that says most about an end: a failed assertion, else the last one."""
        lines = [line.strip() for line in self.log.splitlines() if line.strip()]
        last = lines[-1] if lines else "no reason given"
        return next((line for line in reversed(lines) if "GGML_ASSERT" in line), last)

    @property
    def how(self) -> str:
        """The end in words: "status 3" or "SIGILL"."""
        if self.status >= 0:
            return f"status {self.status}"
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


def ask(module: str, question: bytes, timeout_s: float) -> Answer:
    """Run `python -m module` with the question as its input. Raises TimeoutError; the child is dead then."""
    # Without the variable an abort starts a debugger first.
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(  # noqa: S603  # modules of ours, by name
            [sys.executable, "-P", "-m", module],
            input=question,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"llama.cpp did not answer within {timeout_s:.0f} s") from None
    return Answer(done.stdout, done.stderr.decode("utf-8", "replace"), done.returncode)

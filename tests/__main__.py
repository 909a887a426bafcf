"""`make test`: pytest, and a second, quiet run for the few tests that a busy machine can break.

Tests that start processes, browsers, models and threads wait for them by the clock. On two cores shared by two workers
(and, on rented machines, with strangers) one of five thousand may starve. Such a test is run again with nothing beside
it, and the outcome is said aloud; one that fails then has failed. Once more than `FEW` failed nothing is run again: that
is no busy machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"
FEW = 3
TESTS_FAILED = 1
"""pytest's exit code for a run that went to its end with failures; every other one is no test's own."""


def failed_tests(path: Path = FAILED) -> list[str]:
    """Node ids that failed in the last run of pytest; empty when it left no list."""
    try:
        return sorted(json.loads(path.read_text()))
    except (OSError, ValueError):
        return []


def may_run_again(failed: list[str]) -> bool:
    """Whether these few failures can come from a busy machine."""
    return 0 < len(failed) <= FEW and all("::" in name for name in failed)


def pytest(*arguments: str) -> int:
    """Exit code of pytest in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False
    ).returncode


def main(arguments: list[str]) -> int:
    """Exit code for make."""
    FAILED.unlink(missing_ok=True)
    code = pytest(*arguments)
    failed = failed_tests()
    ended_early = any(one.startswith(("-x", "--maxfail", "--exitfirst")) for one in arguments)
    if code != TESTS_FAILED or ended_early or not may_run_again(failed):
        return code
    print(
        f"\n[test] {len(failed)} failed beside others; once more, alone:",
        *failed,
        sep="\n  ",
        flush=True,
    )
    code = pytest("-q", "-p", "no:xdist", *failed)
    if code == 0:
        print(
            "[test] passed only when run alone (a test to mend):", *failed, sep="\n  ", flush=True
        )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.bench [name …]`: measure, print as it comes, and write docs/proof/bench.md with commit and machine.

Each measurement is a module here that can also be run alone; each runs in a process of its own, so that none sees the
memory or the threads of another. The webhook's figures come from the same run that proves them: `make prove ARGS=load`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

from engine.bench.report import describe_machine
from tests.prove.suite import ROOT, commit

BENCHES = {
    "engine_ratio": "Generated tokens per second beside the backend's own decode loop without scheduler",
    "idle_pool": "Generated tokens per second with a pool full of idle conversations beside an empty one",
    "prefill_gap": "Gaps between the tokens of running replies before and while a 3,000-token prompt comes in",
    "speculation": "Guessed tokens: gain where replies repeat earlier text, cost where they do not",
    "reply": "One reply as a person sees it, with 60 ms round trips",
    "text_speed": "Text: µs per generated id, ms per rendered conversation",
    "store_accept": "Store: accepted messages per second beside the disk's own fsync",
    "code_lines": "Lines per module",
}
PAGE = ROOT / "docs" / "proof" / "bench.md"
TIMEOUT_S = 900


def measure(name: str) -> dict[str, Any]:
    """The last line of the module's output is its JSON. Raises RuntimeError with the end of its complaint."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr.strip()[-500:]}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def page(results: dict[str, dict[str, Any]]) -> str:
    """The report as Markdown."""
    machine = ", ".join(f"{key} {value}" for key, value in describe_machine().items())
    lines = [
        "# Benchmarks",
        "",
        f'Commit {commit()} · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · `make bench ARGS="{" ".join(results)}"`',
        "",
        f"Machine: {machine}",
    ]
    for name, figures in results.items():
        lines += ["", f"## {BENCHES[name]}", "", f"`python -m tests.bench.{name}`", ""]
        lines += ["| figure | value |", "|---|---|"]
        lines += [f"| {key} | {_cell(value)} |" for key, value in figures.items()]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " · ".join(f"{key}: {inner}" for key, inner in value.items())
    return str(value)


def main() -> None:
    """Run the named measurements, all by default; exit 1 when one fails."""
    wanted = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        sys.exit(f"no benchmark is called {unknown[0]}; there are {', '.join(BENCHES)}")
    results: dict[str, dict[str, Any]] = {}
    failed = False
    for name in wanted:
        print(f"{name}: {BENCHES[name]} …", flush=True)
        try:
            results[name] = measure(name)
        except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
            failed = True
            print(f"  {error}", flush=True)
        else:
            print(f"  {json.dumps(results[name], ensure_ascii=False)}", flush=True)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(results))
    print(f"written to {PAGE.relative_to(ROOT)}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""`make bench-16b`: a 16B mixture of experts of full size, with random weights, chats with four people on this machine.

Writes docs/proof/bench-16b.md: tokens per second beside the bound that memory sets, and the memory that was taken beside
the plan. The model (DeepSeek-V2-Lite's published shape, Q4_K_M, 9.7 GiB) is written first and removed afterwards
(`--keep` keeps it). Random weights cost as much as real ones: what is read and computed per token is the same.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from msgspec.structs import replace
from rich.console import Console

from engine.bench import BenchPlan, BenchReport, connected, run_with_progress
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.vram.devices import GIB
from engine.vram.ledger import EXPERTS, Ledger, Model
from engine.vram.planning import Plan, Wishes, exact, make_plan
from tests.prove.suite import ROOT, commit
from tests.support.bigmodel import NAME, write_big
from tests.support.shapefiles import write_shape

PAGE = ROOT / "docs" / "proof" / "bench-16b.md"
N_PEOPLE: Final = 4
SETTINGS: Final = EngineConfig(
    name="16b", n_ctx=4096, n_parallel=N_PEOPLE, cache_type_k="q8_0", cache_type_v="q8_0", use_mmap=False
)  # fmt: skip
_SPARE: Final = GIB  # of RAM and of disk, for everything else on the machine


@dataclass(frozen=True, slots=True)
class Measured:
    """What the run gave. Seconds, bytes, bytes per second."""

    write_s: float
    load_s: float
    peak_bytes: int
    bandwidth: float
    report: BenchReport


def needed(folder: Path) -> tuple[Plan, str]:
    """The plan by the head of the file, and what is missing here ("" = nothing)."""
    head = write_shape(NAME, folder, sparse=False)
    plan = make_plan(replace(SETTINGS, path=str(head)), Wishes(ram=1024 * GIB, ask_llama=False))
    head.unlink()
    ram, disk = plan.ledger.ram.used + _SPARE, plan.model.head.weight_bytes + _SPARE
    available, free = psutil.virtual_memory().available, shutil.disk_usage(folder).free
    if available < ram:
        return plan, f"{ram / GIB:.1f} GiB of RAM are needed and {available / GIB:.1f} GiB are available (a machine of 24 GiB has them)"  # fmt: skip
    if free < disk:
        return plan, f"{disk / GIB:.1f} GiB are needed in {folder} and {free / GIB:.1f} GiB are free"  # fmt: skip
    return plan, ""


def read_bandwidth(seconds: float = 1.0, n_bytes: int = 2**29) -> float:
    """Bytes per second that this machine reads from memory with as many threads as it has cores: the best of several sums
    over blocks that no cache holds."""
    n_threads = psutil.cpu_count(logical=False) or 1
    block = np.ones(n_bytes // 8, dtype=np.float64)
    parts = np.array_split(block, n_threads)
    best = 0.0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        best = max(best, asyncio.run(_sum_all(parts)))
    return best


async def _sum_all(parts: list[np.ndarray[Any, Any]]) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(asyncio.to_thread(np.sum, part) for part in parts))
    return sum(part.nbytes for part in parts) / (time.perf_counter() - begun)


def bounds(model: Model, ledger: Ledger, bandwidth: float) -> dict[int, float]:
    """Tokens per second that reading memory allows in all, by replies decoded at once.

    In one step all replies share the weights that each reads, but of n experts k are chosen for each of b tokens: evenly
    chosen, n·(1 − (1 − k/n)^b) are read. Real texts choose less evenly, and read fewer.
    """
    shape = model.shape
    experts = sum(part.active_bytes for part in model.parts if part.purpose == EXPERTS)
    found = {}
    for n in (1, N_PEOPLE):
        share = shape.n_expert_used / shape.n_expert
        read = shape.n_expert * (1 - (1 - share) ** n) / shape.n_expert_used
        per_step = ledger.ram.read_bytes - experts + experts * read
        found[n] = n * bandwidth / per_step
    return found


async def chat(path: Path, work: BenchPlan, write_s: float, bandwidth: float) -> Measured:
    """Load the model in a child, as the service does, and let people talk to it."""
    config = replace(SETTINGS, path=str(path))
    begun = time.perf_counter()
    async with connected({"hearth": config}, timeout_s=900) as engines:
        load_s = time.perf_counter() - begun
        report = await run_with_progress(work, engines, Console(stderr=True))
        pid = (await engines["hearth"].stats()).child_pid
        peak = _peak_bytes(pid)
    return Measured(write_s, load_s, peak, bandwidth, report)


def _peak_bytes(pid: int) -> int:
    """The most that the child ever had in memory (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024


def page(plan: Plan, measured: Measured, command: str) -> str:
    """The report as Markdown."""
    ledger = exact(plan)
    limits = bounds(plan.model, ledger, measured.bandwidth)
    machine = ", ".join(f"{key} {value}" for key, value in measured.report.machine.items())
    shape = plan.model.shape
    lines = [
        "# A 16B mixture of experts on this machine",
        "",
        f"Commit {commit()} · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · `{command}`",
        "",
        f"Machine: {machine}; no GPU used. Where the load is above the number of CPUs, other work took its share of them.",
        "",
        (
            f"Model: DeepSeek-V2-Lite's published shape, Q4_K_M, random weights: {plan.model.head.weight_bytes / GIB:.2f} GiB, "
            f"{plan.model.active_bytes / GIB:.2f} GiB read per token, {shape.n_expert} experts of which {shape.n_expert_used} are used. "
            f"{N_PEOPLE} people × {SETTINGS.n_ctx} tokens, KV q8_0. What is read and computed per token is as with real weights, the words are not."
        ),
        "",
        "| figure | measured | bound or plan | share |",
        "| --- | ---: | ---: | ---: |",
    ]
    for n, limit in limits.items():
        speed = _median(measured.report, f"wave@{n}.tokens_per_s")
        lines.append(
            f"| tokens/s, {n} at once | {speed:.2f} | ≤ {limit:.2f} | {100 * speed / limit:.0f} % |"
        )
    used = ledger.ram.used
    lines.append(
        f"| peak memory of the engine's process, its interpreter included | {measured.peak_bytes / GIB:.2f} GiB | {used / GIB:.2f} GiB planned for the model "
        f"| {100 * measured.peak_bytes / used:.1f} % |"
    )
    lines += [
        "",
        (
            f"Bound: what reading memory allows at {measured.bandwidth / 1e9:.1f} GB/s, measured just before (sums of 512 MiB on all "
            "cores); an idle window. At four at once it counts the experts that four evenly chosen tokens read together."
        ),
        "",
        "| other figures | value |",
        "| --- | ---: |",
        f"| time to first token, {N_PEOPLE} at once (median) | {_median(measured.report, f'wave@{N_PEOPLE}.first_token_s'):.1f} s |",
        f"| writing the file | {measured.write_s:.0f} s |",
        f"| loading it (mmap off) | {measured.load_s:.0f} s |",
    ]
    for figure in measured.report.figures:
        if figure.what.name.startswith("turn@") and figure.what.name.endswith("first_token_s"):
            value = figure.median("hearth")
            lines.append(f"| {figure.what.block}: {figure.what.row} | {value:.2f} s |")
    return "\n".join(lines) + "\n"


def _median(report: BenchReport, name: str) -> float:
    figure = next(figure for figure in report.figures if figure.what.name == name)
    value = figure.median("hearth")
    assert value is not None
    return value


def main() -> None:
    """Look whether there is room, write, load, chat, report, remove. Exit 1 where there is no room."""
    parser = argparse.ArgumentParser(prog="make bench-16b")
    parser.add_argument("--folder", type=Path, help="where the model is written; a temporary folder when left out")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the model file")
    parser.add_argument("--tokens", type=int, default=48, help="tokens per reply")
    parser.add_argument("--turns", type=int, default=2, help="turns of each of four conversations")
    options = parser.parse_args()
    work = BenchPlan((1, N_PEOPLE), N_PEOPLE, options.turns, options.tokens, rounds=1)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hearth-16b-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _, missing = needed(folder)
        if missing:
            sys.exit(f"[bench-16b] {missing}")
        bandwidth = read_bandwidth()
        begun = time.perf_counter()
        path = write_big(folder)
        write_s = time.perf_counter() - begun
        print(f"[bench-16b] {path} written in {write_s:.0f} s", flush=True)
        plan = make_plan(replace(SETTINGS, path=str(path)), Wishes())
        measured = asyncio.run(chat(path, work, write_s, bandwidth))
        words = " ".join(sys.argv[1:])
        command = f'make bench-16b ARGS="{words}"' if words else "make bench-16b"
        PAGE.write_text(page(plan, measured, command), encoding="utf-8")
        print(PAGE.read_text(encoding="utf-8"))
    except EngineError as error:
        sys.exit(f"[bench-16b] {error}")
    finally:
        if not options.keep:
            (folder / f"{NAME}.gguf").unlink(missing_ok=True)
            if options.folder is None:
                folder.rmdir()


if __name__ == "__main__":
    main()

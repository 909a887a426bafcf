"""The steps of `tests/gpu/check.sh`, and the table of what they gave. Each is told its share of the time; none stops the next."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bot.config import parse_config
from bot.logs import set_up_logging
from engine.vram.devices import GIB, Device, parse_size
from engine.vram.probe import build_devices
from tests.gpu.ballast import held
from tests.gpu.kills import Kills, run_kills
from tests.gpu.meter import Meter
from tests.prove.suite import ROOT, commit
from tests.support.bigmodel import write_big
from tests.support.tinymodels import write_model

MIB: Final = 2**20
DRY: Final = "no GPU that this build can drive answers here: a dry run on the CPU, and no figure below is of a GPU"
# Hides the devices of one kind, so that the other kind of the same build is used alone.
HIDE: Final = {"CUDA": {"CUDA_VISIBLE_DEVICES": ""}, "Vulkan": {"GGML_VK_VISIBLE_DEVICES": ""}}


@dataclass
class Row:
    """One line of the table."""

    step: str
    result: str = ""
    figures: str = ""
    seconds: float = 0.0


@dataclass
class Check:
    """One run. `card` is None in a dry run; `cap` bytes are what the model may use of it."""

    folder: Path
    card: Device | None
    cap: int
    minutes: float
    begun: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)
    model: Path = Path()
    config: Path = Path()
    planned: int = 0
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Seconds until the run must be over."""
        return self.minutes * 60 - (time.monotonic() - self.begun)

    def step(self, name: str, do: Callable[[Row], None]) -> None:
        """Run one step; a fault is a line of the table."""
        row = Row(name)
        self.rows.append(row)
        print(f"[gpu-check] {name} … ({self.left_s:.0f} s left)", flush=True)
        began = time.monotonic()
        if self.left_s < 5:
            row.result = "not run: no time left"
            return
        try:
            do(row)
            row.result = row.result or "passed"
        except Exception as error:
            row.result = f"FAILED: {str(error).strip()[-300:] or type(error).__name__}"
        row.seconds = time.monotonic() - began

    def hearth(self, *words: str, limit_s: float = 0.0, **environment: str) -> dict[str, Any]:
        """A command of ours with --json. Raises RuntimeError with its sentence."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "bot", *words, "--json"],
                cwd=ROOT, capture_output=True, text=True, check=False,
                timeout=min(self.left_s, limit_s or self.left_s), env=os.environ | environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"hearth {words[0]} was stopped after {error.timeout:.0f} s"
            ) from None
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"hearth {words[0]} ended with {done.returncode}")  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    # The steps.

    def write(self, row: Row) -> None:
        """A model of full size for a card, a tiny one of the same architecture for a dry run."""
        self.model = write_big(self.folder) if self.card else write_model("deepseek2", self.folder)
        row.figures = f"{self.model.name}, {self.model.stat().st_size / GIB:.2f} GiB"

    def plan(self, row: Row) -> None:
        """The chooser's settings under the cap; they become the config of all further steps."""
        cap = ("--vram", f"{self.cap}") if self.card else ()
        plan = self.hearth("plan", str(self.model), *cap, "--ctx", "4096", "--parallel", "4")
        device = plan["devices"][0]
        self.planned = device["used"]
        self.told["plan"] = plan
        self._write_config(plan)
        bound = plan["tokens_per_second"]["empty"]
        row.figures = (
            f"n_gpu_layers {plan['n_gpu_layers']}, n_cpu_moe {plan['n_cpu_moe']}; {device['name']}: "
            f"{device['used'] / GIB:.2f} of {device['capacity'] / GIB:.2f} GiB; one reply ≤ {bound:.0f} tok/s"
        )

    def _write_config(self, plan: dict[str, Any]) -> None:
        self.config = self.folder / "config.toml"
        lines = [
            "[models.main]", f'path = "{self.model}"', "n_ctx = 4096", "n_parallel = 4", 'kv_ram = "0"', 'kv_disk = "0"',
        ]  # fmt: skip
        if self.card:
            lines += [f"n_gpu_layers = {plan['n_gpu_layers']}", f"n_cpu_moe = {plan['n_cpu_moe']}", f'vram = "{self.cap}"']  # fmt: skip
        self.config.write_text("\n".join(lines) + "\n")

    def tune(self, row: Row) -> None:
        """Real runs around the plan."""
        minutes = min(2.5, max(0.3, (self.left_s - 150) / 60)) if self.card else 0.3
        cap = ("--vram", f"{self.cap}") if self.card else ()
        told = self.hearth(
            "tune", str(self.model), *cap, "--ctx", "4096", "--parallel", "4", "--types", "q8_0",
            "--minutes", f"{minutes:.1f}", "--fresh", limit_s=minutes * 60 + 90,
        )  # fmt: skip
        self.told["tune"] = told
        held_runs = [run for run in told["runs"] if run["outcome"] == "held"]
        speeds = [run["generation_tokens_per_second"] for run in held_runs]
        kept = told["kept"] or {}
        knobs = ", ".join(f"{name} {kept[name]}" for name in ("n_gpu_layers", "n_cpu_moe", "n_ubatch") if name in kept)  # fmt: skip
        row.figures = (
            f"{len(told['runs'])} runs, {len(held_runs)} held; kept {knobs or 'nothing'}; "
            f"generation {min(speeds, default=0):.0f} to {max(speeds, default=0):.0f} tok/s"
        )
        if not kept:
            row.result = "FAILED: nothing held"

    def bench(self, row: Row) -> None:
        """Tokens per second with the plan's settings, and what was taken of the card beside the plan."""
        with Meter(self.card) as meter:
            told = self._bench()
        self.told["bench"] = told
        taken = meter.taken
        row.figures = _speeds(told)
        if taken is not None and self.card:
            share = 100 * self.planned / taken if taken else 0.0
            row.figures += f"; peak {taken / GIB:.2f} GiB of the card, planned {self.planned / GIB:.2f} GiB ({share:.0f} %)"
            if self.planned < taken:
                row.result = "FAILED: more was taken than planned"

    def _bench(self, **environment: str) -> dict[str, Any]:
        size = ("--conversations", "4", "--turns", "2", "--rounds", "1", "--max-tokens", "64" if self.card else "8")  # fmt: skip
        return self.hearth(
            "bench", "main", "--config", str(self.config), "--concurrency", "1,4", *size, limit_s=120, **environment,
        )  # fmt: skip

    def kills(self, row: Row) -> None:
        """The engine dies in mid-answer, and the answer goes on; a neighbour takes the card, and the engine steps back."""
        found = asyncio.run(run_kills(self._kill_plan()))
        row.figures = found.figures
        if not found.passed:
            row.result = "FAILED"

    def _kill_plan(self) -> Kills:
        placed = self.told.get("plan", {})
        return Kills(
            model=self.model,
            n_gpu_layers=placed.get("n_gpu_layers", 0) if self.card else 0,
            n_cpu_moe=placed.get("n_cpu_moe", 0) if self.card else 0,
            device=self.card.name if self.card else "",
            leave=self.planned // 2,
            limit_s=max(20.0, self.left_s - 60),
        )

    def compare(self, row: Row) -> None:
        """The same model on the same card by both backends of this build."""
        kinds = sorted(
            {kind for kind in HIDE for device in build_devices() if device.name.startswith(kind)}
        )
        if len(kinds) < 2:
            have = f"this build has {kinds[0]} alone" if kinds else "this build has neither"
            row.result = "not compared"
            row.figures = f"{have}; make setup GPU=cuda,vulkan builds both"
            return
        taken = {}
        for kind in kinds:
            other = next(name for name in kinds if name != kind)
            with Meter(self.card) as meter:
                speeds = _speeds(self._bench(**HIDE[other]))
            taken[kind] = meter.taken or 0
            row.figures += f"{kind}: {taken[kind] / GIB:.2f} GiB, {speeds}; "
        less = min(taken, key=lambda kind: taken[kind])
        row.figures += f"{less} takes {abs(taken[kinds[0]] - taken[kinds[1]]) / MIB:.0f} MiB less"


def _speeds(told: dict[str, Any]) -> str:
    """Tokens per second by people at once, from a bench report."""
    return ", ".join(
        f"{name.split('@')[1].split('.')[0]} at once {next(iter(figure['median'].values())):.1f} tok/s"
        for name, figure in told["figures"].items()
        if name.startswith("wave@") and name.endswith(".tokens_per_s")
    )


@contextmanager
def capped(check: Check) -> Iterator[None]:
    """Everything beyond the cap is held by a ballast, which gets a line of its own."""
    if check.card is None:
        with held("CPU", 64 * MIB) as got:
            check.rows.append(Row("ballast", "passed" if got == 64 * MIB else "FAILED", "64 MiB of RAM, to try it"))  # fmt: skip
            yield
        return
    wanted = check.card.capacity - check.cap
    with held(check.card.name, wanted) as got:
        right = "passed" if got >= wanted - 512 * MIB else "FAILED"
        left = (check.card.capacity - got) / GIB
        check.rows.append(
            Row("ballast", right, f"{got / GIB:.1f} GiB held, {left:.1f} GiB left for the model")
        )
        yield


def table(check: Check) -> str:
    """What is printed and kept."""
    card = f"{check.card.name}, {check.card.capacity / GIB:.1f} GiB free, {check.cap / GIB:.1f} GiB to be used" if check.card else DRY  # fmt: skip
    lines = [
        "# GPU check",
        "",
        f"Commit {commit()} · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · {platform.machine()}, Python {platform.python_version()}",
        "",
        card,
        "",
        "| step | result | seconds | figures |",
        "| --- | --- | ---: | --- |",
    ]
    lines += [
        f"| {row.step} | {row.result} | {row.seconds:.0f} | {row.figures} |" for row in check.rows
    ]
    took = time.monotonic() - check.begun
    return "\n".join([*lines, "", f"{took:.0f} s in all."]) + "\n"


def find_card(*, dry: bool) -> Device | None:
    """The card with most memory that this build drives."""
    cards = [] if dry else [device for device in build_devices() if device.kind == "gpu"]
    return max(cards, key=lambda device: device.capacity, default=None)


def main() -> None:
    """Exit 1 when a step failed."""
    parser = argparse.ArgumentParser(prog="tests/gpu/check.sh")
    parser.add_argument("--dry", action="store_true", help="on the CPU, even where there is a GPU")
    parser.add_argument("--limit", default="12GiB", help="memory of the card that may be used")
    parser.add_argument("--minutes", type=float, default=7.5, help="time for everything")
    parser.add_argument("--folder", type=Path, help="where the model is written")
    options = parser.parse_args()
    set_up_logging(parse_config({"log": {"level": "error"}}, Path.cwd()))
    card = find_card(dry=options.dry)
    cap = min(parse_size(options.limit, "--limit"), card.capacity if card else 0)
    if card is None:
        print(f"[gpu-check] {DRY}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        check = Check(Path(folder), card, cap, options.minutes)
        check.step("model", check.write)
        with capped(check):
            for name in ("plan", "tune", "bench", "kills"):
                check.step(name, getattr(check, name))
            check.step("CUDA or Vulkan", check.compare)
    text = table(check)
    out = Path(os.environ.get("OUT") or ROOT / ".hearth" / "gpu")
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu-check.md").write_text(text, encoding="utf-8")
    (out / "gpu-check.json").write_text(json.dumps(check.told), encoding="utf-8")
    print(text)
    sys.exit(any(row.result.startswith("FAILED") for row in check.rows))


if __name__ == "__main__":
    main()

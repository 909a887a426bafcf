"""How many messages a second the store takes, beside what the disk itself can do.

    .venv/bin/python -m tests.bench.store_accept [--folder DIR] [--seconds 5] [--writers 50] [--url postgresql://…]

Prints one JSON line: accepts per second and the caller's wait at `--writers` concurrent accepts, the same one at a time,
the size of the groups, and the median fsync of the same disk (a 4 KiB append and fsync, measured before and after).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from bot.domain.records import Acceptance, TurnDraft
from bot.domain.types import ChatKind, Lane, ReplyTarget, Sender, SessionKey, TurnKind, WhileBusy
from bot.store import Store


def fsync_ms(folder: Path, times: int = 100) -> float:
    """Median milliseconds of an append of 4 KiB with fsync."""
    path = folder / "fsync.probe"
    waits = []
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(times):
            os.write(fd, b"x" * 4096)
            began = time.perf_counter()
            os.fsync(fd)
            waits.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(waits)


def _acceptance(number: int, user: int) -> Acceptance:
    target = ReplyTarget("app", "chat", f"m{number}", {"chat_type": "group"})
    draft = TurnDraft(
        SessionKey("app", "chat", None, f"u{user}"), TurnKind.CHAT, Lane.CHAT, Sender(f"u{user}", "name"),
        "a question of an ordinary length, about the weather", target, f"m{number}", ChatKind.GROUP, WhileBusy.QUEUE,
    )  # fmt: skip
    return Acceptance("app", f"m{number}", f"e{number}", draft)


async def _run(store: Store, writers: int, seconds: float) -> dict[str, float]:
    waits: list[float] = []
    end = time.perf_counter() + seconds

    async def person(user: int) -> None:
        while (began := time.perf_counter()) < end:
            await store.accept(_acceptance(time.perf_counter_ns(), user))
            waits.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    before = (await store.facts()).extra
    await asyncio.gather(*(person(n) for n in range(writers)))
    took = time.perf_counter() - began
    after = (await store.facts()).extra
    commits = int(after["commits"]) - int(before["commits"])
    waits.sort()
    return {
        "accepts_per_s": round(len(waits) / took, 1),
        "wait_ms_p50": round(waits[len(waits) // 2], 2),
        "wait_ms_p99": round(waits[int(len(waits) * 0.99)], 2),
        "mean_group": round(len(waits) / commits, 1),
    }


async def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=args.folder, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        before = fsync_ms(folder)
        store = Store(args.url or f"sqlite:///{folder / 'bench.db'}")
        await store.open()
        try:
            alone = await _run(store, 1, args.seconds / 2)
            together = await _run(store, args.writers, args.seconds)
        finally:
            await store.close()
        figures = {
            "fsync_ms_median_before": round(before, 2), "fsync_ms_median_after": round(fsync_ms(folder), 2),
            "load": round(os.getloadavg()[0], 1), "one": alone, f"{args.writers}_together": together,
        }  # fmt: skip
    print(json.dumps(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--writers", type=int, default=50)
    parser.add_argument("--url", default="")
    asyncio.run(main(parser.parse_args()))

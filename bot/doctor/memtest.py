"""`hearth doctor --vram-test`: fills the free memory of every card and reads it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient
from engine.vram.memtest import DeviceResult, MemoryTestFailed, Question, check_memory
from engine.vram.symptoms import find_symptoms

_GIB: Final = 2**30


def look_at_vram(_patient: Patient) -> Iterator[Finding]:
    """About 2 s per GB. A running service keeps what it has: only free memory is looked at."""
    try:
        results = check_memory(Question())
    except MemoryTestFailed as fault:
        known = find_symptoms(str(fault))
        cure = (
            known[0][0].cure
            if known
            else "look into the kernel log; without overclocking, then again"
        )
        yield error(str(fault), "VRAM", cure)
        return
    if not results:
        yield ok("no card that this build of llama.cpp can use: there is no VRAM to test")
    for result in results:
        yield judge(result)


def judge(result: DeviceResult) -> Finding:
    """One card's result as one line."""
    name = f"{result.device.name} ({result.device.description})"
    if not result.tested:
        return warning(
            f"{name}: too little is free to be tested",
            "VRAM",
            "stop the service and other programs, then again",
        )
    size = f"{result.tested / _GIB:.1f} GiB"
    if not result.n_bad:
        speed = 4 * result.tested / max(result.seconds, 1e-6) / 1e9  # two passes, written and read
        return ok(
            f"{name}: {size} written and read twice, no byte changed ({result.seconds:.0f} s, {speed:.1f} GB/s)"
        )
    first = result.bad[0]
    return error(
        f"{name}: {result.n_bad} of {result.tested // 8} words changed, the first at {first.at / 2**20:.1f} MiB "
        f"(bits {first.written ^ first.read:#x})",
        "VRAM",
        "without overclocking, cooled, then again; if it stays the card is broken",
    )

"""The machine around it: virtual or not, its governor, its clock, its limits, and what its kernel has seen."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient
from engine.vram.symptoms import find_symptoms

_FILES: Final = 1024
_TIME_ERROR: Final = 5  # adjtimex: nobody keeps the clock
_TIMEX_BYTES: Final = 256  # struct timex has 208 on 64-bit Linux
# Rows of the table of symptoms that a kernel's log can show.
_KERNEL_ROWS: Final = frozenset(
    {"device lost", "out of memory", "unstable memory", "driver too old"}
)
_LONGEST_RECORD: Final = 8192  # of /dev/kmsg, which hands out one record at a time


def look_at_machine(patient: Patient) -> Iterator[Finding]:
    """What kind of machine it is, as far as that changes what can be expected."""
    if "microsoft" in patient.read("proc/version").lower():
        yield ok(
            "WSL2: memory is what %UserProfile%\\.wslconfig gives it; the card's driver is that of Windows"
        )
        if (patient.root / "dev/dxg").exists():
            yield ok(
                "Windows adds shared memory to the card: 4 to 10 times slower, and never planned with"
            )
    yield from _governor(patient)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        yield warning(
            f"a process may open {soft} files only", "ulimit -n", f"ulimit -n {max(_FILES, min(hard, 65536))}, or LimitNOFILE in systemd"
        )  # fmt: skip


def _governor(patient: Patient) -> Iterator[Finding]:
    """A governor that keeps clocks low. With intel_pstate and amd-pstate "powersave" is the usual one, and their own
    preference decides."""
    base = "sys/devices/system/cpu/cpu0/cpufreq"
    governor = patient.read(f"{base}/scaling_governor").strip()
    preference = patient.read(f"{base}/energy_performance_preference").strip()
    if preference == "power":
        yield warning(
            "the processor saves power (energy_performance_preference = power)", "CPU",
            "powerprofilesctl set balanced, or performance",
        )  # fmt: skip
    elif governor == "powersave" and not preference:
        yield warning(
            "the processor saves power (governor powersave)", "CPU", "cpupower frequency-set -g schedutil, or performance"
        )  # fmt: skip


def look_at_clock(patient: Patient) -> Iterator[Finding]:
    """Signatures of platforms, leases and reminders go by the clock."""
    now, made = time.time(), Path(__file__).stat().st_mtime
    if now < made - 86_400:
        yield error(
            f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(now))}, and this program was installed later",
            "clock",
            "set it, and switch NTP on: timedatectl set-ntp true",
        )
        return
    if _is_unkept() and patient.config.bots:
        yield warning(
            "nobody keeps the clock: the kernel knows of no NTP (a virtual machine's host may do it)",
            "clock",
            "timedatectl set-ntp true; platforms refuse signatures that are minutes old",
        )


def _is_unkept() -> bool:
    """The kernel's own word, by adjtimex(2) without changing anything. False where it may not be asked."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        return int(ctypes.CDLL(None, use_errno=True).adjtimex(buffer)) == _TIME_ERROR
    except (OSError, AttributeError):
        return False


def look_at_kernel_log(patient: Patient) -> Iterator[Finding]:
    """Cards that were lost and kills for want of memory since the machine started, where the log may be read."""
    lines = _kernel_lines(patient.root / "dev/kmsg")
    for symptom, line in find_symptoms("\n".join(reversed(lines))):  # the newest of each kind
        if symptom.name in _KERNEL_ROWS:
            yield warning(
                f"{line[:160]} ({_ago(lines.get(line, 0.0))})", "kernel log", symptom.cure
            )


def _ago(at_s: float) -> str:
    hours = max(0.0, time.monotonic() - at_s) / 3600
    return f"{hours / 24:.0f} days ago" if hours >= 48 else f"{hours:.1f} h ago"


def _kernel_lines(path: Path) -> dict[str, float]:
    """Texts of the records, oldest first, with their seconds since the start; empty where they may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    records = bytearray()
    try:
        while True:
            try:
                record = os.read(fd, _LONGEST_RECORD)
            except BrokenPipeError:  # records were overwritten while we read: go on with the next
                continue
            if not record:
                break
            records += record
    except OSError:  # there is no more for now
        pass
    finally:
        os.close(fd)
    # "6,339,5140900,-;text", then lines that begin with a space and say more of it.
    text = records.decode("utf-8", "replace")
    found = re.findall(r"^\d+,\d+,(\d+),[^;\n]*;(.*)$", text, re.MULTILINE)
    return {line.strip(): int(micros) / 1e6 for micros, line in found}

"""What Linux tells of a process's memory and of cards whose driver writes it into /sys and /proc (AMD, Intel): plain files.

`fdinfo` of a file of /dev/dri has lines "drm-memory-vram: 123 KiB" (Documentation/gpu/drm-usage-stats.rst of the kernel; "drm-resident-"
in newer ones); gtt and system are system memory that the card uses: shared memory. amdgpu adds "amd-evicted-vram", what is there for
want of room, and gives a card's totals in /sys.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.machine.sample import Card, ProcessMemory

_CARD_FILES: Final = ("/dev/nvidia", "/dev/dri/", "/dev/dxg", "/dev/kfd")
_UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20}
_DEDICATED: Final = ("vram", "local")
_SHARED: Final = ("gtt", "system")


def process_memory(pid: int, proc: Path = Path("/proc")) -> ProcessMemory | None:
    """None = it is gone."""
    folder = proc / str(pid)
    try:
        status = (folder / "status").read_text()
    except OSError:
        return None
    sizes = {
        key: _bytes(value)
        for key, _, value in (line.partition(":") for line in status.splitlines())
        if key in ("VmRSS", "VmHWM", "VmSwap")
    }
    opened = _card_files(folder)
    card, shared, evicted = _drm_memory(folder, opened)
    return ProcessMemory(
        pid=pid,
        rss=sizes.get("VmRSS", 0),
        peak_rss=sizes.get("VmHWM", 0),
        swap=sizes.get("VmSwap", 0),
        card=card,
        shared=shared,
        evicted=evicted,
        uses_card=bool(opened),
    )


def _card_files(folder: Path) -> list[str]:
    """Numbers of its open files that belong to a graphics card."""
    try:
        entries = list((folder / "fd").iterdir())
    except OSError:
        return []
    found = []
    for entry in entries:
        try:
            if str(entry.readlink()).startswith(_CARD_FILES):
                found.append(entry.name)
        except OSError:
            continue
    return found


def _drm_memory(folder: Path, opened: Iterable[str]) -> list[int | None]:
    """Dedicated, shared and evicted bytes; None = its driver does not tell. One client may have several files: it counts once."""
    clients: dict[str, list[int | None]] = {}
    for number in opened:
        try:
            text = (folder / "fdinfo" / number).read_text()
        except OSError:
            continue
        pairs = (line.partition(":") for line in text.splitlines())
        fields = {key: value.strip() for key, _, value in pairs}
        name = f"{fields.get('drm-pdev', '')}/{fields.get('drm-client-id', number)}"
        evicted = fields.get("amd-evicted-vram")
        clients[name] = [
            _regions(fields, _DEDICATED),
            _regions(fields, _SHARED),
            None if evicted is None else _bytes(evicted),
        ]
    return [_sum_told(sizes) for sizes in zip(*clients.values(), strict=True)] or [None] * 3


def _sum_told(sizes: Iterable[int | None]) -> int | None:
    told = [size for size in sizes if size is not None]
    return sum(told) if told else None


def _regions(fields: dict[str, str], regions: Iterable[str]) -> int | None:
    found = []
    for key, value in fields.items():
        kind, _, region = key.rpartition("-")
        # "vram0" on some drivers; "resident" is what newer kernels call "memory".
        if region.rstrip("0123456789") in regions and kind in ("drm-memory", "drm-resident"):
            found.append((kind, _bytes(value)))
    newest = "drm-resident" if any(kind == "drm-resident" for kind, _ in found) else "drm-memory"
    sizes = [size for kind, size in found if kind == newest]
    return sum(sizes) if sizes else None


def _bytes(text: str) -> int:
    """Of "123 KiB" or "123 kB" (which /proc means as KiB)."""
    number, _, unit = text.strip().partition(" ")
    try:
        return int(number) * _UNITS.get(unit.replace("kB", "KiB"), 1)
    except ValueError:
        return 0


def amd_cards(engines: Iterable[ProcessMemory], drm: Path = Path("/sys/class/drm")) -> list[Card]:
    """Cards of amdgpu. Which engine uses which of several is not told: each card shows what all have."""
    users = [one for one in engines if one.uses_card]
    told = [one.card for one in users if one.card is not None]
    engine_bytes = (sum(told) if told else None) if users else 0
    cards: list[Card] = []
    for device in sorted(drm.glob("card[0-9]/device")):
        total, used = (_file_number(device / f"mem_info_vram_{what}") for what in ("total", "used"))
        if total is None or used is None:
            continue
        cards.append(
            Card(
                name=_file_text(device / "product_name") or "AMD GPU",
                index=len(cards),
                total=total,
                free=max(0, total - used),
                temperature_c=_temperature(device),
                busy=_share(device / "gpu_busy_percent"),
                engine_bytes=engine_bytes,
                shared_bytes=_file_number(device / "mem_info_gtt_used"),
            )
        )
    return cards


def _temperature(device: Path) -> int | None:
    for file in sorted(device.glob("hwmon/hwmon*/temp1_input")):
        number = _file_number(file)
        if number is not None:
            return number // 1000
    return None


def _share(path: Path) -> float | None:
    number = _file_number(path)
    return None if number is None else number / 100


def _file_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _file_number(path: Path) -> int | None:
    text = _file_text(path)
    return int(text) if text.isdecimal() else None


def swap_bytes(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Swap in all and in use."""
    fields = dict(line.split(":", 1) for line in _file_text(meminfo).splitlines() if ":" in line)
    total, free = (_bytes(fields.get(name, "")) for name in ("SwapTotal", "SwapFree"))
    return total, max(0, total - free)


def is_wsl(release: Path = Path("/proc/sys/kernel/osrelease")) -> bool:
    """Whether this Linux runs inside Windows."""
    return "microsoft" in _file_text(release).lower()

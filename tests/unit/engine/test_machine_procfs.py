"""What Linux writes into files about processes and cards: real files of this process, recorded ones of drivers."""

from __future__ import annotations

import os
from pathlib import Path

from engine.backends.memory import total_bytes
from engine.machine import procfs
from engine.machine.sample import ProcessMemory

MIB = 2**20
AMD = """pos:	0
flags:	02100002
drm-driver:	amdgpu
drm-client-id:	{client}
drm-pdev:	0000:03:00.0
drm-memory-vram:	{vram} KiB
drm-memory-gtt: 	{gtt} KiB
drm-memory-cpu: 	0 KiB
amd-evicted-vram:	{evicted} KiB
amd-requested-vram:	{vram} KiB
"""
INTEL_XE = """drm-driver:	xe
drm-client-id:	7
drm-pdev:	0000:03:00.0
drm-total-system:	0
drm-resident-system:	12 MiB
drm-total-vram0:	900 MiB
drm-resident-vram0:	800 MiB
"""


def process(root: Path, fdinfo: dict[str, str], target: str = "/dev/dri/renderD128") -> Path:
    folder = root / "42"
    (folder / "fd").mkdir(parents=True)
    (folder / "fdinfo").mkdir()
    (folder / "status").write_text("Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nVmSwap:\t 512 kB\n")  # fmt: skip
    (folder / "fd" / "0").symlink_to("/dev/null")
    for number, text in fdinfo.items():
        (folder / "fd" / number).symlink_to(target)
        (folder / "fdinfo" / number).write_text(text)
    return root


def test_this_process() -> None:
    found = procfs.process_memory(os.getpid())
    assert found is not None
    assert 5 * MIB < found.rss <= found.peak_rss
    assert (found.card, found.shared) == (None, None)
    assert procfs.process_memory(2**22 + 1) is None


def test_one_client_with_two_files_counts_once(tmp_path: Path) -> None:
    same = AMD.format(client=12, vram=4096, gtt=1024, evicted=512)
    other = AMD.format(client=13, vram=2048, gtt=0, evicted=0)
    found = procfs.process_memory(42, process(tmp_path, {"5": same, "6": same, "7": other}))
    assert found == ProcessMemory(
        42, MIB, 2 * MIB, MIB // 2, 6 * MIB, MIB, MIB // 2, uses_card=True
    )


def test_newer_kernels_say_resident(tmp_path: Path) -> None:
    found = procfs.process_memory(42, process(tmp_path, {"5": INTEL_XE}))
    assert found is not None
    assert (found.card, found.shared, found.evicted) == (800 * MIB, 12 * MIB, None)


def test_nvidias_files_tell_only_that_a_card_is_used(tmp_path: Path) -> None:
    found = procfs.process_memory(42, process(tmp_path, {"5": "pos:\t0\n"}, "/dev/nvidia0"))
    assert found is not None
    assert (found.card, found.shared, found.uses_card) == (None, None, True)


def test_an_amd_card_and_its_shared_memory(tmp_path: Path) -> None:
    device = tmp_path / "card1" / "device"
    (device / "hwmon" / "hwmon3").mkdir(parents=True)
    for name, text in {
        "mem_info_vram_total": str(8192 * MIB),
        "mem_info_vram_used": str(8000 * MIB),
        "mem_info_gtt_used": str(900 * MIB),
        "gpu_busy_percent": "97",
        "product_name": "Radeon RX 7600",
        "hwmon/hwmon3/temp1_input": "71000",
    }.items():
        (device / name).write_text(text + "\n")
    (tmp_path / "card0" / "device").mkdir(parents=True)  # another driver's
    engines = [ProcessMemory(1, card=7000 * MIB, uses_card=True), ProcessMemory(2)]
    (card,) = procfs.amd_cards(engines, tmp_path)
    assert (card.name, card.index, card.total, card.free) == ("Radeon RX 7600", 0, 8192 * MIB, 192 * MIB)  # fmt: skip
    assert (card.temperature_c, card.busy, card.shared_bytes) == (71, 0.97, 900 * MIB)
    assert card.engine_bytes == 7000 * MIB
    assert procfs.amd_cards([ProcessMemory(2)], tmp_path)[0].engine_bytes == 0


def test_swap_and_windows(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nSwapTotal:    4096 kB\nSwapFree:     1024 kB\n")
    assert procfs.swap_bytes(meminfo) == (4 * MIB, 3 * MIB)
    assert procfs.swap_bytes(tmp_path / "none") == (0, 0)
    release = tmp_path / "osrelease"
    release.write_text("5.15.153.1-microsoft-standard-WSL2\n")
    assert procfs.is_wsl(release)
    release.write_text("6.1.0-18-amd64\n")
    assert not procfs.is_wsl(release)


def test_a_container_has_what_its_limit_says(tmp_path: Path) -> None:
    """Else a twentieth of a large machine would be the margin in a small container."""
    whole = total_bytes(tmp_path)
    assert whole > 64 * MIB
    (tmp_path / "memory.max").write_text("67108864\n")
    assert total_bytes(tmp_path) == 64 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert total_bytes(tmp_path) == whole

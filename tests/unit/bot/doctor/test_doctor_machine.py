"""Memory, processor, clock and kernel log of machines that are played by files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bot.doctor import machine as machine_checks
from bot.doctor.findings import Level
from bot.doctor.machine import look_at_clock, look_at_kernel_log, look_at_machine
from bot.doctor.memory import look_at_ram, read_ram
from tests.support.doctorkit import machine, patient, said

GIB = 2**30
SWAPPING = (
    "MemTotal: 16777216 kB\nMemAvailable: 524288 kB\nSwapTotal: 8388608 kB\nSwapFree: 2097152 kB\n"
)


def test_a_machine_with_room_is_well(tmp_path: Path) -> None:
    who = patient(tmp_path, root=machine(tmp_path / "root", {}))
    found = [*look_at_ram(who), *look_at_machine(who), *look_at_kernel_log(who)]
    assert {finding.level for finding in found} == {Level.OK}
    assert found[0].what == "24.0 of 32.0 GiB RAM are free"


def test_swap_in_use_is_told(tmp_path: Path) -> None:
    who = patient(tmp_path, root=machine(tmp_path / "root", {"proc/meminfo": SWAPPING}))
    (text,) = said(look_at_ram(who), Level.WARNING)
    assert "6.0 of 8.0 GiB swap are in use" in text
    assert "more layers on the card" in text


V2 = {
    "proc/self/cgroup": "0::/docker/abc\n",
    "sys/fs/cgroup/docker/abc/memory.max": "max\n",
    "sys/fs/cgroup/docker/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/docker/memory.current": f"{7 * GIB}\n",
    "sys/fs/cgroup/docker/memory.stat": f"anon 5\ninactive_file {4 * GIB}\n",
}
V1 = {
    "proc/self/cgroup": "5:devices:/\n4:cpu,memory:/docker/abc\n",
    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{7 * GIB}\n",
    "sys/fs/cgroup/memory/docker/abc/memory.stat": f"total_inactive_file {4 * GIB}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
}


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_a_container_has_less_than_its_machine(files: dict[str, str], tmp_path: Path) -> None:
    who = patient(tmp_path, root=machine(tmp_path / "root", files))
    ram = read_ram(who)
    assert (ram.limit, ram.used_of_limit, ram.usable) == (8 * GIB, 3 * GIB, 5 * GIB)
    assert "may use 8.0 GiB of it" in [finding.what for finding in look_at_ram(who)][1]


def test_no_limit_is_none(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}
    assert read_ram(patient(tmp_path, root=machine(tmp_path / "root", files))).limit == 0


def test_wsl2_and_its_shared_memory_are_named(tmp_path: Path) -> None:
    files = {"proc/version": "Linux version 6.6.87.2-microsoft-standard-WSL2", "dev/dxg": ""}
    who = patient(tmp_path, root=machine(tmp_path / "root", files))
    texts = [finding.what for finding in look_at_machine(who)]
    assert any("WSL2" in text for text in texts)
    assert any("shared memory" in text and "never planned with" in text for text in texts)


CPUFREQ = "sys/devices/system/cpu/cpu0/cpufreq/"


@pytest.mark.parametrize(
    ("files", "n_warnings"),
    [
        ({CPUFREQ + "scaling_governor": "powersave\n"}, 1),
        ({CPUFREQ + "scaling_governor": "schedutil\n"}, 0),
        ({CPUFREQ + "scaling_governor": "powersave\n", CPUFREQ + "energy_performance_preference": "balance_performance\n"}, 0),
        ({CPUFREQ + "scaling_governor": "powersave\n", CPUFREQ + "energy_performance_preference": "power\n"}, 1),
    ],
)  # fmt: skip
def test_a_processor_that_saves_power(
    files: dict[str, str], n_warnings: int, tmp_path: Path
) -> None:
    who = patient(tmp_path, root=machine(tmp_path / "root", files))
    assert len(said(look_at_machine(who), Level.WARNING)) == n_warnings


def test_the_kernels_own_words_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks.time, "monotonic", lambda: 10_000.0)
    an_hour_ago = 6_400 * 10**6
    kmsg = (
        "6,100,1000,-;usb 1-1: new device\n"
        "3,101,2000,-;NVRM: Xid (PCI:0000:01:00): 79, pid=4711, GPU has fallen off the bus.\n"
        " SUBSYSTEM=pci\n"
        f"4,102,{an_hour_ago},-;Out of memory: Killed process 4711 (python)\n"
        "6,103,4000,-;a browser shows broken pictures\n"
    )
    who = patient(tmp_path, root=machine(tmp_path / "root", {"dev/kmsg": kmsg}))
    texts = said(look_at_kernel_log(who), Level.WARNING)
    assert len(texts) == 2
    assert "NVRM: Xid (PCI:0000:01:00): 79" in texts[0]
    assert "--vram-test" in texts[0]
    assert "Killed process 4711 (python) (1.0 h ago)" in texts[1]


def test_a_clock_before_the_installation_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = Path(machine_checks.__file__).stat().st_mtime - 90_000
    monkeypatch.setattr(machine_checks.time, "time", lambda: long_ago)
    (text,) = said(look_at_clock(patient(tmp_path)), Level.ERROR)
    assert time.strftime("%Y-%m-%d", time.gmtime(long_ago)) in text
    assert "timedatectl set-ntp true" in text


def test_a_clock_that_nobody_keeps_matters_to_bots_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "_is_unkept", lambda: True)
    assert list(look_at_clock(patient(tmp_path))) == []
    bots = {"d": {"platform": "dingtalk", "client_id": "x", "client_secret": "y"}}
    (text,) = said(look_at_clock(patient(tmp_path, {"bots": bots})), Level.WARNING)
    assert "knows of no NTP" in text


def test_without_proc_it_says_so(tmp_path: Path) -> None:
    who = patient(tmp_path, root=machine(tmp_path / "root", {"proc/meminfo": ""}))
    assert "cannot be read" in said(look_at_ram(who), Level.WARNING)[0]

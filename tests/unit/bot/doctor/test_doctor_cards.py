"""Builds against cards: what is in the machine, what the build can use, and what NVIDIA's driver says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.doctor import build as build_checks
from bot.doctor.build import judge_cards, judge_cpu, look_at_build, pci_cards
from bot.doctor.cards import judge_card, judge_nvidia
from bot.doctor.findings import Finding, Level
from bot.doctor.memtest import judge, look_at_vram
from bot.doctor.patient import Patient
from engine.machine.sample import Card
from engine.vram.build import Build, BuildBroken
from engine.vram.memtest import BadWord, DeviceResult
from engine.vram.nvidia import nvidia
from engine.vram.probe import Listed
from tests.support.doctorkit import machine, patient, said
from tests.support.nvmlfake import FakeCard, fake_pynvml

GIB = 2**30
CPU = Listed("CPU", "Some CPU", "cpu", 20 * GIB, 24 * GIB)
CARD = Listed("CUDA0", "NVIDIA GeForce RTX 3060", "gpu", 11 * GIB, 12 * GIB)
IGPU = Listed("Vulkan0", "Intel(R) Graphics (ADL GT2)", "igpu", 12 * GIB, 16 * GIB)


def built(*devices: Listed, backends: tuple[str, ...] = ("CPU", "RPC")) -> Build:
    return Build("0.3.36", backends, {"CPU": {"AVX2": "1"}}, (CPU, *devices))


def pci(address: str, vendor: str, kind: str = "0x030000") -> dict[str, str]:
    base = f"sys/bus/pci/devices/{address}"
    return {f"{base}/vendor": f"{vendor}\n", f"{base}/class": f"{kind}\n"}


NVIDIA = pci("0000:01:00.0", "0x10de")
INTEL = pci("0000:00:02.0", "0x8086")
NOISE = pci("0000:00:1f.0", "0x8086", "0x060100")


def cards_of(build: Build, files: dict[str, str], folder: Path) -> list[Finding]:
    who = patient(folder, root=machine(folder / "root", files))
    return list(judge_cards(build, pci_cards(who), who))


def test_no_card_is_one_short_line(tmp_path: Path) -> None:
    (finding,) = cards_of(built(), INTEL | NOISE, tmp_path)
    assert finding.level is Level.OK
    assert finding.what == "no graphics card: models run on the CPU"


def test_a_card_and_a_build_without_gpu_support(tmp_path: Path) -> None:
    (text,) = said(cards_of(built(), NVIDIA | INTEL, tmp_path), Level.WARNING)
    assert "NVIDIA card (0000:01:00.0), and this build cannot use it" in text
    assert "make setup GPU=cuda" in text


def test_wsl2s_card_and_a_build_without_gpu_support(tmp_path: Path) -> None:
    (text,) = said(cards_of(built(), {"dev/dxg": ""}, tmp_path), Level.WARNING)
    assert "graphics card (WSL2)" in text


def test_a_driver_that_shows_no_device_is_named_with_its_version(tmp_path: Path) -> None:
    version = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024"
    )
    files = NVIDIA | {"proc/driver/nvidia/version": version}
    build = built(backends=("CPU", "Vulkan"))
    (text,) = said(cards_of(build, files, tmp_path), Level.ERROR)
    assert "the build has Vulkan and finds no device on the NVIDIA card" in text
    assert "NVIDIA driver 470.256.02" in text
    assert "Vulkan needs 1.3" in text


def test_a_card_without_a_driver_is_told(tmp_path: Path) -> None:
    build = built(backends=("CPU", "CUDA"))
    assert (
        "no kernel driver has taken it" in said(cards_of(build, NVIDIA, tmp_path), Level.ERROR)[0]
    )


def test_the_integrated_card_alone_is_told(tmp_path: Path) -> None:
    build = built(IGPU, backends=("CPU", "Vulkan"))
    (text,) = said(cards_of(build, NVIDIA | INTEL, tmp_path), Level.WARNING)
    assert (
        "sees the integrated Intel(R) Graphics (ADL GT2) only, and there is a dedicated card"
        in text
    )


def test_of_two_devices_the_dedicated_one_is_named(tmp_path: Path) -> None:
    found = cards_of(built(IGPU, CARD, backends=("CPU", "Vulkan")), NVIDIA | INTEL, tmp_path)
    assert said(found, Level.WARNING) + said(found, Level.ERROR) == []
    assert any("is left aside; NVIDIA GeForce RTX 3060" in finding.what for finding in found)


def test_a_full_card_is_told_before_pictures_break(tmp_path: Path) -> None:
    full = Listed("CUDA0", "RTX 3060", "gpu", GIB // 4, 12 * GIB)
    (text,) = said(cards_of(built(full, backends=("CPU", "CUDA")), NVIDIA, tmp_path), Level.WARNING)
    assert "0.2 of 12.0 GiB are free" in text
    assert "pictures may break" in text


def cpu(flags: str, folder: Path) -> Patient:
    return patient(folder, root=machine(folder / "root", {"proc/cpuinfo": f"flags\t: {flags}\n"}))


def test_a_build_for_another_cpu(tmp_path: Path) -> None:
    (text,) = said(judge_cpu(built(), cpu("fpu pni", tmp_path)), Level.ERROR)
    assert "this one has no AVX2" in text
    assert "make setup" in text


def test_a_build_that_leaves_speed_unused(tmp_path: Path) -> None:
    found = list(judge_cpu(built(), cpu("avx2 avx512f avx512_vnni", tmp_path)))
    assert "AVX512, AVX512_VNNI lie idle" in said(found, Level.WARNING)[0]
    assert found[0].what == "llama-cpp-python 0.3.36 with CPU, RPC; uses AVX2"


def test_a_build_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Build:
        raise BuildBroken("llama.cpp met an illegal instruction: it was built for another CPU")

    monkeypatch.setattr(build_checks, "describe_build", broken)
    (text,) = said(look_at_build(patient(tmp_path)), Level.ERROR)
    assert "illegal instruction" in text


def test_who_uses_the_card_is_named_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeCard(
        b"NVIDIA GeForce RTX 3060", compute={4711: 6 * GIB}, graphics={4711: 6 * GIB, 9: None}
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver(card))
    seen = nvidia()
    assert seen is not None
    files = {"proc/4711/cmdline": "/usr/bin/game\0--api-key\0secret42\0"}
    who = patient(tmp_path, root=machine(tmp_path / "root", files))
    found = list(judge_nvidia(seen, who))
    assert [finding.what for finding in found] == [
        "NVIDIA driver 550.90.07, CUDA up to 12.4",
        "NVIDIA GeForce RTX 3060 is used by process 4711 (game --api-key …) 6.0 GiB",
    ]


def driver(*cards: FakeCard, cuda: int = 12040) -> Any:
    module: Any = fake_pynvml(*cards)
    module.nvmlSystemGetDriverVersion = lambda: "550.90.07"
    module.nvmlSystemGetCudaDriverVersion = lambda: cuda
    return module


def test_an_old_driver_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(cuda=11040))
    seen = nvidia()
    assert seen is not None
    assert (
        "runs CUDA up to 11.4 only" in said(judge_nvidia(seen, patient(tmp_path)), Level.WARNING)[0]
    )


def test_heat_is_told() -> None:
    hot = Card("RTX 3060", temperature_c=91, throttled=("heat (driver)",))
    (text,) = said(judge_card(hot), Level.WARNING)
    assert "too hot or short of power at 91 °C: heat (driver)" in text
    assert list(judge_card(Card("RTX 3060", temperature_c=70))) == []


def test_shared_memory_in_use_is_told() -> None:
    full = Card("RX 6700", total=12 * GIB, free=GIB // 8, shared_bytes=3 * GIB)
    assert "3.0 GiB of system memory serve in its place" in said(judge_card(full), Level.WARNING)[0]
    roomy = Card("RX 6700", total=12 * GIB, free=6 * GIB, shared_bytes=3 * GIB)
    assert list(judge_card(roomy)) == []


def test_a_driver_that_fails_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=lambda: 1 / 0))
    assert nvidia() is None


def test_bad_vram_is_told_with_its_place() -> None:
    bad = (BadWord(at=5 * 2**20, written=0b1011, read=0b1001),)
    finding = judge(DeviceResult(CARD, 10 * GIB, 12.0, 3, bad))
    assert finding.level is Level.ERROR
    assert "3 of 1342177280 words changed, the first at 5.0 MiB (bits 0x2)" in finding.what


def test_good_vram_is_told_with_its_size() -> None:
    finding = judge(DeviceResult(CARD, 10 * GIB, 12.0, 0, ()))
    assert finding.level is Level.OK
    assert "10.0 GiB written and read twice, no byte changed" in finding.what


def test_a_full_card_cannot_be_tested() -> None:
    finding = judge(DeviceResult(CARD, 0, 0.1, 0, ()))
    assert finding.level is Level.WARNING


def test_without_a_card_the_memory_test_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.doctor.memtest.check_memory", lambda _: ())
    (finding,) = look_at_vram(patient(tmp_path))
    assert finding.level is Level.OK
    assert "there is no VRAM to test" in finding.what

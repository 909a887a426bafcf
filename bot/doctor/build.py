"""The build of llama.cpp against this machine: its instructions, its backends, and the cards that it cannot use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient
from engine.vram.build import (
    Build,
    BuildBroken,
    compare_cpu,
    cpu_flags,
    describe_build,
)
from engine.vram.probe import Listed

_GIB: Final = 2**30
_RECIPE: Final = "make setup GPU=cuda, or GPU=vulkan (docs/gpu.md)"
_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_DISPLAY_CLASSES: Final = ("0x0300", "0x0302", "0x0380")  # VGA, 3D, other
_DESKTOP: Final = _GIB // 2  # what must stay free beside a model, or windows lose their pictures


@dataclass(frozen=True, slots=True)
class PciCard:
    """A graphics card that the kernel sees; `driver` "" when none has taken it."""

    address: str
    vendor: str
    driver: str

    @property
    def is_dedicated(self) -> bool:
        """By rule: Intel's are part of the processor, and AMD's where they sit on its own bus (not told here)."""
        return self.vendor != "Intel"


def look_at_build(patient: Patient) -> Iterator[Finding]:
    """What llama.cpp was built for."""
    try:
        build = describe_build()
    except BuildBroken as fault:
        yield error(str(fault), "llama.cpp", "make setup")
        return
    yield from judge_cpu(build, patient)
    yield from judge_cards(build, pci_cards(patient), patient)


def judge_cpu(build: Build, patient: Patient) -> Iterator[Finding]:
    """Instructions that this CPU lacks kill the engine; unused ones only cost speed."""
    features = build.features.get("CPU", {})
    lacking, unused = compare_cpu(features, cpu_flags(patient.read("proc/cpuinfo")))
    if lacking:
        yield error(
            f"it was built for another CPU: this one has no {', '.join(lacking)} (the engine would die of an illegal instruction)",
            "llama.cpp",
            "run `make setup` again on this machine",
        )
        return
    backends = [name for name in build.backends if name != "CPU"]
    text = f"llama-cpp-python {build.version} with {', '.join(['CPU', *backends])}"
    yield ok(text + (f"; uses {_widest(features)}" if _widest(features) else ""))
    if unused:
        yield warning(
            f"this CPU's {', '.join(unused)} lie idle: the build does not use them",
            "llama.cpp",
            "run `make setup` again on this machine, for some more speed",
        )


def _widest(features: dict[str, str]) -> str:
    order = ("AVX512", "AVX2", "AVX", "SVE", "NEON", "SSE3")
    return next((name for name in order if features.get(name) == "1"), "")


def pci_cards(patient: Patient) -> tuple[PciCard, ...]:
    """From /sys/bus/pci."""
    found = []
    folder = patient.root / "sys/bus/pci/devices"
    for device in sorted(folder.iterdir()) if folder.is_dir() else ():
        base = f"sys/bus/pci/devices/{device.name}"
        vendor = _VENDORS.get(patient.read(f"{base}/vendor").strip())
        if vendor and patient.read(f"{base}/class").startswith(_DISPLAY_CLASSES):
            driver = device / "driver"
            found.append(
                PciCard(device.name, vendor, driver.resolve().name if driver.exists() else "")
            )
    return tuple(found)


def may_have_cards(patient: Patient) -> bool:
    """Whether there is anything that a build could drive, as far as the kernel says."""
    return bool(pci_cards(patient)) or (patient.root / "dev/dxg").exists()


def judge_cards(build: Build, cards: tuple[PciCard, ...], patient: Patient) -> Iterator[Finding]:
    """Cards of the machine against devices of the build."""
    driven = [device for device in build.devices if device.is_card]
    dedicated = [device for device in driven if device.kind == "gpu"]
    for device in dedicated:
        yield from _room(device)
    if driven and not dedicated and any(card.is_dedicated for card in cards):
        yield warning(
            f"the build sees the integrated {driven[0].description} only, and there is a dedicated card",
            driven[0].name,
            "install the dedicated card's driver; then it is chosen by itself",
        )
    elif dedicated and driven[0].kind == "igpu":
        yield ok(
            f"{driven[0].description} shares the RAM and is left aside; {dedicated[0].description} has memory of its own"
        )
    if not driven:
        yield from _undriven(build, cards, patient)


def _room(device: Listed) -> Iterator[Finding]:
    text = f"{device.name} ({device.description}): {device.free / _GIB:.1f} of {device.total / _GIB:.1f} GiB are free"
    if device.free < _DESKTOP:
        yield warning(
            text + ": a desktop, a browser or a running service has the rest; pictures may break",
            device.name,
            "close them, fewer layers (hearth plan), or keep the KV cache in RAM",
        )
    else:
        yield ok(text)


def _undriven(build: Build, cards: tuple[PciCard, ...], patient: Patient) -> Iterator[Finding]:
    in_wsl = (patient.root / "dev/dxg").exists()
    wanted = [card for card in cards if card.is_dedicated]
    if not wanted and not in_wsl:
        yield ok("no graphics card: models run on the CPU")
        return
    name = f"{wanted[0].vendor} card ({wanted[0].address})" if wanted else "graphics card (WSL2)"
    if not build.gpu_backends:
        yield warning(
            f"there is a {name}, and this build cannot use it: it has the CPU backend only",
            "llama.cpp",
            _RECIPE,
        )
        return
    built = ", ".join(build.gpu_backends)
    loaded = (
        f"its kernel driver is {wanted[0].driver}"
        if wanted and wanted[0].driver
        else "no kernel driver has taken it"
    )
    version = _driver_version(patient)
    yield error(
        f"the build has {built} and finds no device on the {name}: {version or loaded}",
        "graphics driver",
        "install or update the driver (Vulkan needs 1.3); in a container, pass the card in (--gpus all, /dev/dri)",
    )


def _driver_version(patient: Patient) -> str:
    """NVIDIA's kernel module, by its own file."""
    match = re.search(
        r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]+)", patient.read("proc/driver/nvidia/version")
    )
    return f"NVIDIA driver {match.group(1)}" if match else ""

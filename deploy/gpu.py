"""What a build for a GPU needs beyond the compiler, and what it tells CMake: `make setup GPU=cuda`, `GPU=vulkan`, or both.

Standard library only, as deploy/setup.py. Everything that is missing is named in one line before anything is compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("cuda", "vulkan")
# nvcc of older toolkits does not know the cards of 2022 and later, nor C++17 as llama.cpp writes it.
LEAST_CUDA = (11, 8)
# Source files beyond those of a build for the CPU, for the progress line: ggml-cuda's .cu files with the four pairs of KV
# types that it has attention for; ggml-vulkan's, one for each shader.
MORE_OBJECTS = {"cuda": 144, "vulkan": 160}
# ggml-vulkan.cpp uses this struct; Vulkan headers have it since 1.3.272 (Debian 12 has 1.3.239).
_LAYER_SETTING = "VkLayerSettingEXT"
_HEADER_VERSION = re.compile(r"#define VK_HEADER_VERSION (\d+)")
_ARCHITECTURE = re.compile(r"\d{2,3}[af]?")


@dataclass(frozen=True)
class Machine:
    """Where things are looked for; tests give it other folders."""

    root: Path = Path("/")
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def program(self, name: str, *folders: str) -> str:
        """A program on the PATH or in one of these folders; "" = there is none."""
        path = os.pathsep.join([*folders, self.environment.get("PATH", "")])
        return shutil.which(name, path=path) or ""

    def paths(self, *patterns: str) -> list[Path]:
        """Files below the root, and below VULKAN_SDK for patterns without a slash in front."""
        sdk = self.environment.get("VULKAN_SDK", "")
        found: list[Path] = []
        for pattern in patterns:
            base = self.root if pattern.startswith("/") else Path(sdk) if sdk else None
            if base is not None:
                found += sorted(base.glob(pattern.lstrip("/")))
        return found


def parse(text: str) -> tuple[str, ...]:
    """The kinds of `GPU=…`; "none" and "" are none. Raises ValueError with one sentence."""
    words = [word for word in re.split(r"[,+\s]+", text.lower()) if word not in {"", "none", "cpu"}]
    for word in words:
        if word not in KINDS:
            raise ValueError(f"GPU={text}: write cuda, vulkan, cuda,vulkan (both) or none")
    return tuple(kind for kind in KINDS if kind in words)


def defines(kinds: tuple[str, ...], machine: Machine) -> dict[str, str]:
    """CMake's definitions for these kinds. They are in the key of the wheel's cache, so that builds do not mix."""
    found: dict[str, str] = {}
    if "cuda" in kinds:
        found |= {
            "GGML_CUDA": "ON",
            "GGML_CUDA_NCCL": "OFF",  # only several cards in one machine would use it
            "CMAKE_CUDA_COMPILER": nvcc(machine),
            "CMAKE_CUDA_ARCHITECTURES": cuda_architectures(machine),
        }
    if "vulkan" in kinds:
        found["GGML_VULKAN"] = "ON"
    return found


def missing(kinds: tuple[str, ...], machine: Machine) -> str:
    """One sentence on all that is missing for these kinds; "" = nothing."""
    said = [
        sentence
        for kind in kinds
        for sentence in {"cuda": _no_cuda, "vulkan": _no_vulkan}[kind](machine)
    ]
    return "; ".join(said) + (" (docs/gpu.md)" if said else "")


# CUDA.


def nvcc(machine: Machine) -> str:
    """CUDA's compiler; "" = there is none."""
    homes = [machine.environment.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [f"{home}/bin" for home in homes if home]
    return machine.program("nvcc", *folders, str(machine.root / "usr/local/cuda/bin"))


def cuda_architectures(machine: Machine) -> str:
    """`CUDA_ARCH` from the environment ("86", "89;120"), else those of the cards in this machine; "" = not known.

    Device code for these alone: code for every card would take many times as long to compile, and as many megabytes.
    """
    named = machine.environment.get("CUDA_ARCH", "")
    found = re.split(r"[;,\s]+", named.strip()) if named.strip() else _cards(machine)
    return ";".join(f"{architecture}-real" for architecture in dict.fromkeys(found))


def _cards(machine: Machine) -> list[str]:
    program = machine.program("nvidia-smi")
    if not program:
        return []
    command = [program, "--query-gpu=compute_cap", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line.strip().replace(".", "") for line in done.stdout.splitlines() if "." in line]


def _no_cuda(machine: Machine) -> Iterator[str]:
    compiler = nvcc(machine)
    if not compiler:
        yield (
            "GPU=cuda needs NVIDIA's CUDA toolkit and its nvcc was not found: install it "
            "(Ubuntu: sudo apt install nvidia-cuda-toolkit), or set CUDA_HOME to its folder"
        )
        return
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if match is None or (int(match[1]), int(match[2])) < LEAST_CUDA:
        have = f"{match[1]}.{match[2]}" if match else "unknown"
        yield f"GPU=cuda needs CUDA 11.8 or newer, and {compiler} is of version {have}"
    if not _has_cublas(compiler, machine):
        yield (
            f"GPU=cuda needs cuBLAS, which is not beside {compiler}: install it "
            "(sudo apt install libcublas-dev, with NVIDIA's packages libcublas-dev-13-0 or as your version is)"
        )
    architectures = cuda_architectures(machine)
    if not architectures:
        yield (
            "no NVIDIA card answers here (nvidia-smi), so name the one to build for: "
            "CUDA_ARCH=86 for RTX 30, 89 for RTX 40, 120 for RTX 50"
        )
    for name in architectures.split(";") if architectures else ():
        if not _ARCHITECTURE.fullmatch(name.removesuffix("-real")):
            yield f"CUDA_ARCH={name.removesuffix('-real')}: write numbers such as 86 or 89;120"


def _has_cublas(compiler: str, machine: Machine) -> bool:
    """Whether the linker finds cuBLAS: in the folders that nvcc itself names, or in the system's."""
    command = [compiler, "--dryrun", "-x", "cu", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    folders = [Path(folder) for folder in re.findall(r'"-L([^"]+)"', done.stdout + done.stderr)]
    folders.append(Path(compiler).resolve().parent.parent / "lib64")
    beside = any((folder / "libcublas.so").exists() for folder in folders)
    return beside or bool(machine.paths("/usr/lib/*/libcublas.so", "/usr/lib*/libcublas.so"))


# Vulkan.


def _no_vulkan(machine: Machine) -> Iterator[str]:
    packages = []
    sdk = machine.environment.get("VULKAN_SDK", "")
    if not machine.program("glslc", *([f"{sdk}/bin"] if sdk else [])):
        packages.append("glslc")
    if not machine.paths("lib/libvulkan.so", "/usr/lib/*/libvulkan.so", "/usr/lib*/libvulkan.so", "/usr/local/lib/libvulkan.so"):  # fmt: skip
        packages.append("libvulkan-dev")
    configs = ("*/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake", "/usr/*/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake",
               "/usr/lib/*/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake", "/usr/local/*/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake")  # fmt: skip
    if not machine.paths(*configs):
        packages.append("spirv-headers")
    headers = machine.paths("include/vulkan/vulkan_core.h", "/usr/include/vulkan/vulkan_core.h", "/usr/local/include/vulkan/vulkan_core.h")  # fmt: skip
    if packages or not headers:
        wanted = " ".join(dict.fromkeys([*packages, *([] if headers else ["libvulkan-dev"])]))
        yield (
            "GPU=vulkan needs the Vulkan SDK and parts of it were not found: "
            f"sudo apt install {wanted}, or LunarG's SDK with VULKAN_SDK set"
        )
        return
    text = headers[0].read_text(encoding="utf-8", errors="replace")
    if _LAYER_SETTING not in text:
        match = _HEADER_VERSION.search(text)
        have = f"1.3.{match[1]}" if match else "older"
        yield (
            f"the Vulkan headers here ({have}, {headers[0]}) are too old for llama.cpp, which wants 1.3.272 or newer "
            "(Debian 13, Ubuntu 24.04, or LunarG's SDK with VULKAN_SDK set)"
        )

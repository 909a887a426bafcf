"""What this build of llama.cpp is: the instructions that it uses, its backends and the devices that they see.

Asked in a child process, as a build for another CPU dies of an illegal instruction. Only the child imports llama_cpp.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from engine.errors import EngineError
from engine.vram.child import ask
from engine.vram.probe import Listed, list_devices

# Backends that drive a graphics card; RPC lends another machine's.
GPU_BACKENDS: Final = ("CUDA", "Vulkan", "ROCm", "HIP", "SYCL", "MUSA", "Metal", "CANN", "OpenCL")
# ggml's name of a feature (ggml-cpu.cpp) → the kernel's in /proc/cpuinfo.
_CPU_FLAGS: Final = {
    "SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX_VNNI": "avx_vnni", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma",
    "BMI2": "bmi2", "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8", "NEON": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm", "SVE": "sve",
}  # fmt: skip
# Not worth a word when unused: `make setup` leaves AMX out (virtual machines announce it and do not carry it).
_NOT_MISSED: Final = {"AMX_INT8", "AVX_VNNI"}


class BuildBroken(EngineError):
    """The build cannot even say what it is; the text is one sentence with the cure."""


class Build(msgspec.Struct, frozen=True):
    """`features` by backend: {"CPU": {"AVX2": "1", …}, …}."""

    version: str
    backends: tuple[str, ...]
    features: dict[str, dict[str, str]]
    devices: tuple[Listed, ...]

    @property
    def gpu_backends(self) -> tuple[str, ...]:
        """Those of its backends that drive graphics cards."""
        return tuple(name for name in self.backends if name.startswith(GPU_BACKENDS))

    @property
    def has_rpc(self) -> bool:
        """Whether it can use devices of another machine."""
        return "RPC" in self.backends


def describe_build(timeout_s: float = 60.0) -> Build:
    """Takes 0.3 s, some seconds with a graphics driver. Raises BuildBroken."""
    try:
        answer = ask("engine.vram.build", b"", timeout_s)
    except TimeoutError as error:
        raise BuildBroken(
            f"{error}; a graphics driver may hang: look into the kernel log"
        ) from None
    if answer.status == 0:
        return msgspec.json.decode(answer.output, type=Build)
    if answer.how == "SIGILL":
        raise BuildBroken(
            "llama.cpp met an illegal instruction: it was built for another CPU; run `make setup` again"
        )
    raise BuildBroken(f"llama.cpp does not start ({answer.how}): {answer.last_words}")


def parse_features(text: str) -> dict[str, dict[str, str]]:
    """`llama_print_system_info`: "CPU : AVX = 1 | AVX2 = 1 | CUDA : ARCHS = 860 |" by backend."""
    found: dict[str, dict[str, str]] = {}
    backend = ""
    for item in text.split("|"):
        match = re.fullmatch(r"\s*(?:(\w+) : )?(\w+) = (.+?)\s*", item)
        if match:
            backend = match.group(1) or backend
            found.setdefault(backend, {})[match.group(2)] = match.group(3)
    return found


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The instruction sets of /proc/cpuinfo."""
    match = re.search(r"^(?:flags|Features)\s*: (.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match.group(1).split()) if match else frozenset()


def compare_cpu(
    features: Mapping[str, str], flags: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the build uses and this CPU lacks, and what this CPU has and the build leaves unused."""
    used = {name for name, value in features.items() if value == "1"}
    lacking = (n for n, flag in _CPU_FLAGS.items() if n in used and flag not in flags)
    unused = (n for n, flag in _CPU_FLAGS.items() if n not in used | _NOT_MISSED and flag in flags)
    return tuple(lacking), tuple(unused)


# The child.


def _main() -> int:
    import llama_cpp as llama

    from engine.backends.llamalib import backend_call

    llama.llama_backend_init()

    def backend(index: int) -> str:
        reg = backend_call("reg_get", ctypes.c_void_p, ctypes.c_size_t(index))
        return str(backend_call("reg_name", ctypes.c_char_p, ctypes.c_void_p(reg)).decode())

    build = Build(
        version=str(llama.__version__),
        backends=tuple(backend(i) for i in range(backend_call("reg_count", ctypes.c_size_t))),
        features=parse_features(llama.llama_print_system_info().decode("utf-8", "replace")),
        devices=tuple(list_devices()),
    )
    sys.stdout.buffer.write(msgspec.json.encode(build))
    return 0


if __name__ == "__main__":
    sys.exit(_main())

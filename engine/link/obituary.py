"""Why a child ended: one cause out of a table, and a sentence for an admin. Pure.

Reads the exit status, the last lines of the child's output and whether the kernel counted an out-of-memory kill meanwhile. What
follows from it (a step back, a restart, a clear state) is the supervisor's to decide. Words of native libraries are repeated for
admins only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

_FATAL_MARK: Final = "Fatal Python error"
# Only what was said just before the end can be its cause; a long load says much.
_LAST_LINES: Final = 15


class Cause(StrEnum):
    """What ended a child. Each has its sentence in `SENTENCES`."""

    DEVICE_MEMORY = "device_memory"
    MEMORY = "memory"
    KERNEL_OOM = "kernel_oom"
    PERHAPS_OOM = "perhaps_oom"
    KILLED = "killed"
    HANG = "hang"
    DEVICE_LOST = "device_lost"
    DEVICE_FAULT = "device_fault"
    DRIVER = "driver"
    OTHER_DEVICE = "other_device"
    OTHER_CPU = "other_cpu"
    WORKER_LOST = "worker_lost"
    DAMAGED_MODEL = "damaged_model"
    FILE_CUT = "file_cut"
    SETTINGS = "settings"
    ABORT = "abort"
    SEGFAULT = "segfault"
    ENDED = "ended"


SENTENCES: Final[dict[Cause, str]] = {
    Cause.DEVICE_MEMORY: "the graphics card ran out of memory",
    Cause.MEMORY: "the machine ran out of memory",
    Cause.KERNEL_OOM: "the kernel ended it because memory ran out",
    Cause.PERHAPS_OOM: "perhaps the machine ran out of memory",
    Cause.KILLED: "somebody killed it from outside, and not for memory",
    Cause.HANG: "it hung and was killed",
    Cause.DEVICE_LOST: "the graphics driver lost the device, by memory pressure, heat or bad memory; see the kernel log",
    Cause.DEVICE_FAULT: "the graphics card reported a fault",
    Cause.DRIVER: "the graphics driver is too old for this build; install a newer one",
    Cause.OTHER_DEVICE: "the build was made for another graphics card: run `make setup` again",
    Cause.OTHER_CPU: "the build was made for another CPU: run `make setup` again",
    Cause.WORKER_LOST: "a machine that lends it devices went away",
    Cause.DAMAGED_MODEL: "the model file is damaged or cut off; download it again",
    Cause.FILE_CUT: "the model file was cut off while in use, or its disk failed",
    Cause.SETTINGS: "these settings or this model file cannot be used",
    Cause.ABORT: "a check inside llama.cpp failed",
    Cause.SEGFAULT: "native code crashed",
    Cause.ENDED: "it ended by itself",
}

_BY_SIGNAL: Final = {
    "SIGILL": Cause.OTHER_CPU,
    "SIGBUS": Cause.FILE_CUT,
    "SIGABRT": Cause.ABORT,
    "SIGSEGV": Cause.SEGFAULT,
}

_NO_MEMORY: Final = re.compile(
    r"out of memory|bad_alloc|\bMemoryError\b|(failed|unable) to allocate|cannot allocate memory|insufficient memory"
    r"|OutOf(Device|Host)Memory|CUBLAS_STATUS_ALLOC_FAILED|vkAllocateMemory failed|memory allocation .*failed"
    r"|does not fit into memory|memory are free",
    re.IGNORECASE,
)
_PINNED: Final = re.compile("pinned memory", re.IGNORECASE)  # llama.cpp goes on without
_ON_DEVICE: Final = re.compile(
    r"cuda|cublas|vulkan|vk::|\bvk[A-Z]|ErrorOutOfDevice|rocm|\bhip|sycl|metal|\bRPC\d|on device \d|device memory",
    re.IGNORECASE,
)
_OF_WEIGHTS: Final = re.compile(
    r"unable to allocate .* buffer|choose a smaller model", re.IGNORECASE
)
_OF_CACHE: Final = re.compile(r"KV cache needs|buffer for (kv|rs) cache", re.IGNORECASE)

_DAMAGED: Final = (
    r"missing tensor|tensor '[^']+' not found|not within (the )?file bounds|unexpectedly reached end of file|corrupted or incomplete|invalid magic"
    r"|tensor .* data is out of bounds|is damaged or cut off|is not a GGUF file|gguf_init_from"
)
# llama.cpp's own words over a connection that broke, and those of `engine.rpc.client`.
_WORKER_LOST: Final = r"RPC worker at \S+ went away|Remote RPC server crashed|RPC handshake failed|Failed to connect to \S+:\d+"
# The first of the table whose words were said names the cause; memory is looked for before.
_BY_WORDS: Final[dict[Cause, re.Pattern[str]]] = {
    cause: re.compile(words, re.IGNORECASE)
    for cause, words in {
        Cause.WORKER_LOST: _WORKER_LOST,
        Cause.DEVICE_LOST: r"DeviceLost|DEVICE_LOST|device lost|GPU is lost|driver reset",
        Cause.DRIVER: r"INCOMPATIBLE_DRIVER|driver version is insufficient|unsupported Vulkan version",
        Cause.OTHER_DEVICE: r"no kernel image is available|invalid device function",
        Cause.OTHER_CPU: r"illegal instruction",
        Cause.DAMAGED_MODEL: _DAMAGED,
        Cause.DEVICE_FAULT: r"(CUDA|ROCm|HIP|Vulkan|SYCL) error|cublas.*_STATUS_|vk::.*Error",
        Cause.ABORT: r"GGML_ASSERT|GGML_ABORT",
    }.items()
}


class Part(StrEnum):
    """What there was no memory for."""

    WEIGHTS = "weights"
    CACHE = "cache"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Memory ran out, and where: what to make smaller depends on it."""

    part: Part = Part.ANY
    on_device: bool = False


@dataclass(frozen=True, slots=True)
class Death:
    """How a child ended. `sentence` is the whole story in one line; `shortage` is set when a smaller size may help."""

    cause: Cause
    sentence: str
    shortage: Shortage | None = None
    is_load_fault: bool = False  # the child itself said why nothing could be loaded

    @property
    def may_be_a_requests_fault(self) -> bool:
        """Whether what was computed can have been the cause: sizes, kills from outside and other machines are nobody's."""
        blameless = {Cause.KILLED, Cause.SETTINGS, Cause.WORKER_LOST}
        return self.shortage is None and self.cause not in blameless


class Circumstances(NamedTuple):
    """What is known of an end: `how` the process ended (`Child.reap`), its output, and what else happened."""

    how: str
    output: tuple[str, ...] = ()
    load_fault: str = ""  # its own last report: why nothing could be loaded
    hung: str = ""  # the watchdog killed it: what hung
    broken: str = ""  # it was killed because it talked nonsense: what about
    oom_kills: int | None = None  # counted by the kernel while it lived; None = not known


def death_of(end: Circumstances) -> Death:
    """Name the cause."""
    spoken = _spoken(end.output)
    if end.load_fault:
        return _failed_load(end.load_fault, spoken)
    cause, shortage = _cause(end, spoken)
    reason = end.hung or end.broken or SENTENCES[cause]
    words = f"the engine child ended ({end.how}): {reason}"
    telling = _telling_line(spoken, cause)
    return Death(cause, f'{words}; last words: "{telling}"' if telling else words, shortage)


def _failed_load(fault: str, spoken: list[str]) -> Death:
    """The child's own sentence says it best; what it is about decides what follows."""
    if _NO_MEMORY.search(fault):
        shortage = _shortage([fault, *spoken])
        cause = Cause.DEVICE_MEMORY if shortage.on_device else Cause.MEMORY
        return Death(cause, fault, shortage, is_load_fault=True)
    return Death(_by_words([fault]) or Cause.SETTINGS, fault, is_load_fault=True)


def _cause(end: Circumstances, spoken: list[str]) -> tuple[Cause, Shortage | None]:
    if end.hung:
        return Cause.HANG, None
    if end.broken:
        return Cause.ENDED, None
    if end.how.endswith("SIGKILL"):
        return _of_kill(end.oom_kills)
    if any(_says_no_memory(line) for line in spoken):
        shortage = _shortage(spoken)
        return (Cause.DEVICE_MEMORY if shortage.on_device else Cause.MEMORY), shortage
    by_signal = next((c for name, c in _BY_SIGNAL.items() if end.how.endswith(name)), Cause.ENDED)
    cause = by_signal if by_signal in {Cause.OTHER_CPU, Cause.FILE_CUT} else _by_words(spoken)
    if cause is Cause.DEVICE_LOST:
        return cause, Shortage(on_device=True)
    return cause or by_signal, None


def _of_kill(oom_kills: int | None) -> tuple[Cause, Shortage | None]:
    if oom_kills is None:
        return Cause.PERHAPS_OOM, None
    return (Cause.KERNEL_OOM, Shortage()) if oom_kills else (Cause.KILLED, None)


def _by_words(lines: list[str]) -> Cause | None:
    found = (c for c, words in _BY_WORDS.items() if any(words.search(line) for line in lines))
    return next(found, None)


def _says_no_memory(line: str) -> bool:
    return bool(_NO_MEMORY.search(line)) and not _PINNED.search(line)


def _shortage(lines: list[str]) -> Shortage:
    told = [line for line in lines if _says_no_memory(line)]
    on_device = any(_ON_DEVICE.search(line) for line in told)
    if any(_OF_CACHE.search(line) for line in told):
        return Shortage(Part.CACHE, on_device)
    if any(_OF_WEIGHTS.search(line) for line in told):
        return Shortage(Part.WEIGHTS, on_device)
    return Shortage(Part.ANY, on_device)


def _spoken(output: tuple[str, ...]) -> list[str]:
    """The last lines before Python's own report of a fatal signal, or the first of that where nothing came before."""
    marks = [index for index, line in enumerate(output) if line.startswith(_FATAL_MARK)]
    spoken = output[: marks[0]] or output[marks[0] : marks[0] + 1] if marks else output
    return list(spoken[-_LAST_LINES:])


def _telling_line(spoken: list[str], cause: Cause) -> str:
    """The line that names the cause; else the last one."""
    if cause in {Cause.MEMORY, Cause.DEVICE_MEMORY}:
        return next((line for line in spoken if _says_no_memory(line)), "")
    words = _BY_WORDS.get(cause)
    lines = [line for line in spoken if words.search(line)] if words else []
    return next(iter(lines[::-1] or spoken[::-1]), "")

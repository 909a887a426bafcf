"""What people see when memory, a driver or a file is not right, its likely cause and its cure: one table, by words. Pure.

The rows are those of practitioners' reports; `hearth doctor --log` looks a text up here. Deaths of a running child have a
table of their own (engine/link/obituary.py), as what follows from them is decided there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Symptom:
    """`words` find it in a text (case does not matter)."""

    name: str
    words: re.Pattern[str]
    cause: str
    cure: str


def _row(name: str, words: str, cause: str, cure: str) -> Symptom:
    return Symptom(name, re.compile(words, re.IGNORECASE), cause, cure)


# The order decides which is told first: what a driver says of itself before what follows from it.
SYMPTOMS: Final = (
    _row(
        "driver too old",
        r"INCOMPATIBLE_DRIVER|driver version is insufficient|unsupported Vulkan version|VkLayerSettingEXT"
        r"|no CUDA-capable device|ggml_vulkan: No devices found",
        "the graphics driver is older than the build needs (Vulkan: 1.3), or its runtime is missing",
        "install the newest driver; for a Vulkan build, headers newer than 1.3.239 as well",
    ),
    _row(
        "device lost",
        r"DeviceLost|DEVICE_LOST|device lost|GPU is lost|fallen off the bus|NVRM: Xid|GPU reset|ring \S+ timeout"
        r"|TDR|display driver .*stopped responding",
        "the driver lost or reset the card: memory pressure, heat, power, or bad memory",
        "free VRAM and look at the temperature, then `hearth doctor --vram-test`; Hearth restarts one step smaller",
    ),
    _row(
        "out of device memory",
        r"CUDA (error: )?out of memory|cudaMalloc failed|vkAllocateMemory failed|OutOfDeviceMemory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|failed to allocate (CUDA|Vulkan|ROCm|HIP|SYCL)|failed to allocate buffer of size",
        "too many layers or too long a context for the card, the peak of a long prompt, or a desktop and browser on it",
        "`hearth plan MODEL` says what fits; Hearth steps back by itself: n_ubatch, then experts and layers to RAM, "
        "then n_parallel, then KV type, n_ctx last",
    ),
    _row(
        "out of memory",
        r"Out of memory: Killed process|oom-kill|bad_alloc|Cannot allocate memory|\bMemoryError\b"
        r"|unable to allocate CPU buffer",
        "RAM ran out: too many layers on the CPU for this machine",
        "more layers on the card, a smaller n_batch, a smaller quantization, or more RAM",
    ),
    _row(
        "long prompt",
        r"(died|dies|crash\w*|ended|abort\w*).*(long (chat|prompt|conversation)|prefill)"
        r"|(long (chat|prompt|conversation)|prefill).*(died|dies|crash\w*|abort\w*)",
        "the peak comes with a long prompt, not at load",
        "keep the margin that `hearth plan` reserves for peaks; set no more layers by hand than it chose",
    ),
    _row(
        "damaged file",
        r"missing tensor|tensor '[^']+' not found|not within (the )?file bounds|unexpectedly reached end of file|corrupted or incomplete"
        r"|invalid magic|tensor .* data is out of bounds|has offset \d+, expected|damaged or cut off"
        r"|(output|reply|logits)\W.*\b(NaN|garbage)|\bnan\b.*logits",
        "the model file is damaged or was not downloaded to its end",
        "`hearth doctor` checks it tensor by tensor; download it again, and set models.*.sha256",
    ),
    _row(
        "no model file",
        r"failed to open .*\.gguf|\.gguf.*(No such file|does not exist|not found)|model file not found",
        "the path is wrong, or the download is not finished",
        "correct models.*.path; relative paths are relative to the config file's folder",
    ),
    _row(
        "other CPU",
        r"illegal instruction|SIGILL",
        "llama.cpp was built for another CPU",
        "run `make setup` again on this machine",
    ),
    _row(
        "swapping",
        r"swap(ping)? in use|swap is (full|used)|machine swaps|\bswapping\b|(speed|tok/s).*(jumps|up and down|varies)",
        "RAM or VRAM overflows: swap or the driver's shared memory is in use",
        "plan with dedicated memory only: fewer layers or a shorter context; RAM below 24 GB is little for a 16B model",
    ),
    _row(
        "answer cut",
        r"finish_reason\W+length|answer (was |is )?cut|max_new_tokens reached|(context|max tokens) reached",
        "the reply reached max_new_tokens, or its conversation the window",
        "/continue or the Continue button; a larger chat.max_new_tokens; summaries make room by themselves",
    ),
    _row(
        "integrated GPU",
        r"integrated (GPU|graphics)|\biGPU\b|uma: 1|using device \S+ \((Intel|AMD Radeon\(TM\)) .*Graphics",
        "the first compatible device was taken, and it has no memory of its own",
        "let only the dedicated card be seen: GGML_VK_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES = its number",
    ),
    _row(
        "desktop short of VRAM",
        r"(browser|desktop|compositor|screen|pictures).*(break|broken|flicker|black|corrupt|artifacts|garbled)",
        "VRAM is full, and the desktop needs some too",
        "fewer layers, so that 0.5 GiB stays free",
    ),
    _row(
        "fragmentation",
        r"fragment(ed|ation)|memory looks free|failed to find (a )?(free )?(KV|memory) slot",
        "free memory in pieces that are too small, or another program takes the card for moments",
        "`hearth doctor` names who else uses the card; Hearth steps back and goes on",
    ),
    _row(
        "layers on the CPU",
        r"offloaded (\d+)/(?!\1\b)\d+ layers to GPU|-ngl 99.*slow|n_gpu_layers.*slow",
        "some layers, or the KV cache, are not on the card, whatever was asked for",
        "`hearth plan MODEL` prints the real placement",
    ),
    _row(
        "unstable memory",
        r"random(ly)? crash|crash\w* after (some |many )?hours|uncorrectable (ECC|error)|ECC error|EDAC .*(CE|UE)\b",
        "unstable memory",
        "`hearth doctor --vram-test`; without overclocking; another power supply or card when it goes on",
    ),
    _row(
        "shader compilation",
        r"compil\w+ (vulkan )?shaders?|shader cache|first start (is )?slow",
        "a Vulkan driver compiles its shaders at the first start",
        "wait; the second start is fast, as long as its cache (~/.cache/mesa_shader_cache or the driver's) is kept",
    ),
)  # fmt: skip


def find_symptoms(text: str) -> tuple[tuple[Symptom, str], ...]:
    """The rows whose words a text has, each with the first line that has them."""
    found = []
    lines = text.splitlines()
    for symptom in SYMPTOMS:
        line = next((line.strip() for line in lines if symptom.words.search(line)), None)
        if line is not None:
            found.append((symptom, line))
    return tuple(found)

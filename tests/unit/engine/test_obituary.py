"""Causes of death by exit status, last words and the kernel's counters: one row per symptom that people meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.memory import check_memory
from engine.backends.modelfile import explain_context_failure, explain_load_failure
from engine.errors import EngineConfigError
from engine.link.obituary import SENTENCES, Cause, Circumstances, Part, Shortage, death_of
from engine.link.oomkills import oom_kills

ANY_ON_CARD = Shortage(Part.ANY, on_device=True)
MODEL = Path("/models/m.gguf")


@pytest.mark.parametrize(
    ("how", "output", "cause", "shortage"),
    [
        # the card's memory
        ("killed by SIGABRT", ("CUDA error: out of memory", "ggml-cuda.cu:97: CUDA error"), Cause.DEVICE_MEMORY, ANY_ON_CARD),
        ("killed by SIGABRT", ("ggml_vulkan: Device memory allocation of size 536870912 failed.",), Cause.DEVICE_MEMORY, ANY_ON_CARD),
        ("killed by SIGABRT", ("vk::Device::allocateMemory: ErrorOutOfDeviceMemory",), Cause.DEVICE_MEMORY, ANY_ON_CARD),
        ("killed by SIGABRT", ("vkAllocateMemory failed: -2",), Cause.DEVICE_MEMORY, ANY_ON_CARD),
        (
            "killed by SIGSEGV",
            ("alloc_tensor_range: failed to allocate CUDA0 buffer of size 12884901888",),
            Cause.DEVICE_MEMORY,
            ANY_ON_CARD,
        ),
        (
            "exit status 70",
            ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 512.00 MiB on device 0: cudaMalloc failed: out of memory",
             "engine.errors.EngineError: 3 batches in a row failed; the last one: llama_decode returned -2"),
            Cause.DEVICE_MEMORY,
            ANY_ON_CARD,
        ),
        # the machine's own
        ("killed by SIGABRT", ("terminate called after throwing an instance of 'std::bad_alloc'",), Cause.MEMORY, Shortage()),
        ("killed by SIGABRT", ("ggml_aligned_malloc: insufficient memory (attempted to allocate 900.00 MB)",), Cause.MEMORY, Shortage()),
        ("exit status 70", ("Traceback (most recent call last):", "MemoryError"), Cause.MEMORY, Shortage()),
        # no shortage at all
        ("killed by SIGABRT", ("failed to allocate 64.00 MiB of pinned memory: out of memory", "x.c:1: GGML_ASSERT(a) failed"), Cause.ABORT, None),
        ("killed by SIGABRT", ("ggml.c:123: GGML_ASSERT(n > 0) failed",), Cause.ABORT, None),
        ("killed by SIGABRT", (), Cause.ABORT, None),
        ("killed by SIGSEGV", ("Fatal Python error: Segmentation fault", "File x.py"), Cause.SEGFAULT, None),
        ("killed by SIGILL", ("Fatal Python error: Illegal instruction",), Cause.OTHER_CPU, None),
        ("killed by SIGBUS", ("Fatal Python error: Bus error",), Cause.FILE_CUT, None),
        ("killed by SIGABRT", ("CUDA error: an illegal memory access was encountered",), Cause.DEVICE_FAULT, None),
        ("killed by SIGABRT", ("CUDA error: no kernel image is available for execution on the device",), Cause.OTHER_DEVICE, None),
        ("killed by SIGABRT", ("vk::createInstance: VK_ERROR_INCOMPATIBLE_DRIVER",), Cause.DRIVER, None),
        ("killed by SIGABRT", ("CUDA driver version is insufficient for CUDA runtime version",), Cause.DRIVER, None),
        ("killed by SIGABRT", ("llama_model_load: error: missing tensor 'blk.3.ffn_up.weight'",), Cause.DAMAGED_MODEL, None),
        ("exit status 1", ("loading", "ready"), Cause.ENDED, None),
        ("exit status 0", (), Cause.ENDED, None),
        # a lost device comes back smaller as well
        ("killed by SIGABRT", ("vk::Queue::submit: ErrorDeviceLost",), Cause.DEVICE_LOST, ANY_ON_CARD),
    ],
)  # fmt: skip
def test_causes(how: str, output: tuple[str, ...], cause: Cause, shortage: Shortage | None) -> None:
    found = death_of(Circumstances(how, output))
    assert (found.cause, found.shortage) == (cause, shortage)
    assert SENTENCES[cause] in found.sentence
    assert how in found.sentence
    assert found.may_be_a_requests_fault == (shortage is None)


@pytest.mark.parametrize(
    ("n_kills", "cause", "is_shortage", "may_blame"),
    [
        (1, Cause.KERNEL_OOM, True, False),
        (0, Cause.KILLED, False, False),
        (None, Cause.PERHAPS_OOM, False, True),
    ],
)
def test_a_kill_is_the_kernels_if_it_counted_one(
    n_kills: int | None, cause: Cause, is_shortage: bool, may_blame: bool
) -> None:
    found = death_of(Circumstances("killed by SIGKILL", ("ready",), oom_kills=n_kills))
    assert (found.cause, found.shortage is not None) == (cause, is_shortage)
    assert found.may_be_a_requests_fault == may_blame


def test_what_we_killed_ourselves_is_no_riddle() -> None:
    hung = death_of(
        Circumstances("killed by SIGKILL", hung="a decode step hung for more than 50 s")
    )
    assert hung.cause is Cause.HANG
    assert hung.sentence == (
        "the engine child ended (killed by SIGKILL): a decode step hung for more than 50 s"
    )
    assert hung.may_be_a_requests_fault
    broken = death_of(Circumstances("killed by SIGKILL", broken="a frame announces 9 bytes"))
    assert broken.cause is Cause.ENDED
    assert "announces" in broken.sentence


def test_the_line_that_tells_most_is_repeated() -> None:
    lines = (
        "CUDA error: out of memory",
        "  current device: 0",
        "Fatal Python error: Aborted",
        "File x.py",
    )
    found = death_of(Circumstances("killed by SIGABRT", lines))
    assert found.sentence.endswith('last words: "CUDA error: out of memory"')
    lines = ("first", "x.c:9: GGML_ASSERT(ok) failed", "later noise")
    assert "GGML_ASSERT(ok)" in death_of(Circumstances("killed by SIGABRT", lines)).sentence


def test_words_from_long_before_are_no_last_words() -> None:
    lines = ("CUDA error: out of memory", *(f"line {n}" for n in range(20)))
    assert death_of(Circumstances("killed by SIGSEGV", lines)).cause is Cause.SEGFAULT


def test_our_own_sentences_about_memory_are_understood() -> None:
    with pytest.raises(EngineConfigError) as refused:
        check_memory("models.m", 2**40, 2**30)
    weights = explain_load_failure(MODEL, ["unable to allocate CPU buffer"])
    context = explain_context_failure(["failed to allocate compute pp buffers"])
    for fault, part in (
        (str(refused.value), Part.CACHE),
        (weights, Part.WEIGHTS),
        (f"models.m: {context}", Part.ANY),
    ):
        found = death_of(Circumstances("exit status 3", load_fault=fault))
        assert (found.cause, found.shortage) == (Cause.MEMORY, Shortage(part))
        assert found.sentence == fault


def test_what_llama_cpp_said_before_a_refusal_tells_where_memory_was_missing() -> None:
    fault = explain_load_failure(MODEL, ["unable to allocate CUDA0 buffer"])
    said = ("cudaMalloc failed: out of memory", "llama_model_load: unable to allocate CUDA0 buffer")
    found = death_of(Circumstances("exit status 3", said, load_fault=fault))
    assert (found.cause, found.shortage) == (
        Cause.DEVICE_MEMORY,
        Shortage(Part.WEIGHTS, on_device=True),
    )
    cache = (
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 9",
        "failed to allocate buffer for kv cache",
    )
    found = death_of(
        Circumstances("exit status 3", cache, load_fault=explain_context_failure(cache))
    )
    assert found.shortage == Shortage(Part.CACHE, on_device=True)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (explain_load_failure(MODEL, ["tensor 'x' data is not within the file bounds"]), Cause.DAMAGED_MODEL),
        (f"{MODEL} is not a GGUF file (it does not begin with GGUF)", Cause.DAMAGED_MODEL),
        ("models.m.path: /x does not exist", Cause.SETTINGS),
        ("llama.cpp refused these settings: V cache quantization requires flash_attn", Cause.SETTINGS),
    ],
)  # fmt: skip
def test_other_refusals_are_told_as_they_are(fault: str, cause: Cause) -> None:
    found = death_of(Circumstances("exit status 3", load_fault=fault))
    assert (found.cause, found.sentence, found.shortage) == (cause, fault, None)
    assert found.is_load_fault


# Where the kernel counts.


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_nearest_counter_is_read(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert oom_kills(proc, groups) is None
    write(proc / "vmstat", "nr_free_pages 7\noom_kill 5\n")
    assert oom_kills(proc, groups) == 5
    write(proc / "self" / "cgroup", "0::/user.slice/hearth.service\n")
    assert oom_kills(proc, groups) == 5, "its group has no memory counters"
    write(groups / "user.slice" / "memory.events", "low 0\noom 9\noom_kill 3\n")
    assert oom_kills(proc, groups) == 3, "the group above has"
    write(groups / "user.slice" / "hearth.service" / "memory.events", "oom 2\noom_kill 1\n")
    assert oom_kills(proc, groups) == 1


def test_the_older_kind_of_control_groups(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self" / "cgroup", "4:memory:/docker/abc\n1:cpu,cpuacct:/x\n0::/\n")
    write(groups / "memory" / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills(proc, groups) == 2, "in a container the group's own folder is the root"

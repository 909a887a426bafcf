"""The memory test on real devices: this machine's RAM as llama.cpp's CPU device, and a worker's memory over RPC."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from engine.vram.build import describe_build
from engine.vram.memtest import MemoryTestFailed, Question, check_memory

MIB = 2**20
WORKER = """
import ctypes, sys
import llama_cpp as llama
from engine.backends.llamalib import libllama as lib
llama.llama_backend_init()
lib.ggml_backend_dev_get.restype = ctypes.c_void_p
devices = (ctypes.c_void_p * 1)(lib.ggml_backend_dev_get(ctypes.c_size_t(0)))
lib.ggml_backend_rpc_start_server(
    sys.argv[1].encode(), None, ctypes.c_size_t(1), ctypes.c_size_t(1), devices)
"""


@pytest.fixture
def worker() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, endpoint], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        until = time.monotonic() + 30
        while b"endpoint" not in (line := process.stdout.readline()):
            assert line, "the worker ended"
            assert time.monotonic() < until
        yield endpoint
    finally:
        process.kill()
        process.communicate()


def test_the_cpu_device() -> None:
    (result,) = check_memory(Question(devices=("CPU",), limit=40 * MIB, chunk=16 * MIB))
    assert result.device.kind == "cpu"
    assert result.tested == 32 * MIB  # whole chunks only
    assert result.n_bad == 0
    assert result.bad == ()


def test_a_device_on_another_machine(worker: str) -> None:
    results = check_memory(Question(rpc=worker, limit=16 * MIB, chunk=8 * MIB))
    assert [(r.device.name[:3], r.tested, r.n_bad) for r in results] == [("RPC", 16 * MIB, 0)]


def test_no_card_is_no_fault() -> None:
    if any(device.kind == "gpu" for device in describe_build().devices):
        pytest.skip("this machine has a card that the build can use")
    assert check_memory(Question()) == ()


def test_a_worker_that_is_not_there_ends_the_child_only() -> None:
    with pytest.raises(MemoryTestFailed, match=r"^the memory test ended by "):
        check_memory(Question(rpc="127.0.0.1:9"))

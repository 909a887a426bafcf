"""Holds memory of a device until its standard input ends: `python -m tests.gpu.ballast DEVICE BYTES`; prints how much it holds.

A large card becomes a card of 12 GiB by it, and a neighbour that takes memory while the model runs. It allocates through
ggml, so that it works for CUDA, Vulkan and the CPU alike, and in pieces, as Vulkan has a largest buffer.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_PIECE = 512 * 2**20


@contextmanager
def held(device: str, n_bytes: int) -> Iterator[int]:
    """So many bytes of a device are taken by another process. Gives what it could get; 0 bytes need none."""
    if n_bytes <= 0:
        yield 0
        return
    command = [sys.executable, "-m", "tests.gpu.ballast", device, str(n_bytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield int(child.stdout.readline() or 0)
        finally:
            child.stdin.close()
            child.wait(timeout=30)


def _load() -> tuple[Any, Any]:
    """The two libraries in which these functions are; importing the binding registers every backend."""
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    llama_cpp.llama_backend_init()
    return ctypes.CDLL(str(folder / "libggml.so")), ctypes.CDLL(str(folder / "libggml-base.so"))


def _find(ggml: Any, base: Any, wanted: str) -> ctypes.c_void_p:
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    base.ggml_backend_dev_name.restype = ctypes.c_char_p
    base.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    for i in range(ggml.ggml_backend_dev_count()):
        device = ctypes.c_void_p(ggml.ggml_backend_dev_get(i))
        if base.ggml_backend_dev_name(device).decode() == wanted:
            return device
    sys.exit(f"there is no device {wanted}")


def _hold(device: str, n_bytes: int) -> None:
    ggml, base = _load()
    found = _find(ggml, base, device)
    base.ggml_backend_dev_buffer_type.restype = ctypes.c_void_p
    base.ggml_backend_dev_buffer_type.argtypes = [ctypes.c_void_p]
    base.ggml_backend_buft_alloc_buffer.restype = ctypes.c_void_p
    base.ggml_backend_buft_alloc_buffer.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    kind = ctypes.c_void_p(base.ggml_backend_dev_buffer_type(found))
    got = 0
    while got < n_bytes:
        piece = min(_PIECE, n_bytes - got)
        if not base.ggml_backend_buft_alloc_buffer(kind, piece):
            break
        got += piece
    print(got, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _hold(sys.argv[1], int(sys.argv[2]))

"""Fill-and-check of a device's free memory, through the same buffers in which llama.cpp keeps weights.

All chunks are written before any is read: a stuck bit shows, and so does an address that reaches another's memory. Two
passes, the second with every bit turned round. It finds memory that is bad now, not what fails only when hot.
Runs in a child process (a driver may abort or lose the device); only the child imports llama_cpp.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np

from engine.errors import EngineError
from engine.vram.child import ask
from engine.vram.probe import Listed, list_devices

_MIB: Final = 2**20
CHUNK: Final = 128 * _MIB
# Left to the desktop and to the driver's own needs while the test runs.
KEEP_FREE: Final = 256 * _MIB
_SHOWN: Final = 8
_I8: Final = 24  # GGML_TYPE_I8
_Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


class MemoryTestFailed(EngineError):
    """The test did not end as it should: the child died or hung. One sentence."""


class Question(msgspec.Struct, frozen=True):
    """`devices`: names, or () for all cards with dedicated memory; `limit` bytes at most of each (0 = what is free);
    `rpc` the address of a worker whose devices are added."""

    devices: tuple[str, ...] = ()
    limit: int = 0
    rpc: str = ""
    chunk: int = CHUNK


class BadWord(msgspec.Struct, frozen=True):
    """8 bytes that came back changed; `at` counts from the first byte tested."""

    at: int
    written: int
    read: int


class DeviceResult(msgspec.Struct, frozen=True):
    """`tested` bytes in `seconds`; `bad` shows the first of `n_bad` changed words."""

    device: Listed
    tested: int
    seconds: float
    n_bad: int
    bad: tuple[BadWord, ...]


class Chunks(Protocol):
    """Memory in chunks of whole words."""

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each."""
        ...

    def write(self, index: int, words: _Words) -> None:
        """Fill one."""
        ...

    def read(self, index: int) -> _Words:
        """What is in it now; good until the next call."""
        ...


def check_memory(question: Question, timeout_s: float = 900.0) -> tuple[DeviceResult, ...]:
    """Takes about a second per GB and pass over PCIe. () = no such device. Raises MemoryTestFailed."""
    try:
        answer = ask("engine.vram.memtest", msgspec.json.encode(question), timeout_s)
    except TimeoutError:
        raise MemoryTestFailed(f"the memory test did not end within {timeout_s:.0f} s") from None
    if answer.status != 0:
        raise MemoryTestFailed(f"the memory test ended by {answer.how}: {answer.last_words}")
    return msgspec.json.decode(answer.output, type=tuple[DeviceResult, ...])


class _Pattern:
    """Random words, others for each chunk: one block and a key, as fresh words would take longer than the test."""

    def __init__(self, longest: int) -> None:
        random = np.random.default_rng(20)
        self._block: _Words = random.integers(0, 2**64, longest // 8, dtype=np.uint64)
        self._words: _Words = np.empty_like(self._block)

    def words(self, index: int, n_bytes: int, *, inverted: bool) -> _Words:
        """Good until the next call."""
        key = np.uint64(
            (index + 1) * 0x9E3779B97F4A7C15 % 2**64
        )  # the golden ratio: keys far apart
        n_words = n_bytes // 8
        key = ~key if inverted else key
        return np.bitwise_xor(self._block[:n_words], key, out=self._words[:n_words])


def fill_and_check(chunks: Chunks) -> tuple[int, tuple[BadWord, ...]]:
    """How many words came back changed, and the first of them."""
    pattern = _Pattern(max(chunks.sizes, default=0))
    n_bad = 0
    shown: list[BadWord] = []
    for inverted in (False, True):
        for index, n_bytes in enumerate(chunks.sizes):
            chunks.write(index, pattern.words(index, n_bytes, inverted=inverted))
        start = 0
        for index, n_bytes in enumerate(chunks.sizes):
            expected, found = pattern.words(index, n_bytes, inverted=inverted), chunks.read(index)
            if not np.array_equal(expected, found):
                places = np.nonzero(expected != found)[0]
                n_bad += len(places)
                for place in places[: _SHOWN - len(shown)]:
                    word = BadWord(start + 8 * int(place), int(expected[place]), int(found[place]))
                    shown.append(word)
            start += n_bytes
    return n_bad, tuple(shown)


# The child.


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class _DeviceChunks:
    """Buffers of one ggml device, each with one tensor of bytes over all of it. Owner: `_test`, which frees it."""

    def __init__(self, lib: Any, device: ctypes.c_void_p, longest: int) -> None:
        self._lib = lib
        self._type = ctypes.c_void_p(lib.ggml_backend_dev_buffer_type(device))
        self._contexts: list[ctypes.c_void_p] = []
        self._buffers: list[ctypes.c_void_p] = []
        self._tensors: list[ctypes.c_void_p] = []
        self._read_into: _Words = np.empty(longest // 8, dtype=np.uint64)
        self.sizes: list[int] = []

    def take(self, n_bytes: int) -> bool:
        """One more chunk; False when the device has no room for it."""
        lib = self._lib
        buffer = ctypes.c_void_p(lib.ggml_backend_buft_alloc_buffer(self._type, n_bytes))
        if buffer.value is None:
            return False
        self._buffers.append(buffer)
        context = ctypes.c_void_p(lib.ggml_init(_InitParams(4096, None, True)))
        self._contexts.append(context)
        tensor = ctypes.c_void_p(lib.ggml_new_tensor_1d(context, _I8, n_bytes))
        base = ctypes.c_void_p(lib.ggml_backend_buffer_get_base(buffer))
        if lib.ggml_backend_tensor_alloc(buffer, tensor, base) != 0:
            return False
        self._tensors.append(tensor)
        self.sizes.append(n_bytes)
        return True

    def write(self, index: int, words: _Words) -> None:
        data = words.ctypes.data_as(ctypes.c_void_p)
        self._lib.ggml_backend_tensor_set(self._tensors[index], data, 0, self.sizes[index])

    def read(self, index: int) -> _Words:
        words = self._read_into[: self.sizes[index] // 8]
        data = words.ctypes.data_as(ctypes.c_void_p)
        self._lib.ggml_backend_tensor_get(self._tensors[index], data, 0, self.sizes[index])
        return words

    def free(self) -> None:
        for context in self._contexts:
            self._lib.ggml_free(context)
        for buffer in self._buffers:
            self._lib.ggml_backend_buffer_free(buffer)


def _declare(lib: Any) -> None:
    """The signatures of ggml.h, ggml-backend.h and ggml-rpc.h that are used here."""
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("ggml_init", pointer, (_InitParams,)),
        ("ggml_free", None, (pointer,)),
        ("ggml_new_tensor_1d", pointer, (pointer, ctypes.c_int, ctypes.c_int64)),
        ("ggml_backend_dev_get", pointer, (size,)),
        ("ggml_backend_dev_buffer_type", pointer, (pointer,)),
        ("ggml_backend_buft_alloc_buffer", pointer, (pointer, size)),
        ("ggml_backend_buffer_get_base", pointer, (pointer,)),
        ("ggml_backend_buffer_free", None, (pointer,)),
        ("ggml_backend_tensor_alloc", ctypes.c_int, (pointer, pointer, pointer)),
        ("ggml_backend_tensor_set", None, (pointer, pointer, size, size)),
        ("ggml_backend_tensor_get", None, (pointer, pointer, size, size)),
        ("ggml_backend_rpc_add_server", pointer, (ctypes.c_char_p,)),
        ("ggml_backend_register", None, (pointer,)),
    ):
        function = getattr(lib, name, None)
        if function is not None:  # a build without RPC
            function.restype, function.argtypes = result, arguments


def _devices(lib: Any, question: Question) -> Iterator[tuple[ctypes.c_void_p, Listed]]:
    if question.rpc:
        added = lib.ggml_backend_rpc_add_server(question.rpc.encode())
        if added:
            lib.ggml_backend_register(added)
    for i, device in enumerate(list_devices()):
        pointer = ctypes.c_void_p(lib.ggml_backend_dev_get(i))
        if device.name in question.devices or (not question.devices and device.kind == "gpu"):
            yield pointer, device


def _test(lib: Any, pointer: ctypes.c_void_p, device: Listed, question: Question) -> DeviceResult:
    room = max(0, device.free - KEEP_FREE)
    room = min(room, question.limit) if question.limit else room
    began = time.monotonic()
    chunks = _DeviceChunks(lib, pointer, question.chunk)
    try:
        while room >= question.chunk and chunks.take(question.chunk):
            room -= question.chunk
        n_bad, bad = fill_and_check(chunks)
    finally:
        chunks.free()
    return DeviceResult(device, sum(chunks.sizes), time.monotonic() - began, n_bad, bad)


def _main() -> int:
    import llama_cpp as llama

    from engine.backends.llamalib import libllama

    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    llama.llama_backend_init()
    _declare(libllama)
    results = [_test(libllama, *found, question) for found in list(_devices(libllama, question))]
    sys.stdout.buffer.write(msgspec.json.encode(results))
    return 0


if __name__ == "__main__":
    sys.exit(_main())

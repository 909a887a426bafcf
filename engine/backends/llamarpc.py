"""llama.cpp's RPC backend, both ends of it: workers as devices of this process, and this machine's devices for others.

The functions are no part of the binding; llama.cpp hands them out by name (`ggml_backend_reg_get_proc_address`). Whoever calls
`add_worker` must know that the worker is there and free: llama.cpp aborts the process where it is not (`engine.rpc.client` asks).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.llamalib import (
    backend_call,
    device_at,
    device_kind,
    device_memory,
    device_text,
    n_devices,
)
from engine.errors import EngineConfigError

_CPU, _GPU, _IGPU = 0, 1, 2  # ggml_backend_dev_type
# Places in ggml_backend_device_i and ggml_backend_buffer_type_i (ggml-backend-impl.h).
_GET_MEMORY: Final = 2
_ALLOC_BUFFER: Final = 1
_SizePointer: Final = ctypes.POINTER(ctypes.c_size_t)
_OTHER_TABLE: Final = (
    "this build of llama.cpp keeps its devices in another way: what a CPU lends cannot be told"
)
_TRIAL: Final = (123_456_789, 987_654_321)
_Memory = Callable[[], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """A device of this machine. Bytes."""

    handle: int
    name: str
    description: str
    is_cpu: bool
    free: int
    total: int


def _native(name: str, result: Any, *kinds: Any) -> Any:
    """A function of the RPC backend. Raises EngineConfigError where this build has none."""
    registry = backend_call("reg_by_name", ctypes.c_void_p, b"RPC")
    address = registry and backend_call(
        "reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p(registry), name.encode()
    )
    if not address:
        raise EngineConfigError(
            "this build of llama.cpp has no RPC backend: run `make setup` again (it builds with GGML_RPC=ON)"
        )
    return ctypes.CFUNCTYPE(result, *kinds)(address)


def add_worker(endpoint: str) -> None:
    """Make the devices of a worker devices of this process, before a model is loaded. Raises EngineConfigError."""
    add_server = _native("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    registry = add_server(endpoint.encode())
    if not registry:
        raise EngineConfigError(f"the RPC worker at {endpoint} lends no devices")
    backend_call("register", None, ctypes.c_void_p(registry))


def local_devices() -> tuple[LocalDevice, ...]:
    """What this machine can lend: its graphics cards, or the CPU where it has none."""
    found = [_device(device_at(i)) for i in range(n_devices())]
    cards = [device for kind, device in found if kind in (_GPU, _IGPU)]
    return tuple(cards or [device for kind, device in found if kind == _CPU])


def _device(handle: ctypes.c_void_p) -> tuple[int, LocalDevice]:
    kind = device_kind(handle)
    free, total = device_memory(handle)
    return kind, LocalDevice(
        handle=handle.value or 0,
        name=device_text("name", handle),
        description=device_text("description", handle),
        is_cpu=kind == _CPU,
        free=free,
        total=total,
    )


def tell_memory(device: LocalDevice, memory: _Memory) -> object:
    """Let a device tell clients this memory (free and total bytes) instead of its own. Returns what must be kept alive.

    llama.cpp says of a CPU that all of the machine's memory is free, so a client would plan with what is not there; it has no
    setting for it, and so the function in the device's table is replaced. Raises EngineConfigError where the table is another one.
    """
    tellers: list[_Memory] = [lambda: _TRIAL]

    def get_memory(_device: Any, free: Any, total: Any) -> None:
        free[0], total[0] = tellers[-1]()

    replacement = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _SizePointer, _SizePointer)(get_memory)
    undo = _replace(device.handle, _GET_MEMORY, replacement)
    if device_memory(ctypes.c_void_p(device.handle)) != _TRIAL:
        undo()
        raise EngineConfigError(_OTHER_TABLE)
    tellers.append(memory)
    return replacement


def limit_buffers(may_take: Callable[[int], bool]) -> object:
    """Let the CPU's buffers be refused: `may_take` is asked with each size in bytes. Returns what must be kept alive.

    By the same means as `tell_memory`, and for the same reason. Raises EngineConfigError where the table is another one.
    """
    buffer_type = int(backend_call("cpu_buffer_type", ctypes.c_void_p))
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    table = (ctypes.c_void_p * (_ALLOC_BUFFER + 1)).from_address(buffer_type)
    original = kind(table[_ALLOC_BUFFER] or 0)
    judges: list[Callable[[int], bool]] = [lambda _: False]

    def alloc_buffer(itself: Any, size: int) -> Any:
        return original(itself, size) if judges[-1](size) else None

    replacement = kind(alloc_buffer)
    undo = _replace(buffer_type, _ALLOC_BUFFER, replacement)
    allocate = (ctypes.c_void_p(buffer_type), ctypes.c_size_t(64))
    if backend_call("buft_alloc_buffer", ctypes.c_void_p, *allocate) is not None:
        undo()
        raise EngineConfigError(_OTHER_TABLE)
    judges.append(may_take)
    return replacement, original


def _replace(table_at: int, index: int, function: Any) -> Callable[[], None]:
    """Put a function into a table of functions. Returns how to take it out again."""
    table = (ctypes.c_void_p * (index + 1)).from_address(table_at)
    before = table[index]
    table[index] = ctypes.cast(function, ctypes.c_void_p).value

    def undo() -> None:
        table[index] = before

    return undo


def lend(endpoint: str, devices: Sequence[LocalDevice], n_threads: int) -> None:
    """Serve one client after the other; returns only when it cannot listen there. Prints to standard output."""
    serve = _native(
        "ggml_backend_rpc_start_server",
        None,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    )
    handles = (ctypes.c_void_p * len(devices))(*(device.handle for device in devices))
    serve(endpoint.encode(), None, n_threads, len(devices), handles)

"""The one face on ggml's own functions, which are no part of the binding. For the backend and for children that ask llama.cpp.

They are called through libllama's handle, never through the binding's `libggml`: that file is a copy which the loader takes for
another library, with a list of devices of its own that llama.cpp never looks at.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llama_cpp.llama_cpp import _lib

libllama: Any = _lib


def backend_call(name: str, result: Any, *arguments: Any) -> Any:
    """`ggml_backend_<name>` with ctypes arguments; `result` is the type of what it returns, None for nothing."""
    function = getattr(libllama, f"ggml_backend_{name}")
    function.restype = result
    return function(*arguments)


def device_at(index: int) -> ctypes.c_void_p:
    """The handle of a device in llama.cpp's list."""
    return ctypes.c_void_p(backend_call("dev_get", ctypes.c_void_p, ctypes.c_size_t(index)))


def n_devices() -> int:
    """How many devices llama.cpp knows."""
    return int(backend_call("dev_count", ctypes.c_size_t))


def device_text(what: str, device: ctypes.c_void_p) -> str:
    """A device's "name" or "description"."""
    text: bytes = backend_call(f"dev_{what}", ctypes.c_char_p, device)
    return text.decode("utf-8", "replace")


def device_kind(device: ctypes.c_void_p) -> int:
    """ggml_backend_dev_type: 0 = CPU, 1 = GPU, 2 = integrated GPU, 3 = accelerator."""
    return int(backend_call("dev_type", ctypes.c_int, device))


def device_memory(device: ctypes.c_void_p) -> tuple[int, int]:
    """Free and total bytes."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    backend_call("dev_memory", None, device, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value

"""The size of a cache before it is made, and where it would lie. Allocates nothing; used by `llamacpp` alone."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

from engine.backends.llamalib import backend_call
from engine.vram.gguf import read_model
from engine.vram.settings import ContextSettings
from engine.vram.shapes import read_shape

_GPU_KINDS: Final = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU


def on_host(n_gpu_layers: int) -> bool:
    """Whether the cache lies in ordinary memory.

    llama_supports_gpu_offload says yes to every build that can talk to other machines (GGML_RPC): ask for the devices.
    """
    found = (
        backend_call("dev_by_type", ctypes.c_void_p, ctypes.c_int(kind)) for kind in _GPU_KINDS
    )
    return n_gpu_layers == 0 or not any(found)


def cache_bytes(path: Path, settings: ContextSettings) -> int:
    """Bytes of keys, values and recurrent states; 0 = the architecture keeps more, or less, than is known."""
    shape = read_shape(read_model(path))
    if not shape.is_exact:
        return 0
    cells = shape.cell_bytes(settings.type_k, settings.type_v)
    return sum(cells) * settings.n_cells + sum(shape.state_bytes()) * settings.n_seq_max

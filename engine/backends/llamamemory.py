"""The size of a KV cache, from a loaded model's own description. Allocates nothing; used by `llamacpp` alone."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import llama_cpp as llama
from llama_cpp._ggml import libggml

# Bytes per 32 values, by ggml type (ggml-common.h): the layouts of a cache.
_BYTES_PER_32: Final = {0: 128, 1: 64, 2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 20: 18, 30: 64}

_GPU_KINDS: Final = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU


def on_host(n_gpu_layers: int) -> bool:
    """Whether the cache lies in ordinary memory.

    llama_supports_gpu_offload says yes to every build that can talk to other machines (GGML_RPC): ask for the devices.
    """
    find = libggml.ggml_backend_dev_by_type
    find.argtypes, find.restype = [ctypes.c_int], ctypes.c_void_p
    return n_gpu_layers == 0 or not any(find(kind) for kind in _GPU_KINDS)


def cache_bytes(model: Any, n_cells: int, type_k: int, type_v: int) -> int:
    """Bytes of the cache of plain attention; 0 = not known (recurrent models and latent attention need far less)."""
    if (
        llama.llama_model_is_recurrent(model)
        or llama.llama_model_is_hybrid(model)
        or _meta(model, "attention.kv_lora_rank")
    ):
        return 0
    head = int(llama.llama_model_n_embd(model)) // max(1, llama.llama_model_n_head(model))
    n_rows = int(llama.llama_model_n_layer(model)) * int(llama.llama_model_n_head_kv(model))
    n_values = n_rows * n_cells
    n_k = n_values * (_meta(model, "attention.key_length") or head)
    n_v = n_values * (_meta(model, "attention.value_length") or head)
    return (n_k * _BYTES_PER_32.get(type_k, 18) + n_v * _BYTES_PER_32.get(type_v, 18)) // 32


def _meta(model: Any, name: str) -> int:
    """A number of the architecture's own metadata; 0 = not there."""
    architecture = _text(model, "general.architecture")
    value = _text(model, f"{architecture}.{name}")
    return int(value) if value.isdecimal() else 0


def _text(model: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(128)
    llama.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")

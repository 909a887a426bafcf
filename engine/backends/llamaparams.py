"""llama.cpp's parameter structures from our settings: the engine opens with them, the dry run asks with them."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Final

import llama_cpp as llama

from engine.backends.llamalib import backend_call
from engine.config import EngineConfig
from engine.vram.settings import ContextSettings

_FLASH: Final = {
    "auto": llama.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
# By whether weights are mapped from the file, and whether they are locked into RAM.
_LOAD_MODES: Final = {
    (False, False): llama.LLAMA_LOAD_MODE_NONE,
    (True, False): llama.LLAMA_LOAD_MODE_MMAP,
    (False, True): llama.LLAMA_LOAD_MODE_MLOCK,
    (True, True): llama.LLAMA_LOAD_MODE_MMAP_MLOCK,
}
# The routed experts of one layer, as llama.cpp's own --n-cpu-moe names them.
_EXPERTS: Final = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def flash_type(name: str) -> int:
    """llama.cpp's number for on, off or auto."""
    return int(_FLASH[name])


def model_params(config: EngineConfig) -> tuple[Any, object]:
    """The parameters of a model, and an object that must live until it is loaded (llama.cpp keeps pointers into it)."""
    params = llama.llama_model_default_params()
    params.n_gpu_layers = config.n_gpu_layers
    params.load_mode = _LOAD_MODES[config.use_mmap, config.use_mlock]
    # A build with AMX dies of SIGILL on virtual machines that announce AMX and do not carry it; its weights live
    # in the "extra" buffer types. Builds without AMX keep them (they also hold the repacked weights).
    params.use_extra_bufts = b"AMX_INT8 = 1" not in llama.llama_print_system_info()
    overrides = _experts_on_cpu(config.n_cpu_moe)
    if overrides is not None:
        field = dict(type(params)._fields_)["tensor_buft_overrides"]
        params.tensor_buft_overrides = ctypes.cast(overrides, field)
    return params, overrides


def _experts_on_cpu(n_layers: int) -> Any:
    """A table that ends with an empty row; None without any."""
    if not n_layers:
        return None
    cpu = backend_call("cpu_buffer_type", ctypes.c_void_p)
    rows = [_Override(_EXPERTS.format(i).encode(), cpu) for i in range(n_layers)]
    return (_Override * (n_layers + 1))(*rows, _Override(None, None))


def context_params(settings: ContextSettings) -> Any:
    """The parameters of a context."""
    params = llama.llama_context_default_params()
    params.n_ctx = settings.n_ctx
    params.n_batch = settings.n_batch
    params.n_ubatch = settings.n_ubatch
    params.n_seq_max = settings.n_seq_max
    params.n_outputs_max = settings.n_outputs_max
    params.n_threads = params.n_threads_batch = settings.n_threads
    params.type_k = settings.type_k
    params.type_v = settings.type_v
    params.flash_attn_type = flash_type(settings.flash_attention)
    params.kv_unified = settings.kv_unified
    params.offload_kqv = settings.kv_on_card
    params.no_perf = True
    return params


def experts_pattern(layer: int) -> re.Pattern[str]:
    """Which tensors `n_cpu_moe` moves, for the planner's tests."""
    return re.compile(_EXPERTS.format(layer))

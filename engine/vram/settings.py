"""How a context is opened: one pure function from the settings, used by the engine, the dry run and the planner alike.

What is planned and what is opened cannot drift apart, as neither has numbers of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.config import EngineConfig
from engine.errors import EngineConfigError

# Cache type → ggml type.
CACHE_TYPES: Final = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q5_1": 7,
    "q5_0": 6,
    "q4_1": 3,
    "q4_0": 2,
    "iq4_nl": 20,
}
UNQUANTIZED: Final = frozenset({"f32", "f16", "bf16"})
MAX_SEQUENCES: Final = 256  # LLAMA_MAX_SEQ
_CELL_STEP: Final = 256  # llama.cpp rounds n_ctx up to this


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """The parameters of one context. Lengths are tokens; `n_ctx` counts the cells of the one cache that all sequences
    share, `window` what one conversation may use of it. `flash_attention` is on, off or auto (llama.cpp asks the device).
    """

    n_ctx: int
    window: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_outputs_max: int
    n_threads: int
    type_k: int
    type_v: int
    flash_attention: str
    kv_unified: bool = True
    kv_on_card: bool = True

    @property
    def n_cells(self) -> int:
        """Cells that llama.cpp makes of `n_ctx`."""
        return -(-self.n_ctx // _CELL_STEP) * _CELL_STEP


def context_settings(config: EngineConfig, n_ctx_train: int) -> ContextSettings:
    """What a context is opened with. `n_ctx_train` 0 = not known. Raises EngineConfigError for cache types that cannot be."""
    check_cache_types(config)
    window = min(config.n_ctx, n_ctx_train or config.n_ctx)
    n_seq_max = n_sequences(config) + 1  # the last one is scratch, for blocks on their way to RAM
    return ContextSettings(
        n_ctx=config.kv_cells or config.n_parallel * window,
        window=window,
        n_batch=config.n_batch,
        n_ubatch=min(config.n_ubatch, config.n_batch),
        n_seq_max=n_seq_max,
        n_outputs_max=n_seq_max,  # llama.cpp takes no fewer (output_reserve)
        n_threads=config.n_threads or usable_cores(),
        type_k=CACHE_TYPES[config.cache_type_k],
        type_v=CACHE_TYPES[config.cache_type_v],
        flash_attention=flash_attention(config),
        kv_on_card=config.kv_on_card,
    )


def n_sequences(config: EngineConfig) -> int:
    """Sequences in the context: one per reply, and some more for conversations and prefixes that are kept."""
    n_kept = min(max(3 * config.n_parallel, 8), 16)
    return min(
        max(config.n_sequences or config.n_parallel + n_kept, config.n_parallel), MAX_SEQUENCES - 1
    )


def flash_attention(config: EngineConfig) -> str:
    """Auto: always with a quantized cache, which llama.cpp cannot do without; otherwise llama.cpp asks the device."""
    quantized = not {config.cache_type_k, config.cache_type_v} <= UNQUANTIZED
    return "on" if config.flash_attention == "auto" and quantized else config.flash_attention


def check_cache_option(kind: str, option: str) -> None:
    """Raises EngineConfigError for a type of the KV cache that llama.cpp does not know."""
    if kind not in CACHE_TYPES:
        raise EngineConfigError(
            f'{option}: "{kind}" is unknown; use one of {", ".join(CACHE_TYPES)}'
        )


def check_cache_types(config: EngineConfig) -> None:
    """Raises EngineConfigError for cache types that llama.cpp does not know, or refuses together."""
    for key in ("cache_type_k", "cache_type_v"):
        check_cache_option(getattr(config, key), f"models.{config.name}.{key}")
    if config.flash_attention not in ("auto", "on", "off"):
        raise EngineConfigError(
            f'models.{config.name}.flash_attention: "{config.flash_attention}" must be auto, on or off'
        )
    if config.flash_attention == "off" and config.cache_type_v not in UNQUANTIZED:
        raise EngineConfigError(
            f'models.{config.name}: cache_type_v = "{config.cache_type_v}" needs flash attention; '
            'set flash_attention = "auto" or cache_type_v = "f16"'
        )


def usable_cores() -> int:
    """Physical cores that this process may run on: more threads than that make llama.cpp slower."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list")
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return max(1, len(cores))

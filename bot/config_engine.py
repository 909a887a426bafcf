"""From a [models.*] table to the engine's settings. Imports no service: commands that only look at models start fast."""

from __future__ import annotations

from bot.config import Config, LlamaModelConfig, ModelConfig, parse_bytes
from bot.config_sizes import sizes
from engine.config import EngineConfig, OpenAISettings


def engine_settings(name: str, model: ModelConfig, config: Config) -> EngineConfig | OpenAISettings:
    """A [models.*] table as the engine wants it."""
    if isinstance(model, LlamaModelConfig):
        return EngineConfig(
            name=name,
            backend=model.backend,
            path=model.path if model.path == "demo" else str(config.path(model.path)),
            n_ctx=model.n_ctx,
            n_parallel=model.n_parallel,
            n_threads=model.n_threads,
            flash_attention=model.flash_attention,
            speculation=model.speculation,
            kv_ram_bytes=parse_bytes(model.kv_ram),
            kv_disk_bytes=parse_bytes(model.kv_disk),
            kv_dir=str(config.path(model.kv_dir) / name),
            tuned_dir=str(config.path("data/tuned")),
            max_waiting=model.max_waiting,
            max_waiting_per_owner=model.max_waiting_per_person,
            rpc=model.rpc,
            fake=dict(model.fake),
            **sizes(model, is_scripted=model.backend == "fake"),
        )
    return OpenAISettings(
        name=name,
        base_url=model.base_url,
        model=model.model,
        n_ctx=model.n_ctx,
        api_key=model.api_key.get_secret_value(),
        n_parallel=model.n_parallel,
        timeout_s=model.timeout_s,
    )

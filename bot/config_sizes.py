"""How big a local model is run, as `config.toml` has it: what is set, what the plan at the start chooses, what may be given up.

A key that stands in the file with a value of its own is a wish: it is kept unless nothing fits with it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from bot.config_bots import Section
from engine.config import SACRIFICES
from engine.errors import EngineConfigError
from engine.vram.devices import GIB, LARGEST_GIB, parse_size, plain_size

# The least and the most that n_ctx, and n_batch and n_ubatch, may be.
CTX_TOKENS: Final = (256, 131_072)
STEP_TOKENS: Final = (32, 8192)
# The key in the file → the field of the engine's settings.
_FIELDS: Final = {
    "n_ctx": "n_ctx",
    "n_parallel": "n_parallel",
    "kv_tokens": "kv_cells",
    "cache_type_k": "cache_type_k",
    "cache_type_v": "cache_type_v",
    "kv_ram": "kv_ram_bytes",
    "n_gpu_layers": "n_gpu_layers",
    "n_cpu_moe": "n_cpu_moe",
    "kv_on_card": "kv_on_card",
    "n_batch": "n_batch",
    "n_ubatch": "n_ubatch",
    "n_threads": "n_threads",
    "flash_attention": "flash_attention",
    "use_mlock": "use_mlock",
}
_DEFAULT_UBATCH: Final = 512


class SizesConfig(Section):
    """The part of [models.*] that says how big a local model is run."""

    n_ctx: int = Field(4096, ge=CTX_TOKENS[0], le=CTX_TOKENS[1])
    n_parallel: int = Field(4, ge=1, le=64)
    kv_tokens: int | Literal["auto"] = "auto"
    vram: str | int | float = "auto"
    sacrifice: tuple[str, ...] = SACRIFICES
    cache_type_k: Literal["auto", "f16", "q8_0", "q4_0"] = "auto"
    cache_type_v: Literal["auto", "f16", "q8_0", "q4_0"] = "auto"
    n_gpu_layers: Annotated[int, Field(ge=-1)] | Literal["auto"] = "auto"
    n_cpu_moe: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    kv_on_card: bool | Literal["auto"] = "auto"
    n_batch: int = Field(512, ge=STEP_TOKENS[0], le=STEP_TOKENS[1])
    n_ubatch: Annotated[int, Field(ge=STEP_TOKENS[0], le=STEP_TOKENS[1])] | Literal["auto"] = "auto"
    use_mmap: bool = True
    use_mlock: bool | Literal["auto"] = "auto"

    @field_validator("vram")
    @classmethod
    def _vram(cls, value: str | float) -> str | float:
        vram_bytes(value)
        return value

    @field_validator("sacrifice")
    @classmethod
    def _sacrifice(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for number, name in enumerate(value):
            if name not in SACRIFICES:
                raise ValueError(
                    f'"{name}" cannot be given up; write some of {", ".join(SACRIFICES)}'
                )
            if name in value[:number]:
                raise ValueError(f'"{name}" stands in it twice')
        return value


def vram_bytes(value: str | float) -> int | None:
    """How much of the card may be used: 0 = what is free ("auto"), None = no plan is made ("off"). A plain number is GiB up to
    1024, and bytes from 1 MiB on. Raises ValueError."""
    if value == "auto":
        return 0
    if value == "off":
        return None
    if isinstance(value, str):
        try:
            return parse_size(value, "vram")
        except EngineConfigError:
            raise ValueError(f'"{value}" is not "auto", "off" or a size like "12GiB"') from None
    if value < LARGEST_GIB * GIB and (n_bytes := plain_size(value)):
        return int(n_bytes)
    raise ValueError(f'{value} is neither GiB (up to 1024) nor bytes; write for example "12GiB"')


def sizes(model: SizesConfig, *, is_scripted: bool) -> dict[str, Any]:
    """The fields of the engine's settings that follow, those aside that are the same in both. `is_scripted`: there is no model."""
    limit = vram_bytes(model.vram)
    asked = [
        field
        for key, field in _FIELDS.items()
        if key in model.model_fields_set and _is_set(key, getattr(model, key))
    ]
    n_ubatch = _DEFAULT_UBATCH if model.n_ubatch == "auto" else model.n_ubatch
    return {
        "kv_cells": _or(model.kv_tokens, 0),
        "n_batch": model.n_batch,
        "n_ubatch": min(model.n_batch, n_ubatch),
        "n_gpu_layers": _or(model.n_gpu_layers, -1),
        "n_cpu_moe": _or(model.n_cpu_moe, 0),
        "kv_on_card": _or(model.kv_on_card, True),
        "cache_type_k": _or(model.cache_type_k, "q8_0"),
        "cache_type_v": _or(model.cache_type_v, "q8_0"),
        "use_mmap": model.use_mmap,
        "use_mlock": _or(model.use_mlock, False),
        "is_fitted": limit is not None and not is_scripted,
        "vram_bytes": limit or 0,
        "asked": tuple(asked),
        "sacrifice": model.sacrifice,
    }


def _or(value: Any, default: Any) -> Any:
    return default if value == "auto" else value


def _is_set(key: str, value: Any) -> bool:
    """Whether a value is a wish: "auto" is none, nor are 0 threads."""
    return value != "auto" and (key != "n_threads" or value != 0)

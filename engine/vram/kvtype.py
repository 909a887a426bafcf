"""Which type of KV cache suits the place where a model runs, as long as nobody has asked for one."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace as with_fields

from engine.config import EngineConfig
from engine.vram.chooser import Choice, choose
from engine.vram.devices import Device
from engine.vram.ledger import Model
from engine.vram.settings import context_settings

# What a cache of f16 may take of a machine's memory.
_PART: Final = 8


def suited(
    config: EngineConfig, model: Model, devices: tuple[Device, Device | None], total_bytes: int
) -> EngineConfig:
    """f16 where everything lies in RAM, that takes little of it, and nothing has to be given up for it; else as it stands
    (q8_0, which a card reads as fast). `devices`: the RAM, and the card if there is one. For settings that are fitted at a start.

    A CPU unpacks q8_0 for every token that looks at it: behind 2,900 tokens the demo model makes 60 % more rounds with f16
    (`hearth tune demo`). `total_bytes` is what the machine has, not what is free now: what a start keeps on disk should be
    of use to the next one. Only where RAM is short at a start it is q8_0 all the same, rather than fewer people at once.
    """
    memory, card = devices
    if card or {"cache_type_k", "cache_type_v"} & set(config.asked):
        return config
    wider = with_fields(config, cache_type_k="f16", cache_type_v="f16")
    settings = context_settings(wider, model.shape.n_ctx_train)
    cells = model.shape.cell_bytes(settings.type_k, settings.type_v, pads_v=False)
    if sum(cells) * settings.n_cells > total_bytes // _PART:
        return config
    found = choose(model, wider, memory, None, wider.sacrifice)
    return wider if isinstance(found, Choice) and not found.given_up else config

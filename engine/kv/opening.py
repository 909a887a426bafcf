"""The KV tiers that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.backends.base import Backend
from engine.config import EngineConfig
from engine.kv.blocks import BLOCK_TOKENS
from engine.kv.disk import clear_disk, open_disk
from engine.kv.tiers import KvTiers


def open_tiers(
    config: EngineConfig, backend: Backend, on_loaded: Callable[[], None] = lambda: None
) -> KvTiers | None:
    """None when neither RAM nor disk may be used. `on_loaded` is called from another thread when a read has ended.

    Stored bytes are of use to the same model file, cache types and build only: those name the folder.
    """
    disk = None
    if config.kv_disk_bytes > 0 and config.kv_dir:
        state_format = f"{backend.info().fingerprint}|{backend.state_format()}"
        disk = open_disk(Path(config.kv_dir), config.kv_disk_bytes, state_format)
    elif config.kv_dir:
        clear_disk(Path(config.kv_dir))
    if disk is None and config.kv_ram_bytes <= 0:
        return None
    # A sliding window does not write what its last position no longer sees.
    block_tokens = min(BLOCK_TOKENS, backend.n_swa or BLOCK_TOKENS)
    return KvTiers(
        ram_bytes=config.kv_ram_bytes, disk=disk, block_tokens=block_tokens, on_loaded=on_loaded
    )

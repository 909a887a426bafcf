"""The database: owned by this process, written by one task.

`Store` is the whole public face and implements `bot.domain.ports.Store`. Nothing outside this package may import
sqlalchemy or see a row; nothing in it may know platforms, prompts or the engine.
"""

from __future__ import annotations

from bot.store.store import Store

__all__ = ["Store"]

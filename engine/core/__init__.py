"""The engine's loop and its parts: what is accepted, who is served next, what is decoded, what is told. One thread, no I/O."""

from engine.core.core import Core

__all__ = ["Core"]

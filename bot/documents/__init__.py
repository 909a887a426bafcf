"""Turning files that people send into text, in a child process with limits: `extract` is the way in."""

from bot.documents.extraction import Extracted, extract

__all__ = ["Extracted", "extract"]

"""One thing that was seen and what to do about it: what the doctor's checks and the platforms' check-ups say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: nothing to do, it works and something should be done, it cannot work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `what` is seen, at `where` (a key, a file, a device; may be ""; of a check-up a key of its bot's table); `cure` is the
    next thing to do.

    An `ok` needs no cure. Texts hold no secret and no line break.
    """

    level: Level
    what: str
    where: str = ""
    cure: str = ""


def ok(what: str, where: str = "") -> Finding:
    """Nothing to do."""
    return Finding(Level.OK, what, where)


def warning(what: str, where: str, cure: str) -> Finding:
    """It works, and something should be done."""
    return Finding(Level.WARNING, what, where, cure)


def error(what: str, where: str, cure: str) -> Finding:
    """It cannot work."""
    return Finding(Level.ERROR, what, where, cure)

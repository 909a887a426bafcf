"""What the engines of one program mean to take of this machine's memory and have not taken yet.

Two models that start together both see the same free memory; and weights that are mapped from a file count as free even when they
are in use. So each plan is made with what the others have planned taken away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple


class Held(NamedTuple):
    """Bytes of RAM and of the card."""

    ram: int = 0
    card: int = 0


NOTHING_HELD: Final = Held()


class Claims:
    """Owner: whoever starts the engines; to be used on one event loop. `turn` is held while a plan is made: one at a time."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._holders: dict[str, Callable[[], Held]] = {}

    def put(self, name: str, holder: Callable[[], Held]) -> None:
        """Ask this engine from now on what it still means to take."""
        self._holders[name] = holder

    def drop(self, name: str) -> None:
        """The engine has ended."""
        self._holders.pop(name, None)

    def of_others(self, name: str) -> Held:
        """What all engines but this one still mean to take."""
        others = [holder() for key, holder in self._holders.items() if key != name]
        return Held(sum(held.ram for held in others), sum(held.card for held in others))

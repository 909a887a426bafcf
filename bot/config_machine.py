"""`[watch]`: what must stay free on this machine, and whether engines give memory back when it does not."""

from __future__ import annotations

from pydantic import Field, field_validator

from bot.config_bots import Section
from engine.errors import EngineConfigError
from engine.machine.margins import Margins
from engine.vram.devices import parse_size


class WatchConfig(Section):
    """[watch]. Margins are sizes; "auto" = a twentieth of the memory, at most 1 GiB of RAM and 512 MiB of a card."""

    every_s: float = Field(5.0, ge=1, le=300)
    ram_margin: str = "auto"
    vram_margin: str = "auto"
    swap: str = "64MiB"
    hold_s: float = Field(30.0, ge=5, le=3600)
    give_back: bool = True

    @field_validator("ram_margin", "vram_margin")
    @classmethod
    def _margin(cls, value: str) -> str:
        if value != "auto":
            _size(value)
        return value

    @field_validator("swap")
    @classmethod
    def _swap(cls, value: str) -> str:
        _size(value)
        return value

    @property
    def margins(self) -> Margins:
        """As the engine wants them."""
        return Margins(
            ram=0 if self.ram_margin == "auto" else _size(self.ram_margin),
            vram=0 if self.vram_margin == "auto" else _size(self.vram_margin),
            swap=_size(self.swap),
            hold_s=self.hold_s,
            gives_back=self.give_back,
        )


def _size(text: str) -> int:
    try:
        return parse_size(text, "the size")
    except EngineConfigError as error:
        raise ValueError(str(error)) from None

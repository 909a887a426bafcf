"""Chooses settings that fit, in a fixed order of sacrifice; says why, and what was given up. Pure.

What is given up last is settled first: the longest window that fits with everything else at its least, then the next, and in
the end what is given up first gets back whatever room is left. So nothing is given up while something cheaper would do, and more
memory never gives less. What a person asked for is given up after everything that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from msgspec.structs import replace as with_fields

from engine.config import SACRIFICES, EngineConfig
from engine.vram.devices import Device
from engine.vram.ladders import LAYERS_NAME, Ladder, ladders, settings_at
from engine.vram.ledger import Ledger, Model, make_ledger
from engine.vram.pace import seconds_per_token
from engine.vram.settings import context_settings
from engine.vram.spots import IN_RAM, Spot, all_spots, as_asked, placements
from engine.vram.whatif import Knob, knobs

__all__ = ["Choice", "Knob", "NothingFits", "choose", "given_up", "placements"]

# A window that is offered rather than taken may be this short.
_LEAST_OFFERED_CTX: Final = 512
_SHOWN: Final = {
    "n_ubatch": "n_ubatch",
    "kv_ram_bytes": "kv_ram",
    "n_parallel": "n_parallel",
    "kv_cells": "kv_tokens",
    "cache_type_k": "cache_type_k",
    "cache_type_v": "cache_type_v",
    "n_ctx": "n_ctx",
    "n_gpu_layers": "n_gpu_layers",
    "n_cpu_moe": "n_cpu_moe",
    "kv_on_card": "kv_on_card",
}
_PLACES: Final = frozenset({"n_gpu_layers", "n_cpu_moe", "kv_on_card"})


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings that fit, and why these. Bytes and tokens per second as in `Ledger`. `given_up`: sizes that are smaller than in
    the settings that were asked about, each as "n_ctx 4096 → 2048".
    """

    config: EngineConfig
    ledger: Ledger
    why: str
    knobs: tuple[Knob, ...]
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NothingFits:
    """No placement fits. `ledger` is the one that came nearest, `nearest` settings that would fit, smallest change first."""

    ledger: Ledger
    why: str
    nearest: tuple[tuple[str, Choice], ...]


def choose(
    model: Model,
    config: EngineConfig,
    ram: Device,
    card: Device | None,
    sacrifice: Sequence[str] = (LAYERS_NAME,),
) -> Choice | NothingFits:
    """The best settings that fit, when only these sacrifices may be made; or those nearest to what was asked that would fit."""
    search = _Search(model, config, ram, card, tuple(sacrifice))
    found = search.best()
    if found is None:
        return _refusal(search)
    chosen, ledger = found
    changes = tuple(given_up(config, chosen, search.most_layers))
    return Choice(chosen, ledger, _why(model, ledger), knobs(model, chosen, ledger), changes)


def given_up(wish: EngineConfig, chosen: EngineConfig, most_layers: int) -> Iterator[str]:
    """Each size that is not as wished, with a word where a person had asked for it. Where the model lies is told only then, and
    only where there is a card: `most_layers` can be on it, 0 = there is none."""
    for field, name in _SHOWN.items():
        before, after = getattr(wish, field), getattr(chosen, field)
        asked = field in wish.asked
        if field in _PLACES and not (asked and most_layers):
            continue
        if field == "n_gpu_layers" and not 0 <= before <= most_layers:
            before = most_layers
        if before == after:
            continue
        if field == "kv_cells" and not before:
            before = wish.n_parallel * wish.n_ctx
        if field == "kv_ram_bytes":
            before, after = _gib(before), _gib(after)
        yield f"{name} {before} → {after}" + (" (although it is set)" if asked else "")


@dataclass(frozen=True)
class _Search:
    """One model and its machine. Levels count from 0, what was asked for, downwards."""

    model: Model
    config: EngineConfig
    ram: Device
    card: Device | None
    sacrifice: tuple[str, ...]
    least_ctx: int = 1024

    @property
    def most_layers(self) -> int:
        """Layers that the card can have, the output counted as one; 0 = there is no card."""
        return self.model.n_layer + 1 if self.card else 0

    @cached_property
    def rungs(self) -> list[Ladder]:
        """What can be given up, in this order; layers aside."""
        shape = self.model.shape
        heads = shape.head_k, shape.head_v
        return ladders(self.config, self.sacrifice, shape.n_ctx_train, self.least_ctx, heads)

    @cached_property
    def wished(self) -> list[Spot]:
        """Where the model may lie as long as what was asked for is kept."""
        if self.card is None:
            return [IN_RAM]
        return as_asked(self.model, self.config, moves=LAYERS_NAME in self.sacrifice)

    @cached_property
    def any_spots(self) -> list[Spot]:
        """Where it may lie at all."""
        if self.card is None or LAYERS_NAME not in self.sacrifice:
            return self.wished
        return all_spots(self.model, self.config)

    def best(self) -> tuple[EngineConfig, Ledger] | None:
        """Settings and their account, or None when nothing fits."""
        levels = {rung.key: 0 for rung in self.rungs}
        if (whole := self._fit(levels, self.wished[:1])) is not None:
            return self._placed(levels, whole)
        levels = {rung.key: len(rung.steps) - 1 for rung in self.rungs}
        if self._fit(levels, self.any_spots) is None:
            return None
        spots = self.any_spots
        for turn in reversed(self._order()):
            if isinstance(turn, Ladder):
                self._raise(turn, levels, spots)
            elif turn == "asked" and self._fit(levels, self.wished) is not None:
                spots = self.wished
            elif turn == "spot":
                spots = [self._spot(levels, spots)]
        found = self._fit(levels, spots)
        return None if found is None else self._placed(levels, found)

    def _order(self) -> list[Ladder | str]:
        """Everything that is settled in turn, what goes first first: the ladders; "spot", where the model lies; "asked", whether
        it lies where a person wants it."""
        before = self.sacrifice.index(LAYERS_NAME) if LAYERS_NAME in self.sacrifice else 0
        names = self.sacrifice[:before]
        free = [rung for rung in self.rungs if not rung.is_asked]
        asked = [rung for rung in self.rungs if rung.is_asked]

        def with_mark(rungs: list[Ladder], mark: str) -> list[Ladder | str]:
            first: list[Ladder | str] = [rung for rung in rungs if rung.name in names]
            return [*first, mark, *(rung for rung in rungs if rung.name not in names)]

        return [*with_mark(free, "spot"), *with_mark(asked, "asked")]

    def _raise(self, rung: Ladder, levels: dict[str, int], spots: list[Spot]) -> None:
        """As high as there is room with what goes earlier at its least."""
        for level in range(len(rung.steps)):
            if self._fit(levels | {rung.key: level}, spots) is not None:
                levels[rung.key] = level
                return

    def _spot(self, levels: dict[str, int], spots: list[Spot]) -> Spot:
        """The first that fits; or with the cache in RAM, where that is faster than layers there."""
        found = [
            self._fit(levels, [s for s in spots if s.kv_on_card is kept]) for kept in (True, False)
        ]
        fitting = [one for one in found if one is not None]
        n_parallel = settings_at(self.config, self.rungs, levels).n_parallel

        def pace(one: tuple[Spot, Ledger]) -> float:
            return seconds_per_token(self.model, one[1], n_parallel)

        return min(fitting, key=pace)[0] if fitting else spots[0]

    def _fit(self, levels: dict[str, int], spots: Sequence[Spot]) -> tuple[Spot, Ledger] | None:
        """The first of the spots where the settings at these levels fit."""
        accounts = zip(spots, self.ledgers(levels, spots), strict=True)
        return next((found for found in accounts if found[1].fits), None)

    def ledgers(self, levels: dict[str, int], spots: Sequence[Spot]) -> Iterator[Ledger]:
        """The accounts of the settings at these levels, one for each spot."""
        config = settings_at(self.config, self.rungs, levels)
        settings = context_settings(config, self.model.shape.n_ctx_train)
        for spot in spots:
            yield make_ledger(
                self.model,
                replace(settings, kv_on_card=spot.kv_on_card),
                spot.placement,
                self.ram,
                self.card,
                idle_bytes=config.kv_ram_bytes,
            )

    def _placed(
        self, levels: dict[str, int], found: tuple[Spot, Ledger]
    ) -> tuple[EngineConfig, Ledger]:
        spot, ledger = found
        return spot.applied(settings_at(self.config, self.rungs, levels)), ledger


def _refusal(search: _Search) -> NothingFits:
    """What came nearest as it was asked for, and settings that would fit."""
    worst = {rung.key: len(rung.steps) - 1 for rung in search.rungs}
    ledger = min(search.ledgers(worst, search.any_spots), key=_over)
    short = max(ledger.devices, key=lambda account: -account.spare)
    least = settings_at(search.config, search.rungs, worst)
    changes = ", ".join(given_up(with_fields(search.config, asked=()), least, 0))
    why = (
        f"even {f'with {changes} ' if changes else ''}the smallest placement takes {_gib(short.used)} of "
        f"{short.device.name}, which has {_gib(short.device.capacity)}"
    )
    return NothingFits(ledger, why, tuple(_nearest(search)))


def _over(ledger: Ledger) -> tuple[int, int]:
    """How far a ledger is from fitting: the card first, as RAM is easier to come by."""
    on_card = max(0, -ledger.card.spare) if ledger.card else 0
    return on_card, max(0, -ledger.ram.spare)


def _nearest(search: _Search) -> Iterator[tuple[str, Choice]]:
    """Each setting given up alone; if none is enough, all of them in the order of sacrifice."""
    config = with_fields(search.config, asked=())
    alone = False
    for names in (*((LAYERS_NAME, name) for name in SACRIFICES), SACRIFICES):
        if names == SACRIFICES and alone:
            return
        other = _Search(search.model, config, search.ram, search.card, names, _LEAST_OFFERED_CTX)
        found = other.best()
        if found is not None:
            alone = True
            chosen, ledger = found
            changes = tuple(given_up(config, chosen, 0))
            what = ", ".join(changes) or f"n_gpu_layers {chosen.n_gpu_layers}"
            yield what, Choice(chosen, ledger, "", (), changes)


def _why(model: Model, ledger: Ledger) -> str:
    """Which limit decided."""
    if ledger.card is None:
        return f"no card: everything in RAM, {_gib(ledger.ram.spare)} of it stay free"
    placement, spare = ledger.placement, _gib(ledger.card.spare)
    if not ledger.settings.kv_on_card:
        return f"memory of the card binds: the KV cache is in RAM; {spare} of the card stay free"
    if placement.n_gpu_layers > model.n_layer and not placement.n_cpu_moe:
        return f"everything fits on the card; {spare} stay free"
    step = "the experts of one more layer" if placement.n_cpu_moe and (
        placement.n_gpu_layers > model.n_layer
    ) else "one more layer"  # fmt: skip
    return f"memory of the card binds: {step} would need more than the {spare} that stay free"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"

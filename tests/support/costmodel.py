"""How long settings would take on a recorded machine: a model of time, and a search over every setting that fits.

The planner chooses by rules; this is what the rules are judged by. Times are of one round: everybody asks at the same moment,
128 new prompt tokens each, and gets 128 tokens, behind half a window of earlier turns (8192 tokens at most). A part of a model takes as long as its
bytes need from their memory or its arithmetic from their processor, whichever is more; parts follow one another.

Machines are recorded by their makers' figures, times what programs get of them (0.75 of a bandwidth, 0.4 of the arithmetic for
matrix products and a half or a quarter of that for attention; PCIe and network as measured by their users). None of them was at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.vram.devices import GIB, PROFILES, Device
from engine.vram.ledger import (
    EMBEDDING,
    EXPERTS,
    OUTPUT,
    Ledger,
    Model,
    Placement,
    is_on_card,
    make_ledger,
)
from engine.vram.pace import filled
from engine.vram.runs import TURN_PROMPT, TURN_REPLY
from engine.vram.settings import context_settings

_BANDWIDTH_SHARE: Final = 0.75
_ARITHMETIC_SHARE: Final = 0.4
# Of card and CPU. The CPU's was measured (one core of 2.6 GHz, SmolLM2, a q8_0 cache, 1,024 tokens: 8.3 of 83 GFLOP per second).
_ATTENTION_SHARE: Final = (0.2, 0.1)
# ggml-cuda copies weights that lie in RAM to the card for batches of so many tokens or more (op offload).
_OFFLOAD_FROM: Final = 32
# By identity: a model holds dictionaries. Keeps the models, so that no identity is used twice.
_VALUES: Final[dict[int, tuple[Model, float]]] = {}
UBATCHES: Final = (512, 256, 128, 64)


@dataclass(frozen=True, slots=True)
class Machine:
    """A recorded machine. FLOP per second of card and CPU; the link between them in bytes per second and seconds per message;
    `copies_weights`: the card computes large batches of what lies in RAM; seconds per layer are what starting its work costs."""

    name: str
    card: Device | None
    ram: Device
    card_flops: float
    cpu_flops: float
    link: float
    message_s: float
    copies_weights: bool = True
    card_layer_s: float = 40e-6
    cpu_layer_s: float = 15e-6


def _ram(gib: int, bandwidth: float) -> Device:
    return Device("RAM", "cpu", gib * GIB, bandwidth, True)


MACHINES: Final = (
    Machine("12 GB laptop card", PROFILES["12GiB laptop"], _ram(32, 76.8e9), 97e12, 1.4e12, 12e9, 15e-6),
    Machine("8 GB card with shared memory", PROFILES["8GiB laptop"], _ram(32, 76.8e9), 60e12, 1.2e12, 12e9, 15e-6),
    Machine("24 GB card", PROFILES["24GiB desktop"], _ram(64, 51.2e9), 71e12, 1.0e12, 24e9, 10e-6),
    Machine(
        "two boxes", Device("RPC0 (24 GB card in another box)", "gpu", 24 * GIB, 936e9, True), _ram(16, 76.8e9),
        71e12, 1.2e12, 0.28e9, 300e-6, copies_weights=False,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """Settings that fit, and the seconds of a round with them."""

    config: EngineConfig
    ledger: Ledger
    seconds: float

    @property
    def name(self) -> str:
        """Short, for a table."""
        c = self.config
        kv = "" if c.kv_on_card else ", KV in RAM"
        return f"{c.n_gpu_layers} layers, {c.n_cpu_moe} experts in RAM, ubatch {c.n_ubatch}{kv}"


def round_seconds(model: Model, config: EngineConfig, machine: Machine) -> float:
    """Seconds of one round with these settings, whether or not they fit."""
    return _Step(model, config, machine).round(config.n_ubatch)


class _Step:
    """One decode with given settings. Everything that does not depend on the number of tokens is added up once."""

    def __init__(self, model: Model, config: EngineConfig, machine: Machine) -> None:
        self._model, self._machine, self._n_parallel = model, machine, config.n_parallel
        shape = model.shape
        placement = Placement(config.n_gpu_layers, config.n_cpu_moe)
        has_card = machine.card is not None
        self._dense = [0.0, 0.0]  # bytes on the card, in RAM
        self._experts = [0.0, 0.0]
        n_output = 0
        for part in model.parts:
            side = 0 if has_card and is_on_card(part, placement, model.n_layer) else 1
            if part.purpose == EXPERTS:
                self._experts[side] += part.n_bytes
            elif part.purpose != EMBEDDING:
                self._dense[side] += part.n_bytes
                n_output += part.n_bytes if part.purpose == OUTPUT else 0
        if n_output < shape.n_vocab * shape.n_embd // 4:  # the embedding serves as the output
            tied = sum(p.n_bytes for p in model.parts if p.purpose == EMBEDDING)
            self._dense[0 if has_card and config.n_gpu_layers else 1] += tied
        settings = context_settings(config, shape.n_ctx_train)
        depth = filled(settings.window)
        first = model.n_layer + 1 - config.n_gpu_layers if has_card else model.n_layer
        self._kv = [0.0, 0.0]  # bytes of one conversation
        self._attention = [0.0, 0.0]  # FLOP of one token
        for layer, per_cell in enumerate(shape.cell_bytes(settings.type_k, settings.type_v)):
            side = 0 if has_card and config.kv_on_card and layer >= first else 1
            n_seen = shape.seen(layer, depth)  # flash attention passes over what a window hides
            self._kv[side] += per_cell * n_seen + shape.state_bytes()[layer]
            if per_cell:
                self._attention[side] += 2 * n_seen * shape.n_head * (shape.head_k + shape.head_v)
        on_card = max(0, model.n_layer - max(0, first)) if has_card else 0
        self._layers = [on_card, model.n_layer - on_card]
        self._crossings = self._count_crossings(config, on_card, max(0, first))
        self._values_per_byte = _values_per_byte(model)

    def _count_crossings(self, config: EngineConfig, on_card: int, first: int) -> int:
        """Messages between card and CPU for one step."""
        if not on_card and not config.n_gpu_layers:
            return 0
        apart = {layer for layer in self._model.expert_layers if first <= layer < config.n_cpu_moe}
        if not config.kv_on_card:
            apart |= set(range(first, self._model.n_layer))
        return 2 + 2 * len(apart)

    def round(self, n_ubatch: int) -> float:
        """Everybody's question in steps of so many tokens, then everybody's answer together."""
        full, rest = divmod(self._n_parallel * TURN_PROMPT, n_ubatch)
        prompt = full * self.seconds(n_ubatch, n_rows=-(-n_ubatch // TURN_PROMPT))
        if rest:
            prompt += self.seconds(rest, n_rows=-(-rest // TURN_PROMPT))
        return prompt + TURN_REPLY * self.seconds(self._n_parallel, n_rows=self._n_parallel)

    def seconds(self, n_tokens: int, *, n_rows: int) -> float:
        """A decode of `n_tokens` tokens of `n_rows` conversations."""
        shape, machine = self._model.shape, self._machine
        active = shape.n_expert_used / shape.n_expert if shape.n_expert else 0.0
        touched = 1 - (1 - active) ** n_tokens  # experts that somebody's token needs
        copies = machine.copies_weights and n_tokens >= _OFFLOAD_FROM and machine.card is not None
        total = 0.0
        for side in (0, 1):
            read = self._dense[side] + touched * self._experts[side]
            values = (self._dense[side] + active * self._experts[side]) * self._values_per_byte
            flop = 2 * values * n_tokens
            if side == 1 and copies:
                total += read / machine.link + flop / (machine.card_flops * _ARITHMETIC_SHARE)
                read = flop = 0.0
            total += max(read / self._bandwidth(side), flop / self._flops(side))
            attention = (
                n_tokens * self._attention[side] * _ARITHMETIC_SHARE / _ATTENTION_SHARE[side]
            )
            total += max(
                n_rows * self._kv[side] / self._bandwidth(side), attention / self._flops(side)
            )
            total += self._layers[side] * (machine.cpu_layer_s if side else machine.card_layer_s)
        n_bytes = 4 * shape.n_embd * n_tokens
        return total + self._crossings * (machine.message_s + n_bytes / machine.link)

    def _bandwidth(self, side: int) -> float:
        device = self._machine.ram if side or self._machine.card is None else self._machine.card
        return device.bandwidth * _BANDWIDTH_SHARE

    def _flops(self, side: int) -> float:
        return (self._machine.cpu_flops if side else self._machine.card_flops) * _ARITHMETIC_SHARE


def _values_per_byte(model: Model) -> float:
    known = _VALUES.get(id(model))
    if known is None:
        n_values = sum(math.prod(tensor.shape) for tensor in model.head.tensors)
        known = model, n_values / model.head.weight_bytes
        _VALUES[id(model)] = known
    return known[1]


def all_placements(model: Model, config: EngineConfig, step: int = 1) -> Iterator[EngineConfig]:
    """Every placement; experts of layers that are in RAM anyway are not counted twice. `step` > 1 leaves out numbers of layers
    and experts, never the ends."""
    n_layers = model.n_layer + 1
    n_moe = model.expert_layers[-1] + 1 if model.expert_layers else 0
    for n in sorted({*range(0, n_layers, step), n_layers}, reverse=True):
        for moe in sorted({*range(0, n_moe, step), n_moe}):
            if moe and moe <= n_layers - n:
                continue
            for kv_on_card in (True, False):
                yield replace(config, n_gpu_layers=n, n_cpu_moe=moe, kv_on_card=kv_on_card)


def measured(model: Model, config: EngineConfig, machine: Machine) -> Found | None:
    """Settings with their time; None when they do not fit."""
    ledger = make_ledger(
        model,
        context_settings(config, model.shape.n_ctx_train),
        Placement(config.n_gpu_layers, config.n_cpu_moe),
        machine.ram,
        machine.card,
        idle_bytes=config.kv_ram_bytes,
    )
    return Found(config, ledger, round_seconds(model, config, machine)) if ledger.fits else None


def exhaustive(
    model: Model, config: EngineConfig, machine: Machine, *, step: int = 1
) -> Found | None:
    """The fastest of all settings that fit; None when none does."""
    best: Found | None = None
    for placed in all_placements(model, config, step):
        pace = _Step(model, placed, machine)
        for seconds, n_ubatch in sorted((pace.round(n), n) for n in UBATCHES):
            if best is not None and seconds >= best.seconds:
                break
            found = measured(model, replace(placed, n_ubatch=n_ubatch), machine)
            if found is not None:
                best = found
                break
    return best

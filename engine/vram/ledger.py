"""Where every byte of a model and its settings goes: by device and by purpose, with the bound on its speed. Pure.

Placement follows llama.cpp: the first layers stay in RAM, the last `n_gpu_layers` − 1 and then the output go to the card;
the token embedding is always in RAM; a tied output is a second copy where the output lies elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from engine.vram.compute import (
    batch_tokens,
    compute_bytes,
    crossing_bytes,
    host_compute_bytes,
    output_bytes,
)
from engine.vram.devices import Device
from engine.vram.gguf import ModelHead, TensorInfo
from engine.vram.settings import ContextSettings
from engine.vram.shapes import Shape

_MIB: Final = 2**20
# What a driver and its context take on a card beside llama.cpp's buffers, and what peaks add to them (long prompts,
# workspaces of matrix libraries). Practitioners report 0.5–1 GB together (VRAM.md); there is no card here to measure on.
CARD_CONTEXT: Final = 400 * _MIB
CARD_RESERVE: Final = 512 * _MIB
# What a process takes in RAM beside the buffers: measured with the demo model (tests/integration/engine/test_vram_peak.py).
_PROCESS: Final = 12 * _MIB
_PER_VOCABULARY_ENTRY: Final = 250
_PER_GRAPH_NODE: Final = 1024
_LAYER = re.compile(r"blk\.(\d{1,4})\.")
_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch|)exps")

EMBEDDING, OUTPUT, LAYERS, EXPERTS, SHARED = (
    "embedding",
    "output",
    "layers",
    "experts",
    "shared experts",
)
KV, STATE, COMPUTE, LOGITS = "KV cache", "recurrent state", "compute buffer", "logits"
OVERHEAD, RESERVE = "context and driver", "reserve for peaks"
PROCESS, IDLE = "process", "idle conversations"
WEIGHTS: Final = (EMBEDDING, OUTPUT, LAYERS, EXPERTS, SHARED)


@dataclass(frozen=True, slots=True)
class Placement:
    """`n_gpu_layers` counts the output as one more layer; `n_cpu_moe`: the first so many layers keep their experts in RAM."""

    n_gpu_layers: int = 0
    n_cpu_moe: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Weights of one purpose in one layer (−1: none). `active_bytes` of them are read for one token."""

    purpose: str
    layer: int
    n_bytes: int
    active_bytes: int
    largest: int


@dataclass(frozen=True)
class Model:
    """A model ready for planning: made once, used for every placement."""

    head: ModelHead
    shape: Shape
    parts: tuple[Part, ...]

    @cached_property
    def n_layer(self) -> int:
        """Layers by the tensors' names: those that llama.cpp counts, prediction layers included."""
        return max((part.layer for part in self.parts), default=-1) + 1

    @cached_property
    def expert_layers(self) -> tuple[int, ...]:
        """The layers that have routed experts."""
        return tuple(sorted({part.layer for part in self.parts if part.purpose == EXPERTS}))

    @cached_property
    def active_bytes(self) -> int:
        """Weights read for one token, wherever they are."""
        return sum(part.active_bytes for part in self.parts)


def model_of(head: ModelHead, shape: Shape) -> Model:
    """Sorts the tensors by purpose and layer."""
    sums: dict[tuple[str, int], list[int]] = {}
    for tensor in head.tensors:
        purpose, layer = _purpose(tensor)
        n_bytes = tensor.n_bytes
        found = sums.setdefault((purpose, layer), [0, 0, 0])
        found[0] += n_bytes
        found[1] += _active(tensor, purpose, shape)
        found[2] = max(found[2], n_bytes)
    parts = [Part(purpose, layer, *sizes) for (purpose, layer), sizes in sums.items()]
    return Model(head, shape, tuple(parts))


def _purpose(tensor: TensorInfo) -> tuple[str, int]:
    match = _LAYER.match(tensor.name)
    if match is None:
        name = tensor.name.split(".")[0]
        return (EMBEDDING if "embd" in name and "norm" not in name else OUTPUT), -1
    layer = int(match.group(1))
    if _EXPERTS.search(tensor.name):
        return EXPERTS, layer
    return (SHARED if "_shexp" in tensor.name else LAYERS), layer


def _active(tensor: TensorInfo, purpose: str, shape: Shape) -> int:
    if purpose == EXPERTS and shape.n_expert:
        return tensor.n_bytes * shape.n_expert_used // shape.n_expert
    if purpose == EMBEDDING:  # one row
        return tensor.n_bytes // max(1, shape.n_vocab)
    return tensor.n_bytes


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """One device's account. `items` are bytes by purpose; `read_bytes` weights, `read_kv_bytes` KV behind a full window, both
    for one token of one reply (`kv_reads`)."""

    device: Device
    items: dict[str, int]
    read_bytes: int
    read_kv_bytes: int

    @property
    def used(self) -> int:
        """Everything that is planned on it."""
        return sum(self.items.values())

    @property
    def spare(self) -> int:
        """What stays free; negative when it does not fit."""
        return self.device.capacity - self.used

    @property
    def weights(self) -> int:
        """Weights on it."""
        return sum(self.items.get(purpose, 0) for purpose in WEIGHTS)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The whole account. `card` is None where there is none. `is_exact`: KV and compute are llama.cpp's own figures."""

    placement: Placement
    settings: ContextSettings
    card: DeviceLedger | None
    ram: DeviceLedger
    is_exact: bool = False

    @property
    def devices(self) -> tuple[DeviceLedger, ...]:
        """All accounts, the card first."""
        return (self.card, self.ram) if self.card else (self.ram,)

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return all(device.spare >= 0 for device in self.devices)

    def bound(self, *, full: bool = False) -> float:
        """Tokens per second that one reply cannot pass, by memory bandwidth; `full`: with its window filled. 0 = unknown."""
        seconds = 0.0
        for account in self.devices:
            n_bytes = account.read_bytes + (account.read_kv_bytes if full else 0)
            if n_bytes and not account.device.bandwidth:
                return 0.0
            seconds += n_bytes / account.device.bandwidth if n_bytes else 0.0
        return 1 / seconds if seconds else 0.0


def is_on_card(part: Part, placement: Placement, n_layer: int) -> bool:
    """Where llama.cpp puts a part."""
    if part.purpose == EMBEDDING:
        return False
    if part.purpose == EXPERTS and part.layer < placement.n_cpu_moe:
        return False
    layer = n_layer if part.layer < 0 else part.layer
    return layer >= n_layer + 1 - placement.n_gpu_layers


def make_ledger(
    model: Model,
    settings: ContextSettings,
    placement: Placement,
    ram: Device,
    card: Device | None = None,
    *,
    idle_bytes: int = 0,
) -> Ledger:
    """The account of one placement by our own arithmetic. Bytes; `idle_bytes` of RAM keep conversations that rest."""
    on_card: Counter[str] = Counter()
    in_ram: Counter[str] = Counter()
    reads = [0, 0]  # card, RAM
    host_largest = 0
    for part in model.parts:
        if card is not None and is_on_card(part, placement, model.n_layer):
            on_card[part.purpose] += part.n_bytes
            reads[0] += part.active_bytes
        else:
            in_ram[part.purpose] += part.n_bytes
            reads[1] += part.active_bytes
            if part.layer >= 0:
                host_largest = max(host_largest, part.largest)
    _tied_output(model, placement, (on_card, in_ram), reads, has_card=card is not None)
    _memory(model, settings, placement, (on_card, in_ram), has_card=card is not None)
    read_kv = kv_reads(model, settings, placement, settings.window, has_card=card is not None)
    _buffers(model, settings, (on_card, in_ram), host_largest, has_card=card is not None)
    in_ram[IDLE] = idle_bytes
    account = None
    if card is not None:
        account = DeviceLedger(card, dict(on_card), reads[0], read_kv[0])
    return Ledger(
        placement, settings, account, DeviceLedger(ram, dict(in_ram), reads[1], read_kv[1])
    )


def _tied_output(
    model: Model,
    placement: Placement,
    sums: tuple[Counter[str], Counter[str]],
    reads: list[int],
    *,
    has_card: bool,
) -> None:
    """An embedding that serves as the output is read whole, and lies on the card once more if the output is there."""
    if any(tensor.name == "output.weight" for tensor in model.head.tensors):
        return
    n_bytes = sum(
        tensor.n_bytes for tensor in model.head.tensors if tensor.name == "token_embd.weight"
    )
    if has_card and placement.n_gpu_layers:
        sums[0][OUTPUT] += n_bytes
        reads[0] += n_bytes
    else:
        reads[1] += n_bytes


def _memory(
    model: Model,
    settings: ContextSettings,
    placement: Placement,
    sums: tuple[Counter[str], Counter[str]],
    *,
    has_card: bool,
) -> None:
    """KV and states where their layers are, or all in RAM."""
    for layer, per_cell, state in _cache_layers(model.shape, settings):
        side = 0 if has_card and is_cache_on_card(model, settings, placement, layer) else 1
        sums[side][KV] += per_cell * settings.n_cells
        sums[side][STATE] += state * settings.n_seq_max


def _cache_layers(shape: Shape, settings: ContextSettings) -> Iterator[tuple[int, int, int]]:
    """Each layer with its bytes per cell and per sequence."""
    pads_v = settings.flash_attention == "off"
    cells = shape.cell_bytes(settings.type_k, settings.type_v, pads_v=pads_v)
    return zip(range(len(cells)), cells, shape.state_bytes(), strict=True)


def is_cache_on_card(
    model: Model, settings: ContextSettings, placement: Placement, layer: int
) -> bool:
    """Where the cache of a layer lies on a machine with a card."""
    return settings.kv_on_card and layer >= model.n_layer + 1 - placement.n_gpu_layers


def kv_reads(
    model: Model, settings: ContextSettings, placement: Placement, depth: int, *, has_card: bool
) -> list[int]:
    """Bytes of keys, values and states that one token behind `depth` others reads: on the card, in RAM. Flash attention passes
    over what a sliding window hides; without it every score is computed."""
    reads = [0, 0]
    for layer, per_cell, state in _cache_layers(model.shape, settings):
        side = 0 if has_card and is_cache_on_card(model, settings, placement, layer) else 1
        n_tokens = depth if settings.flash_attention == "off" else model.shape.seen(layer, depth)
        reads[side] += per_cell * n_tokens + state
    return reads


def _buffers(
    model: Model,
    settings: ContextSettings,
    sums: tuple[Counter[str], Counter[str]],
    host_largest: int,
    *,
    has_card: bool,
) -> None:
    on_card, in_ram = sums
    shape = model.shape
    whole = compute_bytes(shape, settings)
    in_ram[LOGITS] = output_bytes(shape, settings)
    in_ram[PROCESS] = process_bytes(model, settings)
    if not has_card or not any(on_card.values()):
        in_ram[COMPUTE] = whole
        return
    # Large batches are computed on the card even for weights in RAM, which are copied there one tensor at a time.
    on_card[COMPUTE] = whole + host_largest
    if not settings.kv_on_card:
        on_card[COMPUTE] += crossing_bytes(shape, settings)
    in_ram[COMPUTE] = whole
    # Attention beside a cache in RAM takes nothing more there, unless its scores are written out.
    if not in_ram[LAYERS] and (settings.kv_on_card or settings.flash_attention != "off"):
        in_ram[COMPUTE] = host_compute_bytes(shape, settings, has_experts=in_ram[EXPERTS] > 0)
    on_card[OVERHEAD] = CARD_CONTEXT
    on_card[RESERVE] = CARD_RESERVE


def process_bytes(model: Model, settings: ContextSettings) -> int:
    """What the process takes beside llama.cpp's buffers: the vocabulary's tables and the graph's descriptions."""
    n_nodes = 8 * len(model.head.tensors)
    if model.shape.is_delta_net:
        n_nodes = max(40 * batch_tokens(settings), 4 * n_nodes)
    return (
        _PROCESS
        + _PER_VOCABULARY_ENTRY * model.shape.n_vocab
        + _PER_GRAPH_NODE * max(1024, n_nodes)
    )

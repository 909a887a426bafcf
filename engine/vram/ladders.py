"""What can be made smaller so that a model fits, and in which steps. Pure.

A ladder leads from what was asked for down to the least that is of use. Where on the card a model lies is no ladder: see
`engine.vram.spots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.vram.settings import UNQUANTIZED
from engine.vram.shapes import fills_blocks

LAYERS_NAME: Final = "layers"
LEAST_UBATCH: Final = 128
LEAST_CTX: Final = 1024
_LEAST_KV_RAM: Final = 64 * 2**20
# Cells that all conversations share come in such steps (llama.cpp rounds up to them).
_CELL_STEP: Final = 256

Step = Callable[[EngineConfig], EngineConfig]


@dataclass(frozen=True, slots=True)
class Ladder:
    """One thing that can be given up. `name` is its word in `sacrifice`, `key` tells ladders of one name apart, `is_asked`: a person
    set it. The first step changes nothing.
    """

    name: str
    key: str
    is_asked: bool
    steps: tuple[Step, ...]


def ladders(
    config: EngineConfig,
    names: Sequence[str],
    n_ctx_train: int = 0,
    least_ctx: int = LEAST_CTX,
    heads: tuple[int, int] = (0, 0),
) -> list[Ladder]:
    """The ladders of these sacrifices in the order in which they are given up: what nobody asked for goes first.

    `n_ctx_train`: the longest window that the model knows, 0 = not known; `heads`: values of a K and of a V head, as llama.cpp
    takes no cache type whose blocks they do not fill."""
    window = min(config.n_ctx, n_ctx_train or config.n_ctx)
    made = [ladder for name in names for ladder in _of(config, name, window, least_ctx, heads)]
    return sorted(made, key=lambda ladder: ladder.is_asked)


def settings_at(
    config: EngineConfig, rungs: Sequence[Ladder], levels: dict[str, int]
) -> EngineConfig:
    """The settings with each ladder at its level. A window and the number of replies come before the cells that follow from them."""
    for key in ("n_ctx", "n_parallel", "kv_cells", "cache_type", "n_ubatch", "kv_ram"):
        for ladder in rungs:
            if ladder.key == key:
                config = ladder.steps[levels[key]](config)
    return config


def _of(
    config: EngineConfig, name: str, window: int, least_ctx: int, heads: tuple[int, int]
) -> Iterator[Ladder]:
    asked = config.asked
    match name:
        case "n_ubatch":
            steps = tuple(_put("n_ubatch", n) for n in _halves(config.n_ubatch, LEAST_UBATCH))
            yield Ladder(name, "n_ubatch", "n_ubatch" in asked, steps)
        case "kv_ram":
            sizes = _quarters(config.kv_ram_bytes)
            steps = tuple(_put("kv_ram_bytes", n) for n in sizes)
            yield Ladder(name, "kv_ram", "kv_ram_bytes" in asked, steps)
        case "n_parallel":
            yield Ladder(name, "kv_cells", "kv_cells" in asked, _cells(config, window))
            steps = tuple(_put("n_parallel", n) for n in _fewer(config.n_parallel))
            yield Ladder(name, "n_parallel", "n_parallel" in asked, steps)
        case "cache_type":
            is_asked = bool({"cache_type_k", "cache_type_v"} & set(asked))
            yield Ladder(name, "cache_type", is_asked, tuple(_types(config, heads)))
        case "n_ctx":
            lengths = dict.fromkeys((config.n_ctx, *_shorter(window, least_ctx)))
            steps = tuple(_put("n_ctx", n) for n in lengths)
            yield Ladder(name, "n_ctx", "n_ctx" in asked, steps)
        case _:  # layers
            return


def _put(field: str, value: int) -> Step:
    return lambda config: replace(config, **{field: value})


def _halves(value: int, least: int) -> Iterator[int]:
    yield value
    while value // 2 >= least:
        value //= 2
        yield value


def _shorter(window: int, least: int) -> Iterator[int]:
    """Three quarters, a half, three eighths, a quarter and so on."""
    while window >= least:
        for n in (window * 3 // 4, window // 2):
            if n // _CELL_STEP * _CELL_STEP >= least:
                yield n // _CELL_STEP * _CELL_STEP
        window //= 2


def _fewer(n: int) -> Iterator[int]:
    """About three quarters at a time, in the end one."""
    yield n
    while n > 1:
        n = max(1, n * 3 // 4)
        yield n


def _quarters(n_bytes: int) -> Iterator[int]:
    yield n_bytes
    while n_bytes:
        n_bytes = n_bytes // 4 if n_bytes // 4 >= _LEAST_KV_RAM else 0
        yield n_bytes


def _cells(config: EngineConfig, window: int) -> tuple[Step, ...]:
    """Fewer cells for all: half of a window for each reply at once, or an eighth of what was asked; never less than one window."""

    def part(eighths: int) -> Step:
        def step(config: EngineConfig) -> EngineConfig:
            one = min(config.n_ctx, window)
            whole = config.kv_cells or config.n_parallel * one
            cells = -(-whole * eighths // 8 // _CELL_STEP) * _CELL_STEP
            return replace(config, kv_cells=max(cells, min(whole, one)))

        return step

    least = 1 if config.kv_cells else 4
    return (lambda config: config, *(part(eighths) for eighths in range(7, least - 1, -1)))


def _types(config: EngineConfig, heads: tuple[int, int]) -> Iterator[Step]:
    """Both types together; each stays as it is where llama.cpp takes no other one."""

    def put(type_k: str, type_v: str) -> Step:
        return lambda config: replace(config, cache_type_k=type_k, cache_type_v=type_v)

    type_k, type_v = config.cache_type_k, config.cache_type_v
    yield put(type_k, type_v)
    for goal in ("q8_0", "q4_0"):
        before = (type_k, type_v)
        if fills_blocks(goal, heads[0]):
            type_k = _smaller_type(type_k, goal)
        if config.flash_attention != "off" and fills_blocks(goal, heads[1]):
            type_v = _smaller_type(type_v, goal)
        if (type_k, type_v) != before:
            yield put(type_k, type_v)


def _smaller_type(kind: str, goal: str) -> str:
    if goal == "q8_0":
        return goal if kind in UNQUANTIZED else kind
    return goal if kind == "q8_0" else kind

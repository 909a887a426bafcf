"""One step smaller: what is given up, and in which order, when memory runs out. Pure.

The order is that of `EngineConfig.sacrifice`; as it comes: n_ubatch (the compute buffer), then from the graphics card to the CPU
the routed experts of some layers and after them whole layers — or, where the machine's own memory ran out, its share for idle
conversations —, then n_parallel with kv_cells, then the KV type, n_ctx last. Only what can help is touched: a smaller batch is no
cure when the KV cache did not fit, and nothing but experts and layers off the card makes room for weights.

A size that does not fit at the first start is treated like one that runs out later: people would rather have a smaller window
than no answer, and `/status`, `/readyz` and the log say what was given up. Only when the smallest step does not fit either are
the settings at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from engine.config import EngineConfig
from engine.link.obituary import Part, Shortage

MIN_UBATCH: Final = 64
MIN_CTX: Final = 1024
MIN_RAM_BYTES: Final = 64 * 2**20
# More than any model has: what "all layers" is taken for where the file does not say.
_MANY_LAYERS: Final = 128
_UNQUANTIZED: Final = frozenset({"f32", "f16", "bf16"})
_TYPE_LADDER: Final = ("q8_0", "q4_0")
_LONGEST_RETRY_FACTOR: Final = 24


class Depth(NamedTuple):
    """What the model file says of itself; 0 = not known. `n_with_experts`: layers up to the last one that has routed experts."""

    n_layers: int = 0
    n_with_experts: int = 0


_Rung = Callable[[EngineConfig, Depth], EngineConfig | None]
_NAMES: Final = (
    "n_ubatch",
    "n_cpu_moe",
    "n_gpu_layers",
    "kv_ram_bytes",
    "n_parallel",
    "n_sequences",
    "kv_cells",
    "cache_type_k",
    "cache_type_v",
    "n_ctx",
)


def _fewer_in_a_batch(config: EngineConfig, _depth: Depth) -> EngineConfig | None:
    n_ubatch = min(config.n_ubatch, config.n_batch)
    if n_ubatch <= MIN_UBATCH:
        return None
    return msgspec.structs.replace(config, n_ubatch=max(MIN_UBATCH, n_ubatch // 2))


def _fewer_experts_on_the_card(config: EngineConfig, depth: Depth) -> EngineConfig | None:
    """Those of an eighth of the layers at a time: few of them are read for a token, so they cost the least speed."""
    if config.n_gpu_layers == 0 or config.n_cpu_moe >= depth.n_with_experts:
        return None
    step = max(2, math.ceil(depth.n_with_experts / 8))
    return msgspec.structs.replace(
        config, n_cpu_moe=min(depth.n_with_experts, config.n_cpu_moe + step)
    )


def _fewer_layers_on_the_card(config: EngineConfig, depth: Depth) -> EngineConfig | None:
    """An eighth of the model at a time where its size is known, else halves. llama.cpp counts the output as a layer too."""
    n_layers = depth.n_layers
    most = n_layers + 1 if n_layers else _MANY_LAYERS
    now = most if config.n_gpu_layers < 0 else min(config.n_gpu_layers, most)
    if now == 0:
        return None
    step = max(2, math.ceil(n_layers / 8)) if n_layers else math.ceil(now / 2)
    return msgspec.structs.replace(config, n_gpu_layers=max(0, now - step))


def _less_ram_for_idle_talks(config: EngineConfig, _depth: Depth) -> EngineConfig | None:
    """A quarter of what it was, in the end nothing: they come back from disk, or are computed again."""
    if config.kv_ram_bytes <= 0:
        return None
    rest = config.kv_ram_bytes // 4
    return msgspec.structs.replace(config, kv_ram_bytes=rest if rest >= MIN_RAM_BYTES else 0)


def _fewer_at_once(config: EngineConfig, _depth: Depth) -> EngineConfig | None:
    n_parallel = max(1, config.n_parallel // 2)
    # 0 means n_parallel x n_ctx and follows by itself; one conversation must still find its whole window.
    least = min(config.n_ctx, config.kv_cells)
    kv_cells = max(least, config.kv_cells * n_parallel // config.n_parallel)
    if n_parallel == config.n_parallel and kv_cells == config.kv_cells:
        kv_cells = least
    if (n_parallel, kv_cells) == (config.n_parallel, config.kv_cells):
        return None
    n_sequences = config.n_sequences and max(
        n_parallel, config.n_sequences * n_parallel // config.n_parallel
    )
    return msgspec.structs.replace(
        config, n_parallel=n_parallel, kv_cells=kv_cells, n_sequences=n_sequences
    )


def _smaller_kv_type(config: EngineConfig, _depth: Depth) -> EngineConfig | None:
    """Both at once to the next type. Without flash attention llama.cpp takes no quantized V."""
    fixed_v = config.flash_attention == "off"
    kinds = {config.cache_type_k} | (set() if fixed_v else {config.cache_type_v})
    goal = _TYPE_LADDER[0] if kinds & _UNQUANTIZED else _TYPE_LADDER[1]
    type_k = _at_most(config.cache_type_k, goal)
    type_v = config.cache_type_v if fixed_v else _at_most(config.cache_type_v, goal)
    smaller = msgspec.structs.replace(config, cache_type_k=type_k, cache_type_v=type_v)
    return None if smaller == config else smaller


def _at_most(kind: str, goal: str) -> str:
    """What is smaller than q8_0 already stays until the goal is q4_0; iq4_nl is as small as that."""
    if goal == "q8_0":
        return goal if kind in _UNQUANTIZED else kind
    return kind if kind in {"q4_0", "iq4_nl"} else goal


def _smaller_window(config: EngineConfig, _depth: Depth) -> EngineConfig | None:
    if config.n_ctx <= MIN_CTX:
        return None
    n_ctx = max(MIN_CTX, config.n_ctx // 2)
    kv_cells = min(config.kv_cells, config.n_parallel * n_ctx)
    return msgspec.structs.replace(config, n_ctx=n_ctx, kv_cells=kv_cells)


_RUNGS: Final[dict[str, tuple[_Rung, ...]]] = {
    "n_ubatch": (_fewer_in_a_batch,),
    "layers": (_fewer_experts_on_the_card, _fewer_layers_on_the_card),
    "kv_ram": (_less_ram_for_idle_talks,),
    "n_parallel": (_fewer_at_once,),
    "cache_type": (_smaller_kv_type,),
    "n_ctx": (_smaller_window,),
}


def _rungs(config: EngineConfig) -> Iterator[_Rung]:
    """All that may be given up, in this order."""
    for name in config.sacrifice:
        yield from _RUNGS[name]


# What a step back for the sake of others may cost: speed, never somebody's window or what is stored of a talk.
# What idle conversations have of RAM is given back without a restart (`engine.link.pressure`).
_GENTLE: Final = (
    _fewer_in_a_batch,
    _fewer_experts_on_the_card,
    _fewer_layers_on_the_card,
    _fewer_at_once,
)
RAN_OUT: Final = "after running out of memory"


def _helps(rung: _Rung, shortage: Shortage) -> bool:
    if rung in _RUNGS["layers"]:
        return shortage.on_device
    if rung is _less_ram_for_idle_talks:
        return shortage.part is Part.ANY and not shortage.on_device
    if rung is _fewer_in_a_batch:
        return shortage.part is Part.ANY
    return shortage.part is not Part.WEIGHTS


def difference(full: EngineConfig, now: EngineConfig) -> str:
    """What was given up: "n_ubatch 512 → 256, n_ctx 8192 → 4096"; "" = nothing."""
    changed = [
        f"{name} {_shown(full, name)} → {_shown(now, name)}"
        for name in _NAMES
        if _shown(full, name) != _shown(now, name)
    ]
    return ", ".join(changed)


def _shown(config: EngineConfig, name: str) -> str:
    if name == "n_ubatch":
        return str(min(config.n_ubatch, config.n_batch))
    value = getattr(config, name)
    if name == "kv_ram_bytes":
        return f"{value / 2**20:.0f} MiB"
    return "all" if name == "n_gpu_layers" and value < 0 else str(value)


class Ladder:
    """Where on the way down one engine is. Owner: its supervisor.

    Up again at once or not at all: `try_full` tries the whole size; when that does not fit, the next step back leads to where it
    was before, and every vain try doubles the wait for the next one (up to a day's worth at one hour).
    """

    def __init__(self, full: EngineConfig) -> None:
        self._full = full
        self.config = full
        self._below: EngineConfig | None = (
            None  # where the way back leads while the full size is being tried
        )
        self._last: tuple[_Rung, EngineConfig, Shortage] | None = None
        self._barred: set[_Rung] = set()
        self._n_vain_tries = 0
        self._when, self._why = "", RAN_OUT

    @property
    def is_full(self) -> bool:
        """Whether the engine runs as it is configured."""
        return self.config == self._full

    @property
    def sentence(self) -> str:
        """How far down it is and since when; "" = at full size."""
        if self.is_full:
            return ""
        return f"{difference(self._full, self.config)} {self._why} {self._when}"

    def retry_factor(self) -> int:
        """How many times longer than usual to wait before the full size is tried."""
        return int(min(2**self._n_vain_tries, _LONGEST_RETRY_FACTOR))

    def resize(self, full: EngineConfig) -> None:
        """The full size is another one: it was planned anew. Where the way back leads from a try at it stays."""
        self._full = self.config = full

    def step_back(self, shortage: Shortage, depth: Depth, when: str) -> bool:
        """Go one step down; `when` for people. False = nothing that helps is left."""
        if self._below is not None:
            self.config, self._below = self._below, None
            self._n_vain_tries += 1
            return True
        for rung in _rungs(self._full):
            smaller = rung(self.config, depth) if rung not in self._barred else None
            if smaller is None or not _helps(rung, shortage):
                continue
            self._last = (rung, self.config, shortage)
            self.config, self._when, self._why = smaller, when, RAN_OUT
            return True
        return False

    def can_leave_room(self, shortage: Shortage, depth: Depth) -> bool:
        """Whether `leave_room` would find something."""
        return self._gentler(shortage, depth) is not None

    def leave_room(self, shortage: Shortage, depth: Depth, when: str) -> bool:
        """Go one step down before memory runs out, because others take it; only where that costs no conversation anything."""
        found = self._gentler(shortage, depth)
        if found is None:
            return False
        rung, smaller = found
        self._last, self._below = (rung, self.config, shortage), None
        self.config, self._when = smaller, when
        self._why = "to leave memory to other programs"
        return True

    def _gentler(self, shortage: Shortage, depth: Depth) -> tuple[_Rung, EngineConfig] | None:
        for rung in _rungs(self._full):
            if rung not in _GENTLE or rung in self._barred or not _helps(rung, shortage):
                continue
            smaller = rung(self.config, depth)
            if smaller is not None:
                return rung, smaller
        return None

    def refuse_step(self, depth: Depth, when: str) -> bool:
        """The last step gave settings that this model cannot have: take it back and give up something else instead.

        False = the settings were refused for another reason.
        """
        if self._last is None:
            return False
        rung, self.config, shortage = self._last
        self._last = None
        self._barred.add(rung)
        return self.step_back(shortage, depth, when)

    def loaded(self) -> None:
        """These settings can be loaded."""
        self._last = None

    def try_full(self) -> None:
        """From the next start on at full size."""
        self._below, self.config = self.config, self._full

    def settled(self) -> None:
        """The full size has held long enough: the next shortage is a new one."""
        self._below, self._n_vain_tries = None, 0

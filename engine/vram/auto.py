"""The plan made at a start: which settings fit into what is free on this machine right now, and why these.

Everything is settled here that a person would otherwise guess: layers and experts on the card, the KV cache's place, types and
cells, replies at once, the window, tokens per step, threads, and whether weights are locked into RAM. What was asked for is kept
unless nothing fits with it. Where nothing fits at all, the refusal names the nearest settings that would.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]  # the package ships no types
from msgspec.structs import replace as with_fields

from engine.backends.memory import total_bytes
from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.chooser import Choice, NothingFits, choose, given_up
from engine.vram.claims import NOTHING_HELD, Held
from engine.vram.devices import GIB, Device
from engine.vram.gguf import damaged
from engine.vram.here import card_here, ram_here
from engine.vram.kvtype import suited
from engine.vram.ledger import (
    COMPUTE,
    IDLE,
    KV,
    LOGITS,
    OVERHEAD,
    PROCESS,
    RESERVE,
    STATE,
    WEIGHTS,
    DeviceLedger,
    Ledger,
    Model,
    Placement,
    make_ledger,
)
from engine.vram.planning import load, possible
from engine.vram.settings import context_settings, usable_cores
from engine.vram.tuned import measured_near

_GROUPS: Final = {
    "weights": WEIGHTS,
    "KV": (KV, STATE),
    "compute": (COMPUTE, LOGITS),
    "overhead": (OVERHEAD, PROCESS),
    "reserve": (RESERVE,),
    "idle conversations": (IDLE,),
}


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What an engine is started with. `given_up` and `notes` are sentences for admins."""

    config: EngineConfig
    ledger: Ledger
    why: str
    given_up: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What was chosen and why, in one line."""
        devices = ", ".join(_account(account) for account in self.ledger.devices)
        smaller = f"; smaller than wished: {', '.join(self.given_up)}" if self.given_up else ""
        notes = "".join(f"; {note}" for note in self.notes)
        return f"{self.settings}; {devices}; {self.why}{smaller}{notes}"

    @property
    def settings(self) -> str:
        """The settings, for people."""
        config, ledger = self.config, self.ledger
        window = ledger.settings.window
        cells = ledger.settings.n_cells
        shared = f", {cells} cells for all" if cells < config.n_parallel * window else ""
        kinds = {config.cache_type_k: None, config.cache_type_v: None}
        return (
            f"{config.n_parallel} × {window} tokens{shared}, KV {'/'.join(kinds)}, {self._place()}, "
            f"n_ubatch {ledger.settings.n_ubatch}, {ledger.settings.n_threads} threads"
        )

    def _place(self) -> str:
        account, config = self.ledger.card, self.config
        if account is None:
            return "all in RAM"
        kv = "" if config.kv_on_card else ", KV in RAM"
        moe = f", experts of {config.n_cpu_moe} layers in RAM" if config.n_cpu_moe else ""
        return f"n_gpu_layers {config.n_gpu_layers} on {account.device.name}{moe}{kv}"

    def lines(self) -> list[str]:
        """The ledger, short, for a terminal."""
        made = [self.settings]
        for account in self.ledger.devices:
            groups = {
                name: sum(account.items.get(purpose, 0) for purpose in purposes) / GIB
                for name, purposes in _GROUPS.items()
            }
            parts = ", ".join(f"{name} {size:.2f}" for name, size in groups.items() if size)
            made.append(f"{_account(account)}: {parts}")
        made.append(self.why)
        if self.given_up:
            made.append(f"smaller than wished: {', '.join(self.given_up)}")
        return [*made, *self.notes]


def _account(account: DeviceLedger) -> str:
    return (
        f"{account.device.name} {account.used / GIB:.2f} of {account.device.capacity / GIB:.2f} GiB"
    )


PlanListener = Callable[[StartPlan], None]


def plan_start(
    config: EngineConfig, held: Held = NOTHING_HELD, *, use_measured: bool = True
) -> StartPlan:
    """The plan for what is free now, less what others `held`. Takes up to a second, and a child process where the build may
    drive a card. `use_measured` False: as if `hearth tune` had never run. Raises EngineConfigError with one sentence when
    nothing fits, or the file is no whole model."""
    path = find_model(config.name, config.path)
    model = load(path)
    if model.head.missing_bytes:
        raise damaged(path, model.head.file_bytes)
    notes: list[str] = []
    target, memory = card_here(model, config, held, notes), ram_here(held)
    config = suited(config, model, (memory, target), total_bytes())
    wish = possible(config, model.shape)
    if use_measured:
        result = _settle(model, wish, (memory, target), notes)
    else:
        result = choose(model, wish, memory, target, wish.sacrifice)
    if isinstance(result, NothingFits):
        raise EngineConfigError(_refusal(config, path, result))
    if not model.shape.is_exact:
        notes.append(
            f"the architecture {model.shape.architecture} keeps more per token than is known here: an estimate"
        )
    chosen = _finished(config, result)
    most_layers = model.n_layer + 1 if target else 0
    smaller = tuple(given_up(config, chosen, most_layers))
    return StartPlan(chosen, result.ledger, result.why, smaller, tuple(notes))


def _finished(config: EngineConfig, result: Choice) -> EngineConfig:
    """With what no memory depends on: threads, and whether weights are locked into RAM."""
    use_mlock = config.use_mlock
    if "use_mlock" not in config.asked:
        use_mlock = config.use_mmap and _may_lock(result.ledger)
    n_threads = result.config.n_threads or usable_cores()
    return with_fields(result.config, n_threads=n_threads, use_mlock=use_mlock)


def _settle(
    model: Model, wish: EngineConfig, devices: tuple[Device, Device | None], notes: list[str]
) -> Choice | NothingFits:
    """What `hearth tune` measured for the sizes that were asked for, else for those that fit; else what fits by the account."""
    found = choose(model, wish, *devices, wish.sacrifice)
    smaller = found if isinstance(found, Choice) and found.given_up else None
    measured = measured_near(wish, smaller.config if smaller else None, model.head.path, *devices)
    if measured.config is not None:
        return _as_measured(model, measured.config, devices, measured.note)
    if measured.note:
        notes.append(measured.note)
    return found


def _as_measured(
    model: Model, config: EngineConfig, devices: tuple[Device, Device | None], why: str
) -> Choice:
    memory, target = devices
    settings = context_settings(config, model.shape.n_ctx_train)
    everything = model.n_layer + 1
    n_gpu_layers = config.n_gpu_layers if config.n_gpu_layers >= 0 else everything
    placement = (
        Placement(min(n_gpu_layers, everything), config.n_cpu_moe) if target else Placement()
    )
    ledger = make_ledger(model, settings, placement, memory, target, idle_bytes=config.kv_ram_bytes)
    return Choice(config, ledger, why, ())


def _may_lock(ledger: Ledger) -> bool:
    """Only where the machine could swap the weights out, the system allows it, and room is left."""
    n_bytes = ledger.ram.weights
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    allowed = limit == resource.RLIM_INFINITY or limit >= n_bytes
    has_swap = psutil.swap_memory().total > 0
    return allowed and has_swap and ledger.ram.spare >= n_bytes // 10


def _refusal(config: EngineConfig, path: Path, result: NothingFits) -> str:
    ways = " or with ".join(change for change, _ in result.nearest)
    cure = (
        f"it would with {ways}"
        if ways
        else "choose a smaller model or quantization, or free memory"
    )
    return f'models.{config.name}: {path.name} does not fit: {result.why}; {cure} (vram = "off" starts it all the same)'

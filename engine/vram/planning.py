"""A plan for one model: reads the file, looks at the devices, chooses, and asks llama.cpp where it can be asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as with_fields

from engine.backends.memory import total_bytes
from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.vram.chooser import Choice, NothingFits, choose
from engine.vram.claims import NOTHING_HELD
from engine.vram.devices import GIB, Device, card, nvidia_cards, ram
from engine.vram.gguf import read_model
from engine.vram.here import card_here, ram_here
from engine.vram.kvtype import suited
from engine.vram.ladders import LAYERS_NAME
from engine.vram.ledger import COMPUTE, KV, LOGITS, STATE, Ledger, Model, model_of
from engine.vram.probe import DryRun, ProbeFailed, build_devices, dry_run
from engine.vram.shapes import Shape, fills_blocks, read_shape
from engine.vram.tuned import Found, measured_near
from engine.vram.workers import worker_devices


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the person asked for. Bytes; 0 and "" = what is there. `is_file`: a file with the settings that a config has by
    default, of which sizes are taken as they stand."""

    vram: int = 0
    ram: int = 0
    device: str = ""
    ask_llama: bool = True
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `dry_run` is llama.cpp's own, where it was asked; `notes` are sentences for the reader."""

    path: Path
    config: EngineConfig
    model: Model
    result: Choice | NothingFits
    dry_run: DryRun | None
    notes: tuple[str, ...]

    @property
    def ledger(self) -> Ledger:
        """The account that is shown."""
        return self.result.ledger

    @property
    def is_estimate(self) -> bool:
        """Whether it is for a device that this build cannot drive."""
        account = self.ledger.card
        return account is not None and not account.device.is_driven

    @property
    def error(self) -> float | None:
        """Our arithmetic against llama.cpp's dry run: relative, of everything that it counts."""
        if self.dry_run is None:
            return None
        ours = sum(
            account.weights + sum(account.items.get(p, 0) for p in (KV, STATE, COMPUTE, LOGITS))
            for account in self.ledger.devices
        )
        return ours / self.dry_run.total_bytes - 1


def load(path: Path) -> Model:
    """A model file ready for planning. Raises EngineConfigError."""
    head = read_model(path)
    return model_of(head, read_shape(head))


def possible(config: EngineConfig, shape: Shape) -> EngineConfig:
    """Without cache types whose blocks the model's heads do not fill: llama.cpp refuses these."""
    return with_fields(
        config,
        cache_type_k=_filled(config.cache_type_k, shape.head_k),
        cache_type_v=_filled(config.cache_type_v, shape.head_v),
    )


def _filled(kind: str, n_values: int) -> str:
    return kind if fills_blocks(kind, n_values) else "f16"


def make_plan(config: EngineConfig, wishes: Wishes) -> Plan:
    """Takes up to some seconds (two child processes). Raises EngineConfigError."""
    path = find_model(config.name, config.path)
    model = load(path)
    notes: list[str] = []
    memory, target = _devices(model, config, wishes, notes)
    if target is None:
        notes += _undriven()
    if config.is_fitted or wishes.is_file:
        config = suited(config, model, (memory, target), wishes.ram or total_bytes())
    # Of what is fitted at a start the plan shows what that would choose; otherwise what was asked for is taken as it stands.
    sacrifice = config.sacrifice if config.is_fitted else (LAYERS_NAME,)
    wish = possible(config, model.shape)
    if wish != config:
        notes.append(
            f"its heads do not fill the blocks of a {config.cache_type_k} cache: planned with {wish.cache_type_k}"
        )
    result = choose(model, wish, memory, target, sacrifice)
    answer = None
    if isinstance(result, Choice) and (target is None or target.is_driven) and wishes.ask_llama:
        answer = _ask(result.config, model, notes)
    notes += _about(model, target)
    return Plan(path, config, model, result, answer, tuple(notes))


def _devices(
    model: Model, config: EngineConfig, wishes: Wishes, notes: list[str]
) -> tuple[Device, Device | None]:
    """RAM and the card to plan for: those of a start, or those that were named."""
    if config.is_fitted and wishes == Wishes():
        return ram_here(NOTHING_HELD), card_here(model, config, NOTHING_HELD, notes)
    driven = _driven(config, notes) if wishes.ask_llama else ()
    # A limit in the config is one of a card that is there; only a wish may be for one that is not.
    limit = config.vram_bytes if any(device.kind == "gpu" for device in driven) else 0
    return ram(wishes.ram), card(wishes.vram or limit, driven, wishes.device)


def _driven(config: EngineConfig, notes: list[str]) -> tuple[Device, ...]:
    lent = worker_devices(config.rpc, f"models.{config.name}.rpc", notes)
    try:
        own = build_devices()
    except ProbeFailed as error:
        notes.append(f"this build of llama.cpp could not be asked for its devices: {error}")
        own = ()
    if lent and len(lent) + len(own) > 1:
        notes.append(
            "planned with the largest device alone; llama.cpp spreads the layers over all of them"
        )
    return (*own, *lent)


def _undriven() -> list[str]:
    return [
        f"{found.name} is in this machine and this build of llama.cpp cannot use it; "
        f"--vram {found.capacity / GIB:.1f}GiB plans for it"
        for found in nvidia_cards()
    ]


def _ask(config: EngineConfig, model: Model, notes: list[str]) -> DryRun | None:
    if model.head.missing_bytes:
        return None
    try:
        return dry_run(config)
    except ProbeFailed as error:
        notes.append(f"llama.cpp's dry run failed: {error}")
        return None


def _about(model: Model, target: Device | None) -> list[str]:
    notes = []
    if model.head.missing_bytes:
        notes.append(
            f"the file is not whole ({model.head.missing_bytes / GIB:.2f} GiB are missing): planned by its head"
        )
    if not model.shape.is_exact:
        notes.append(
            f"the architecture {model.shape.architecture} keeps more per token than is known here: an estimate"
        )
    if target is not None and target.shared_bytes:
        notes.append(
            f"the driver may add up to {target.shared_bytes / GIB:.0f} GiB of shared system memory: "
            "4 to 10 times slower, and not planned with"
        )
    if target is not None and not target.is_driven:
        notes.append("an estimate: this build of llama.cpp does not drive that card")
    return notes


def measured(plan: Plan) -> Found:
    """What `hearth tune` measured for this plan's sizes on these devices, as a start would find it."""
    if plan.is_estimate or plan.model.head.missing_bytes:
        return Found(None, None, "")
    account = plan.ledger.card
    devices = plan.ledger.ram.device, account.device if account else None
    wish = possible(plan.config, plan.model.shape)
    smaller = plan.result if isinstance(plan.result, Choice) and plan.result.given_up else None
    return measured_near(wish, smaller.config if smaller else None, plan.path, *devices)


def exact(plan: Plan) -> Ledger:
    """The ledger with llama.cpp's own figures, where everything lies in RAM and it was asked."""
    answer, ledger = plan.dry_run, plan.ledger
    if answer is None or ledger.card is not None:
        return ledger
    items = ledger.ram.items | {
        KV: answer.kv_bytes,
        STATE: answer.state_bytes,
        COMPUTE: sum(answer.compute.values()),
        LOGITS: answer.output_bytes,
    }
    return replace(ledger, ram=replace(ledger.ram, items=items), is_exact=True)

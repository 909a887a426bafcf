"""`hearth plan`: where a model's bytes go, what speed memory allows, and which settings fit. Prints; decides nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bot.cli.limits import check_sizes
from bot.cli.planjson import to_json
from bot.config import Config
from bot.config_engine import engine_settings
from bot.errors import ConfigError
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.chooser import Choice, NothingFits
from engine.vram.devices import GIB, parse_size
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
)
from engine.vram.planning import Plan, Wishes, exact, make_plan, measured
from engine.vram.runs import Knobs
from engine.vram.settings import check_cache_option

_BAR_WIDTH: Final = 36
_MIB: Final = 2**20
# What the bar shows: (name, purposes, letter, colour). The letter tells them apart without colours.
_GROUPS: Final = (
    ("weights", WEIGHTS, "W", "blue"),
    ("KV", (KV, STATE), "K", "green"),
    ("compute", (COMPUTE, LOGITS), "C", "yellow"),
    ("overhead", (OVERHEAD, PROCESS), "o", "magenta"),
    ("reserve", (RESERVE,), "r", "red"),
    ("idle conversations", (IDLE,), "i", "cyan"),
)
_NOTHING_FITS: Final = 3


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The command's options; 0 and "" = as configured, or the default."""

    model: str
    vram: str = ""
    ram: str = ""
    device: str = ""
    ctx: int = 0
    parallel: int = 0
    cache_type: str = ""
    ubatch: int = 0
    as_json: bool = False


def run_plan(config: Config | None, options: PlanOptions) -> int:
    """Print the plan. Returns the exit status: 0, or 3 when nothing fits. Raises ConfigError."""
    check_sizes(options.ctx, options.ubatch)
    try:
        if options.cache_type:
            check_cache_option(options.cache_type, "--cache-type")
        wishes = Wishes(
            vram=parse_size(options.vram) if options.vram else 0,
            ram=parse_size(options.ram, "--ram") if options.ram else 0,
            device=options.device,
            is_file=config is None or options.model not in config.models,
        )
        plan = make_plan(_settings(config, options), wishes)
    except EngineConfigError as error:
        raise ConfigError(str(error)) from error
    if options.as_json:
        sys.stdout.write(json.dumps(to_json(plan), ensure_ascii=False) + "\n")
    else:
        Console(highlight=False, markup=False).print(view(plan))
    return 0 if isinstance(plan.result, Choice) else _NOTHING_FITS


def _settings(config: Config | None, options: PlanOptions) -> EngineConfig:
    name = options.model
    if config is not None and name in config.models:
        found = engine_settings(name, config.models[name], config)
        if not isinstance(found, EngineConfig):
            raise ConfigError(f"models.{name} runs elsewhere: there is nothing to plan here")
        settings = found
    else:
        home = config.folder if config is not None else Path.cwd()
        settings = EngineConfig(
            name="plan",
            path=name,
            cache_type_k="q8_0",
            cache_type_v="q8_0",
            tuned_dir=str(home / "data/tuned"),  # as `hearth tune` keeps it
        )
    given = {
        "n_ctx": options.ctx,
        "n_parallel": options.parallel,
        "cache_type_k": options.cache_type,
        "cache_type_v": options.cache_type,
        "n_ubatch": options.ubatch,
    }
    wishes: dict[str, Any] = {field: value for field, value in given.items() if value}
    return replace(settings, **wishes, asked=(*settings.asked, *wishes))


def view(plan: Plan) -> Group:
    """The plan as a person reads it."""
    ledger = exact(plan)
    parts: list[Any] = [_title(plan), Text("")]
    for account in ledger.devices:
        parts += [*_bar(account), Text("")]
    parts += [_legend(), Text(""), _table(ledger), Text("")]
    parts.append(_line(f"disk   {_disk(plan)}"))
    parts += [_line(f"speed  {_speed(plan, ledger)}"), _line(f"why    {plan.result.why}")]
    if isinstance(plan.result, NothingFits):
        parts.append(Text("nothing fits; nearest settings that would:", style="bold red"))
        parts += [
            _line(f"  {change}: {_placement(choice)}, ≤ {choice.ledger.bound():.0f} tok/s")
            for change, choice in plan.result.nearest
        ] or [_line("  none: this model is too large for this machine")]
    else:
        if plan.result.given_up:
            parts.append(_line(f"less   {', '.join(plan.result.given_up)}"))
        parts += [_line(f"set    {_toml(plan.result)}"), Text(""), _knobs(plan.result, ledger)]
    parts += _tuned(plan)
    parts += [_line(f"note   {note}") for note in plan.notes]
    return Group(*parts, _line(f"source {_source(plan)}"))


def _line(text: str) -> Text:
    return Text(text, overflow="fold")


def _title(plan: Plan) -> Text:
    head, shape, ledger = plan.model.head, plan.model.shape, plan.ledger
    experts = f", {shape.n_expert} experts of which {shape.n_expert_used} are used" if shape.n_expert else ""  # fmt: skip
    text = Text(plan.path.name, style="bold")
    text.append(
        f"  {shape.architecture}, {plan.model.n_layer} layers{experts}, "
        f"{head.weight_bytes / GIB:.2f} GiB, {plan.model.active_bytes / GIB:.2f} GiB read per token\n",
        style="not bold",
    )
    config = plan.result.config if isinstance(plan.result, Choice) else plan.config
    text.append(
        f"{config.n_parallel} × {ledger.settings.window} tokens, {ledger.settings.n_cells} cells in all",
        style="not bold",
    )
    if plan.is_estimate:
        text.append("   ESTIMATE", style="bold yellow")
    return text


def _bar(account: DeviceLedger) -> list[Text]:
    capacity = max(account.device.capacity, account.used, 1)
    bar = Text("  [")
    filled = 0
    total = 0
    for _, purposes, letter, colour in _GROUPS:
        total += sum(account.items.get(purpose, 0) for purpose in purposes)
        end = round(_BAR_WIDTH * total / capacity)
        bar.append(letter * (end - filled), style=colour)
        filled = max(filled, end)
    bar.append("·" * (_BAR_WIDTH - filled) + "]")
    over = account.spare < 0
    free = f"{-account.spare / GIB:.2f} GiB too much" if over else f"{account.spare / GIB:.2f} GiB free"  # fmt: skip
    bar.append(
        f"  {account.used / GIB:.2f} of {account.device.capacity / GIB:.2f} GiB, {free}",
        style="bold red" if over else "",
    )
    return [Text(f"{account.device.name}  ({account.device.note})"), bar]


def _legend() -> Text:
    text = Text("  ")
    for name, _, letter, colour in _GROUPS:
        text.append(f"{letter} {name}  ", style=colour)
    return text.append("· free")


def _table(ledger: Ledger) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("MiB")
    for account in ledger.devices:
        table.add_column(account.device.name, justify="right")
    purposes = dict.fromkeys(purpose for _, group, _, _ in _GROUPS for purpose in group)
    for purpose in purposes:
        row = [account.items.get(purpose, 0) for account in ledger.devices]
        if any(row):
            cells = [f"{n / _MIB:,.1f}" if n else "–" for n in row]
            table.add_row(purpose, *cells)
    table.add_row("together", *(f"{a.used / _MIB:,.1f}" for a in ledger.devices), style="bold")
    return table


def _speed(plan: Plan, ledger: Ledger) -> str:
    empty, full = ledger.bound(), ledger.bound(full=True)
    if not empty:
        return "the bandwidth of a device is not known: no bound"
    reads = " + ".join(
        f"{account.read_bytes / GIB:.2f} GiB ÷ {account.device.bandwidth / 1e9:.0f} GB/s ({account.device.name})"
        for account in ledger.devices
        if account.read_bytes
    )
    window = plan.ledger.settings.window
    return f"one reply ≤ {empty:.0f} tok/s, ≤ {full:.0f} at {window} tokens: {reads} per token"


def _disk(plan: Plan) -> str:
    kept = plan.config.kv_disk_bytes
    idle = f", idle conversations up to {kept / GIB:.2f} GiB" if kept else ""
    mapped = " (mapped: pages of weights in RAM come from here)" if plan.config.use_mmap else ""
    return f"model file {plan.model.head.weight_bytes / GIB:.2f} GiB{mapped}{idle}"


def _tuned(plan: Plan) -> list[Text]:
    """What `hearth tune` knows of these sizes here, or why it is not used."""
    found = measured(plan)
    if found.run is None:
        return [_line(f"note   {found.note}")] if found.note else []
    run = found.run
    peak = ", ".join(f"{name} {n_bytes / GIB:.2f} GiB" for name, n_bytes in run.peak.items())
    return [
        _line(
            f"tuned  measured by hearth tune: {run.generation_tps:.1f} tok/s of all {run.asked.n_parallel} replies, "
            f'prompts {run.prompt_tps:.1f}, peak {peak} ({_knob_names(plan, run.knobs)}); used by vram = "auto"'
        )
    ]


def _knob_names(plan: Plan, knobs: Knobs) -> str:
    card = plan.ledger.card is not None
    names = ("n_gpu_layers", "n_cpu_moe") if card else ()
    return ", ".join(
        f"{name} {getattr(knobs, name)}" for name in (*names, "n_threads", "n_ubatch", "n_batch")
    )


def _placement(choice: Choice) -> str:
    if choice.ledger.card is None:
        return "all in RAM"
    moe = f", n_cpu_moe {choice.config.n_cpu_moe}" if choice.config.n_cpu_moe else ""
    return f"n_gpu_layers {choice.config.n_gpu_layers}{moe}"


def _toml(choice: Choice) -> str:
    config = choice.config
    keys = {
        "n_ctx": choice.ledger.settings.window,
        "n_parallel": config.n_parallel,
        "cache_type_k": f'"{config.cache_type_k}"',
        "cache_type_v": f'"{config.cache_type_v}"',
    }
    if config.kv_cells:
        keys["kv_tokens"] = config.kv_cells
    if choice.ledger.card is not None:
        keys |= {"n_gpu_layers": config.n_gpu_layers, "n_cpu_moe": config.n_cpu_moe}
        if not config.kv_on_card:
            keys["kv_on_card"] = "false"
    return "  ".join(f"{key} = {value}" for key, value in keys.items())


def _knobs(choice: Choice, ledger: Ledger) -> Table:
    device = ledger.devices[0].device.name
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("one knob", overflow="fold")
    table.add_column(f"MiB of {device}", justify="right")
    table.add_column("tok/s ≤", justify="right")
    table.add_column("")
    for knob in choice.knobs:
        table.add_row(
            knob.change,
            f"{knob.n_bytes / _MIB:+,.0f}",
            f"{knob.bound:.0f}" if knob.bound else "?",
            Text("fits", style="green") if knob.fits else Text("does not fit", style="red"),
        )
    return table


def _source(plan: Plan) -> str:
    if plan.error is None:
        return "arithmetic from the file's own tensor list"
    return f"llama.cpp's dry run (our arithmetic: {100 * plan.error:+.2f} %)"

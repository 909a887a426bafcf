"""`hearth tune`: measures real runs around the plan, shows what they gave, and keeps the fastest settings for `vram = "auto"`."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from rich.console import Console

from bot.cli.limits import check_sizes
from bot.cli.tunechart import draw_chart
from bot.cli.tuneview import Outcome, Teller, to_json, view
from bot.config import Config, parse_config
from bot.config_engine import engine_settings
from bot.errors import ConfigError
from bot.logs import set_up_logging
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.devices import parse_size
from engine.vram.runs import asked_of
from engine.vram.settings import check_cache_option
from engine.vram.tuneplan import TunePlan, plan_tuning
from engine.vram.tuner import Tuner
from engine.vram.tunerun import run_child
from engine.vram.tunestore import opened

_NOTHING_HELD: Final = 3
_STOPPED: Final = 130
_TABLE_WIDTH: Final = 80  # of a terminal; below it each run is a line


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The command's options; 0 and "" = as configured, or the default. `types`: kinds of cache that are shown beside the one
    asked for. `chart` "" = beside the results."""

    model: str
    vram: str = ""
    ctx: int = 0
    parallel: int = 0
    cache_type: str = ""
    types: str = "f16,q8_0,q4_0"
    minutes: float = 10.0
    fresh: bool = False
    chart: str = ""
    as_json: bool = False


def run_tune(config: Config | None, options: TuneOptions) -> int:
    """Measure and print. Returns the exit status: 0, 3 when nothing held, 130 when a person stopped it. Raises ConfigError."""
    config = config or parse_config({}, Path.cwd())
    set_up_logging(
        config.model_copy(update={"log": config.log.model_copy(update={"level": "error"})})
    )
    check_sizes(options.ctx)
    if not math.isfinite(options.minutes):
        raise ConfigError(f"--minutes {options.minutes}: write a number, for example 30")
    if options.chart:
        _check_chart(Path(options.chart))
    types = [kind.strip() for kind in options.types.split(",") if kind.strip()]
    try:
        return _run(plan_tuning(_settings(config, options), types), options)
    except EngineConfigError as error:
        raise ConfigError(str(error)) from error


def _check_chart(chart: Path) -> None:
    """Told before minutes of measuring. Raises ConfigError."""
    try:
        chart.parent.mkdir(parents=True, exist_ok=True)
        if chart.is_dir() or not os.access(chart.parent, os.W_OK):
            raise ConfigError(f"--chart {chart}: name a file in a folder that can be written")
    except OSError as error:
        raise ConfigError(f"--chart {chart} cannot be written: {error.strerror}") from error


def _settings(config: Config, options: TuneOptions) -> EngineConfig:
    """A [models] table, or a file with the defaults. What an option says is asked for. Raises ConfigError."""
    name = options.model
    if name not in config.models:
        config = parse_config({"models": {"tune": {"path": name}}}, config.folder)
        name = "tune"
    settings = engine_settings(name, config.models[name], config)
    if not isinstance(settings, EngineConfig):
        raise ConfigError(f"models.{name} runs elsewhere: there is nothing to tune here")
    asked: dict[str, object] = {}
    if options.ctx:
        asked["n_ctx"] = options.ctx
    if options.parallel:
        asked["n_parallel"] = options.parallel
    if options.cache_type:
        check_cache_option(options.cache_type, "--cache-type")
        asked |= {"cache_type_k": options.cache_type, "cache_type_v": options.cache_type}
    vram = parse_size(options.vram) if options.vram else settings.vram_bytes
    names = tuple(dict.fromkeys([*settings.asked, *asked]))
    return replace(settings, vram_bytes=vram, asked=names, **asked)


def _run(plan: TunePlan, options: TuneOptions) -> int:
    console = Console(stderr=True, highlight=False, markup=False)
    with opened(plan.config, plan.path, plan.whose) as (store, note):
        if note:
            console.print(note, soft_wrap=True)
        if options.fresh:
            store.forget(asked_of(plan.config))
        tuner = Tuner(plan.config, plan.space, store, run_child, os.getpid(), plan.limits)
        budget_s = options.minutes * 60
        is_stopped = False
        try:
            with Teller(console, plan, budget_s) as teller:
                asyncio.run(_until_stopped(tuner, budget_s, teller))
        except (KeyboardInterrupt, asyncio.CancelledError):
            is_stopped = True
        status = _tell(Outcome(plan, tuner.report(), store.file), options, console)
    if is_stopped:
        console.print("stopped; the same command goes on from here")
        return _STOPPED
    return status


async def _until_stopped(tuner: Tuner, budget_s: float, teller: Teller) -> None:
    """SIGTERM ends it like Ctrl-C: the present run does not count as one that never came back."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # inside asyncio.run
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await tuner.tune(budget_s, teller)


def _tell(outcome: Outcome, options: TuneOptions, console: Console) -> int:
    chart = _draw(outcome, options, console) if outcome.report.runs else None
    if options.as_json:
        sys.stdout.write(json.dumps(to_json(outcome, chart), ensure_ascii=False) + "\n")
    else:
        out = Console(highlight=False, markup=False)
        out.print(view(outcome, chart, is_narrow=out.width < _TABLE_WIDTH))
    return 0 if outcome.report.best else _NOTHING_HELD


def _draw(outcome: Outcome, options: TuneOptions, console: Console) -> Path | None:
    """The chart; what was measured is shown without it where it cannot be written."""
    chart = Path(options.chart) if options.chart else outcome.file.with_suffix(".png")
    try:
        draw_chart(outcome, chart)
    except OSError as error:
        console.print(f"the chart {chart} cannot be written: {error.strerror}", soft_wrap=True)
        return None
    return chart

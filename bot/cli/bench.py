"""`hearth bench`: this machine's model measured, beside another server in the same run when one is named."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bot.app import engine_settings
from bot.config import Config, parse_config
from bot.errors import ConfigError
from bot.logs import set_up_logging
from engine.bench import BenchPlan, connected, run_with_progress, server_at
from engine.config import EngineConfig, OpenAISettings


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The command's options. `model` is a GGUF path, "demo", or the name of a [models] table of the config."""

    model: str
    against: str
    concurrency: str
    turns: int
    rounds: int
    max_tokens: int
    as_json: bool


def _plan(options: BenchOptions) -> BenchPlan:
    try:
        sizes = tuple(int(part) for part in options.concurrency.split(",") if part.strip())
    except ValueError:
        raise ConfigError(
            f'--concurrency {options.concurrency}: write numbers, for example "1,4,8"'
        ) from None
    return BenchPlan(
        concurrency=sizes,
        turns=options.turns,
        rounds=options.rounds,
        max_new_tokens=options.max_tokens,
    )


def _ours(config: Config | None, options: BenchOptions) -> EngineConfig | OpenAISettings:
    if config is None:
        config = parse_config({"models": {"local": {"path": options.model or "demo"}}}, Path.cwd())
    name = config.default_model if options.model in {"", "default"} else options.model
    if name not in config.models:
        name = config.default_model
    return engine_settings(name, config.models[name], config)


async def run_bench(config: Config | None, options: BenchOptions) -> None:
    """Measure and print a table, or JSON on stdout with the progress on stderr."""
    quiet = config or parse_config({}, Path.cwd())
    set_up_logging(
        quiet.model_copy(update={"log": quiet.log.model_copy(update={"level": "error"})})
    )
    settings = {"hearth": _ours(config, options)}
    if options.against:
        settings["against"] = server_at(options.against)
    console = Console(stderr=options.as_json)
    async with connected(settings) as engines:
        report = await run_with_progress(_plan(options), engines, console)
    if options.as_json:
        sys.stdout.write(json.dumps(report.to_json(), ensure_ascii=False) + "\n")
    else:
        console.print(report.table())

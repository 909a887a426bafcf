"""`hearth bench`: this machine's model measured; beside it, in the same run, another server or the same model without tiers."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from rich.console import Console

from bot.config import Config, parse_config
from bot.config_engine import engine_settings
from bot.errors import ConfigError
from bot.logs import set_up_logging
from engine.bench import (
    BenchPlan,
    BenchReport,
    connected,
    counters_at,
    run_with_progress,
    server_at,
)
from engine.config import EngineConfig, OpenAISettings

OURS, WITHOUT_TIERS, AGAINST = "hearth", "no tiers", "against"
Settings = EngineConfig | OpenAISettings


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The command's options. `model` is a GGUF path, "demo", the name of a [models] table of the config, or the URL of a
    server that is then measured itself. `parallel` 0 = as configured.
    """

    model: str = ""
    against: str = ""
    against_key: str = ""
    no_kv_tiers: bool = False
    parallel: int = 0
    concurrency: str = "1,4,8"
    conversations: int = 4
    turns: int = 4
    rounds: int = 2
    max_tokens: int = 96
    as_json: bool = False


async def run_bench(config: Config | None, options: BenchOptions) -> None:
    """Measure and print tables, or JSON, on stdout; progress is told on stderr."""
    quiet = config or parse_config({}, Path.cwd())
    set_up_logging(
        quiet.model_copy(update={"log": quiet.log.model_copy(update={"level": "error"})})
    )
    plan = _plan(options)
    progress = Console(stderr=True)
    # KV files of their own: neither those of a service that runs here nor of an earlier benchmark.
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        settings = _columns(config, options, Path(folder))
        report = await _measure(plan, settings, progress)
    if options.as_json:
        sys.stdout.write(json.dumps(report.to_json(), ensure_ascii=False) + "\n")
    else:
        Console().print(report.view())


async def _measure(
    plan: BenchPlan, settings: Mapping[str, Settings], progress: Console
) -> BenchReport:
    counters = {
        name: counters_at(one) for name, one in settings.items() if isinstance(one, OpenAISettings)
    }
    waiting = progress.status(
        "loading the model …" if len(counters) < len(settings) else "asking …"
    )
    waiting.start()
    try:
        async with connected(settings) as engines:
            waiting.stop()
            return await run_with_progress(plan, engines, progress, counters)
    finally:
        waiting.stop()


def _plan(options: BenchOptions) -> BenchPlan:
    try:
        sizes = tuple(int(part) for part in options.concurrency.split(",") if part.strip())
    except ValueError:
        raise ConfigError(
            f'--concurrency {options.concurrency}: write numbers, for example "1,4,8"'
        ) from None
    return BenchPlan(
        concurrency=sizes,
        conversations=options.conversations,
        turns=options.turns,
        rounds=options.rounds,
        max_new_tokens=options.max_tokens,
    )


def _columns(config: Config | None, options: BenchOptions, folder: Path) -> dict[str, Settings]:
    """What is measured, in the order of the columns. Raises ConfigError."""
    if _is_url(options.model):
        ours: Settings = server_at(options.model)
        columns = {urlsplit(options.model).netloc.rpartition("@")[2]: ours}
    else:
        ours = _ours(config, options)
        columns = {OURS: _own_folder(ours, folder / "with")}
    if options.no_kv_tiers:
        if not isinstance(ours, EngineConfig):
            raise ConfigError("--no-kv-tiers needs a local model: a server keeps its own KV")
        columns[WITHOUT_TIERS] = msgspec.structs.replace(
            ours, kv_ram_bytes=0, kv_disk_bytes=0, kv_dir=""
        )
    if options.against:
        if not _is_url(options.against):
            raise ConfigError(
                f"--against {options.against}: write a URL, for example http://127.0.0.1:8000"
            )
        columns[AGAINST] = server_at(options.against, api_key=options.against_key)
    return columns


def _ours(config: Config | None, options: BenchOptions) -> Settings:
    name = options.model
    if config is not None and name in {"", "default"}:
        name = config.default_model
    if config is None or name not in config.models:
        config, name = _only(name or "demo", config), "local"
    settings = engine_settings(name, config.models[name], config)
    if options.parallel and isinstance(settings, EngineConfig):
        settings = msgspec.structs.replace(settings, n_parallel=options.parallel)
    return settings


def _only(path: str, config: Config | None) -> Config:
    """A configuration of one model file. Raises ConfigError when there is none."""
    if path != "demo" and not Path(path).is_file():
        tables = f"no [models] table ({', '.join(config.models)}) and " if config else ""
        raise ConfigError(f'"{path}" is {tables}no file; name a GGUF file, or "demo"')
    return parse_config({"models": {"local": {"path": path}}}, Path.cwd())


def _own_folder(settings: Settings, folder: Path) -> Settings:
    if isinstance(settings, EngineConfig):
        return msgspec.structs.replace(settings, kv_dir=str(folder))
    return settings


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))

"""The commands and their options."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from bot.config import Config, load_config, parse_config
from bot.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Hearth: talk to a local model in your company's chat groups.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at the configuration.")
app.add_typer(config_app, name="config")

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
OptionalConfig = Annotated[
    Path | None, typer.Option("--config", "-c", help="The configuration file.")
]
EngineOption = Annotated[
    str, typer.Option("--engine", help='"fake" replaces every model by a scripted one.')
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def with_engine(config: Config, engine: str) -> Config:
    """The config with every local model replaced by the scripted backend (`--engine fake`)."""
    if not engine:
        return config
    if engine != "fake":
        raise ConfigError(
            f'--engine {engine}: only "fake" can be forced; models are chosen in [models.*]'
        )
    models = {
        name: {"backend": "fake", "n_ctx": model.n_ctx, "n_parallel": model.n_parallel}
        for name, model in config.models.items()
    }
    replaced = parse_config({"models": models}, config.folder).models
    return config.model_copy(update={"models": replaced})


@app.command()
def serve(config: ConfigOption = Path("config.toml"), engine: EngineOption = "") -> None:
    """Run the service."""
    from bot.cli.serve import serve as run_serve

    asyncio.run(run_serve(with_engine(load_config(config), engine)))


@app.command()
def demo(
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the page; 8080 or the next free one."),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open a browser.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="A GGUF file instead of the tiny demo model.")
    ] = "demo",
    language: Annotated[
        str, typer.Option(help="zh or en: what the bot speaks; from LANG when empty.")
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="Keep the demo's database in this folder.")
    ] = None,
    engine: EngineOption = "",
) -> None:
    """Talk to a local model in a simulated Feishu group, in the browser."""
    from bot.cli.demo import DemoOptions, run_demo

    options = DemoOptions(
        port=port,
        open_browser=not no_browser,
        model=model,
        language=language,
        data=data,
        engine=engine,
    )
    asyncio.run(run_demo(options))


@app.command()
def chat(config: OptionalConfig = None, engine: EngineOption = "") -> None:
    """The same conversation in this terminal; reads lines from stdin when it is not a terminal."""
    from bot.cli.chat import run_chat

    asyncio.run(run_chat(load_config(config) if config else None, engine))


@app.command()
def bench(
    model: Annotated[
        str, typer.Argument(help="A GGUF file, or a [models] table of --config.")
    ] = "",
    config: OptionalConfig = None,
    against: Annotated[
        str, typer.Option(help="URL of an OpenAI-compatible server to compare with.")
    ] = "",
    concurrency: Annotated[str, typer.Option(help="People asking at the same moment.")] = "1,4,8",
    turns: Annotated[int, typer.Option(help="Turns per conversation; 0 leaves them out.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds; the medians are reported.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Tokens per reply.")] = 96,
    as_json: JsonOption = False,
) -> None:
    """Measure tokens per second and time to first token."""
    from bot.cli.bench import BenchOptions, run_bench

    options = BenchOptions(model, against, concurrency, turns, rounds, max_tokens, as_json)
    asyncio.run(run_bench(load_config(config) if config else None, options))


@app.command()
def migrate(config: ConfigOption = Path("config.toml")) -> None:
    """Bring the database up to date (this also happens at every start)."""
    from bot.cli.serve import migrate as run_migrate

    asyncio.run(run_migrate(load_config(config)))


@config_app.command("check")
def config_check(config: ConfigOption = Path("config.toml"), as_json: JsonOption = False) -> None:
    """Read the file and say what is wrong or odd, without starting anything."""
    from bot.cli.report import findings

    loaded = load_config(config)
    found = findings(loaded)
    if as_json:
        typer.echo(
            json.dumps(
                [{"level": f.level, "where": f.where, "text": f.text} for f in found],
                ensure_ascii=False,
            )
        )
    else:
        typer.echo(f"{config} is readable: {len(loaded.bots)} bot(s), model {loaded.default_model}")
        for finding in found:
            typer.echo(f"  {finding.level}: {finding.where}: {finding.text}")
    if any(f.level == "error" for f in found):
        raise typer.Exit(2)

"""The commands and their options."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from bot.cli.modelcommands import model_app
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
app.add_typer(model_app, name="model")

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
    platform: Annotated[
        str,
        typer.Option(
            help="What is simulated: feishu, feishu-websocket, dingtalk, wecom, wecom-websocket or wecom-app."
        ),
    ] = "feishu",
) -> None:
    """Talk to a local model in a simulated Feishu, DingTalk or WeCom, in the browser."""
    from bot.cli.demo import DemoOptions, run_demo

    options = DemoOptions(
        port=port,
        open_browser=not no_browser,
        model=model,
        language=language,
        data=data,
        engine=engine,
        platform=platform,
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
        str,
        typer.Argument(help="A GGUF file, a [models] table of --config, or a server's URL."),
    ] = "",
    config: OptionalConfig = None,
    against: Annotated[
        str, typer.Option(help="URL of an OpenAI-compatible server to compare with.")
    ] = "",
    against_key: Annotated[
        str, typer.Option(envvar="HEARTH_BENCH_KEY", help="That server's API key.")
    ] = "",
    no_kv_tiers: Annotated[
        bool,
        typer.Option(
            "--no-kv-tiers", help="Compare with the same model without RAM and disk tiers."
        ),
    ] = False,
    parallel: Annotated[
        int, typer.Option(min=0, max=64, help="Replies decoded at once; 0 = as configured.")
    ] = 0,
    concurrency: Annotated[
        str, typer.Option(help='People asking at the same moment; "" leaves them out.')
    ] = "1,4,8",
    conversations: Annotated[
        int, typer.Option(min=1, help="Conversations that go on in rotation.")
    ] = 4,
    turns: Annotated[int, typer.Option(min=0, help="Turns of each; 0 leaves them out.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds; the medians are reported.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Tokens per reply.")] = 96,
    as_json: JsonOption = False,
) -> None:
    """Measure tokens per second and time to first token."""
    from bot.cli.bench import BenchOptions, run_bench

    options = BenchOptions(
        model=model,
        against=against,
        against_key=against_key,
        no_kv_tiers=no_kv_tiers,
        parallel=parallel,
        concurrency=concurrency,
        conversations=conversations,
        turns=turns,
        rounds=rounds,
        max_tokens=max_tokens,
        as_json=as_json,
    )
    asyncio.run(run_bench(load_config(config) if config else None, options))


@app.command()
def plan(
    model: Annotated[
        str, typer.Argument(help='A GGUF file, "demo", or a [models] table of --config.')
    ],
    config: OptionalConfig = None,
    vram: Annotated[
        str, typer.Option(help='Memory of the card, for example "12GiB"; what is free when empty.')
    ] = "",
    device: Annotated[
        str, typer.Option(help='A recorded card, for example "12GiB laptop", instead of --vram.')
    ] = "",
    ram: Annotated[
        str, typer.Option(help="RAM of the machine to plan for; what is available here when empty.")
    ] = "",
    ctx: Annotated[int, typer.Option(min=0, help="Tokens per conversation; 0 = 4096.")] = 0,
    parallel: Annotated[
        int, typer.Option(min=0, max=64, help="Replies decoded at once; 0 = 4.")
    ] = 0,
    cache_type: Annotated[
        str,
        typer.Option(
            help="Type of the KV cache: f16, q8_0 or q4_0; as a start chooses it when empty."
        ),
    ] = "",
    ubatch: Annotated[int, typer.Option(min=0, max=8192, help="Tokens per step; 0 = 512.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show where a model's bytes go on this machine or on a card, which settings fit, and how fast it can be."""
    from bot.cli.plan import PlanOptions, run_plan

    options = PlanOptions(
        model=model,
        vram=vram,
        ram=ram,
        device=device,
        ctx=ctx,
        parallel=parallel,
        cache_type=cache_type,
        ubatch=ubatch,
        as_json=as_json,
    )
    if status := run_plan(load_config(config) if config else None, options):
        raise typer.Exit(status)


@app.command()
def doctor(
    config: OptionalConfig = None,
    bot: Annotated[
        str, typer.Option(help="Look at this bot only: credentials, permissions, callbacks.")
    ] = "",
    vram_test: Annotated[
        bool, typer.Option("--vram-test", help="Fill the free VRAM and read it back as well.")
    ] = False,
    log: Annotated[
        str, typer.Option(help='Explain the errors in this file instead; "-" = standard input.')
    ] = "",
    language: Annotated[
        str, typer.Option(help="zh or en: of a bot's set-up guide; the config's when empty.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Look for whatever is wrong with the set-up and say how to mend it. Exit status 2 = something cannot work."""
    from bot.cli.doctor import DoctorOptions, run_doctor

    options = DoctorOptions(
        config=config, vram_test=vram_test, bot=bot, log=log, language=language, as_json=as_json
    )
    if status := asyncio.run(run_doctor(options)):
        raise typer.Exit(status)


@app.command()
def tune(
    model: Annotated[
        str, typer.Argument(help='A GGUF file, "demo", or a [models] table of --config.')
    ],
    config: OptionalConfig = None,
    minutes: Annotated[
        float,
        typer.Option(
            min=0, help="No new run begins after so long; what is left goes on next time."
        ),
    ] = 10.0,
    ctx: Annotated[
        int, typer.Option(min=0, help="Tokens per conversation; 0 = as configured.")
    ] = 0,
    parallel: Annotated[
        int, typer.Option(min=0, max=64, help="Replies decoded at once; 0 = as configured.")
    ] = 0,
    cache_type: Annotated[
        str, typer.Option(help="Type of the KV cache to tune for; as configured when empty.")
    ] = "",
    types: Annotated[
        str, typer.Option(help='Types of the KV cache to show beside it; "" shows none.')
    ] = "f16,q8_0,q4_0",
    vram: Annotated[
        str, typer.Option(help='Use at most so much of the card, for example "11GiB".')
    ] = "",
    chart: Annotated[str, typer.Option(help="The PNG; beside the results when empty.")] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what was measured before.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure real runs around the plan and keep the fastest settings, which vram = "auto" then uses."""
    from bot.cli.tune import TuneOptions, run_tune

    options = TuneOptions(
        model=model,
        vram=vram,
        ctx=ctx,
        parallel=parallel,
        cache_type=cache_type,
        types=types,
        minutes=minutes,
        fresh=fresh,
        chart=chart,
        as_json=as_json,
    )
    if status := run_tune(load_config(config) if config else None, options):
        raise typer.Exit(status)


@app.command("rpc-worker")
def rpc_worker(
    listen: Annotated[
        str,
        typer.Option(help="Where to lend: 127.0.0.1 or a private IPv4 address of this machine."),
    ] = "127.0.0.1:50052",
    threads: Annotated[
        int, typer.Option(min=0, max=512, help="Threads of a CPU; 0 = the physical cores.")
    ] = 0,
    memory: Annotated[
        str,
        typer.Option(help='Most memory that a CPU lends, for example "8GiB"; "" = what is free.'),
    ] = "",
) -> None:
    """Lend this machine's devices to another Hearth (a process of its own; docs/rpc.md)."""
    from bot.cli.rpc_worker import run_rpc_worker

    asyncio.run(run_rpc_worker(listen, threads, memory))


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

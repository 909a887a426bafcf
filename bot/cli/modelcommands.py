"""The commands `hearth model …` and their options. What they do is in `model` and `pulling`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

model_app = typer.Typer(
    no_args_is_help=True, help="Models: what is here, whether it is whole, and more of them."
)

_Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The configuration file; config.toml here when left out."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@model_app.command("list")
def list_models(config: _Config = None, as_json: _Json = False) -> None:
    """Show the models of the config and of the models folder: size, kind, and whether they fit this machine now."""
    from bot.cli.model import config_at, run_list

    run_list(config_at(config), as_json=as_json)


@model_app.command("check")
def check_models(
    model: Annotated[
        str,
        typer.Argument(
            help="A [models] table, a file of the models folder, or a path; all when left out."
        ),
    ] = "",
    config: _Config = None,
    sha256: Annotated[str, typer.Option(help="The published SHA-256 of the file.")] = "",
    as_json: _Json = False,
) -> None:
    """Say what is wrong with model files, from a cut-off download to a wrong checksum; status 3 when one cannot be used."""
    from bot.cli.model import config_at, run_check

    if status := run_check(config_at(config), model, sha256, as_json=as_json):
        raise typer.Exit(status)


@model_app.command("pull")
def pull_model(
    repo: Annotated[str, typer.Argument(help="OWNER/NAME of the repository.")],
    wanted: Annotated[
        str,
        typer.Argument(help='A file or a quantization ("Q4_K_M"); none where there is one model.'),
    ] = "",
    config: _Config = None,
    hub: Annotated[
        str, typer.Option("--from", help="huggingface (and its mirrors) or modelscope.")
    ] = "",
    endpoint: Annotated[
        str, typer.Option(help="A mirror, for example https://hf-mirror.com.")
    ] = "",
    revision: Annotated[str, typer.Option(help="A branch, tag or commit.")] = "",
    to: Annotated[
        Path | None, typer.Option(help="The folder; [models_hub] folder when left out.")
    ] = None,
) -> None:
    """Fetch a model: goes on where an earlier try ended, checks its SHA-256, and prints what to write into the config."""
    from bot.cli.model import config_at
    from bot.cli.pulling import PullOptions, run_pull

    options = PullOptions(repo, wanted, hub, endpoint, revision, to)
    run_pull(config_at(config), options)

"""What a person should know about a configuration before and at start: one list of findings, one readable block."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bot.config import Config, DingTalkBotConfig, LlamaModelConfig
from bot.errors import ConfigError
from engine.rpc.endpoints import crosses_open_network, parse_endpoint
from engine.vram.auto import StartPlan


@dataclass(frozen=True, slots=True)
class Finding:
    """`level` is error (it cannot work) or warning; `where` the key; `text` what is wrong and how to mend it."""

    level: str
    where: str
    text: str


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return host not in {"", "localhost"} and not host.endswith((".local", ".lan", ".internal"))


def _server(config: Config) -> Iterator[Finding]:
    webhooks = [name for name, bot in config.bots.items() if bot.mode == "webhook"]
    url = urlsplit(config.server.public_url)
    on_loopback = all("127.0.0.1" in config.bots[name].api_base for name in webhooks)
    if webhooks and not config.server.public_url and not on_loopback:
        yield Finding(
            "warning",
            "server.public_url",
            "is empty: the platform must reach this machine; set it to the address that your proxy or tunnel gives",
        )
    elif config.server.public_url and url.scheme not in {"http", "https"}:
        yield Finding(
            "error",
            "server.public_url",
            'must start with https:// (or http://), for example "https://bot.example.com"',
        )
    elif config.server.public_url and not _is_public(url.hostname or "") and not on_loopback:
        yield Finding(
            "warning",
            "server.public_url",
            f"{url.hostname} is not a public address; the platform's servers cannot reach it",
        )
    for name in ("api_keys", "interactive_api_keys"):
        for number, key in enumerate(getattr(config.server, name)):
            if key.get_secret_value().startswith("sha256:"):
                continue
            yield Finding(
                "warning",
                f"server.{name}[{number}]",
                'is plain text; "sha256:<hex of its SHA-256>" keeps it out of the file',
            )


def _models(config: Config) -> Iterator[Finding]:
    for name, model in config.models.items():
        if (
            isinstance(model, LlamaModelConfig)
            and model.backend == "llama.cpp"
            and model.path != "demo"
        ):
            path = config.path(model.path)
            if not path.is_file():
                yield Finding("error", f"models.{name}.path", f"{path} does not exist{_near(path)}")
        for address in model.rpc if isinstance(model, LlamaModelConfig) else ():
            if crosses_open_network(parse_endpoint(address, "rpc")):
                yield Finding(
                    "warning",
                    f"models.{name}.rpc",
                    f"{address} is on the open network, and llama.cpp's RPC has no password and no encryption: "
                    "use an SSH tunnel or WireGuard (docs/rpc.md)",
                )


def _near(path: Path) -> str:
    others = sorted(p.name for p in path.parent.glob("*.gguf")) if path.parent.is_dir() else []
    if others:
        return f"; in that folder there is {', '.join(others[:3])}"
    return (
        "; its folder has no GGUF file" if path.parent.is_dir() else "; its folder does not exist"
    )


def _bots(config: Config) -> Iterator[Finding]:
    if not config.bots:
        yield Finding(
            "warning",
            "bots",
            "no bot is configured: add a [bots.<name>] table (config.example.toml shows one)",
        )
    for name, bot in config.bots.items():
        if not isinstance(bot, DingTalkBotConfig) or bot.mode != "webhook":
            continue
        if bot.card_template and not bot.card_callback_url:
            yield Finding(
                "warning",
                f"bots.{name}.card_callback_url",
                "is empty: cards have no buttons; set it to https://<public address>/webhook/"
                f"{name}/card",
            )
    access = config.access
    lists = {"admins": access.admins, "allow": access.allow, "deny": access.deny}
    lists |= {f"tiers[{number}]": tier for number, tier in enumerate(access.tiers)}
    for key, entries in lists.items():
        for entry in entries:
            bot_name = entry.split(":", 1)[0]
            if bot_name not in {"*", "terminal", *config.bots}:
                yield Finding(
                    "warning",
                    f"access.{key}",
                    f'"{entry}" names no configured bot; there is {", ".join(config.bots) or "none"}',
                )
    if config.bots and not config.access.admins:
        yield Finding(
            "warning",
            "access.admins",
            "is empty: nobody can stop other people's replies; send /whoami to the bot and paste what it says",
        )


def findings(config: Config) -> list[Finding]:
    """Everything worth telling, errors first."""
    found = [*_server(config), *_models(config), *_bots(config)]
    return sorted(found, key=lambda finding: finding.level != "error")


def refuse_errors(config: Config) -> None:
    """Raises ConfigError, a line for each finding, when something cannot work."""
    errors = [finding for finding in findings(config) if finding.level == "error"]
    if errors:
        raise ConfigError(
            "\n        ".join(f"{finding.where}: {finding.text}" for finding in errors)
        )


def start_block(config: Config, url: str) -> str:
    """The block `hearth serve` prints when it listens."""
    base = (config.server.public_url or url).rstrip("/")
    lines = ["", f"  Hearth listens on {url}", f"  database   {_database(config)}"]
    for name, model in config.models.items():
        what = (
            model.path
            if isinstance(model, LlamaModelConfig)
            else f"{model.model} at {model.base_url}"
        )
        default = "  (default)" if name == config.default_model else ""
        lines.append(
            f"  model      {name}: {what}, {model.n_ctx} tokens per conversation, {model.n_parallel} at once{default}"
        )
    for name, bot in config.bots.items():
        way = (
            f"paste {base}/webhook/{name} into the console, for events and for callbacks"
            if bot.mode == "webhook"
            else "receives by a long connection, which needs no public address"
        )
        lines.append(f"  bot        {name} ({bot.platform}, {bot.app_id}): {way}")
    lines += [
        f"  {finding.level:<10} {finding.where}: {finding.text}" for finding in findings(config)
    ]
    return "\n".join([*lines, ""])


def _database(config: Config) -> str:
    url = config.storage.url.get_secret_value()
    if url.startswith("sqlite"):
        return str(config.path(url.split("///", 1)[-1]))
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{parts.path}"


def print_plan(plan: StartPlan) -> None:
    """The ledger of a model that is about to be loaded, on stderr: answers and the start block have stdout to themselves."""
    first, *more = plan.lines()
    lines = [
        f"  plan       {plan.config.name}: {first}",
        *(f"             {line}" for line in more),
    ]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()

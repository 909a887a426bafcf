"""`hearth demo`: the whole service on this machine, with a platform played by its sandbox and a page to chat in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bot.app import Hearth
from bot.cli import tinymodel
from bot.cli.main import with_engine
from bot.cli.playing import Play, choose_play
from bot.cli.report import print_plan, refuse_errors
from bot.cli.signals import stop_on_signals
from bot.config import Config, parse_config
from bot.errors import ConfigError
from bot.logs import set_up_logging

FIRST_PORT = 8080
PORTS_TO_TRY = 20


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The command's options."""

    port: int | None
    open_browser: bool
    model: str
    language: str
    data: Path | None
    engine: str
    platform: str = "feishu"

    @property
    def bot_name(self) -> str:
        """The bot's name in the config."""
        return self.platform


def choose_port(wanted: int | None) -> int:
    """The wanted port, or the first free one from 8080. Raises ConfigError when there is none."""
    candidates = [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS_TO_TRY)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    what = (
        f"port {wanted} is"
        if wanted is not None
        else f"ports {FIRST_PORT} to {FIRST_PORT + PORTS_TO_TRY - 1} are"
    )
    raise ConfigError(f"{what} already in use; choose another with --port")


def demo_language(wanted: str) -> str:
    """zh or en: as asked, else from the environment. Raises ConfigError for anything else."""
    if wanted not in {"", "zh", "en"}:
        raise ConfigError(f'--language {wanted}: it is "zh" or "en"')
    return wanted or (
        "zh" if os.environ.get("LC_ALL", os.environ.get("LANG", "")).startswith("zh") else "en"
    )


def demo_config(
    options: DemoOptions, folder: Path, play: Play, api_base: str, port: int = 0
) -> Config:
    """A complete config for the demo: one bot whose platform is the sandbox."""
    tiny = options.model == "demo"
    data: dict[str, Any] = {
        "server": {"port": port},
        "log": {"level": "warning"},
        "storage": {"url": "sqlite:///demo.db"},
        "models": {"demo": tinymodel.MODEL} if tiny else {"local": {"path": options.model}},
        "chat": {
            "language": demo_language(options.language),
            "max_new_tokens": 400,
            **(tinymodel.CHAT if tiny else {}),
        },
        "access": {"per_user_per_minute": 60},
        "bots": {options.bot_name: play.table(api_base)},
    }
    return with_engine(parse_config(data, folder), options.engine)


def page_notes(options: DemoOptions) -> dict[str, Any]:
    """What the page says about the model."""
    tiny = options.model == "demo" and not options.engine
    return {
        "model": "SmolLM2-135M-Instruct"
        if tiny
        else Path(options.model).name
        if not options.engine
        else "scripted",
        "language": demo_language(options.language),
        "tiny_model": tiny,
        "sample_questions": [
            "What is photosynthesis?",
            "Write a short poem about the sea.",
            "Give me three tips for a good night's sleep.",
        ],
        "real_model_hint": "hearth demo --model /path/to/model.gguf",
    }


async def run_demo(options: DemoOptions) -> None:
    """Run until Ctrl-C."""
    port = choose_port(options.port)
    with contextlib.ExitStack() as stack:
        if options.data is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-demo-")))
        else:
            folder = options.data.resolve()
            folder.mkdir(parents=True, exist_ok=True)
        await _run_in(options, folder, port)


async def _run_in(options: DemoOptions, folder: Path, port: int) -> None:
    play = choose_play(options.platform, page_notes(options))
    sandbox = play.sandbox
    # Everything that can be wrong is said before anything listens; the real address is known after.
    refuse_errors(demo_config(options, folder, play, "http://127.0.0.1"))
    stop = stop_on_signals()
    service_port = choose_port(0)
    # Known before the page is: a question typed in that moment is delivered again by the platform's own retries.
    if play.subscribe is not None:
        play.subscribe(f"http://127.0.0.1:{service_port}/webhook/{options.bot_name}")
    try:
        await sandbox.start("127.0.0.1", port)
        config = demo_config(options, folder, play, sandbox.base_url, service_port)
        set_up_logging(config)
        hearth = Hearth(config, on_plan=print_plan)
        await hearth.start()
        try:
            if hearth.web is None:
                raise ConfigError("the demo needs the web server")
            await play.ready()
            _announce(play, hearth.web.url)
            if options.open_browser:
                await asyncio.to_thread(open_page, sandbox.base_url)
            await stop.wait()
        finally:
            await hearth.close()
    finally:
        await sandbox.close()


def open_page(url: str) -> None:
    """Open the page where there is a desktop. Blocks: some browsers are waited for.

    A browser that runs in the terminal (w3m, lynx) is left alone: it would take this terminal, and cannot show the page.
    """
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    if type(browser) is not webbrowser.GenericBrowser:
        browser.open(url)


def _announce(play: Play, service: str) -> None:
    page = play.sandbox.base_url
    sys.stdout.write(
        f"\n  Open {page} and ask the bot something.\n"
        f"  {play.title} is played by this program at {page}; Hearth listens at {service} and knows nothing of that.\n"
        "  Ctrl-C ends the demo.\n\n"
    )
    sys.stdout.flush()

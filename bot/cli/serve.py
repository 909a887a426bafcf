"""`hearth serve` and `hearth migrate`."""

from __future__ import annotations

import asyncio
import signal
import sys

from bot.app import Hearth, store_url
from bot.cli.report import findings, start_block
from bot.config import Config
from bot.errors import ConfigError
from bot.logs import set_up_logging
from bot.store import Store


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set; a second signal ends the process the hard way."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(number: signal.Signals) -> None:
        if stop.is_set():
            sys.stderr.write("hearth: stopped at once; the next start goes on where this one was\n")
            # The store is crash-safe by design; waiting longer would only annoy.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)
    return stop


async def serve(config: Config) -> None:
    """Run until a signal. Raises ConfigError for what cannot work."""
    set_up_logging(config)
    errors = [finding for finding in findings(config) if finding.level == "error"]
    if errors:
        raise ConfigError(
            "\n        ".join(f"{finding.where}: {finding.text}" for finding in errors)
        )
    stop = stop_on_signals()
    hearth = Hearth(config)
    await hearth.start()
    try:
        url = hearth.web.url if hearth.web else ""
        sys.stdout.write(start_block(config, url) + "\n")
        sys.stdout.flush()
        await stop.wait()
        sys.stdout.write("stopping: running replies are brought to a safe point\n")
    finally:
        await hearth.close()


async def migrate(config: Config) -> None:
    """Open the database, which brings it up to date, and close it."""
    set_up_logging(config)
    store = Store(
        store_url(config), dedupe_hours=config.storage.dedupe_hours, backups=config.storage.backups
    )
    await store.open()
    await store.close()
    sys.stdout.write("the database is up to date\n")

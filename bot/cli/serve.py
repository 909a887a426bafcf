"""`hearth serve` and `hearth migrate`."""

from __future__ import annotations

import asyncio
import signal
import sys

from bot.app import Hearth, store_url
from bot.cli.report import refuse_errors, start_block
from bot.config import Config
from bot.logs import set_up_logging
from bot.store import Store

SAME_SIGNAL_S = 0.5


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set; a second signal ends the process the hard way.

    `timeout`, `make` and some supervisors signal the process and its group: what comes at once is one signal.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    first_at = 0.0

    def handle(number: signal.Signals) -> None:
        nonlocal first_at
        if stop.is_set():
            if loop.time() - first_at < SAME_SIGNAL_S:
                return
            sys.stderr.write("hearth: stopped at once; the next start goes on where this one was\n")
            # The store is crash-safe by design; waiting longer would only annoy.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        first_at = loop.time()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)
    return stop


async def serve(config: Config) -> None:
    """Run until a signal. Raises ConfigError for what cannot work."""
    set_up_logging(config)
    refuse_errors(config)
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

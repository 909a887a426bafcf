"""`hearth serve` and `hearth migrate`."""

from __future__ import annotations

import sys

from bot.app import Hearth, store_url
from bot.cli.report import print_plan, refuse_errors, start_block
from bot.cli.signals import stop_on_signals
from bot.config import Config
from bot.logs import set_up_logging
from bot.store import Store


async def serve(config: Config) -> None:
    """Run until a signal. Raises ConfigError for what cannot work."""
    set_up_logging(config)
    refuse_errors(config)
    stop = stop_on_signals()
    hearth = Hearth(config, on_plan=print_plan)
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

"""Ending politely: one signal asks, a second one ends the process at once."""

from __future__ import annotations

import asyncio
import signal
import sys

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

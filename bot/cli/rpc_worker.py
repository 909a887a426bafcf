"""`hearth rpc-worker`: lend this machine's devices to another Hearth. Prints; the work is `engine.lending`."""

from __future__ import annotations

import asyncio
import sys

from bot.cli.signals import stop_on_signals
from bot.errors import ConfigError
from engine.errors import EngineConfigError
from engine.lending import Offer, lend
from engine.rpc.endpoints import parse_listen
from engine.vram.devices import parse_size


async def run_rpc_worker(listen: str, threads: int, memory: str) -> None:
    """Lend until SIGINT or SIGTERM. Raises ConfigError for what cannot work."""
    try:
        offer = Offer(
            parse_listen(listen), threads, parse_size(memory, "--memory") if memory else 0
        )
        await _until_stopped(offer)
    except EngineConfigError as error:
        raise ConfigError(str(error)) from error


async def _until_stopped(offer: Offer) -> None:
    stop = stop_on_signals()
    work = asyncio.create_task(lend(offer, _say), name="rpc_lending")
    waiting = asyncio.create_task(stop.wait(), name="rpc_stop")
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        _say("stopping")
    finally:
        work.cancel()
        waiting.cancel()
        await asyncio.wait({work, waiting})


def _say(line: str) -> None:
    sys.stdout.write(f"rpc-worker: {line}\n")
    sys.stdout.flush()

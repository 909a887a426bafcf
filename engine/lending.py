"""Lends this machine's devices to others: keeps one `engine.rpc.lender` process alive and tells what happens to it.

A client that sends nonsense can end that process (llama.cpp checks little); it is started again with growing waits. SIGTERM and
the like are the caller's: cancelling `lend` ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from engine.errors import EngineConfigError
from engine.link.process import child_environment
from engine.link.watch import Backoff, Supervision
from engine.rpc.endpoints import Endpoint
from engine.rpc.lender import EXIT_CONFIG, Lent
from engine.vram.settings import usable_cores

_CAME, _LEFT = b"Accepted client connection", b"Client connection closed"
_MOMENT_S: Final = 1.0
_RULES: Final = Supervision(healthy_after_s=30.0)


@dataclass(frozen=True, slots=True)
class Offer:
    """What is lent, and where. `memory` limits a CPU, in bytes; 0 = what is free. `n_threads` 0 = the physical cores."""

    endpoint: Endpoint
    n_threads: int = 0
    memory: int = 0


Tell = Callable[[str], None]


async def lend(offer: Offer, tell: Tell) -> None:
    """Lend until cancelled; `tell` gets one line per event. Raises EngineConfigError where it cannot work at all."""
    check_free(offer.endpoint)
    backoff = Backoff(_RULES)
    loop = asyncio.get_running_loop()
    while True:
        started_s = loop.time()
        status = await _one_life(offer, tell)
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        wait_s = backoff.next_wait_s(loop.time() - started_s)
        tell(f"the lending process ended ({how}); it is started again in {wait_s:.1f} s")
        await asyncio.sleep(wait_s)


def check_free(endpoint: Endpoint) -> None:
    """Raise EngineConfigError when nobody can listen there now: llama.cpp would not say why."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(endpoint)
            trial.listen(1)
        except OSError as error:
            reason = {
                errno.EADDRINUSE: "another program listens there (another worker?)",
                errno.EADDRNOTAVAIL: "this machine has no such address",
            }.get(error.errno or 0, error.strerror or type(error).__name__)
            raise EngineConfigError(
                f"rpc-worker: cannot listen on {endpoint}: {reason}; choose another --listen"
            ) from None


async def _one_life(offer: Offer, tell: Tell) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "engine.rpc.lender",
        "--endpoint", str(offer.endpoint), "--threads", str(offer.n_threads or usable_cores()), "--memory", str(offer.memory),
        "--parent", str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(os.environ),
        process_group=0,
    )  # fmt: skip
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_hear(process.stdout, offer, tell))
            words = group.create_task(_last_words(process.stderr))
            status = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    last = words.result()
    if status == EXIT_CONFIG:
        raise EngineConfigError(f"rpc-worker: {last}")
    if last:
        tell(f"its last words: {last}")
    return status


async def _hear(stream: asyncio.StreamReader | None, offer: Offer, tell: Tell) -> None:
    """One line of JSON says what is lent; then llama.cpp tells of clients. The rest of its words is ours to say better.

    While it loads, llama.cpp's client connects a dozen times for a moment; only who stays is worth a line.
    """
    is_new = uses = False
    while stream is not None:
        try:
            line = await asyncio.wait_for(stream.readline(), _MOMENT_S if is_new else None)
        except TimeoutError:
            is_new, uses = False, True
            tell("a client uses it")
            continue
        if not line:
            return
        if line.startswith(b"["):
            for device in msgspec.json.decode(line, type=list[Lent]):
                tell(f"lends {_shown(device)} at {offer.endpoint}")
            tell("one client at a time, no password: keep others away from this address")
        elif line.startswith(_CAME):
            is_new = True
        elif line.startswith(_LEFT):
            if uses:
                tell("the client has left")
            is_new = uses = False


def _shown(device: Lent) -> str:
    free, total = _size(device.free), _size(device.total)
    return f"{device.name} ({device.description}): {free} of {total} free"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


async def _last_words(stream: asyncio.StreamReader | None) -> str:
    """The last line that says something."""
    last = ""
    while stream is not None and (line := await stream.readline()):
        text = line.decode("utf-8", "replace").strip()
        last = "".join(char for char in text if char.isprintable())[:300] or last
    return last

"""The process that lends: `python -m engine.rpc.lender`, started by `engine.lending`. Not for hand use.

llama.cpp's server call never returns and prints to standard output, where the parent reads who came and left. Before it, one
line of JSON says what is lent. The process holds no secret (`child_environment`) and dies with its parent.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from engine.backends.memory import available_bytes, total_bytes
from engine.errors import EngineConfigError
from engine.rpc import sockets

EXIT_CONFIG: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_MIB: Final = 2**20
_LOOK_EVERY_S: Final = 0.1
_PER_THREAD: Final = 16 * _MIB  # its stack and what malloc keeps for it


class Lent(msgspec.Struct, frozen=True, kw_only=True):
    """One device that is lent, in bytes."""

    name: str
    description: str
    free: int
    total: int


def main() -> NoReturn:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="engine.rpc.lender")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--memory", type=int, default=0, help="bytes; of a CPU only")
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != args.parent:
        os._exit(0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold other people's words
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _lend(args.endpoint, args.threads, args.memory)
    except EngineConfigError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - the parent reads it
        os._exit(EXIT_CONFIG)
    os._exit(1)  # the call came back: it could not listen there, and has said so


def _lend(endpoint: str, n_threads: int, memory: int) -> None:
    from engine.backends import llamarpc

    devices = llamarpc.local_devices()
    if memory and not devices[0].is_cpu:
        raise EngineConfigError(
            "--memory limits what a CPU lends; llama.cpp cannot limit a graphics card"
        )
    kept: list[object] = []
    if devices[0].is_cpu:
        budget = _Budget(memory, n_threads)
        kept.append(llamarpc.tell_memory(devices[0], budget.free_and_total))
        kept.append(llamarpc.limit_buffers(budget.may_take))
        devices = llamarpc.local_devices()
    told = [
        Lent(name=d.name, description=d.description, free=d.free, total=d.total) for d in devices
    ]
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.flush()
    port = int(endpoint.rpartition(":")[2])
    threading.Thread(target=_notice_lost_clients, args=(port,), daemon=True).start()
    llamarpc.lend(endpoint, devices, n_threads)


class _Budget:
    """What a CPU lends: all memory that is free, or at most `limit` bytes of it."""

    def __init__(self, limit: int, n_threads: int) -> None:
        self._limit = limit
        self._own = _data_bytes() + n_threads * _PER_THREAD

    def free_and_total(self) -> tuple[int, int]:
        available = available_bytes()
        if not self._limit:
            return available, total_bytes()
        used = max(0, _data_bytes() - self._own)
        return max(0, min(self._limit - used, available)), self._limit

    def may_take(self, n_bytes: int) -> bool:
        """Linux hands out memory that it does not have and kills the process when it is used: better to say no."""
        return n_bytes <= self.free_and_total()[0]


def _data_bytes() -> int:
    """Private memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def _notice_lost_clients(port: int) -> None:
    """As soon as llama.cpp listens: its clients' connections must notice that a machine is gone."""
    while True:
        for found in sockets.tcp_sockets():
            with found:
                if found.getsockname()[1] == port:
                    sockets.keep_alive(found)
                    return
        time.sleep(_LOOK_EVERY_S)


if __name__ == "__main__":
    main()

"""Workers as devices of this engine child: each is leased, asked, and only then dialled; and watched from then on.

llama.cpp ends the process when a worker it uses is gone, but notices it only in the next decode, and does not say which one.
The watch here says so at once, in a line that the parent knows (`worker_named`), and ends the process.
"""

from __future__ import annotations

import os
import re
import select
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import structlog

from engine.rpc import sockets
from engine.rpc.endpoints import Endpoint, parse_endpoint
from engine.rpc.hello import WorkerAway, ask_worker
from engine.rpc.lease import Holder, Lease, take_lease

_log = structlog.get_logger()

EXIT_WORKER_LOST: Final = 71
# A worker whose client was killed computes on until its step is done; whoever asks now stands first in its line.
_PATIENCE_S: Final = 10.0
_GONE: Final = re.compile(r"the RPC worker at (\S+) went away")
_HANG_UP: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


def worker_named(line: str) -> str:
    """The address of the worker that a line of the child says is gone; "" = it says nothing of the kind."""
    found = _GONE.search(line)
    return found.group(1) if found else ""


class Workers:
    """The workers of one engine child. Owner: its backend. `absent`: those that could not be used, and why."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._leases: list[Lease] = []
        self._watch: WorkerWatch | None = None
        self.used: tuple[Endpoint, ...] = ()
        self.absent: dict[str, str] = {}

    def connect(self, endpoints: Sequence[str], add_worker: Callable[[str], None]) -> None:
        """Make every worker that is there and free a device of this process, before the model is loaded. Raises
        EngineConfigError for what is no address.
        """
        for text in endpoints:
            endpoint = parse_endpoint(text, f"models.{self._model}.rpc")
            try:
                self._leases.append(_leased(endpoint, self._model))
            except WorkerAway as error:
                self.absent[text] = str(error)
                _log.warning("rpc_worker_absent", worker=text, reason=str(error))
                continue
            add_worker(str(endpoint))
            self.used = (*self.used, endpoint)

    def watch(self) -> None:
        """From now on the loss of a worker ends the process; llama.cpp holds its connections once a context is open."""
        if self.used:
            self._watch = WorkerWatch(self.used)

    def close(self) -> None:
        """Give the workers free for others. Behind the model, whose buffers lie there; calling it twice is harmless."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for lease in self._leases:
            lease.release()


def _leased(endpoint: Endpoint, model: str) -> Lease:
    lease = take_lease(endpoint, model)
    try:
        devices = ask_worker(endpoint, _PATIENCE_S)
    except WorkerAway:
        lease.release()
        raise
    lease.write(Holder(pid=os.getpid(), model=model, devices=devices))
    return lease


class WorkerWatch:
    """A thread that waits until one of the connections to workers is hung up, or `close`. Owner: `Workers`."""

    def __init__(self, used: Sequence[Endpoint]) -> None:
        names = {_resolved(one): one for one in used}
        self._watched: dict[int, tuple[socket.socket, Endpoint]] = {}
        for found in sockets.tcp_sockets():
            endpoint = names.get(sockets.peer_of(found) or ("", 0))
            if endpoint is None:
                found.close()
                continue
            sockets.keep_alive(found)
            self._watched[found.fileno()] = found, endpoint
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._wait, name="rpc_watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and let go of the connections."""
        os.close(self._end)
        self._thread.join()
        os.close(self._ended)
        for found, _ in self._watched.values():
            found.close()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._ended, select.POLLHUP)
        for number in self._watched:
            poll.register(number, _HANG_UP)
        for number, _ in poll.poll():
            if number in self._watched:
                _end(self._watched[number][1])


def _resolved(endpoint: Endpoint) -> tuple[str, int]:
    """As llama.cpp resolves it."""
    try:
        return socket.gethostbyname(endpoint.host), endpoint.port
    except OSError:  # no longer known: then llama.cpp alone notices the loss
        return endpoint


def _end(endpoint: Endpoint) -> NoReturn:
    sys.stderr.write(f"the RPC worker at {endpoint} went away\n")
    sys.stderr.flush()
    os._exit(EXIT_WORKER_LOST)

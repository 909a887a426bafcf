"""Sockets that llama.cpp's RPC opened in this process: found by their addresses, made to notice a peer that is gone.

llama.cpp sets no keep-alive, so a machine that loses its power or its network leaves the other end waiting for ever: a worker
would never be free again, an engine would hang in a decode.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_IDLE_S: Final = 20
_EVERY_S: Final = 5
_TRIES: Final = 4


def tcp_sockets() -> Iterator[socket.socket]:
    """A second handle of every IPv4 TCP socket of this process; the caller closes each."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            is_socket = str(entry.readlink()).startswith("socket:")
            found = socket.socket(fileno=os.dup(int(entry.name))) if is_socket else None
        except OSError:  # closed meanwhile
            continue
        if found is None:
            continue
        if found.family == socket.AF_INET and found.type == socket.SOCK_STREAM:
            yield found
        else:
            found.close()


def peer_of(found: socket.socket) -> tuple[str, int] | None:
    """Address and port of the other end; None = it is not connected."""
    try:
        host, port = found.getpeername()
    except OSError:
        return None
    return host, port


def keep_alive(found: socket.socket) -> None:
    """End a connection when the other machine has been silent for 40 s (its kernel answers by itself while it runs).

    Connections that a listening socket accepts inherit it.
    """
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TRIES)
    patience_ms = 1000 * (_IDLE_S + _EVERY_S * _TRIES)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)

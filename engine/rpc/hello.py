"""Asks an RPC worker whether it is there, free and of this version, and what it lends; without llama.cpp.

llama.cpp's own client aborts the process where there is no worker and waits for ever where one is busy: a worker serves one
client, and whoever comes second stands in the kernel's queue unanswered. So this question comes before its call, with a time limit.
A client that hangs up is nothing to the worker, in the queue or not.

The wire (ggml-rpc.cpp, protocol 7): a request is a command byte, a 64-bit length and so many bytes, an answer a 64-bit length and
so many bytes, little-endian. HELLO carries 24 bytes of transport capabilities (zero = TCP).
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

from engine.errors import EngineError
from engine.rpc.endpoints import Endpoint, parse_endpoint

PROTOCOL: Final = 7
_HELLO, _DEVICE_COUNT, _DEVICE_MEMORY = 14, 15, 11
_CAPABILITIES: Final = 24
_LENGTH: Final = struct.Struct("<Q")
_MAX_DEVICES: Final = 64


class WorkerAway(EngineError):
    """The worker cannot be used now; the text says why, without its address."""


@dataclass(frozen=True, slots=True)
class LentDevice:
    """Memory of one device that a worker lends, in bytes."""

    free: int
    total: int


def ask_worker(endpoint: Endpoint, timeout_s: float = 2.0) -> tuple[LentDevice, ...]:
    """What the worker lends. Blocks for at most about `timeout_s` per answer. Raises WorkerAway."""
    try:
        with socket.create_connection(endpoint, timeout_s) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _conversation(connection)
    except TimeoutError:
        raise WorkerAway(
            "it does not answer: somebody else uses it (it serves one at a time), or it hangs"
        ) from None
    except OSError as error:
        raise WorkerAway(f"it cannot be reached ({_reason(error)})") from None


def is_free(address: str) -> bool:
    """Whether a worker (an address that was checked before) answers. Blocks for at most about 2 s."""
    try:
        ask_worker(parse_endpoint(address, "rpc"))
    except EngineError:
        return False
    return True


def _conversation(connection: socket.socket) -> tuple[LentDevice, ...]:
    answer = _ask(connection, _HELLO, bytes(_CAPABILITIES), 4 + _CAPABILITIES)
    if answer[0] != PROTOCOL or answer[1] > 0:
        raise WorkerAway(
            f"it speaks version {answer[0]}.{answer[1]} of llama.cpp's RPC, this build {PROTOCOL}.0: install the same Hearth on both"
        )
    (n_devices,) = struct.unpack("<I", _ask(connection, _DEVICE_COUNT, b"", 4))
    if not 0 < n_devices <= _MAX_DEVICES:
        raise WorkerAway(f"it lends {n_devices} devices")
    return tuple(_device(connection, index) for index in range(n_devices))


def _device(connection: socket.socket, index: int) -> LentDevice:
    answer = _ask(connection, _DEVICE_MEMORY, struct.pack("<I", index), 16)
    return LentDevice(*struct.unpack("<QQ", answer))


def _ask(connection: socket.socket, command: int, data: bytes, n_answer: int) -> bytes:
    connection.sendall(bytes([command]) + _LENGTH.pack(len(data)) + data)
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if length != n_answer:
        raise WorkerAway("what answers there is no RPC worker of this version")
    return _receive(connection, n_answer)


def _receive(connection: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        more = connection.recv(n_bytes - len(data))
        if not more:
            raise WorkerAway("it hung up: what answers there is no RPC worker of this version")
        data += more
    return data


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    return (error.strerror or type(error).__name__).lower()

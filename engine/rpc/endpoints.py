"""Addresses of RPC workers: how they are written, and which of them one may listen on. Pure.

llama.cpp takes "host:port" with an IPv4 address or, for connecting only, a name (ggml-rpc, transport.cpp); no IPv6.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from engine.errors import EngineConfigError

DEFAULT_PORT = 50052  # llama.cpp's own
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_EXAMPLE = '"127.0.0.1:50052"'
# Shared address space of carriers, which Tailscale uses, too (RFC 6598): not "private" to Python, and not the open network.
_SHARED = ipaddress.ip_network("100.64.0.0/10")


class Endpoint(NamedTuple):
    """Where a worker listens. As a string it is what llama.cpp is given."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_endpoint(text: str, where: str) -> Endpoint:
    """ "host:port"; the port may be left out. Raises EngineConfigError that begins with `where`."""
    host, colon, port = text.strip().partition(":")
    if not _HOST.fullmatch(host) or (colon and not (port.isascii() and port.isdigit())):
        raise EngineConfigError(
            f'{where}: "{text}" is not the address of an RPC worker; write an IPv4 address or a name and a port, '
            f"for example {_EXAMPLE} (llama.cpp's RPC knows no IPv6)"
        )
    number = int(port) if colon else DEFAULT_PORT
    if not 1 <= number <= 65535:
        raise EngineConfigError(f'{where}: "{text}" has the port {number}; ports are 1 to 65535')
    return Endpoint(host, number)


def parse_listen(text: str) -> Endpoint:
    """An address to lend devices on. Raises EngineConfigError for everything that is not loopback or a named private one."""
    where = "rpc-worker --listen"
    endpoint = parse_endpoint(text, where)
    try:
        address = ipaddress.IPv4Address(endpoint.host)
    except ValueError:
        raise EngineConfigError(
            f'{where}: "{endpoint.host}" is a name; write the IPv4 address of one interface, for example {_EXAMPLE}'
        ) from None
    if address.is_loopback or (_is_at_home(address) and not address.is_unspecified):
        return endpoint
    what = "every interface" if address.is_unspecified else "an address of the open network"
    raise EngineConfigError(
        f"{where}: {address} is {what}, and llama.cpp's RPC has no password and trusts whoever connects; listen on 127.0.0.1 "
        "or on a private address, and come from elsewhere through an SSH tunnel or WireGuard (docs/rpc.md)"
    )


def crosses_open_network(endpoint: Endpoint) -> bool:
    """Whether its address is one of the open network; of a name that is not known here."""
    try:
        address = ipaddress.IPv4Address(endpoint.host)
    except ValueError:
        return False
    return not (address.is_loopback or _is_at_home(address))


def _is_at_home(address: ipaddress.IPv4Address) -> bool:
    private = any(
        address in ipaddress.ip_network(network)
        for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16")
    )
    return private or address in _SHARED

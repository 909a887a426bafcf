"""The port: free, or held by whom. Where a Hearth answers there, what it says of itself."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
import psutil  # type: ignore[import-untyped]  # the package ships no types

from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient
from bot.doctor.processes import name_process

_WHERE: Final = "server.port"
_ASK_S: Final = 2.0


async def look_at_port(patient: Patient) -> list[Finding]:
    """Binds it for a moment, as the service would."""
    server = patient.config.server
    fault = _try_bind(server.host, server.port)
    if fault is None:
        return [ok(f"{server.host}:{server.port} is free")] if server.port else []
    if fault.errno != errno.EADDRINUSE:
        return [_cannot(server.host, server.port, fault)]
    holder = _holder(server.port)
    who = name_process(holder, patient) if holder else "another program"
    ready = await _ask(server.host, server.port)
    if ready is None:
        cure = f"stop it, or set another [server] port{_public_hint(patient)}"
        return [error(f"{server.port} is already in use by {who}", _WHERE, cure)]
    return [ok(f"{server.port} is held by a running Hearth, {who}"), *_say(ready)]


def _try_bind(host: str, port: int) -> OSError | None:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as fault:
        return fault
    return None


def _cannot(host: str, port: int, fault: OSError) -> Finding:
    if fault.errno == errno.EACCES:
        return error(f"port {port} needs root", _WHERE, "choose one from 1024 on, behind a proxy")
    if fault.errno == errno.EADDRNOTAVAIL or isinstance(fault, socket.gaierror):
        cure = 'write "127.0.0.1", or "0.0.0.0" for every address of this machine'
        return error(f"{host} is no address of this machine", "server.host", cure)
    return error(f"{host}:{port} cannot be used ({fault.strerror})", _WHERE, "set another one")


def _public_hint(patient: Patient) -> str:
    return " and point the proxy there" if patient.config.server.public_url else ""


def _holder(port: int) -> int | None:
    """The process that listens there, where we may see it."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            return int(connection.pid) if connection.pid else None
    return None


async def _ask(host: str, port: int) -> dict[str, Any] | None:
    """What a Hearth there says at /readyz; None when it is none."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared, not bound
    if ":" in address:
        address = f"[{ipaddress.ip_address(address)}]"
    timeout = aiohttp.ClientTimeout(total=_ASK_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(f"http://{address}:{port}/readyz") as response,
        ):
            facts = await response.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("models"), dict) else None


def _say(ready: dict[str, Any]) -> Iterator[Finding]:
    for name, model in ready["models"].items():
        where = f"models.{name}"
        state, restarts = model.get("state", "?"), model.get("restarts", 0)
        if state != "ready":
            detail = model.get("detail") or f"is {state}"
            yield warning(
                f"in the running service: {detail}",
                where,
                "look into its log; /readyz has the facts",
            )
        elif model.get("step_back"):
            yield warning(
                f"in the running service: {model['step_back']}", where, "hearth plan says what fits; free some memory"
            )  # fmt: skip
        elif restarts:
            yield warning(
                f"the running service had to restart it {restarts} time(s)", where, "look into its log for the cause"
            )  # fmt: skip
    for name, bot in ready.get("bots", {}).items():
        if isinstance(bot, dict) and (since := bot.get("deaf_since")):
            what = f"in the running service: no connection since {since} ({bot.get('reason', 'no reason given')})"
            yield warning(what, f"bots.{name}", f"hearth doctor --bot {name}")

"""One bot: its credentials, clock, permissions, long connection and callback, as far as they can be told from here.

Asks the platform what its check-up (bot.platforms.checkup) knows to ask, and a Hearth that runs with this configuration what it
sees. Where none runs, the platform's handshakes are played in this process, by the adapter itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from bot.config import BotConfig, Config
from bot.doctor.callbacks import LOCAL_S, PUBLIC_S, public_url, shake_here, shake_over
from bot.doctor.findings import Check, Finding, Level, error, ok, warning
from bot.doctor.guides import listens_to
from bot.doctor.patient import Patient
from bot.platforms.checkup import Checkup
from bot.platforms.http import SharedHttp
from bot.platforms.opening import open_checkup

# A Date is exact to a second, and the way takes its time.
_SKEW_S: Final = 10.0


# -- the checks ------------------------------------------------------------------------------------------------------
def look_at_config(patient: Patient) -> Iterable[Finding]:
    """The bot that was named."""
    bot = patient.config.bots.get(patient.bot)
    if bot is None:
        names = ", ".join(patient.config.bots) or "none"
        return (error(f"there is no bot called {patient.bot}; configured: {names}", f"bots.{patient.bot}",
                      "name one of them, or add its table (config.example.toml shows one per platform)"),)  # fmt: skip
    return (ok(f'{bot.platform}, mode = "{bot.mode}", app {bot.app_id}', f"bots.{patient.bot}"),)


async def look_at_credentials(patient: Patient) -> Iterable[Finding]:
    """Id and secret; the clock on the way."""
    async with _visit(patient) as visit:
        if visit is None:
            return ()
        remarks = await visit.checkup.credentials(visit.running)
        return (*_findings(patient, remarks), *_clock(visit))


async def look_at_permissions(patient: Patient) -> Iterable[Finding]:
    """What the app may do."""
    async with _visit(patient) as visit:
        if visit is None:
            return ()
        before = await visit.checkup.credentials(visit.running)
        if any(seen.level is Level.ERROR for seen in before):
            return (warning("not asked before the credentials are right", "", "mend those first"),)  # fmt: skip
        return _findings(patient, await visit.checkup.permissions())


async def look_at_connection(patient: Patient) -> Iterable[Finding]:
    """The long connection: whether it could be opened, and what a running Hearth says of its own."""
    async with _visit(patient) as visit:
        if visit is None or visit.bot.mode == "webhook":
            return ()
        remarks = await visit.checkup.connection()
        return (*_findings(patient, remarks), *_running_connection(patient, visit))


async def look_at_callback(patient: Patient) -> Iterable[Finding]:
    """Whether the platform's requests are answered: here, and at the public address."""
    async with _visit(patient) as visit:
        if visit is None or visit.bot.mode != "webhook":
            return ()
        handshakes = visit.checkup.handshakes()
        found = list(public_url(patient.config, visit.bot))
        if visit.runs:
            found += await shake_over(_local_url(patient.config), patient.bot, handshakes, LOCAL_S)
        else:
            found.append(
                warning(f"no Hearth answers at {_local_url(patient.config)}; the handshakes were tried without it", "server",
                        "start `hearth serve`: the console accepts the URL only while it runs")
            )  # fmt: skip
            found += shake_here(patient.bot, visit.bot, handshakes)
        public = patient.config.server.public_url.rstrip("/")
        if public and visit.runs and urlsplit(public).scheme in {"http", "https"}:
            found += await shake_over(public, patient.bot, handshakes, PUBLIC_S)
        return found


CHECKS: Final[tuple[Check, ...]] = (
    Check("bot", look_at_config),
    Check("credentials", look_at_credentials),
    Check("permissions", look_at_permissions),
    Check("connection", look_at_connection),
    Check("callback", look_at_callback),
)


# -- what they share -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Visit:
    """A bot, its check-up, whether a Hearth runs with this configuration, and what that says of the bot."""

    bot: BotConfig
    checkup: Checkup
    runs: bool
    running: Mapping[str, str]


@asynccontextmanager
async def _visit(patient: Patient) -> AsyncIterator[_Visit | None]:
    bot = patient.config.bots.get(patient.bot)
    if bot is None:  # said by the first check
        yield None
        return
    http = SharedHttp()
    await http.start()
    try:
        runs, running = await _ask_running(patient)
        listens = listens_to(patient.config, patient.bot)
        yield _Visit(bot, open_checkup(bot, http, listens=listens), runs, running)
    finally:
        await http.close()


def _local_url(config: Config) -> str:
    """Where a Hearth with this configuration listens, as seen from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(config.server.host, config.server.host)  # noqa: S104  # fmt: skip
    return f"http://{f'[{host}]' if ':' in host else host}:{config.server.port}"


async def _ask_running(patient: Patient) -> tuple[bool, Mapping[str, str]]:
    """GET /readyz of a running Hearth: whether there is one, and its facts of this bot."""
    timeout = aiohttp.ClientTimeout(total=LOCAL_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{_local_url(patient.config)}/readyz") as answer,
        ):
            found = await answer.json()
            bots = found["bots"]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
        return False, {}
    facts = bots.get(patient.bot) if isinstance(bots, dict) else None
    return True, {k: str(v) for k, v in facts.items()} if isinstance(facts, dict) else {}


def _findings(patient: Patient, seen: Iterable[Finding]) -> tuple[Finding, ...]:
    """What a check-up found, with the whole key."""
    table = f"bots.{patient.bot}"
    return tuple(replace(one, where=f"{table}.{one.where}" if one.where else table) for one in seen)


def _clock(visit: _Visit) -> Iterable[Finding]:
    """Signatures hold times, and a wrong clock makes genuine messages look forged."""
    skew_s = visit.checkup.skew_s
    if skew_s is None:
        return
    way = "ahead of" if skew_s > 0 else "behind"
    seen = f"this machine's clock is {abs(skew_s):.0f} s {way} the platform's"
    window_s = (
        getattr(visit.bot, "signature_window_s", None) if visit.bot.mode == "webhook" else None
    )
    if window_s is not None and abs(skew_s) > window_s:
        yield error(f"{seen}: every signed message is refused (signature_window_s = {window_s:g})", "",
                    "set the clock, best by NTP: timedatectl set-ntp true")  # fmt: skip
    elif abs(skew_s) > _SKEW_S:
        yield warning(seen, "", "set the clock, best by NTP: timedatectl set-ntp true")
    else:
        yield ok("this machine's clock agrees with the platform's")


def _running_connection(patient: Patient, visit: _Visit) -> Iterable[Finding]:
    where, running = f"bots.{patient.bot}", visit.running
    if since := running.get("connected_since"):
        yield ok(f"the running Hearth is connected since {since}", where)
    elif holder := running.get("connected_process"):
        yield ok(f"the running Hearth waits: the connection is held by {holder}", where)
    elif since := running.get("deaf_since"):
        reason = running.get("reason", "unknown")
        yield error(f"the running Hearth hears nothing since {since}: {reason}", where,
                    "mend what the reason names; it connects again by itself")  # fmt: skip
    else:
        yield warning(
            "no Hearth is connected with this configuration", where, "start `hearth serve`"
        )

"""The database: whole, of the right age, and held by nobody unexpected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bot.app import store_url
from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient
from bot.doctor.processes import name_process
from bot.errors import ConfigError, StoreError
from bot.store.examine import Examined, examine

_WHERE: Final = "storage.url"
_LARGE_WAL: Final = 256 * 2**20
_SKEW_S: Final = 2.0


async def look_at_database(patient: Patient) -> list[Finding]:
    """Read only: a running service is not disturbed."""
    try:
        seen = await examine(store_url(patient.config))
    except ConfigError as fault:
        return [error(str(fault), _WHERE, "correct it")]
    except StoreError as fault:
        return [error(str(fault), _WHERE, _cure_of(str(fault), patient))]
    return list(_judge(seen, patient))


def _cure_of(sentence: str, patient: Patient) -> str:
    if "not Hearth's" in sentence:
        return "give Hearth a database of its own"
    if patient.config.storage.url.get_secret_value().startswith("sqlite"):
        return "move the file aside and put a backup from beside it in its place"
    return "start the server, or correct address, user and password"


def _judge(seen: Examined, patient: Patient) -> Iterator[Finding]:
    if not seen.exists:
        yield ok(f"{seen.label} will be made at the first start")
        return
    if seen.holder is not None:
        yield ok(f"in use by {name_process(seen.holder, patient)}; looked at beside it", seen.label)
    if seen.damage:
        cure = f"stop Hearth and put {seen.backups[-1].name} in its place" if seen.backups else (
            "stop Hearth and run sqlite3 .recover on it; no backup lies beside it"
        )  # fmt: skip
        yield error(f"is damaged: {seen.damage[0]}", seen.label, cure)
    if seen.is_newer:
        yield error(
            f"was written by a newer Hearth (schema {seen.revision}; this one knows {seen.known[-1]})",
            seen.label,
            "update Hearth, or restore a backup from before the update",
        )
    elif not seen.damage:
        yield ok(_describe(seen))
    yield from _oddities(seen)


def _describe(seen: Examined) -> str:
    if seen.revision is None:
        state = "still empty"
    elif seen.is_at_head:
        state = f"schema {seen.revision}"
    else:
        state = f"schema {seen.revision}, brought to {seen.known[-1]} at the next start"
    if seen.path is None:
        return f"{seen.server} at {seen.label}: {state}"
    whole = "whole" if seen.is_whole_checked else "too large to be checked whole in 20 s"
    return f"{seen.path.name}: {state}, {seen.n_bytes / 2**20:.1f} MiB, {whole}"


def _oddities(seen: Examined) -> Iterator[Finding]:
    if seen.path is not None and seen.path.stat().st_mode & 0o077:
        yield warning("others on this machine can read it", seen.label, f"chmod 600 {seen.label}")
    if seen.wal_bytes > _LARGE_WAL:
        yield warning(
            f"its WAL has {seen.wal_bytes / 2**20:.0f} MiB: some program reads it without an end",
            seen.label,
            "close other programs that have it open (sqlite3, backup tools)",
        )
    if abs(seen.skew_s) > _SKEW_S:
        way = "ahead of" if seen.skew_s > 0 else "behind"
        yield warning(
            f"the server's clock is {abs(seen.skew_s):.0f} s {way} this one",
            seen.label,
            "switch NTP on, on both machines",
        )

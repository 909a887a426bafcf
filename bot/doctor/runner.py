"""Runs checks one after the other and hands over what each found as soon as it is known. A broken check stops no other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterable

from bot.doctor.findings import Check, Finding, error
from bot.doctor.patient import Patient
from bot.errors import HearthError
from engine.errors import EngineError


async def examine(
    patient: Patient, checks: Iterable[Check]
) -> AsyncIterator[tuple[Check, tuple[Finding, ...]]]:
    """Each check with its findings, in order."""
    for check in checks:
        yield check, await _look(check, patient)


async def _look(check: Check, patient: Patient) -> tuple[Finding, ...]:
    try:
        found = await asyncio.to_thread(_call, check, patient)
        return found if isinstance(found, tuple) else tuple(await found)
    except (HearthError, EngineError) as fault:
        return (error(str(fault), "", "mend that, then run hearth doctor again"),)
    except Exception as fault:  # noqa: BLE001  # the other checks go on
        what = f"this check itself failed: {type(fault).__name__}: {fault}".splitlines()[0]
        return (error(what, check.title, "tell Hearth's makers; the other checks go on"),)


def _call(check: Check, patient: Patient) -> tuple[Finding, ...] | Awaitable[Iterable[Finding]]:
    """In a thread, so that a generator does its work there as well."""
    found = check.look(patient)
    return found if inspect.isawaitable(found) else tuple(found)

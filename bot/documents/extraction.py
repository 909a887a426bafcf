"""Starts the child that reads a file, waits for it with a limit, and makes of whatever happens a plain result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.domain.documents import DocumentState

log = structlog.get_logger()

CHILD = Path(__file__).with_name("child.py")
# The child ends itself after 15 s with what it has; this is for one that cannot any more.
TIMEOUT_S = 40.0
# A million characters of JSON with every one escaped, and then some.
MAX_ANSWER_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Extracted:
    """What a file says. `pages` of a file without pages (`n_pages` 0) is one text. `is_cut`: only its beginning was read."""

    state: DocumentState
    pages: tuple[str, ...] = ()
    n_pages: int = 0
    is_cut: bool = False


async def extract(data: bytes, *, timeout_s: float = TIMEOUT_S) -> Extracted:
    """The text of a file. Never raises for what is in it. Raises OSError when the system cannot start a process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(CHILD),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env=_environment(), process_group=0,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            answer, _ = await process.communicate(data)
    except TimeoutError:
        log.warning("document_child_timeout", timeout_s=timeout_s)
        return Extracted(DocumentState.UNREADABLE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode != 0:
        log.warning("document_child_died", code=process.returncode)
        return Extracted(DocumentState.UNREADABLE)
    # A million characters are no work for the loop.
    return await asyncio.to_thread(_read_answer, answer)


def _environment() -> dict[str, str]:
    """No secret of ours is in reach of a file's code."""
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1"}


def _read_answer(answer: bytes) -> Extracted:
    try:
        told = json.loads(answer[:MAX_ANSWER_BYTES])
        return Extracted(
            DocumentState(told["state"]), tuple(told["pages"]), told["n_pages"], told["is_cut"]
        )
    except (ValueError, KeyError, TypeError):
        return Extracted(DocumentState.UNREADABLE)

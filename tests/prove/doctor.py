"""The doctor on damaged set-ups: the whole command on each, in a process of its own, and what it says.

Each damage must be found by its check with its cure, and nothing else may be an error; a sound set-up must have none.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bot.doctor.findings import Level
from tests.prove.suite import Figures, Suite
from tests.support.damages import DAMAGES, Damage, SetUp, copy_of, make_sound

COLUMNS = ("check", "level", "it says", "and to do")


async def _whole(it: SetUp) -> tuple[int, list[dict[str, str]]]:
    """`hearth doctor --json`: the exit status and the findings."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bot", "doctor", "--config", str(it.config), "--json", stdout=asyncio.subprocess.PIPE
    )  # fmt: skip
    output, _ = await child.communicate()
    assert child.returncode in (0, 2), f"it ended with {child.returncode}"
    told: dict[str, Any] = json.loads(output)
    return child.returncode, told["findings"]


async def _examined(damage: Damage | None) -> tuple[int, list[dict[str, str]]]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sound = Path(folder) / "sound"
        sound.mkdir()
        await asyncio.to_thread(make_sound, sound)
        it = copy_of(sound, Path(folder) / "it", stack)
        if damage is not None:
            damage.do(it)
        status, found = await _whole(it)
        text = json.dumps(found).replace(f"{it.folder}/", "").replace(str(it.folder), "its folder")
        return status, json.loads(text)


def _item(damage: Damage) -> Callable[[], Awaitable[Figures]]:
    async def run() -> Figures:
        status, found = await _examined(damage)
        wrong = [row for row in found if row["level"] == damage.level.value]
        hit = next((row for row in wrong if damage.says in f"{row['where']}: {row['what']}"), None)
        assert hit is not None, f"not found: {wrong}"
        assert hit["check"] == damage.check, hit
        assert damage.cure in hit["cure"], hit
        strays = [row for row in found if row["level"] == "error" and row["check"] != damage.check]
        assert not strays, f"errors that are none: {strays}"
        assert status == (2 if damage.level is Level.ERROR else 0)
        values = (hit["check"], hit["level"], f"{hit['where']}: {hit['what']}", hit["cure"])
        return dict(zip(COLUMNS, values, strict=True))

    return run


async def _sound() -> Figures:
    status, found = await _examined(None)
    assert status == 0, found
    n_ok = sum(row["level"] == "ok" for row in found)
    return dict(zip(COLUMNS, ("all", "ok", f"{n_ok} lines, no error", ""), strict=True))


def summary(done: dict[str, Figures]) -> str:
    """What the table means."""
    return (
        "Each line is a whole set-up (a model, a configuration, a database) with one damage done to it in reality; the whole "
        f"command was run on each of the {len(done)}. Errors that no damage explains would have failed the item."
    )


def build() -> Suite:
    """The suite."""
    items = {damage.name: _item(damage) for damage in DAMAGES} | {"nothing": _sound}
    return Suite("doctor", "The doctor on damaged set-ups", items, summary, COLUMNS)

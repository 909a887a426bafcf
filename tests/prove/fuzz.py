"""Fuzz: thousands of hostile requests to a live service, then a polite one; and the tests marked `long`.

Nothing but 4xx, 200 and 503 may come back, nothing hostile may become an answer, and the service must be as well as before.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from bot.sandbox.feishu import SandboxConfig
from tests.prove.suite import ROOT, Figures, Suite
from tests.support.stand import Stand


def mutate(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """Somewhere in a JSON value, something else."""
    junk = [
        None,
        True,
        -1,
        10**30,
        "",
        "\x00",
        "\ud800",
        "<at id=all></at>",
        [],
        {},
        [[[[]]]],
        "x" * 5000,
        {"a": {"b": None}},
    ]
    if depth > 6 or rng.random() < 0.12:
        return rng.choice(junk)
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.2:
            del changed[key]
        else:
            changed[key] = mutate(rng, value[key], depth + 1)
        return changed
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.dumps(mutate(rng, json.loads(value), depth + 1))
        except ValueError:
            return rng.choice(junk)
    return rng.choice(junk)


def raw_bodies(rng: random.Random) -> bytes:
    """Bytes that are no event at all."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(2000))
    if kind == 1:
        return b'{"encrypt":"' + rng.randbytes(48).hex().encode() + b'"}'
    if kind == 2:
        return b"[" * rng.randrange(1, 20_000)
    if kind == 3:
        return json.dumps({"type": "url_verification", "token": "wrong", "challenge": "x"}).encode()
    return b'{"encrypt":' + b"1" * rng.randrange(1, 400) + b"}"


async def fuzz(seed: int, n: int) -> Figures:
    """`n` hostile requests of both kinds; see the module docstring."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        async with Stand(Path(folder), sandbox_config=SandboxConfig(redelivery_s=())) as stand:
            user = stand.sandbox.add_user("Lin")
            group = stand.sandbox.add_group("g", [user])
            first = await stand.sandbox.say(group, user, "Hello?")
            await stand.settled(first)
            assert first.push is not None
            good = first.push.payload
            statuses: dict[int, int] = {}
            async with aiohttp.ClientSession() as session:
                for i in range(n):
                    if i % 2:
                        body, headers = raw_bodies(rng), {}
                    else:
                        payload = mutate(rng, good)
                        try:
                            body = stand.sandbox.courier.seal(payload)
                        except (ValueError, TypeError, UnicodeEncodeError):
                            continue
                        headers = stand.sandbox.courier.signed_headers(body)
                        if rng.random() < 0.2:
                            headers.pop(rng.choice(list(headers)))
                    async with session.post(
                        f"{stand.url}/webhook/feishu", data=body, headers=headers
                    ) as response:
                        statuses[response.status] = statuses.get(response.status, 0) + 1
            assert not set(statuses) - {200, 400, 401, 403, 408, 413, 503}, f"statuses {statuses}"
            await asyncio.sleep(1.0)
            last = await stand.sandbox.say(group, user, "Are you well?")
            await stand.settled(last)
            text = stand.log_path.read_text(errors="replace")
            assert "Traceback" not in text, stand.log_tail(60)
            assert not stand.sandbox.violations, f"violations: {stand.sandbox.violations[:3]}"
            return {
                "requests": n,
                "statuses": " ".join(f"{k}×{v}" for k, v in sorted(statuses.items())),
            }


async def marked_long() -> Figures:
    """The tests that `make test` leaves out."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "-m", "long", "--timeout", "900", cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    tail = out.decode(errors="replace").strip().splitlines()
    assert process.returncode == 0, "\n".join(tail[-40:])
    return {"pytest": tail[-1]}


def summary(done: dict[str, Figures]) -> str:
    """A sentence."""
    return f"{sum(figures.get('requests', 0) for figures in done.values())} hostile requests, no 500, no traceback, no stray answer."


def build() -> Suite:
    """The suite."""
    items: dict[str, Any] = {
        f"seed {seed}": (lambda seed=seed: fuzz(seed, 3000)) for seed in range(3)
    }
    items["tests marked long"] = marked_long
    return Suite("fuzz", "Fuzz: hostile webhooks against a live service", items, summary)

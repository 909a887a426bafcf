"""What an engine says it really did: counters read before and after a piece of work.

Usage is what an engine tells the asker; these are what it put into its own decode calls. A local engine is asked for its stats,
a server for its `/metrics`: Hearth's own, or llama-server's (`--metrics`). Whatever cannot be read is None.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp

from engine.face import Engine

_TIMEOUT_S = 3.0
_MAX_PAGE_BYTES = 4 * 2**20
# Our name for it, then Hearth's and llama-server's.
_NAMES = {
    "decoded_prompt_tokens": ("engine_decoded_prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "generated_tokens": (
        "engine_decoded_generated_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "guessed_tokens": ("engine_accepted_tokens_total", ""),
    "restored_tokens": ("engine_kv_restored_tokens_total", ""),
    "saved_bytes": ("engine_kv_saved_bytes_total", ""),
    "decode_s": ("engine_step_decode_seconds_total", ""),
    "python_s": ("engine_step_python_seconds_total", ""),
}


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since some start. `guessed_tokens`: generated ones that were guessed and came true; `decode_s` and `python_s`: a
    step's time inside and outside the decode call.
    """

    decoded_prompt_tokens: float | None = None
    generated_tokens: float | None = None
    guessed_tokens: float | None = None
    restored_tokens: float | None = None
    saved_bytes: float | None = None
    decode_s: float | None = None
    python_s: float | None = None

    def since(self, before: Counters) -> Counters:
        """What was added; None where either is unknown, or the engine began to count anew in between."""
        return Counters(
            **{
                field.name: _added(getattr(self, field.name), getattr(before, field.name))
                for field in fields(self)
            }
        )

    @property
    def python_share(self) -> float | None:
        """The part of the steps' time that was spent outside the decode call, 0 to 1."""
        if self.python_s is None or self.decode_s is None:
            return None
        return _share(self.python_s, self.python_s + self.decode_s)

    @property
    def guessed_share(self) -> float | None:
        """The part of the generated tokens that were guessed ahead, 0 to 1."""
        return _share(self.guessed_tokens, self.generated_tokens)


class CounterSource(Protocol):
    """Where an engine's counters come from."""

    async def read(self) -> Counters:
        """The totals now; never raises."""
        ...


class LocalCounters:
    """Those of an engine of ours, from its stats."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def read(self) -> Counters:
        """See CounterSource."""
        stats = await self._engine.stats()
        return Counters(
            decoded_prompt_tokens=stats.decoded_prompt_tokens_total,
            generated_tokens=stats.decoded_generated_tokens_total,
            guessed_tokens=stats.accepted_tokens_total,
            restored_tokens=stats.kv_restored_tokens_total,
            saved_bytes=stats.kv_saved_bytes_total,
            decode_s=stats.step_decode_s,
            python_s=stats.step_python_s,
        )


class ServerCounters:
    """Those of a server, from the `/metrics` beside its `/v1`. One that does not answer is not asked again."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self._url = (
            f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}/metrics"
        )
        self._is_there = True

    async def read(self) -> Counters:
        """See CounterSource."""
        page = await self._page() if self._is_there else ""
        return read_page(page)

    async def _page(self) -> str:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(self._url) as reply:
                if reply.status == 200:
                    return await _text(reply)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            pass
        self._is_there = False
        return ""


async def _text(reply: aiohttp.ClientResponse) -> str:
    page = bytearray()
    async for chunk in reply.content.iter_chunked(65_536):
        page += chunk
        if len(page) > _MAX_PAGE_BYTES:
            raise ValueError("no page of metrics is that long")
    return page.decode(errors="replace")


def read_page(page: str) -> Counters:
    """The counters of a Prometheus page, summed over models."""
    sums: dict[str, float] = {}
    for line in page.splitlines():
        name, _, value = line.partition(" ") if "{" not in line else _labelled(line)
        try:
            sums[name] = sums.get(name, 0.0) + float(value.split()[0])
        except (ValueError, IndexError):
            continue
    return Counters(
        **{
            field: next((sums[n] for n in names if n in sums), None)
            for field, names in _NAMES.items()
        }
    )


def _labelled(line: str) -> tuple[str, str, str]:
    name, _, rest = line.partition("{")
    return name, "", rest.rpartition("} ")[2]


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None or whole <= 0 else part / whole


def _added(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None or now < before else now - before

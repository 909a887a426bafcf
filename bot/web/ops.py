"""`/healthz`, `/readyz` and `/metrics`: for service managers, monitors and people with curl."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

Readiness = Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]


class OpsHandler:
    """Answers from live state. `readiness` returns whether questions are answered now, and the facts behind it;
    `refresh` brings figures up to date that must be asked for before they can be told."""

    def __init__(
        self,
        readiness: Readiness,
        registry: CollectorRegistry,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._readiness = readiness
        self._registry = registry
        self._refresh = refresh

    async def healthz(self, _request: web.Request) -> web.Response:
        """200 while the event loop turns."""
        return web.json_response({"status": "ok"})

    async def readyz(self, _request: web.Request) -> web.Response:
        """200 when questions are answered now, else 503 with the reason."""
        ready, facts = await self._readiness()
        return web.json_response({"ready": ready, **facts}, status=200 if ready else 503)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus text format."""
        if self._refresh is not None:
            await self._refresh()
        return web.Response(
            body=generate_latest(self._registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

"""The aiohttp application and its socket. Routes are listed here and nowhere else."""

from __future__ import annotations

import errno

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from bot.errors import ConfigError
from bot.web.openai_api import OpenAIApi
from bot.web.ops import OpsHandler
from bot.web.webhook import WebhookHandler

log = structlog.get_logger()


@web.middleware
async def _no_traceback(request: web.Request, handler: Handler) -> web.StreamResponse:
    """An unexpected fault is logged whole and answered with one line."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = web.json_response({"error": error.reason}, status=error.status)
        if error.status == 405 and "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
    except Exception:
        log.exception("request_failed", method=request.method, path=request.path)
        response = web.json_response({"error": "internal error"}, status=500)
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    return response


def build_app(
    webhook: WebhookHandler,
    ops: OpsHandler,
    api: OpenAIApi | None = None,
    *,
    max_body_bytes: int,
) -> web.Application:
    """All routes of `hearth serve`. Without `api` there is nothing below /v1."""
    app = web.Application(client_max_size=max_body_bytes, middlewares=[_no_traceback])
    app.router.add_post("/webhook/{bot}", webhook.handle)
    app.router.add_get("/webhook/{bot}", webhook.handle)
    # DingTalk's clicks on cards may have an address of their own; the adapter tells them by their signature.
    app.router.add_post("/webhook/{bot}/card", webhook.handle)
    app.router.add_get("/healthz", ops.healthz)
    app.router.add_get("/readyz", ops.readyz)
    app.router.add_get("/metrics", ops.metrics)
    if api is not None:
        api.add_routes(app.router)
    return app


class WebServer:
    """Owns the listening socket. `port` is the real one after `start` (0 in the config picks a free one)."""

    def __init__(self, app: web.Application, host: str, port: int) -> None:
        # Signatures are made over the bytes as sent, and no platform compresses: nothing is unpacked here, bombs neither.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=5.0, handle_signals=False, auto_decompress=False
        )
        self._host = host
        self.port = port

    async def start(self) -> None:
        """Listen. Raises ConfigError in one sentence when the address cannot be used."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, backlog=512)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            why = (
                "is already in use"
                if error.errno == errno.EADDRINUSE
                else f"cannot be used ({error.strerror})"
            )
            raise ConfigError(
                f"server.host/port: {self._host}:{self.port} {why}; set another [server] port"
            ) from None
        self.port = int(self._runner.addresses[0][1])

    @property
    def url(self) -> str:
        """Where to reach it from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._host, self._host)  # noqa: S104 - compared, not bound
        return f"http://{host}:{self.port}"

    async def close(self) -> None:
        """Finish open requests and stop listening."""
        await self._runner.cleanup()

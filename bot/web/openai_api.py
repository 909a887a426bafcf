"""`/v1/chat/completions` and `/v1/models`: the same engine for other programs, in the words of OpenAI's API.

Owns the memory of API conversations and the API's counters. Decides nothing about people: who may come is `api_keys`,
what a completion is `openai_run`. Logs one line per request, with ids and counts and never with words.
"""

from __future__ import annotations

import asyncio
import math
import time
import traceback
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog
from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry, Counter, Gauge

from bot.service.settings import Settings
from bot.web.api_keys import ApiKeys, Caller
from bot.web.api_memory import TalkMemory
from bot.web.openai_run import ClientGone, Completion, Wish
from bot.web.openai_wire import (
    SSE_ALIVE,
    SSE_DONE,
    ApiError,
    ChatRequest,
    Head,
    finish_word,
    read_request,
    sse,
    usage_body,
)
from engine.face import Engine
from engine.types import Priority

log = structlog.get_logger()

BODY_TIMEOUT_S: Final = 30.0
# A reader that takes nothing for so long is not reading.
WRITE_TIMEOUT_S: Final = 60.0
ALIVE_EVERY_S: Final = 10.0
CLIENT_GONE: Final = 499  # nginx's number for it; nobody is there to read it
_SSE_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class ApiMetrics:
    """Written by the API alone; read by `/metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "hearth_api_requests_total", "Chat completions by HTTP status (499: the client left).",
            ["status"], registry=registry,
        )  # fmt: skip
        self.tokens = Counter(
            "hearth_api_tokens_total", "Tokens of chat completions: prompt, cached (of prompt), generated.",
            ["kind"], registry=registry,
        )  # fmt: skip
        self.active = Gauge(
            "hearth_api_active", "Chat completions being answered.", registry=registry
        )


@dataclass(slots=True)
class _Account:
    """What is told about one request when it is over. Written by its handler alone."""

    id: str
    started_at: float
    status: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def refused(self, error: ApiError) -> None:
        """It ended with an error."""
        self.status = error.status
        self.facts["error"] = error.message


class OpenAIApi:
    """Owner of everything about `/v1`. `engines` by the names of [models.*]."""

    def __init__(
        self, settings: Settings, engines: Mapping[str, Engine], registry: CollectorRegistry
    ) -> None:
        """Raises ConfigError for API keys that cannot work."""
        self._settings = settings
        self._engines = engines
        server = settings.config.server
        self._keys = ApiKeys(server.api_keys, server.interactive_api_keys)
        self._memory = TalkMemory()
        self._metrics = ApiMetrics(registry)
        self._created = int(time.time())

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Everything below /v1, also what is not there."""
        router.add_post("/v1/chat/completions", self.chat)
        router.add_get("/v1/models", self.models)
        router.add_get("/v1/models/{model}", self.model)
        router.add_route("*", "/v1/{tail:.*}", self.unknown)

    # -- routes ------------------------------------------------------------------------------------------------------
    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer one chat completion."""
        account = _Account(f"chatcmpl-{uuid.uuid4().hex}", time.monotonic())
        self._metrics.active.inc()
        try:
            response = await self._chat(request, account)
            account.status = account.status or response.status
        except ApiError as error:
            account.refused(error)
            return _refusal(error)
        except ClientGone:
            account.status = CLIENT_GONE
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=400)
        except Exception as error:  # noqa: BLE001 - answered in the API's own shape
            return _refusal(_fault(account, error))
        finally:
            self._metrics.active.dec()
            self._book(account)
        return response

    async def models(self, request: web.Request) -> web.Response:
        """The models that can be asked; `default` is another name of one of them."""
        try:
            self._admit(request)
        except ApiError as error:
            return _refusal(error)
        names = ["default", *self._engines]
        return web.json_response({"object": "list", "data": [self._model(n) for n in names]})

    async def model(self, request: web.Request) -> web.Response:
        """One of them."""
        try:
            self._admit(request)
            self._resolve(request.match_info["model"])
        except ApiError as error:
            return _refusal(error)
        return web.json_response(self._model(request.match_info["model"]))

    async def unknown(self, request: web.Request) -> web.Response:
        """Whatever else a client of OpenAI's API may try."""
        try:
            self._admit(request)
        except ApiError as error:
            return _refusal(error)
        return _refusal(
            ApiError(
                404,
                "this server has POST /v1/chat/completions and GET /v1/models",
                code="unknown_url",
            )
        )

    # -- one completion ----------------------------------------------------------------------------------------------
    async def _chat(self, request: web.Request, account: _Account) -> web.StreamResponse:
        caller = self._admit(request)
        account.facts["caller"] = caller.label
        chat = read_request(await self._read(request))
        name = self._resolve(chat.model)
        account.facts |= {
            "model": name,
            "stream": bool(chat.stream),
            "n_messages": len(chat.messages),
        }
        head = Head(account.id, name, int(time.time()))
        async with Completion(
            self._engines[name],
            self._memory,
            self._wish(account.id, caller, name, chat),
            lambda: request.transport is None or request.transport.is_closing(),
        ) as run:
            try:
                await run.open()
                if chat.stream:
                    return await _Stream(request, head, run, account).send(chat.include_usage)
                return await _whole(head, run)
            finally:
                _note_counts(account, run)

    def _wish(self, request_id: str, caller: Caller, name: str, chat: ChatRequest) -> Wish:
        settings = self._settings
        return Wish(
            id=request_id,
            scope=caller.scope,
            model=name,
            priority=Priority.PERSON if caller.interactive else Priority.API,
            messages=chat.engine_messages(),
            max_new_tokens=chat.wanted_tokens or settings.chat.max_new_tokens,
            stop=(*settings.stop(name), *chat.stops),
            sampling=chat.sampling(settings.sampling(name)),
        )

    def _admit(self, request: web.Request) -> Caller:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        return self._keys.admit(request.headers, str(peer[0]) if isinstance(peer, tuple) else "")

    def _resolve(self, model: str) -> str:
        name = self._settings.config.default_model if model == "default" else model
        if name not in self._engines:
            raise ApiError(
                404,
                f"this server has no model of that name; it has default, {', '.join(self._engines)}",
                code="model_not_found",
                param="model",
            )
        return name

    def _model(self, name: str) -> dict[str, Any]:
        info = self._engines[self._resolve(name)].info
        window = {"context_window": info.n_ctx_tokens} if info else {}
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "hearth",
            **window,
        }

    async def _read(self, request: web.Request) -> bytes:
        cap = self._settings.config.server.max_body_bytes
        too_large = ApiError(413, f"the body is larger than {cap} bytes (server.max_body_bytes)")
        if (request.content_length or 0) > cap:
            raise too_large
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise ApiError(415, "compressed bodies are not supported")
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise too_large from None
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time") from None
        except (ConnectionError, ClientPayloadError, HttpProcessingError, web.RequestPayloadError):
            raise ApiError(400, "the body did not arrive whole") from None

    def _book(self, account: _Account) -> None:
        facts = account.facts
        self._metrics.requests.labels(str(account.status)).inc()
        for kind in ("prompt", "cached", "generated"):
            self._metrics.tokens.labels(kind).inc(facts.get(f"n_{kind}", 0))
        seconds = round(time.monotonic() - account.started_at, 3)
        log.info("api_request", request_id=account.id, status=account.status, s=seconds, **facts)


class _Stream:
    """Sends one reply as server-sent events. Once it has begun, trouble can only be told inside it."""

    def __init__(
        self, request: web.Request, head: Head, run: Completion, account: _Account
    ) -> None:
        self._request = request
        self._head = head
        self._run = run
        self._account = account
        self._response = web.StreamResponse(headers=_SSE_HEADERS)
        self._written_at = 0.0

    async def send(self, include_usage: bool) -> web.StreamResponse:
        """The whole stream. Raises ClientGone."""
        try:
            await self._response.prepare(self._request)
            await self._write(sse(self._head.chunk({"role": "assistant", "content": ""})))
            await self._pieces()
            await self._end(include_usage)
            await self._response.write_eof()
        except ConnectionError:
            raise ClientGone from None
        except ApiError as error:
            self._account.refused(error)
            await self._tell(error)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - told inside the stream, which has begun
            await self._tell(_fault(self._account, error))
        return self._response

    async def _pieces(self) -> None:
        async for piece in self._run.pieces():
            if piece.thinking:
                await self._write(sse(self._head.chunk({"reasoning_content": piece.thinking})))
            if piece.text:
                await self._write(sse(self._head.chunk({"content": piece.text})))
            elif time.monotonic() - self._written_at > ALIVE_EVERY_S:
                await self._write(SSE_ALIVE)

    async def _end(self, include_usage: bool) -> None:
        finished = self._run.finished
        assert finished is not None  # noqa: S101 - `pieces` ends with it or raises
        last = sse(self._head.chunk({}, finish_word(finished.reason)))
        if include_usage:
            last += sse(self._head.usage_chunk(usage_body(finished.usage, _n_thinking(self._run))))
        await self._write(last + SSE_DONE)

    async def _tell(self, error: ApiError) -> None:
        try:
            await self._write(sse(error.body()))
            await self._response.write_eof()
        except ConnectionError:
            raise ClientGone from None

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._response.write(data)
        except TimeoutError:
            raise ClientGone from None
        self._written_at = time.monotonic()


async def _whole(head: Head, run: Completion) -> web.Response:
    text: list[str] = []
    thinking: list[str] = []
    async for piece in run.pieces():
        text.append(piece.text)
        thinking.append(piece.thinking)
    finished = run.finished
    assert finished is not None  # noqa: S101 - `pieces` ends with it or raises
    usage = usage_body(finished.usage, _n_thinking(run))
    body = head.whole("".join(text), "".join(thinking), finish_word(finished.reason), usage)
    return _json(body, 200)


def _fault(account: _Account, error: Exception) -> ApiError:
    """A fault of ours. Where it happened is logged, not its words: those may be somebody's text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno}" for frame in frames[-6:]]
    log.error("api_failed", request_id=account.id, error=type(error).__name__, where=where)
    refusal = ApiError(500, "an internal fault; it has been logged", code="internal_error")
    account.refused(refusal)
    return refusal


def _n_thinking(run: Completion) -> int:
    return run.finished.answer_start if run.finished else 0


def _note_counts(account: _Account, run: Completion) -> None:
    account.facts |= {"n_prompt": run.n_prompt, "n_generated": run.n_generated}
    if run.finished is not None:
        usage = run.finished.usage
        account.facts |= {
            "n_prompt": usage.n_prompt,
            "n_cached": usage.n_cached,
            "n_generated": usage.n_generated,
            "finish": finish_word(run.finished.reason),
        }


def _refusal(error: ApiError) -> web.Response:
    response = _json(error.body(), error.status)
    if error.retry_after_s:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _json(body: dict[str, Any], status: int) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, content_type="application/json"
    )

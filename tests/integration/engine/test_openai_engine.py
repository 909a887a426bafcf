"""OpenAIEngine against a small server on loopback that plays llama-server, vLLM and their quirks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import structlog
from aiohttp import web

from engine.backends.openai import OpenAIEngine
from engine.client import open_engine
from engine.config import OpenAISettings
from engine.errors import EngineConfigError, EngineUnavailable
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    EngineRequest,
    EngineState,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Queued,
    Role,
    Started,
)

KEY = "sk-very-secret-0123456789"
Write = Callable[[bytes], Awaitable[None]]
Script = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def sse(data: Any, end: str = "\n\n") -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}{end}".encode()


def piece(text: str = "", finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text} | delta, "finish_reason": finish}]}


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 8},
    },
}


class Double:
    """A server whose chat answers are scripted; it records what it was asked. Owner: the fixture."""

    def __init__(self) -> None:
        self.kind = "plain"
        self.models_status = 200
        self.max_model_len: int | None = None
        self.script: Script = stream_of([sse(piece("hi")), sse(piece("", "stop")), sse("[DONE]")])
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.n_open = 0
        self.most_open = 0
        self.n_dropped = 0
        self.base = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_get("/props", self.props)
        return app

    async def models(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers.get("Authorization", ""))
        if self.models_status != 200:
            return web.json_response({"error": {"code": "no"}}, status=self.models_status)
        entry = {"id": "big"} | (
            {"max_model_len": self.max_model_len} if self.max_model_len else {}
        )
        return web.json_response({"object": "list", "data": [entry]})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        field = {"llama-server": "content", "vllm": "prompt"}.get(self.kind)
        if field is None:
            raise web.HTTPNotFound
        if field not in body:
            return web.json_response({"error": {"message": "missing"}}, status=400)
        return web.json_response({"tokens": list(range(len(body[field])))})

    async def props(self, request: web.Request) -> web.Response:
        return web.json_response({"default_generation_settings": {"n_ctx": 2048}})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.add(request.headers.get("Authorization", ""))
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        try:
            return await self.script(request, body)
        except (ConnectionResetError, asyncio.CancelledError):
            self.n_dropped += 1
            raise
        finally:
            self.n_open -= 1


def stream_of(pieces: list[bytes], *, wait_s: float = 0.0) -> Script:
    async def script(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for data in pieces:
            await response.write(data)
            await asyncio.sleep(wait_s)
        return response

    return script


def answer_of(status: int, body: Any, headers: dict[str, str] | None = None) -> Script:
    async def script(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return script


async def never_ending(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    while True:
        await response.write(sse(piece("x")))
        await asyncio.sleep(0.01)


@pytest.fixture
async def double() -> AsyncIterator[Double]:
    server = Double()
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.base = f"http://{host}:{port}/v1"
    yield server
    await runner.cleanup()


@pytest.fixture
async def engines() -> AsyncIterator[Callable[..., OpenAIEngine]]:
    made: list[OpenAIEngine] = []

    def make(double: Double, **changes: Any) -> OpenAIEngine:
        settings = {
            "name": "other", "base_url": double.base, "model": "big", "n_ctx": 8192, "api_key": KEY, "n_parallel": 2,
        } | changes  # fmt: skip
        engine = open_engine(OpenAISettings(**settings))
        assert isinstance(engine, OpenAIEngine)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        await engine.close()


Make = Callable[..., OpenAIEngine]


async def ready(make: Make, double: Double, **changes: Any) -> OpenAIEngine:
    engine = make(double, **changes)
    await engine.start()
    await engine.wait_ready(5.0)
    return engine


def ask(request_id: str = "r", **changes: Any) -> EngineRequest:
    fields = {"messages": (ChatMessage(role=Role.USER, content="my private question"),)} | changes
    return EngineRequest(id=request_id, **fields)


async def events_of(engine: OpenAIEngine, request: EngineRequest) -> list[EngineEvent]:
    events = [event async for event in engine.submit(request)]
    assert [e for e in events if isinstance(e, Finished | Failed)] == events[-1:]
    return events


def shown(events: list[EngineEvent]) -> tuple[str, str]:
    deltas = [event for event in events if isinstance(event, Delta)]
    assert all(delta.token_ids == () for delta in deltas)
    return "".join(d.thinking for d in deltas), "".join(d.text for d in deltas)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not condition():
            await asyncio.sleep(0.01)


# ── replies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reply_streams(double: Double, engines: Make) -> None:
    double.script = stream_of(
        [sse(piece("你")), sse(piece("好")), sse(piece("", "stop")), sse(USAGE), sse("[DONE]")]
    )
    engine = await ready(engines, double)
    events = await events_of(engine, ask())
    assert events[0] == Queued(request_id="r", place=1)
    assert isinstance(events[1], Started)
    assert shown(events) == ("", "你好")
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.STOP
    usage = finished.usage
    assert (usage.n_prompt, usage.n_cached, usage.n_generated) == (20, 8, 5)
    assert double.keys == {f"Bearer {KEY}"}
    stats = await engine.stats()
    assert stats.state is EngineState.READY
    assert (stats.decoded_prompt_tokens_total, stats.decoded_generated_tokens_total) == (12, 5)


async def test_bytes_may_be_cut_anywhere(double: Double, engines: Make) -> None:
    stream = b": ping\r\n\r\n" + b"".join(
        sse(data, "\r\n\r\n") for data in (piece("你好"), piece("🙂"), piece("", "stop"), "[DONE]")
    )
    double.script = stream_of(
        [stream[at : at + 3] for at in range(0, len(stream), 3)], wait_s=0.001
    )
    events = await events_of(await ready(engines, double), ask())
    assert shown(events) == ("", "你好🙂")


async def test_thinking_by_field_and_by_tag(double: Double, engines: Make) -> None:
    engine = await ready(engines, double)
    double.script = stream_of(
        [
            sse(piece("", reasoning_content="hm ")),
            sse(piece("", reasoning="so")),
            sse(piece("yes", "stop")),
        ]
    )
    assert shown(await events_of(engine, ask())) == ("hm so", "yes")
    double.script = stream_of([sse(piece("<thi")), sse(piece("nk>hm</think>\n\nyes", "stop"))])
    assert shown(await events_of(engine, ask())) == ("hm", "yes")


async def test_length_is_told_apart_from_stop(double: Double, engines: Make) -> None:
    double.script = stream_of([sse(piece("a", "length")), sse("[DONE]")])
    finished = (await events_of(await ready(engines, double), ask()))[-1]
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.LENGTH


async def test_a_server_that_does_not_stream(double: Double, engines: Make) -> None:
    whole = {"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}
    double.script = answer_of(200, whole | {"usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    events = await events_of(await ready(engines, double), ask())
    assert shown(events) == ("", "whole")
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.n_prompt == 3


async def test_a_server_that_never_closes_behind_done(double: Double, engines: Make) -> None:
    async def script(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await stream_of([sse(piece("a", "stop")), sse("[DONE]")])(request, body)
        await asyncio.sleep(60)
        return response

    double.script = script
    async with asyncio.timeout(30.0):
        events = await events_of(await ready(engines, double), ask())
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("behind_done", [True, False])
async def test_a_server_that_talks_for_ever_is_left(
    double: Double, engines: Make, behind_done: bool
) -> None:
    async def script(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await stream_of([sse(piece("a", "stop")), sse("[DONE]")] * behind_done)(
            request, body
        )
        while True:
            await response.write(sse(piece("blah " * 40)))
            await asyncio.sleep(0.01)

    double.script = script
    async with asyncio.timeout(10.0):
        events = await events_of(await ready(engines, double), ask(max_new_tokens=8))
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is (FinishReason.STOP if behind_done else FinishReason.LENGTH)
    assert len(shown(events)[1]) < 10_000


async def test_fields_that_a_server_refuses_are_left_out_for_good(
    double: Double, engines: Make
) -> None:
    good = double.script

    async def picky(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        for field in ("stream_options", "max_tokens"):
            if field in body:
                hint = " use max_completion_tokens" if field == "max_tokens" else ""
                error = {"error": {"message": f"unknown field {field}{hint}"}}
                return web.json_response(error, status=400)
        return await good(request, body)

    double.script = picky
    engine = await ready(engines, double)
    assert isinstance((await events_of(engine, ask()))[-1], Finished)
    assert double.bodies[-1]["max_completion_tokens"] == 512
    n_before = len(double.bodies)
    assert isinstance((await events_of(engine, ask()))[-1], Finished)
    assert len(double.bodies) == n_before + 1


async def test_generated_tokens_are_not_sent_and_surrogates_are_mended(
    double: Double, engines: Make
) -> None:
    engine = await ready(engines, double)
    messages = (ChatMessage(role=Role.USER, content="a\ud800b"),)
    await events_of(engine, ask(messages=messages, generated_tokens=(1, 2), prompt_tokens=(3,)))
    assert double.bodies[-1]["messages"] == [{"role": "user", "content": "a?b"}]


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def failure_of(engine: OpenAIEngine, request: EngineRequest | None = None) -> Failed:
    failed = (await events_of(engine, request or ask()))[-1]
    assert isinstance(failed, Failed)
    return failed


@pytest.mark.parametrize(
    ("status", "code", "retryable", "retry_after_s"),
    [(429, FailureCode.BUSY, True, 9.0), (503, FailureCode.UPSTREAM, True, 9.0), (400, FailureCode.BAD_REQUEST, False, 0.0)],
)  # fmt: skip
async def test_http_errors(
    double: Double,
    engines: Make,
    status: int,
    code: FailureCode,
    retryable: bool,
    retry_after_s: float,
) -> None:
    engine = await ready(engines, double)
    echo = {"error": {"message": f"{KEY} my private question", "type": "some_type"}}
    double.script = answer_of(status, echo, {"Retry-After": "9"})
    with structlog.testing.capture_logs() as logs:
        failed = await failure_of(engine)
    assert (failed.code, failed.retryable) == (code, retryable)
    assert failed.retry_after_s == retry_after_s
    told = f"{failed} {logs} {engine.info}"
    assert KEY not in told
    assert "private" not in told


async def test_a_prompt_that_is_too_long(double: Double, engines: Make) -> None:
    double.script = answer_of(400, {"error": {"code": "context_length_exceeded"}})
    engine = await ready(engines, double)
    assert (await failure_of(engine)).code is FailureCode.TOO_LONG
    double.script = answer_of(413, "<html>Request Entity Too Large</html>")
    assert (await failure_of(engine)).code is FailureCode.TOO_LONG


async def test_an_error_in_the_middle_of_the_stream(double: Double, engines: Make) -> None:
    double.script = stream_of([sse(piece("a")), sse({"error": {"code": 500, "message": "x"}})])
    events = await events_of(await ready(engines, double), ask())
    assert shown(events) == ("", "a")
    assert isinstance(events[-1], Failed)
    assert events[-1].retryable


async def test_a_stream_that_is_cut_off_is_no_finished_reply(double: Double, engines: Make) -> None:
    engine = await ready(engines, double)
    double.script = stream_of([sse(piece("half"))])
    assert (await failure_of(engine)).retryable

    async def cut(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await stream_of([sse(piece("half"))])(request, body)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    double.script = cut
    failed = await failure_of(engine)
    assert (failed.code, failed.retryable) == (FailureCode.UPSTREAM, True)


async def test_garbage_in_the_stream(double: Double, engines: Make) -> None:
    double.script = stream_of([b"data: {not json\n\n"])
    failed = await failure_of(await ready(engines, double))
    assert (failed.code, failed.retryable) == (FailureCode.UPSTREAM, True)


async def test_silence_is_bounded_even_with_keep_alives(double: Double, engines: Make) -> None:
    double.script = stream_of([b": ping\n\n"] * 200, wait_s=0.02)
    failed = await failure_of(await ready(engines, double, timeout_s=0.3))
    assert "nothing for" in failed.message


async def test_a_request_without_messages(double: Double, engines: Make) -> None:
    engine = await ready(engines, double)
    failed = await failure_of(engine, EngineRequest(id="r", prompt_tokens=(1, 2)))
    assert (failed.code, failed.retryable) == (FailureCode.BAD_REQUEST, False)
    assert double.bodies == []


# ── cancel, line, close ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_cancel_closes_the_connection(double: Double, engines: Make) -> None:
    double.script = never_ending
    engine = await ready(engines, double)
    events: list[EngineEvent] = []
    async for event in engine.submit(ask()):
        events.append(event)
        if isinstance(event, Delta):
            await engine.cancel("r")
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is FinishReason.CANCELLED
    await until(lambda: double.n_open == 0 and double.n_dropped == 1)
    await engine.cancel("unknown")


async def test_a_cancel_before_the_first_step_still_ends_the_stream(
    double: Double, engines: Make
) -> None:
    double.script = never_ending
    engine = await ready(engines, double)
    reader = asyncio.create_task(events_of(engine, ask()))
    await asyncio.sleep(0)
    await engine.cancel("r")
    async with asyncio.timeout(30.0):
        events = await reader
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is FinishReason.CANCELLED


async def test_closing_the_iterator_closes_the_connection(double: Double, engines: Make) -> None:
    double.script = never_ending
    engine = await ready(engines, double)
    async with aclosing(engine.submit(ask())) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                break
    await until(lambda: double.n_open == 0 and double.n_dropped == 1)
    assert (await engine.stats()).n_running == 0


async def test_the_line_tells_places_and_the_server_sees_only_n_parallel(
    double: Double, engines: Make
) -> None:
    double.script = stream_of([sse(piece("a")), sse(piece("", "stop"))], wait_s=0.03)
    engine = await ready(engines, double)
    streams = await asyncio.gather(
        *(events_of(engine, ask(f"r{n}", owner=f"o{n}")) for n in range(6))
    )
    assert all(isinstance(events[-1], Finished) for events in streams)
    assert double.most_open == 2
    places = [e.place for e in streams[-1] if isinstance(e, Queued)]
    assert places[0] == 4
    assert places == sorted(places, reverse=True)
    assert places[-1] <= 2, "both that run may end in the same moment"


async def test_a_full_line_is_busy_and_a_deadline_ends_waiting(
    double: Double, engines: Make
) -> None:
    double.script = never_ending
    engine = await ready(engines, double, n_parallel=1)
    running = asyncio.create_task(events_of(engine, ask("r0")))
    await until(lambda: double.n_open == 1)
    late = await failure_of(engine, ask("late", deadline_s=0.05))
    assert late.code is FailureCode.DEADLINE
    waiting = [
        asyncio.create_task(events_of(engine, ask(f"w{n}", owner="same"))) for n in range(16)
    ]
    await asyncio.sleep(0.02)
    busy = await failure_of(engine, ask("one more", owner="same"))
    assert (busy.code, busy.retryable) == (FailureCode.BUSY, True)
    assert busy.retry_after_s >= 1.0
    twin = await failure_of(engine, ask("r0"))
    assert (twin.code, twin.retryable) == (FailureCode.BAD_REQUEST, False)
    await engine.close()
    for events in await asyncio.gather(running, *waiting):
        assert isinstance(events[-1], Failed)
        assert events[-1].code is FailureCode.ENGINE_DIED
        assert events[-1].retryable
    closed = await failure_of(engine)
    assert closed.code is FailureCode.ENGINE_DIED
    with pytest.raises(EngineUnavailable):
        await engine.wait_ready(1.0)


# ── what the server is ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_llama_server_counts_exactly_and_its_smaller_window_wins(
    double: Double, engines: Make
) -> None:
    double.kind = "llama-server"
    engine = await ready(engines, double)
    assert engine.info is not None
    assert engine.info.exact_counts
    assert engine.info.n_ctx_tokens == 2048
    assert await engine.count("你好") == 2
    await events_of(engine, ask())
    assert double.bodies[-1]["top_k"] == 40


async def test_vllm_counts_exactly_and_tells_its_window(double: Double, engines: Make) -> None:
    double.kind, double.max_model_len = "vllm", 4096
    engine = await ready(engines, double)
    assert engine.info is not None
    assert engine.info.exact_counts
    assert engine.info.n_ctx_tokens == 4096
    assert await engine.count("你好") == 2
    await events_of(engine, ask())
    assert double.bodies[-1]["repetition_penalty"] == 1.0


async def test_a_plain_server_is_labelled_as_counted_by_bound(
    double: Double, engines: Make
) -> None:
    engine = await ready(engines, double)
    assert engine.info is not None
    assert not engine.info.exact_counts
    assert engine.info.n_ctx_tokens == 8192
    assert "upper bound" in engine.info.description
    assert await engine.count("你好") == 7
    rendered = await engine.render([ChatMessage(role=Role.USER, content="你好")])
    assert not rendered.exact
    assert rendered.n_tokens > 7
    await engine.warm("k", "s", (1,))
    await engine.forget("k")


async def test_a_refused_key_is_a_settings_fault(double: Double, engines: Make) -> None:
    double.models_status = 401
    engine = engines(double)
    await engine.start()
    with pytest.raises(EngineConfigError, match="api_key") as caught:
        await engine.wait_ready(5.0)
    assert KEY not in str(caught.value)
    assert (await engine.stats()).state is EngineState.FAILED


async def test_a_server_that_is_not_there_yet(double: Double, engines: Make) -> None:
    double.models_status = 503
    engine = engines(double)
    await engine.start()
    with pytest.raises(EngineUnavailable, match="not ready within"):
        await engine.wait_ready(0.2)
    with pytest.raises(EngineUnavailable):
        await engine.render([])
    double.models_status = 200
    assert (await engine.wait_ready(5.0)).name == "other"


async def test_a_server_without_a_model_list_is_served(double: Double, engines: Make) -> None:
    double.models_status = 404
    engine = await ready(engines, double)
    assert isinstance((await events_of(engine, ask()))[-1], Finished)


async def test_nobody_listens(engines: Make, unused_tcp_port: int, double: Double) -> None:
    engine = engines(double, base_url=f"http://127.0.0.1:{unused_tcp_port}/v1")
    await engine.start()
    failed = await failure_of(engine)
    assert (failed.code, failed.retryable) == (FailureCode.UPSTREAM, True)
    assert (await engine.stats()).state is EngineState.STARTING


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "ftp://x/v1"},
        {"base_url": "no url"},
        {"base_url": "http://user:pass@127.0.0.1/v1"},
        {"model": ""},
        {"n_ctx": 0},
        {"n_parallel": 0},
        {"api_key": "line\nbreak"},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_settings_that_cannot_work(
    double: Double, engines: Make, changes: dict[str, Any]
) -> None:
    with pytest.raises(EngineConfigError, match=r"models\.other\.") as caught:
        await engines(double, **changes).start()
    assert "pass" not in str(caught.value)

"""The parts of the supervised child that need no child: environment, what is resent, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from engine.client import EngineProcess, open_engine
from engine.config import EngineConfig, OpenAISettings
from engine.errors import EngineConfigError, EngineError
from engine.link import wire
from engine.link.childlog import relay
from engine.link.inflight import Inflight
from engine.link.limits import check_config
from engine.link.process import child_environment
from engine.link.textdesk import TextDesk
from engine.types import (
    ChatMessage,
    Delta,
    EngineRequest,
    EngineState,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    ModelInfo,
    Rendered,
    Role,
    Usage,
)


def test_the_child_gets_what_libraries_need_and_no_secrets() -> None:
    env = child_environment(
        {
            "PATH": "/bin",
            "FEISHU_APP_SECRET": "s",
            "OPENAI_API_KEY": "k",
            "HEARTH_KEY": "k",
            "CUDA_VISIBLE_DEVICES": "0",
            "LC_ALL": "C",
            "OMP_WAIT_POLICY": "active",
        }
    )
    assert not {"FEISHU_APP_SECRET", "OPENAI_API_KEY", "HEARTH_KEY"} & env.keys()
    assert env["CUDA_VISIBLE_DEVICES"] == "0"
    assert env["OMP_WAIT_POLICY"] == "active", "what the admin chose stays"
    assert env["GGML_NO_BACKTRACE"] == "1"
    root = Path(__file__).resolve().parents[3]
    assert str(root) in env["PYTHONPATH"].split(":")


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "openai"},
        {"n_ctx": 0},
        {"n_parallel": 0},
        {"n_batch": 0},
        {"kv_cells": -1},
        {"n_threads": -2},
        {"n_threads": 100_000},
        {"n_ctx": 2**40},
        {"n_parallel": 1000},
        {"kv_cells": 2**32 + 512},
        {"n_batch": 2**33},
        {"n_batch": 2, "n_parallel": 4},
        {"n_gpu_layers": 10**12},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_that_no_model_can_be_loaded_with(changes: dict[str, int]) -> None:
    with pytest.raises(EngineConfigError, match=r"models\.m\.\w+"):
        check_config(EngineConfig(name="m", **changes))  # type: ignore[arg-type]  # one of several types


async def test_the_factory_tells_local_from_remote() -> None:
    assert isinstance(open_engine(EngineConfig(name="m", backend="fake")), EngineProcess)
    remote = open_engine(OpenAISettings(name="o", base_url="http://x/v1", model="b", n_ctx=1))
    assert type(remote).__name__ == "OpenAIEngine"


class RecordingChild:
    """Stands where a ready child stands and keeps what is sent."""

    pid = 0
    rss_bytes = 0
    tail: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.sent: list[wire.Command] = []

    def send(self, command: wire.Command) -> None:
        wire.encode(command)
        self.sent.append(command)


@pytest.fixture
def engine() -> EngineProcess:
    return EngineProcess(EngineConfig(name="m", backend="fake"))


def put_child(engine: EngineProcess) -> RecordingChild:
    child = RecordingChild()
    supervisor = engine._supervisor
    supervisor._child = child  # type: ignore[assignment]  # a stand-in
    supervisor.readiness.info = ModelInfo(name="m", path="", fingerprint="f", n_ctx_tokens=9)
    supervisor.readiness.set(EngineState.READY, "")
    engine.on_ready()
    return child


def lose_child(engine: EngineProcess) -> None:
    engine._supervisor._child = None
    engine._supervisor.readiness.set(EngineState.RESTARTING, "dead")
    engine.on_down("dead", 1.5)


async def test_what_is_to_be_forgotten_is_sent_until_a_child_has_confirmed(
    engine: EngineProcess,
) -> None:
    await engine.forget("early")
    child = put_child(engine)
    assert child.sent == [wire.Forget(cache_key="early")]
    await engine.forget("later")
    engine.on_report(wire.Forgotten(cache_key="early"))
    lose_child(engine)
    assert put_child(engine).sent == [wire.Forget(cache_key="later")]
    engine.on_report(wire.Forgotten(cache_key="later"))
    lose_child(engine)
    assert put_child(engine).sent == []


async def test_warming_is_a_hint(engine: EngineProcess) -> None:
    await engine.warm("k", "s", [1, 2])
    child = put_child(engine)
    assert child.sent == []
    await engine.warm("k", "s", [1, 2])
    assert child.sent == [wire.Warm(cache_key="k", scope="s", tokens=(1, 2))]


async def test_events_of_a_request_whose_reader_left_do_not_reach_its_successor(
    engine: EngineProcess,
) -> None:
    child = put_child(engine)
    first = engine.submit(EngineRequest(id="same"))
    waiting = asyncio.ensure_future(anext(first))  # noqa: TID251 - a plain awaitable is enough here
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    await first.aclose()
    old = child.sent[0]
    assert isinstance(old, wire.Submit)
    assert child.sent[1] == wire.Cancel(request_id=old.request.id)
    second = asyncio.create_task(collect(engine, EngineRequest(id="same")))
    await asyncio.sleep(0)
    new = child.sent[2]
    assert isinstance(new, wire.Submit)
    cancelled = Finished(request_id=old.request.id, reason=FinishReason.CANCELLED, usage=Usage())
    engine.on_report(cancelled)
    engine.on_report(Delta(request_id=new.request.id, token_ids=(1,), text="a"))
    finished = Finished(request_id=new.request.id, reason=FinishReason.STOP, usage=Usage())
    engine.on_report(finished)
    assert await second == [
        Delta(request_id="same", token_ids=(1,), text="a"),
        Finished(request_id="same", reason=FinishReason.STOP, usage=Usage()),
    ]


async def collect(engine: EngineProcess, request: EngineRequest) -> list[object]:
    return [event async for event in engine.submit(request)]


async def test_death_ends_requests_and_questions(engine: EngineProcess) -> None:
    put_child(engine)
    request = asyncio.create_task(collect(engine, EngineRequest(id="r")))
    question = asyncio.create_task(engine.count("x"))
    await asyncio.sleep(0)
    lose_child(engine)
    assert await request == [
        Failed(
            request_id="r",
            code=FailureCode.ENGINE_DIED,
            retryable=True,
            message="dead",
            retry_after_s=1.5,
        )
    ]
    with pytest.raises(EngineError, match="dead"):
        await question


async def test_what_cannot_be_sent_fails_and_hurts_nobody_else(engine: EngineProcess) -> None:
    child = put_child(engine)
    huge = ChatMessage(role=Role.USER, content="x" * (wire.MAX_FRAME_BYTES + 1))
    (failed,) = await collect(engine, EngineRequest(id="r", messages=(huge,)))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (FailureCode.BAD_REQUEST, False)
    with pytest.raises(EngineError, match="exceeds"):
        await engine.count(huge.content)
    with pytest.raises(EngineError, match="exceeds"):
        await engine.render([huge])
    assert child.sent == []


async def test_an_answer_of_the_wrong_kind_is_an_error(engine: EngineProcess) -> None:
    child = put_child(engine)
    question = asyncio.create_task(engine.count("x"))
    await asyncio.sleep(0)
    (asked,) = child.sent
    assert isinstance(asked, wire.AskCount)
    rendered = Rendered(token_ids=(), n_tokens=0, starts=())
    engine.on_report(wire.RenderAnswer(seq=asked.seq, rendered=rendered))
    with pytest.raises(EngineError, match="Rendered"):
        await question
    engine.on_report(wire.CountAnswer(seq=asked.seq, n_tokens=1))  # late, and nobody asks


async def test_answers_that_nobody_waits_for_are_dropped() -> None:
    inflight = Inflight()
    seq, future = inflight.ask()
    future.cancel()
    inflight.answer(seq, 1)
    inflight.refuse(seq, EngineError("x"))
    inflight.deliver(Delta(request_id="gone#1", token_ids=()))
    assert inflight.fail_all("x", 0.0) == 0


class _Broken:
    def render(self, messages: tuple[ChatMessage, ...], *, add_generation_prompt: bool) -> Rendered:
        if add_generation_prompt:
            raise ValueError("words of the conversation")
        return Rendered(token_ids=tuple(range(1_000_001)), n_tokens=1_000_001, starts=(0,))


def _counts() -> Iterator[int]:
    yield 3


@pytest.mark.parametrize(
    "line",
    [b"", b"ggml: loaded", b"{", b"{}", b"[1]", b'{"event": 1, "level": "info"}', b'{"event": "x", "level": "bind"}'],
)  # fmt: skip
def test_what_is_no_log_line_is_not_relayed(line: bytes) -> None:
    with structlog.testing.capture_logs() as logs:
        assert not relay(line, structlog.get_logger())
    assert logs == []


def test_log_lines_of_the_child_are_told_again() -> None:
    line = b'{"request_id": "r", "event": "reply_failed", "level": "error", "exception": "Trace"}'
    with structlog.testing.capture_logs() as logs:
        assert relay(line, structlog.get_logger())
    expected = {
        "event": "reply_failed",
        "log_level": "error",
        "request_id": "r",
        "exception": "Trace",
    }
    assert logs == [expected]


def test_the_text_desk_survives_texts_that_break_it() -> None:
    answers: list[wire.Report] = []
    counts = _counts()
    desk = TextDesk(lambda _: next(counts), _Broken(), answers.append)
    desk.put(wire.AskCount(seq=1, text="a"))
    desk.put(wire.AskCount(seq=2, text="b"))
    desk.put(wire.AskRender(seq=3, messages=(), add_generation_prompt=True))
    desk.put(wire.AskRender(seq=4, messages=(), add_generation_prompt=False))
    for _ in range(4):
        desk.answer_next()
    counted, *refused = answers
    assert counted == wire.CountAnswer(seq=1, n_tokens=3)
    assert [type(answer) for answer in refused] == [wire.Refusal] * 3
    assert "conversation" not in str(refused[1])
    assert "1000001 tokens" in str(refused[2])

"""Frames: every kind travels unchanged, however the stream is cut; garbage and oversize are told apart from silence."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.link import wire
from engine.types import (
    ChatMessage,
    Delta,
    EngineRequest,
    EngineState,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    ModelInfo,
    Priority,
    Progress,
    Queued,
    Rendered,
    Role,
    Sampling,
    Started,
    Usage,
)

COMMANDS: list[wire.Command] = [
    wire.Hello(version=1, config=EngineConfig(name="m", fake={"tokens_per_s": "3"})),
    wire.Submit(
        request=EngineRequest(
            id="r",
            prompt_tokens=(1, 2, 3),
            messages=(ChatMessage(role=Role.USER, content="你好 🙂"),),
            stop=("</s>",),
            sampling=Sampling(seed=7),
            priority=Priority.BACKGROUND,
        )
    ),
    wire.Cancel(request_id="r"),
    wire.Warm(cache_key="k", scope="s", tokens=(5, 6)),
    wire.Forget(cache_key="k"),
    wire.AskStats(seq=1),
    wire.AskCount(seq=2, text="数一数"),
    wire.AskRender(
        seq=3,
        messages=(ChatMessage(role=Role.ASSISTANT, content="ok", token_ids=(9,)),),
        add_generation_prompt=True,
    ),
    wire.Shutdown(),
]

REPORTS: list[wire.Report] = [
    wire.Ready(version=1, info=ModelInfo(name="m", path="p", fingerprint="f", n_ctx_tokens=4096)),
    wire.LoadFailed(message="no such file"),
    wire.Forgotten(cache_key="k"),
    wire.StatsAnswer(seq=1, stats=EngineStats(state=EngineState.READY, n_running=2)),
    wire.CountAnswer(seq=2, n_tokens=4),
    wire.RenderAnswer(seq=3, rendered=Rendered(token_ids=(1, 2), n_tokens=2, starts=(0,))),
    wire.Refusal(seq=4, message="no"),
    wire.Beat(working=True, n_steps=3, longest_step_s=0.25),
    Queued(request_id="r", place=1),
    Progress(request_id="r", done_tokens=1, total_tokens=9),
    Started(request_id="r", cached_tokens=4),
    Delta(request_id="r", token_ids=(1, 2), text="a", thinking="b"),
    Finished(request_id="r", reason=FinishReason.STOP, usage=Usage(n_prompt=3)),
    Failed(request_id="r", code=FailureCode.DECODE, retryable=True, message="m"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda frame: type(frame).__name__)
def test_commands_travel_unchanged(command: wire.Command) -> None:
    (payload,) = wire.FrameBuffer().feed(wire.encode(command))
    assert wire.decode_command(payload) == command


@pytest.mark.parametrize("report", REPORTS, ids=lambda frame: type(frame).__name__)
def test_reports_travel_unchanged(report: wire.Report) -> None:
    (payload,) = wire.FrameBuffer().feed(wire.encode(report))
    assert wire.decode_report(payload) == report


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(REPORTS), max_size=8), st.data())
def test_frames_survive_any_cutting(reports: list[wire.Report], data: st.DataObject) -> None:
    stream = b"".join(wire.encode(report) for report in reports)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    edges = [0, *sorted(cuts), len(stream)]
    buffer = wire.FrameBuffer()
    seen = [
        wire.decode_report(payload)
        for start, end in itertools.pairwise(edges)
        for payload in buffer.feed(stream[start:end])
    ]
    assert seen == reports
    assert buffer.n_pending_bytes == 0


def test_an_unfinished_frame_waits() -> None:
    frame = wire.encode(wire.Shutdown())
    buffer = wire.FrameBuffer()
    assert buffer.feed(frame[:-1]) == []
    assert buffer.n_pending_bytes == len(frame) - 1
    assert len(buffer.feed(frame[-1:] + frame)) == 2


def test_an_oversized_announcement_is_refused_before_its_bytes_come() -> None:
    length = (wire.MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(wire.WireError, match="announces"):
        wire.FrameBuffer().feed(length)


def test_an_oversized_frame_is_not_sent() -> None:
    with pytest.raises(wire.WireError, match="exceeds"):
        wire.encode(wire.AskCount(seq=1, text="x" * (wire.MAX_FRAME_BYTES + 1)))


@pytest.mark.parametrize(
    "command",
    [
        wire.AskCount(seq=1, text="\ud800"),
        wire.Submit(request=EngineRequest(id="r", sampling=Sampling(seed=2**70))),
    ],
    ids=["lone surrogate", "seed beyond 64 bits"],
)
def test_what_msgpack_cannot_carry_is_a_wire_error(command: wire.Command) -> None:
    with pytest.raises(wire.WireError, match="cannot be sent"):
        wire.encode(command)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.binary(max_size=60))
def test_garbage_is_a_wire_error_and_nothing_else(payload: bytes) -> None:
    for decode in (wire.decode_command, wire.decode_report):
        try:
            frame = decode(payload)
        except wire.WireError:
            continue
        assert isinstance(frame, msgspec.Struct)


def test_a_report_is_not_a_command() -> None:
    (payload,) = wire.FrameBuffer().feed(wire.encode(wire.LoadFailed(message="x")))
    with pytest.raises(wire.WireError, match="unreadable command"):
        wire.decode_command(payload)


def test_the_version_is_readable_in_a_hello_of_another_age() -> None:
    payload = msgspec.msgpack.encode({"type": "hello", "version": 99, "config": {"strange": [1]}})
    assert wire.peek_version(payload) == 99
    with pytest.raises(wire.WireError):
        wire.decode_command(payload)
    with pytest.raises(wire.WireError, match="no version"):
        wire.peek_version(b"\xc1")


def test_clean_text_replaces_only_what_utf8_cannot_carry() -> None:
    assert wire.clean_text("plain") == "plain"
    assert wire.clean_text("你好🙂") == "你好🙂"
    assert wire.clean_text("a\ud83db") == "a?b"

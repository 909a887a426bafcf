"""The child's way up: a parent that does not read never blocks the reporter, and loses nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from engine.link import wire
from engine.link.outbox import Outbox
from engine.types import Delta, Finished, FinishReason, Started, Usage


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def read_until_finished(sock: socket.socket, n_finished: int) -> list[wire.Report]:
    buffer, seen = wire.FrameBuffer(), []
    while sum(isinstance(report, Finished) for report in seen) < n_finished:
        data = sock.recv(65536)
        assert data, "the stream ended early"
        seen += [wire.decode_report(payload) for payload in buffer.feed(data)]
    return seen


def finished(request_id: str) -> Finished:
    return Finished(request_id=request_id, reason=FinishReason.STOP, usage=Usage())


def test_a_parent_that_sleeps_costs_memory_of_the_reply_only(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    outbox = Outbox(ours)
    outbox.start()
    n_tokens = 5_000
    for token in range(n_tokens):
        for name in ("a", "b"):
            outbox.put(Delta(request_id=name, token_ids=(token,), text="x"))
        if token == 1_000:
            outbox.put(wire.Beat(working=True, n_steps=1, longest_step_s=0.1))
        if token == 2_000:
            outbox.put(wire.Beat(working=True, n_steps=2, longest_step_s=0.1))
    outbox.put(finished("a"))
    outbox.put(finished("b"))
    assert outbox.n_waiting <= 8
    seen = read_until_finished(theirs, 2)
    for name in ("a", "b"):
        ids = [
            token
            for report in seen
            if isinstance(report, Delta) and report.request_id == name
            for token in report.token_ids
        ]
        assert ids == list(range(n_tokens))
    assert [report for report in seen if isinstance(report, wire.Beat)][-1].n_steps == 2
    outbox.close(2.0)


def test_close_writes_what_waits(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(ours)
    outbox.start()
    outbox.put(wire.LoadFailed(message="why"))
    outbox.close(2.0)
    buffer = wire.FrameBuffer()
    (payload,) = buffer.feed(theirs.recv(65536))
    assert wire.decode_report(payload) == wire.LoadFailed(message="why")


def test_close_does_not_wait_for_a_reader_that_never_comes(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, _ = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    outbox = Outbox(ours)
    outbox.start()
    outbox.put(Delta(request_id="a", token_ids=(), text="x" * 1_000_000))
    started = time.monotonic()
    outbox.close(0.1)
    assert time.monotonic() - started < 5.0


def test_a_parent_that_is_gone_ends_the_writer_quietly(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    theirs.close()
    outbox = Outbox(ours)
    outbox.start()
    outbox.put(finished("a"))
    outbox.close(2.0)
    assert not outbox._thread.is_alive()


def test_a_start_is_written_before_anything_is_computed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    theirs.setblocking(False)
    outbox = Outbox(ours)
    outbox.start()
    for n in range(200):
        outbox.tell(Started(request_id=f"r{n}", cached_tokens=0))
        (payload,) = wire.FrameBuffer().feed(theirs.recv(65536))
        assert wire.decode_report(payload) == Started(request_id=f"r{n}", cached_tokens=0)


def test_a_start_does_not_wait_for_ever_for_a_parent_that_sleeps(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    outbox = Outbox(ours)
    outbox.start()
    for n in range(3):
        outbox.put(Delta(request_id=f"big{n}", token_ids=(n,), text="x" * 100_000))
    outbox.tell(Started(request_id="r", cached_tokens=0))
    outbox.put(finished("r"))
    assert Started(request_id="r", cached_tokens=0) in read_until_finished(theirs, 1)

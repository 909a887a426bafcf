"""The child's way up: a parent that does not read never blocks the reporter, and loses nothing."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from engine.link import wire
from engine.link.outbox import PAUSE_S, Outbox
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


def received(sock: socket.socket) -> list[wire.Report]:
    """What has been written by now."""
    return [wire.decode_report(payload) for payload in wire.FrameBuffer().feed(sock.recv(1 << 20))]


def text_of(request_id: str, token: int) -> Delta:
    return Delta(request_id=request_id, token_ids=(token,), text="x")


def test_the_cores_thread_writes_by_itself_what_is_due(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """No writer thread runs here."""
    ours, theirs = ends
    theirs.setblocking(False)
    outbox = Outbox(ours)
    outbox.tell(text_of("r", 1))
    outbox.flush()
    assert received(theirs) == [text_of("r", 1)], "a reply's first text goes at once"
    outbox.tell(text_of("r", 2))
    outbox.tell(text_of("r", 3))
    outbox.flush()
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    outbox.flush(everything=True)
    (melted,) = received(theirs)
    assert isinstance(melted, Delta)
    assert melted.token_ids == (2, 3)
    time.sleep(PAUSE_S)
    outbox.tell(text_of("r", 4))
    outbox.flush()
    assert received(theirs) == [text_of("r", 4)], "the pause is over"
    outbox.tell(finished("r"))
    outbox.flush()
    assert received(theirs) == [finished("r")]


def test_two_threads_write_one_stream(ends: tuple[socket.socket, socket.socket]) -> None:
    """Whole frames in the order of each thread, though the parent takes little at a time and the writer sleeps in between."""
    ours, theirs = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    outbox = Outbox(ours)
    outbox.start()
    n_each = 3_000

    def core() -> None:
        for token in range(n_each):
            outbox.tell(text_of("core", token))
            outbox.flush(everything=token % 3 == 0)
        outbox.tell(finished("core"))
        outbox.flush(everything=True)

    def other() -> None:
        for token in range(n_each):
            outbox.put(text_of("other", token))
            if token % 100 == 0:
                time.sleep(0.001)
        outbox.put(finished("other"))

    threads = [threading.Thread(target=core), threading.Thread(target=other)]
    for thread in threads:
        thread.start()
    seen = read_until_finished(theirs, 2)
    for thread in threads:
        thread.join()
    for name in ("core", "other"):
        mine = [r for r in seen if isinstance(r, Delta) and r.request_id == name]
        assert [token for delta in mine for token in delta.token_ids] == list(range(n_each))
    outbox.close(2.0)
    assert not outbox._thread.is_alive()


def test_what_the_core_wrote_in_the_writers_pause_does_not_end_the_writer(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    outbox = Outbox(ours)
    outbox.start()
    for token in range(20):
        outbox.put(text_of("r", token))
        outbox.flush(everything=True)
        time.sleep(PAUSE_S / 20)
    time.sleep(PAUSE_S)
    assert outbox._thread.is_alive()
    outbox.put(finished("r"))
    seen = read_until_finished(theirs, 1)
    assert [t for r in seen if isinstance(r, Delta) for t in r.token_ids] == list(range(20))
    outbox.close(2.0)


def test_what_the_socket_refuses_for_a_moment_is_not_lost(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends

    class Full:
        """No buffers for the first send."""

        def send(self, _data: bytes, _flags: int) -> int:
            raise OSError(errno.ENOBUFS, "no buffer space available")

        def sendall(self, data: bytes) -> None:
            ours.sendall(data)

    outbox = Outbox(Full())  # type: ignore[arg-type]
    outbox.start()
    outbox.tell(finished("r"))
    outbox.flush()
    assert read_until_finished(theirs, 1) == [finished("r")]
    outbox.close(2.0)

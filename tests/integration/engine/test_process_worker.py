"""The worker alone, over a raw socket: what it does with a parent that is silent, slow, rude or of another version."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.link import wire
from engine.link.process import child_environment
from engine.link.worker import EXIT_CONFIG, EXIT_FAULT, EXIT_OK
from engine.types import Delta, EngineRequest, Finished

ROOT = Path(__file__).resolve().parents[3]
CONFIG = EngineConfig(name="m", backend="fake")
HELLO = wire.Hello(version=wire.WIRE_VERSION, config=CONFIG)


class Worker:
    """A worker process and our end of its socket."""

    def __init__(self, parent_pid: int) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(20.0)
        self.buffer = wire.FrameBuffer()
        self.waiting: list[wire.Report] = []
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "engine.link.worker", "--fd", str(theirs.fileno()), "--parent", str(parent_pid)],
            pass_fds=(theirs.fileno(),),
            env=child_environment(os.environ),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        theirs.close()

    def send(self, *commands: wire.Command) -> None:
        self.sock.sendall(b"".join(wire.encode(command) for command in commands))

    def receive(self) -> wire.Report:
        while not self.waiting:
            data = self.sock.recv(65536)
            assert data, f"the worker has gone: {self.process.communicate()[1].decode()}"
            self.waiting += [wire.decode_report(payload) for payload in self.buffer.feed(data)]
        return self.waiting.pop(0)

    def receive_kind(self, kind: type) -> wire.Report:
        while not isinstance(report := self.receive(), kind):
            pass
        return report

    def end(self) -> tuple[int, str]:
        """Exit status and what it printed."""
        _, output = self.process.communicate(timeout=20.0)
        return self.process.returncode, output.decode()


@pytest.fixture
def workers() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(parent_pid: int | None = None) -> Worker:
        made.append(Worker(os.getpid() if parent_pid is None else parent_pid))
        return made[-1]

    yield make
    for worker in made:
        worker.sock.close()
        worker.process.kill()
        worker.process.communicate()


Make = Callable[..., Worker]


def test_hello_shutdown(workers: Make) -> None:
    worker = workers()
    worker.send(HELLO)
    ready = worker.receive()
    assert isinstance(ready, wire.Ready)
    assert ready.version == wire.WIRE_VERSION
    worker.send(wire.Shutdown())
    assert worker.end() == (EXIT_OK, "")


def test_the_end_of_the_socket_is_the_end(workers: Make) -> None:
    worker = workers()
    worker.send(HELLO)
    worker.receive()
    worker.sock.close()
    assert worker.end()[0] == EXIT_OK


def test_a_parent_that_has_died_before_it_looked(workers: Make) -> None:
    assert workers(parent_pid=1).end() == (EXIT_OK, "")


def test_a_fault_in_the_settings_is_told_and_ends_it(workers: Make) -> None:
    worker = workers()
    worker.send(wire.Hello(version=wire.WIRE_VERSION, config=EngineConfig(name="m", backend="?")))
    failed = worker.receive()
    assert isinstance(failed, wire.LoadFailed)
    assert "backend" in failed.message
    assert worker.end()[0] == EXIT_CONFIG


NEWER = msgspec.msgpack.encode({"type": "hello", "version": 99, "config": {"new": True}})
RUDE = {
    b"\xff\xff\xff\xff": "announces",
    b"\x00\x00\x00\x03\xc1\xc1\xc1": "has no version",
    wire.encode(wire.Cancel(request_id="r")): "has no version",
    len(NEWER).to_bytes(4, "big") + NEWER: "wire version 99",
    wire.encode(HELLO) + wire.encode(HELLO): "a second hello",
    wire.encode(HELLO) + wire.encode(wire.LoadFailed(message="x")): "unreadable command",
    wire.encode(HELLO) + wire.encode(wire.AskCount(seq=1, text="x")): "before the model was loaded",
}


def test_a_parent_that_is_rude_or_of_another_version(workers: Make) -> None:
    """All at once, since starting a process takes longer than what is tested."""
    started = [(workers(), stream, words) for stream, words in RUDE.items()]
    for worker, stream, _ in started:
        worker.sock.sendall(stream)
    for worker, _, words in started:
        status, output = worker.end()
        assert status == EXIT_FAULT
        assert words in output.splitlines()[-1]


def test_frames_may_come_in_any_pieces(workers: Make) -> None:
    worker = workers()
    stream = wire.encode(HELLO)
    for at in range(0, len(stream), 7):
        worker.sock.sendall(stream[at : at + 7])
        time.sleep(0.001)
    assert isinstance(worker.receive(), wire.Ready)
    worker.send(*(wire.AskCount(seq=n, text="x" * n) for n in range(50)))
    answers = [worker.receive() for _ in range(50)]
    assert [answer.seq for answer in answers if isinstance(answer, wire.CountAnswer)] == list(
        range(50)
    )


def test_decoding_does_not_wait_for_a_parent_that_does_not_read(workers: Make) -> None:
    """The reply is complete although nothing was read while it was made: only the end of it could be waited for."""
    worker = workers()
    worker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    worker.send(HELLO)
    worker.receive()
    requests = [
        EngineRequest(id=f"r{n}", prompt_tokens=(10, 11), max_new_tokens=400, owner=f"o{n}")
        for n in range(20)
    ]
    worker.send(*(wire.Submit(request=request) for request in requests))
    time.sleep(2.0)
    ids: dict[str, list[int]] = {}
    n_deltas = n_finished = 0
    while n_finished < len(requests):
        report = worker.receive()
        n_finished += isinstance(report, Finished)
        if isinstance(report, Delta):
            n_deltas += 1
            ids.setdefault(report.request_id, []).extend(report.token_ids)
    assert {len(tokens) for tokens in ids.values()} == {400}
    assert n_deltas < 20 * 400 / 2, "what waited came melted together"


def test_beats_frame_each_busy_stretch(workers: Make) -> None:
    worker = workers()
    worker.send(HELLO)
    worker.receive()
    request = EngineRequest(id="r", prompt_tokens=(10, 11), max_new_tokens=5)
    worker.send(wire.Submit(request=request))
    beats: list[wire.Beat] = []
    while not beats or beats[-1].working:
        report = worker.receive()
        if isinstance(report, wire.Beat):
            beats.append(report)
    assert beats[-1].n_steps >= 1
    assert beats[-1].longest_step_s > 0

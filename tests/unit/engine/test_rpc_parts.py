"""RPC workers without llama.cpp: addresses, the question that comes before its call, who has which, and who is left out how long."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.link.limits import check_config
from engine.link.lostworkers import LostWorkers
from engine.link.obituary import Cause, Circumstances, death_of
from engine.link.outside import Outside
from engine.link.stepback import Depth, Ladder
from engine.link.watch import Supervision
from engine.machine.margins import Surroundings
from engine.rpc import sockets
from engine.rpc.client import worker_named
from engine.rpc.endpoints import Endpoint, parse_endpoint, parse_listen
from engine.rpc.hello import LentDevice, WorkerAway, ask_worker
from engine.rpc.lease import Holder, holder_of, take_lease

WHERE = Endpoint("127.0.0.1", 50052)

# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:50052", WHERE),
        ("127.0.0.1", WHERE),
        (" gpu-box.lan:7000 ", Endpoint("gpu-box.lan", 7000)),
    ],
)
def test_addresses(text: str, expected: Endpoint) -> None:
    assert parse_endpoint(text, "x") == expected


@pytest.mark.parametrize(
    "text", ["", ":50052", "::1", "[::1]:50052", "host:", "host:x", "host:0", "host:70000", "a b:1", "host:1:2", "http://h:1", "h:１"]
)  # fmt: skip
def test_what_is_no_address_is_said_with_its_place(text: str) -> None:
    with pytest.raises(EngineConfigError, match=r"^models\.m\.rpc: "):
        check_config(EngineConfig(name="m", rpc=(text,)))


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.9.9.9", "10.0.0.5:9", "192.168.1.2", "172.31.0.1", "100.100.0.1", "169.254.1.1"])  # fmt: skip
def test_loopback_and_private_addresses_may_lend(text: str) -> None:
    assert parse_listen(text).host == text.partition(":")[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.0.0.0:50052", "every interface"),
        ("8.8.8.8", "the open network"),
        ("172.32.0.1", "the open network"),
        ("100.128.0.1", "the open network"),
        ("255.255.255.255", "the open network"),
        ("224.0.0.1", "the open network"),
        ("localhost", "is a name"),
        ("gpu-box", "is a name"),
        ("::", "no IPv6"),
    ],
)
def test_nothing_else_may(text: str, words: str) -> None:
    with pytest.raises(EngineConfigError, match=words):
        parse_listen(text)


# ── hello ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def answers(version: int = 7, devices: tuple[tuple[int, int], ...] = ((5, 9),)) -> list[bytes]:
    """What a worker says to hello, count and memory, in its own framing."""
    bodies = [struct.pack("<BBBB24s", version, 0, 0, 0, b""), struct.pack("<I", len(devices))]
    bodies += [struct.pack("<QQ", *device) for device in devices]
    return [struct.pack("<Q", len(body)) + body for body in bodies]


@contextmanager
def serving(replies: list[bytes]) -> Iterator[Endpoint]:
    """A worker that gives these answers to whatever comes, and then hangs up; with none it hangs up at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            # The other end may leave in the middle.
            with server.accept()[0] as client, suppress(ConnectionError):
                for reply in [*replies, b""]:
                    client.recv(4096)
                    for byte in range(len(reply)):  # cut up as badly as a network can
                        client.sendall(reply[byte : byte + 1])

        thread = threading.Thread(target=serve)
        thread.start()
        yield Endpoint(*server.getsockname())
        thread.join()


def test_what_a_worker_lends() -> None:
    with serving(answers(devices=((5, 9), (6, 10)))) as endpoint:
        assert ask_worker(endpoint) == (LentDevice(5, 9), LentDevice(6, 10))


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        (
            answers(version=6)[:1],
            "version 6.0 of llama.cpp's RPC, this build 7.0: install the same",
        ),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "is no RPC worker of this version"),
        ([], "it hung up"),
        (answers(devices=())[:2], "lends 0 devices"),
        ([answers()[0], struct.pack("<QI", 4, 2**31)], "lends 2147483648 devices"),
    ],
)
def test_what_is_no_worker(replies: list[bytes], words: str) -> None:
    with serving(replies) as endpoint, pytest.raises(WorkerAway, match=words):
        ask_worker(endpoint)


def test_a_worker_that_is_away_or_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and is never accepted
        endpoint = Endpoint(*silent.getsockname())
        with pytest.raises(WorkerAway, match="somebody else uses it"):
            ask_worker(endpoint, 0.1)
    with pytest.raises(WorkerAway, match=r"cannot be reached \(connection refused\)"):
        ask_worker(endpoint, 0.1)

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(WorkerAway, match=r"cannot be reached \(the name is not known\)"):
        ask_worker(Endpoint("no-such-host", 1), 0.1)


# ── who has which ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_keeps_others_away_and_tells_what_is_lent(tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    assert holder_of(WHERE, folder) is None
    lease = take_lease(WHERE, "main", folder)
    lease.write(Holder(pid=7, model="main", devices=(LentDevice(5, 9),)))
    with pytest.raises(WorkerAway, match=r"models\.main \(process 7\) uses it"):
        take_lease(WHERE, "other", folder)
    assert holder_of(WHERE, folder) == Holder(pid=7, model="main", devices=(LentDevice(5, 9),))
    take_lease(Endpoint("127.0.0.1", 50053), "other", folder).release()
    lease.release()
    lease.release()
    assert holder_of(WHERE, folder) is None
    take_lease(WHERE, "other", folder).release()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(WorkerAway, match="belongs to somebody else"):
        take_lease(WHERE, "main", tmp_path / "link")
    assert holder_of(WHERE, tmp_path / "link") is None


def test_connections_are_found_and_kept_honest() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        for found in sockets.tcp_sockets():
            with found:
                if found.getsockname() == address:
                    sockets.keep_alive(found)
        with socket.create_connection(address), server.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), "inherited"
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
            peers = []
            for found in sockets.tcp_sockets():
                peers.append(sockets.peer_of(found))
                found.close()
            assert address in peers
            assert None in peers, "the listening one has no peer"


# ── who is left out ──────────────────────────────────────────────────────────────────────────────────────────────────

A, B = "a:1", "b:2"
CONFIG = EngineConfig(name="m", rpc=(A, B))


def test_a_lost_worker_is_left_out_longer_each_time() -> None:
    lost = LostWorkers(60.0)
    assert lost.without(CONFIG) is CONFIG
    waits = []
    for now in (0.0, 1000.0, 2000.0):
        lost.went_away([A], now, "12:00")
        assert lost.without(CONFIG).rpc == (B,)
        waits.append(next(t for t in range(1000) if lost.due(now + t)))
        lost.try_again([A])
        assert lost.without(CONFIG).rpc == (A, B)
        assert lost.sentence, "until a child has it"
        lost.were_absent({}, now, "12:00")
        assert lost.sentence == ""
    assert waits == [60, 120, 240]
    lost.settled()
    lost.went_away([A], 0.0, "13:00")
    assert lost.due(60.0) == (A,)
    assert lost.sentence == "without the RPC worker at a:1 since 13:00: it went away"


def test_one_that_is_absent_keeps_its_since() -> None:
    lost = LostWorkers(60.0)
    lost.were_absent({B: "it cannot be reached (connection refused)"}, 0.0, "12:00")
    lost.still_away([B], 60.0)
    assert lost.due(100.0) == ()
    lost.were_absent({B: "somebody else uses it"}, 120.0, "12:02")
    assert lost.sentence == "without the RPC worker at b:2 since 12:00: somebody else uses it"
    assert lost.due(180.0) == (B,)
    lost.try_again([B])
    lost.were_absent({B: "somebody else uses it"}, 180.0, "12:03")
    assert lost.without(CONFIG).rpc == (A,)
    assert "since 12:00" in lost.sentence


@pytest.mark.parametrize(
    "words",
    [
        "the RPC worker at 10.0.0.2:50052 went away",
        "/x/ggml-rpc.cpp:566: Remote RPC server crashed or returned malformed response",
        "/x/ggml-rpc.cpp:547: Failed to connect to 10.0.0.2:50052",
        "/x/ggml-rpc.cpp:550: RPC handshake failed for 10.0.0.2:50052",
    ],
)
def test_the_death_of_it_is_nobodys_fault(words: str) -> None:
    death = death_of(Circumstances("killed by SIGABRT", ("recv failed", words)))
    assert death.cause is Cause.WORKER_LOST
    assert "a machine that lends it devices went away" in death.sentence
    assert not death.may_be_a_requests_fault
    assert death.shortage is None


def test_a_lent_device_without_room_is_a_device() -> None:
    words = "llama_model_load: error loading model: unable to allocate RPC0[127.0.0.1:50052] buffer"
    death = death_of(Circumstances("killed by SIGABRT", (words,)))
    assert death.cause is Cause.DEVICE_MEMORY
    assert death.shortage is not None
    assert death.shortage.on_device


def outside() -> Outside:
    return Outside(CONFIG, Ladder(CONFIG), Surroundings(), Supervision(), lambda _: Depth())


async def test_which_worker_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_named("the RPC worker at b:2 went away") == B
    assert worker_named("nothing of the kind") == ""
    by_words = outside()
    await by_words.worker_lost(["x", "the RPC worker at b:2 went away"])
    assert by_words.config.rpc == (A,)
    monkeypatch.setattr("engine.link.outside.is_free", lambda address: address == B)
    by_asking = outside()
    await by_asking.worker_lost(["Remote RPC server crashed"])
    assert by_asking.config.rpc == (B,)
    monkeypatch.setattr("engine.link.outside.is_free", lambda _: True)
    any_of_them = outside()
    await any_of_them.worker_lost([])
    assert any_of_them.config.rpc == ()


async def test_an_engine_that_cannot_be_without_it_tries_it_at_its_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = outside()
    await lost.worker_lost(["the RPC worker at b:2 went away"])
    lost.begin()
    assert lost.config.rpc == (A,), "whatever made it crash may do so again"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61.0)
    lost.begin()
    assert lost.config.rpc == (A, B)
    lost.is_ready({})
    assert lost.sentence == ""


async def test_one_that_is_there_again_is_wanted_in_a_quiet_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.link.outside.is_free", lambda _: True)
    lost = outside()
    await lost.worker_lost(["the RPC worker at b:2 went away"])
    loop = asyncio.get_running_loop()
    assert await lost.look(loop.time(), is_idle=True) is None, "not yet"
    later = loop.time() + 61.0
    assert await lost.look(later, is_idle=False) is None, "somebody is being answered"
    wanted = await lost.look(later, is_idle=True)
    assert wanted is not None
    assert wanted.detail == "the RPC worker at b:2 is there again"
    assert wanted.until is None
    wanted.prepare()
    assert lost.config == CONFIG

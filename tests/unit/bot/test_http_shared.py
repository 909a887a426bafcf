"""Outgoing HTTP: transport faults by what a caller must do, proxies, tokens that are never waited for, limits per target."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bot.errors import Ambiguous, GiveUp, RetryLater
from bot.platforms.http import HttpRequest, SharedHttp, Token, TokenSource, proxy_for
from bot.platforms.limits import Limit, RateLimiter

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def http() -> AsyncIterator[SharedHttp]:
    shared = SharedHttp()
    await shared.start()
    yield shared
    await shared.close()


class Server:
    """A raw TCP server on loopback that does one thing to every connection."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.connections = 0
        self.requests: list[bytes] = []

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length")
                    ),
                    0,
                )
                self.requests.append(head + await reader.readexactly(length))
                await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/x"


def answer(status: bytes, body: bytes) -> Serve:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 %s\r\nX-Tt-Logid: L1\r\nContent-Length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )
        await writer.drain()

    return serve


async def drop(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    await writer.drain()
    writer.close()


async def nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_json_goes_out_and_comes_back_on_one_connection(http: SharedHttp) -> None:
    async with Server(answer(b"200 OK", b'{"code":0}')) as server:
        for _ in range(4):
            got = await http.exchange(HttpRequest("PUT", server.url, {"text": "你好"}))
        assert got.json() == {"code": 0}
        assert got.headers["x-tt-logid"] == "L1"
        assert server.connections == 1
        assert server.requests[0].endswith('{"text": "你好"}'.encode())
        assert b"content-type: application/json; charset=utf-8" in server.requests[0].lower()


@pytest.mark.parametrize("body", [b"<html>", b"", b"[1]", b"\xff", b"[" * 5000])
async def test_what_is_not_a_json_object_is_none(http: SharedHttp, body: bytes) -> None:
    async with Server(answer(b"502 Bad Gateway", body)) as server:
        got = await http.exchange(HttpRequest("GET", server.url))
        assert (got.status, got.json()) == (502, None)


async def test_nobody_listening_is_certainly_not_done(http: SharedHttp) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(RetryLater):
            await http.exchange(HttpRequest("POST", f"http://127.0.0.1:{port}/", {}))
    with pytest.raises(GiveUp):
        await http.exchange(HttpRequest("POST", "http://[/", {}))


@pytest.mark.parametrize("serve", [drop, half])
async def test_a_connection_lost_after_sending_is_ambiguous(http: SharedHttp, serve: Serve) -> None:
    async with Server(serve) as server:
        with pytest.raises(Ambiguous):
            await http.exchange(HttpRequest("POST", server.url, {}))


async def test_no_answer_in_time_is_ambiguous(http: SharedHttp) -> None:
    async with Server(nothing) as server:
        with pytest.raises(Ambiguous):
            await http.exchange(HttpRequest("POST", server.url, {}, timeout_s=0.05))


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's environment names is gone."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxies")
async def test_a_proxy_that_cannot_be_used_is_named_and_one_without_a_scheme_is_taken(
    http: SharedHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(RetryLater, match="is no http:// proxy"):
        await http.exchange(HttpRequest("GET", "https://far.invalid/"))
    monkeypatch.setenv("https_proxy", "127.0.0.1:7890")
    assert proxy_for("https://far.invalid/") == "http://127.0.0.1:7890"


@pytest.mark.usefixtures("no_proxies")
async def test_a_proxy_is_used_unless_no_proxy_names_the_host(
    http: SharedHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cases F11: a recording proxy sees exactly the hosts it should."""
    async with Server(answer(b"200 OK", b"{}")) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "direct.invalid")
        await http.exchange(HttpRequest("GET", "http://far.invalid/a"))
        with pytest.raises(RetryLater):
            await http.exchange(HttpRequest("GET", "http://direct.invalid/b"))
        async with Server(answer(b"200 OK", b"{}")) as server:
            await http.exchange(HttpRequest("GET", server.url))
            assert len(server.requests) == 1
        assert [request.split()[1] for request in proxy.requests] == [b"http://far.invalid/a"]
        assert proxy_for("https://far.invalid/") is None


# -- tokens -----------------------------------------------------------------------------------------------------------
class Issuer:
    """Issues numbered tokens and counts."""

    def __init__(self, lifetime_s: float = 7200.0) -> None:
        self.lifetime_s = lifetime_s
        self.count = 0
        self.fail = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> Token:
        self.count += 1
        await self.gate.wait()
        if self.fail:
            self.fail -= 1
            raise RetryLater("no")
        return Token(f"t-{self.count}", self.lifetime_s)


async def test_waiters_share_one_fetch() -> None:
    issuer = Issuer()
    issuer.gate.clear()
    source = TokenSource(issuer)
    waiters = [asyncio.create_task(source.get()) for _ in range(20)]
    await asyncio.sleep(0)
    waiters[0].cancel()  # one who leaves does not take the fetch with him
    issuer.gate.set()
    assert await asyncio.gather(*waiters[1:]) == ["t-1"] * 19
    assert issuer.count == 1
    await source.close()


async def test_a_token_is_renewed_before_it_runs_out_and_nobody_waits() -> None:
    """cases F10."""
    issuer = Issuer(lifetime_s=1.0)
    source = TokenSource(issuer)
    source.start()
    await source.get()
    issuer.gate.clear()
    for _ in range(200):
        await asyncio.sleep(0.005)
        if issuer.count == 2:
            break
    assert issuer.count == 2  # the renewal is under way, and hangs
    assert await source.get() == "t-1"
    issuer.gate.set()
    await asyncio.sleep(0.01)
    assert await source.get() == "t-2"
    await source.close()


async def test_an_expired_or_refused_token_is_fetched_again() -> None:
    now = [0.0]
    issuer = Issuer(lifetime_s=100)
    source = TokenSource(issuer, clock=lambda: now[0])
    assert await source.get() == "t-1"
    now[0] = 101.0
    assert not source.known
    assert await source.get() == "t-2"
    source.invalidate("t-1")  # an old refusal does not throw the new one away
    assert await source.get() == "t-2"
    source.invalidate("t-2")
    assert await source.get() == "t-3"
    issuer.fail = 1
    source.invalidate("t-3")
    with pytest.raises(RetryLater):
        await source.get()
    assert await source.get() == "t-5"
    await source.close()


async def test_the_keeper_goes_on_after_a_failure() -> None:
    issuer = Issuer()
    issuer.fail = 1
    source = TokenSource(issuer)
    source.start()
    async with asyncio.timeout(30):
        while not source.known:
            await asyncio.sleep(0.02)
    assert issuer.count == 2
    await source.close()


# -- limits -----------------------------------------------------------------------------------------------------------
class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


async def test_calls_to_one_target_queue_and_others_do_not() -> None:
    clock = Clock()
    limiter = RateLimiter(clock=clock, sleep=clock.sleep)
    a, b = Limit("chat:a", 4.0, 1.0), Limit("chat:b", 4.0, 1.0)
    await limiter.acquire((a,))
    await limiter.acquire((b,))
    assert clock.slept == []
    await limiter.acquire((a,))
    assert clock.slept == [0.25]


async def test_a_pause_holds_one_target_only_and_a_long_wait_is_refused() -> None:
    clock = Clock()
    limiter = RateLimiter(clock=clock, sleep=clock.sleep)
    a, b = Limit("chat:a", 4.0, 1.0), Limit("chat:b", 4.0, 1.0)
    limiter.pause("chat:a", 30.0)
    limiter.pause("chat:a", 1.0)  # a shorter one does not lift the longer
    await limiter.acquire((b,))
    assert clock.slept == []
    with pytest.raises(RetryLater) as refused:
        await limiter.acquire((a,))
    assert refused.value.after_s == 30.0
    await limiter.acquire((a,), max_wait_s=60.0)
    assert clock.slept == [30.0]


async def test_targets_are_forgotten() -> None:
    clock = Clock()
    limiter = RateLimiter(clock=clock, sleep=clock.sleep)
    for n in range(2000):
        clock.now += 0.01
        await limiter.acquire((Limit(f"chat:{n}", 4.0, 1.0),))
        limiter.pause(f"chat:{n}", 0.01)
    assert limiter.size < 1200

"""Files by addresses that payloads name: where they may come from, how large they may be, what a redirect may do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bot.errors import GiveUp, RetryLater, TooLarge
from bot.platforms.downloads import MAX_REDIRECTS, Sources, download
from bot.platforms.http import HttpRequest, PublicResolver, SharedHttp

HOSTS = (".myqcloud.com", ".weixin.qq.com", "127.0.0.1", "::1", "2130706433", "files.example")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://ww-aibot-img-1.cos.ap-guangzhou.myqcloud.com/a?b", True),
        ("https://X.MyQCloud.com:443/a", True),
        ("https://files.example/a", True),
        ("https://api.example/x", True),
        ("https://api.example:443/x", True),
        ("http://api.example/x", False),
        ("https://other.files.example/a", False),
        ("https://myqcloud.com.evil.example/x", False),
        ("https://evilmyqcloud.com/x", False),
        ("https://a.myqcloud.com@evil.example/", False),
        ("https://evil.example\\.myqcloud.com/", False),
        ("http://x.myqcloud.com/a", False),
        ("https://x.myqcloud.com:22/a", False),
        ("https://127.0.0.1/a", False),
        ("https://2130706433/a", False),
        ("https://[::1]/a", False),
        ("file:///etc/passwd", False),
        ("https://[", False),
        ("", False),
    ],
)
def test_where_files_may_come_from(url: str, allowed: bool) -> None:
    assert Sources(("https://api.example",), HOSTS).allow(url) is allowed


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, list[str]]]:
    asked: list[str] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(request.path_qs)
        if request.path == "/stream":  # says nothing of its length
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(5):
                await response.write(b"x" * 1000)
            return response
        if to := request.query.get("to"):
            return web.Response(status=302, headers={"Location": to})
        return web.Response(body=b"y" * 3000)

    app = web.Application()
    app.router.add_get("/{path}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[SharedHttp]:
    shared = SharedHttp()
    await shared.start()
    yield shared
    await shared.close()


async def test_a_file_is_read_up_to_its_limit_and_not_beyond(server: Any, http: SharedHttp) -> None:
    base, _ = server
    sources = Sources((base,))
    for path, size in (("file", 3000), ("stream", 5000)):
        answer = await download(http, "file", f"{base}/{path}", sources, max_bytes=size)
        assert len(answer.body) == size
        with pytest.raises(TooLarge):
            await download(http, "file", f"{base}/{path}", sources, max_bytes=size - 1)


async def test_a_redirect_is_followed_where_the_address_itself_would_be_asked(
    server: Any, http: SharedHttp
) -> None:
    base, asked = server
    sources = Sources((base,), ("files.example",))
    answer = await download(http, "file", f"{base}/a?to=/b%3Fto=/c", sources, max_bytes=9000)
    assert len(answer.body) == 3000
    assert [path.partition("?")[0] for path in asked] == ["/a", "/b", "/c"]
    for target in ("https://evil.example/", "http://127.0.0.1:1/", "file:///etc/passwd"):
        with pytest.raises(GiveUp):
            await download(http, "file", f"{base}/a?to={target}", sources, max_bytes=9000)
    asked.clear()
    with pytest.raises(GiveUp):
        await download(http, "file", f"{base}/loop?to=/loop%3Fto=/loop%253Fto=/loop%25253Fto=/a", Sources((base,)), max_bytes=1)  # fmt: skip
    assert len(asked) == MAX_REDIRECTS + 1


async def test_a_name_that_leads_to_a_private_address_is_not_asked(http: SharedHttp) -> None:
    with pytest.raises(OSError, match="no public address"):
        await PublicResolver().resolve("localhost", 443)
    with pytest.raises(RetryLater):
        await http.exchange(HttpRequest("GET", "https://localhost/", public_only=True))


async def test_the_public_resolver_keeps_public_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = PublicResolver()

    async def both(self: Any, host: str, port: int, family: int) -> list[dict[str, Any]]:
        found = ("10.0.0.7", "93.184.215.14", "169.254.169.254", "::1", "100.64.0.1")
        return [{"host": one, "hostname": host, "port": port} for one in found]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", both)
    found = await resolver.resolve("files.example", 443)
    assert [one["host"] for one in found] == ["93.184.215.14"]

"""A bot's callback: whether its address can be public, and what is answered to the requests that its platform sends.

The requests are those of the platform's check-up; they store nothing. They go to a running Hearth, or to the adapter itself.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import aiohttp

from bot.config import BotConfig, Config
from bot.doctor.findings import Finding, error, ok, warning
from bot.errors import Rejected
from bot.platforms.budget import MemoryBudget
from bot.platforms.checkup import Handshake
from bot.platforms.http import SharedHttp, proxy_for
from bot.platforms.opening import open_adapter

LOCAL_S: Final = 3.0
PUBLIC_S: Final = 10.0
# The consoles of Feishu and WeCom wait so long for the answer to a URL check (feishu.md §1.1, wecom.md §1.2).
_URL_CHECK_S: Final = 1.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def public_url(config: Config, bot: BotConfig) -> Iterable[Finding]:
    """What is wrong with server.public_url, as far as it can be told by looking at it."""
    url = config.server.public_url
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not url:
        if urlsplit(bot.api_base).hostname not in _LOOPBACK:
            yield warning("public_url is empty: whether the platform can reach this machine cannot be told",
                          "server.public_url", "set it to the address that your proxy or tunnel gives")  # fmt: skip
    elif parts.scheme not in {"http", "https"} or not host:
        yield error(f"{url} is no address", "server.public_url", "it begins with https:// and names a host")  # fmt: skip
    elif _is_private(host):
        yield warning(f"{host} is not a public address; the platform's servers cannot reach it",
                      "server.public_url", "use the address that your proxy or tunnel gives")  # fmt: skip
    elif parts.scheme == "http":
        yield warning("messages travel unencrypted: public_url begins with http://", "server.public_url",
                      "put a TLS proxy in front and use https://")  # fmt: skip


def _is_private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host == "localhost" or host.endswith((".local", ".lan", ".internal"))


async def shake_over(
    base: str, bot_name: str, handshakes: Iterable[Handshake], limit_s: float
) -> list[Finding]:
    """Send the handshakes to an address. One that is not reached is told once."""
    address = f"{base}/webhook/{bot_name}"
    found: list[Finding] = []
    timeout = aiohttp.ClientTimeout(total=limit_s)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for shake in handshakes:
            began = time.monotonic()
            try:
                status, body = await _send(session, f"{address}{shake.path}", shake)
            except (aiohttp.ClientError, TimeoutError, OSError) as fault:
                is_public = limit_s == PUBLIC_S
                cure = (
                    "check the proxy or tunnel, its certificate and the firewall; some routers only refuse calls from inside"
                    if is_public
                    else "see its log"
                )
                found.append(warning(f"{address} does not answer from here ({type(fault).__name__})", "server.public_url", cure))  # fmt: skip
                return found
            found.append(_judged(shake, address, status, body, time.monotonic() - began))
    return found


async def _send(session: aiohttp.ClientSession, url: str, shake: Handshake) -> tuple[int, bytes]:
    request = shake.request
    query = f"?{urlencode(request.query)}" if request.query else ""
    async with session.request(
        request.method,
        f"{url}{query}",
        data=request.body or None,
        headers=dict(request.headers),
        allow_redirects=False,
        proxy=proxy_for(url),
    ) as answer:
        return answer.status, await answer.content.read(65_536)


def shake_here(bot_name: str, bot: BotConfig, handshakes: Iterable[Handshake]) -> list[Finding]:
    """The same requests, given to the adapter in this process."""
    adapter = open_adapter(bot_name, bot, SharedHttp(), MemoryBudget())
    found = []
    for shake in handshakes:
        try:
            reply = adapter.receive(shake.request).reply
        except Rejected as refusal:
            status, answer = refusal.status, json.dumps({"error": refusal.reason}).encode()
        else:
            status, answer = reply.status, _encoded(reply.body)
        found.append(_judged(shake, "in this process", status, answer, 0.0))
    return found


def _encoded(body: dict[str, Any] | str) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _judged(shake: Handshake, where: str, status: int, body: bytes, took_s: float) -> Finding:
    """What an answer says of the configured keys."""
    if shake.passes(status, body):
        if took_s > _URL_CHECK_S:
            return warning(f"{shake.title}: answered rightly, but after {took_s:.1f} s", where,
                           "the console waits 1 s when the URL is saved: look for a slow proxy")  # fmt: skip
        return ok(
            f"{shake.title}: {'refused' if shake.forged else 'answered'} as it should be", where
        )
    reason = _reason(body)
    seen = f"{shake.title}: HTTP {status}{f' ({reason})' if reason else ''}"
    if shake.forged:
        return error(f"{seen} instead of a refusal", where, "something between answers by itself: it must pass requests on unchanged")  # fmt: skip
    if status == 401:
        return error(seen, where, "the running Hearth has other keys, or a proxy changes the request: restart it after every change of its configuration")  # fmt: skip
    if status == 404:
        return error(seen, where, "the Hearth that answers there does not know this bot in this mode: restart it, and see that the proxy passes /webhook/ on")  # fmt: skip
    if 300 <= status < 400:
        return error(seen, where, "the platforms follow no redirects: let the proxy answer this path itself")  # fmt: skip
    return error(
        seen, where, "see that the proxy passes method, headers, query and body on unchanged"
    )


def _reason(body: bytes) -> str:
    try:
        found = json.loads(body)
    except ValueError:
        return ""
    reason = found.get("error") if isinstance(found, dict) else None
    return " ".join(reason.split())[:120] if isinstance(reason, str) else ""

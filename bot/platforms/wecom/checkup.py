"""The check-up of a WeCom AI bot or self-built app (wecom.md §1.2, §2, §3.1, §4.1): token, trusted IP, socket, handshakes.

An AI bot has no call that checks its id and secret: whoever subscribes with them becomes the one live connection and throws out
the other one. So nothing is subscribed here; what a running Hearth tells of its connection is the proof.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from bot.config import WeComAppConfig, WeComBotConfig
from bot.domain.findings import Finding
from bot.domain.findings import error as wrong
from bot.domain.findings import ok as fine
from bot.domain.findings import warning as doubt
from bot.errors import PlatformError
from bot.platforms.base import WebhookRequest
from bot.platforms.checkup import (
    Asking,
    Handshake,
    minutes_of,
    unreached,
)
from bot.platforms.checkup import without_secrets as plain
from bot.platforms.http import HttpRequest, SharedHttp, proxy_for
from bot.platforms.wecom import crypto
from bot.platforms.wecom.fields import text_of

_OPEN_S = 10.0
_SEEN_IP = re.compile(r"from ip:\s*([0-9A-Fa-f.:]+)")
# Codes of §4.1 and §4.3 that say what to mend.
_CURES: Mapping[int, tuple[str, str, str]] = {
    40001: ("corp_secret is wrong", "corp_secret", "copy Secret again from the app's page in the admin console"),
    40013: ("corp_id is wrong", "corp_id", "copy it from 我的企业 (My Company), at the bottom of the page"),
    40014: ("the token is refused although it was just issued", "corp_secret", "run this again"),
    40056: ("agent_id is not the app of this secret", "agent_id", "copy AgentId from the page on which the Secret stands"),
    301002: ("agent_id is not the app of this secret", "agent_id", "copy AgentId from the page on which the Secret stands"),
    45009: ("too many calls of this app at the moment", "corp_secret", "run this again in some minutes"),
    60011: ("the app may not be read with this secret", "agent_id", "copy AgentId and Secret from the same app's page"),
}  # fmt: skip


class WeComBotCheckup(Asking):
    """One AI bot, one run of the doctor."""

    def __init__(self, config: WeComBotConfig, http: SharedHttp) -> None:
        super().__init__(http)
        self._config = config

    async def credentials(self, running: Mapping[str, str]) -> tuple[Finding, ...]:
        """What a running Hearth knows, since WeCom tells it to nobody else."""
        await self._look_at_clock()
        if self._config.mode == "webhook":
            what = "token and encoding_aes_key are well-formed; WeCom compares them when the URL is saved in the console"
            return (fine(what, "token"),)
        if since := running.get("connected_since"):
            return (fine(f"WeCom took bot_id and secret: the running Hearth is connected since {since}", "secret"),)  # fmt: skip
        reason = running.get("reason", "")
        if "853000" in reason or "40001" in reason or "40013" in reason:
            return (
                wrong(f"WeCom refuses bot_id or secret ({plain(reason)})", "secret",
                      "copy both again from the AI bot's page: API mode → long connection"),
            )  # fmt: skip
        return (
            doubt(
                "bot_id and secret were not tried: WeCom takes them only with a subscription, and a second one ends the live "
                "connection of the first",
                "secret",
                "start `hearth serve`, then run this again: it reads there whether WeCom took them",
            ),
        )

    async def permissions(self) -> tuple[Finding, ...]:
        """AI bots have none."""
        return ()

    async def connection(self) -> tuple[Finding, ...]:
        """The socket is opened and closed again, without a subscription."""
        if self._config.mode != "websocket":
            return ()
        url = self._config.ws_url
        host = urlsplit(url).hostname or ""
        proxy = proxy_for(url.replace("ws", "http", 1))
        try:
            async with (
                asyncio.timeout(_OPEN_S),
                aiohttp.ClientSession() as session,
                session.ws_connect(url, proxy=proxy),
            ):
                pass
        except aiohttp.WSServerHandshakeError as error:
            return (
                wrong(f"{host} opens no WebSocket (HTTP {error.status})", "ws_url",
                      "see that ws_url is right and that the proxy lets WebSockets through"),
            )  # fmt: skip
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return (
                wrong(f"{host} cannot be reached ({type(error).__name__})", "ws_url",
                      "check the network, the DNS and the proxy (HTTPS_PROXY, NO_PROXY) of this machine"),
            )  # fmt: skip
        what = f"{host} opens a WebSocket; nothing was subscribed, so that a live connection stays as it is"
        return (fine(what, "ws_url"),)

    async def _look_at_clock(self) -> None:
        """Any answer of WeCom has a Date. None is no fault: an AI bot hardly needs this address."""
        with contextlib.suppress(PlatformError):
            await self._asker.ask(HttpRequest("GET", f"{self._config.api_base}/"))

    def handshakes(self) -> tuple[Handshake, ...]:
        """The console's check of the URL, a refresh poll of a stream that nobody knows, and a forger's."""
        config = self._config
        if config.mode != "webhook":
            return ()
        token = config.token.get_secret_value()
        key = crypto.aes_key(config.encoding_aes_key.get_secret_value())
        stream_id = f"hearth-doctor-{secrets.token_hex(6)}"
        poll = {"msgtype": "stream", "stream": {"id": stream_id}}
        encrypted = crypto.encrypt(key, json.dumps(poll).encode())
        body = json.dumps({"encrypt": encrypted}).encode()
        request = WebhookRequest(
            "POST", {"content-type": "application/json"}, _signed(token, encrypted), body
        )

        def is_stream(status: int, answer: bytes) -> bool:
            """Sealed with the same keys, about the same stream."""
            try:
                reply = json.loads(crypto.decrypt(key, text_of(json.loads(answer), "encrypt")))
            except ValueError:
                return False
            return status == 200 and text_of(reply, "stream", "id") == stream_id

        return (
            *_url_checks(token, key, ""),
            Handshake("a signed and encrypted refresh poll", request, is_stream),
        )


class WeComAppCheckup(Asking):
    """One self-built app, one run of the doctor."""

    def __init__(self, config: WeComAppConfig, http: SharedHttp) -> None:
        super().__init__(http)
        self._config = config
        self._token = ""

    async def _ask(
        self, path: str, query: Mapping[str, str]
    ) -> tuple[dict[str, Any], Finding | None]:
        """A GET under /cgi-bin. Its address holds secrets and is never shown."""
        url = f"{self._config.api_base}/cgi-bin/{path}?{urlencode(query)}"
        try:
            answer = await self._asker.ask(HttpRequest("GET", url))
        except PlatformError as error:
            return {}, unreached(error, "api_base")
        found = answer.json()
        if found is None:
            what = f"{path}: HTTP {answer.status} without a readable answer"
            return {}, wrong(
                what, "api_base", "see whether a proxy stands between, and that api_base is right"
            )
        code = found.get("errcode", 0)
        if code == 0:
            return found, None
        said = plain(str(found.get("errmsg", "")))
        if code == 60020:
            return found, _untrusted(said)
        if code in _CURES:
            what, key, cure = _CURES[code]
            return found, wrong(f"{what} (code {code})", key, cure)
        return found, wrong(
            f"{path}: {said} (code {code})", "corp_id", "look the code up in WeCom's documents"
        )

    async def credentials(self, running: Mapping[str, str]) -> tuple[Finding, ...]:
        """A token, really fetched: WeCom gives the one that is valid already, so that nothing of a running Hearth ends."""
        del running
        config = self._config
        answer, trouble = await self._ask(
            "gettoken",
            {"corpid": config.corp_id, "corpsecret": config.corp_secret.get_secret_value()},
        )
        if trouble is not None:
            return (trouble,)
        self._token = str(answer.get("access_token", ""))
        minutes = minutes_of(answer.get("expires_in"))
        return (fine(f"WeCom issued a token for {config.corp_id} (good for {minutes} min)"),)

    async def permissions(self) -> tuple[Finding, ...]:
        """GET agent/get: the first call that needs a trusted IP; tells the app's name, state and visible range."""
        query = {"access_token": self._token, "agentid": str(self._config.agent_id)}
        answer, trouble = await self._ask("agent/get", query)
        if trouble is not None:
            return (trouble,)
        name = plain(str(answer.get("name", "")), 40)
        remarks = [fine(f'this machine\'s address is trusted; the app is called "{name}"', "agent_id")]  # fmt: skip
        if answer.get("close"):
            remarks.append(
                wrong(f'the app "{name}" is disabled', "agent_id", "enable it on its page in the admin console")
            )  # fmt: skip
        ranges = (("allow_userinfos", "user"), ("allow_partys", "partyid"), ("allow_tags", "tagid"))
        if not any((answer.get(outer) or {}).get(inner) for outer, inner in ranges):
            remarks.append(
                doubt("nobody is in the app's visible range", "agent_id",
                      "add people on the app's page: 可见范围 (visible range)")
            )  # fmt: skip
        return tuple(remarks)

    async def connection(self) -> tuple[Finding, ...]:
        """Apps have none."""
        return ()

    def handshakes(self) -> tuple[Handshake, ...]:
        """The console's check of the URL, and a forger's."""
        config = self._config
        key = crypto.aes_key(config.encoding_aes_key.get_secret_value())
        return _url_checks(config.token.get_secret_value(), key, config.corp_id)


def _untrusted(said: str) -> Finding:
    """60020 (§4.1): the error's text names the address that WeCom saw."""
    seen = _SEEN_IP.search(said)
    address = seen[1].rstrip(".") if seen else ""
    return wrong(
        f"this machine's address {address or '(not named)'} is not trusted (code 60020)".replace("  ", " "),
        "corp_id",
        f"on the app's page: 企业可信IP → configure → add {address or 'the outgoing address of this machine'}; "
        "the page wants a callback URL or a trusted domain first",
    )  # fmt: skip


def _signed(token: str, encrypted: str) -> dict[str, str]:
    timestamp, nonce = str(int(time.time())), secrets.token_hex(5)
    return {
        "msg_signature": crypto.sign(token, timestamp, nonce, encrypted),
        "timestamp": timestamp,
        "nonce": nonce,
    }


def _url_checks(token: str, key: bytes, receive_id: str) -> tuple[Handshake, ...]:
    """GET with an echostr, signed with the right token and with another one (§1.2)."""
    echo = secrets.token_hex(8)
    encrypted = crypto.encrypt(key, echo.encode(), receive_id)

    def check(with_token: str) -> WebhookRequest:
        return WebhookRequest(
            "GET", {}, {**_signed(with_token, encrypted), "echostr": encrypted}, b""
        )

    def echoes(status: int, answer: bytes) -> bool:
        return status == 200 and answer == echo.encode()

    return (
        Handshake("URL check, encrypted and signed", check(token), echoes),
        Handshake(
            "a forged signature",
            check(secrets.token_hex(8)),
            lambda status, _: status == 401,
            forged=True,
        ),
    )

"""The check-up of a Feishu bot (feishu.md §1–§3, §6): token, identity, scopes, address of a long connection, handshakes.

GET application/v6/scopes lists what the tenant granted and needs no scope itself; GET bot/v3/info tells whether the app is in
use. The address of a long connection is asked for and not used: an app's events go to one of its connections at random.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bot.config import FeishuBotConfig
from bot.domain.findings import Finding
from bot.domain.findings import error as wrong
from bot.domain.findings import ok as fine
from bot.domain.findings import warning as doubt
from bot.errors import PlatformError
from bot.platforms.base import WebhookRequest
from bot.platforms.checkup import (
    Asking,
    Handshake,
    host_of,
    minutes_of,
    unreached,
)
from bot.platforms.checkup import without_secrets as plain
from bot.platforms.feishu import crypto
from bot.platforms.http import HttpRequest, SharedHttp

_PUBLISH = "in the console: Version Management & Release → create a version and publish it; an admin may have to approve it"
_IN_BETWEEN = "see whether a proxy stands between, and that api_base is right"
# Codes of §3 and §6 that say what to mend.
_CURES: Mapping[int, tuple[str, str, str]] = {
    10003: ("Feishu does not know this app_id", "app_id", "copy App ID and App Secret from the console, Credentials & Basic Info"),
    10014: ("Feishu refuses app_secret, or the app is disabled", "app_secret", "copy App Secret again; see that the app is enabled"),
    10015: ("app_secret is wrong", "app_secret", "copy App Secret again from the console, Credentials & Basic Info"),
    514: ("Feishu refuses app_id and app_secret", "app_secret", "copy both again from the console, Credentials & Basic Info"),
    403: ("Feishu refuses app_id and app_secret", "app_secret", "copy both again from the console, Credentials & Basic Info"),
    1000040344: ("Feishu refuses app_id and app_secret", "app_secret", "copy both again from the console, Credentials & Basic Info"),
    99991662: ("the app is disabled", "app_id", "enable it in the console or ask the organisation's admin"),
    99991401: ("this machine's address is not on the app's IP whitelist", "app_id",
               "in the console: Security Settings → IP whitelist → add this machine's outgoing address"),
    99991403: ("the month's API calls of the organisation are used up", "monthly_calls",
               "wait for the next month or buy more; monthly_calls makes Hearth spare"),
    99991663: ("the token is refused although it was just issued", "app_secret", "run this again; if it stays, ask Feishu with the log id"),
    99991672: ("the app lacks a scope for this", "app_id", f"grant it in the console, Permissions & Scopes; then {_PUBLISH}"),
    11205: ("the app has no bot", "app_id", f"in the console: Add Features → Bot; then {_PUBLISH}"),
    212100: ("the app is not installed in the organisation", "app_id", _PUBLISH),
    1000040350: ("50 connections of this app are open already", "mode", "end the other programs that use this app"),
}  # fmt: skip
# bot/v3/info: where the app stands in the organisation.
_ACTIVE = 2
_STATUSES = {
    0: "was not installed yet",
    1: "was disabled by the organisation",
    3: "is installed and not enabled yet",
    4: "waits for the upgrade to be enabled",
    5: "is disabled: its licence has ended",
    6: "is disabled: the organisation's plan has ended",
}


@dataclass(frozen=True, slots=True)
class _Scope:
    """A scope, the wider ones that include it, and what it is for. `vital`: without it the bot cannot work."""

    name: str
    purpose: str
    wider: tuple[str, ...] = ()
    vital: bool = False


SCOPES = (
    _Scope("im:message:send_as_bot", "answers", ("im:message",), vital=True),
    _Scope("im:message.group_at_msg:readonly", "messages that @ the bot in groups",
           ("im:message.group_at_msg.include_bot:readonly", "im:message.group_msg"), vital=True),
    _Scope("im:message.p2p_msg:readonly", "direct messages", vital=True),
    _Scope("cardkit:card:write", "growing answers; without it they come whole"),
    _Scope("im:message:update", "updating plain cards when CardKit is not allowed", ("im:message",)),
    _Scope("im:message.reactions:write_only", "the typing sign on the question", ("im:message",)),
    _Scope("im:message:readonly", "recalled questions, and the files that people send", ("im:message",)),
    _Scope("im:chat.members:bot_access", "the greeting when it is added to a group", ("im:chat", "im:chat:readonly")),
)  # fmt: skip
ALL_MESSAGES = _Scope(
    "im:message.group_msg",
    'every message of a group (answer_in_groups = "all", chat.listen)',
    vital=True,
)


class FeishuCheckup(Asking):
    """One per run of the doctor."""

    def __init__(self, config: FeishuBotConfig, http: SharedHttp, *, listens: bool = False) -> None:
        """`listens`: some group's talk is kept (chat.listen)."""
        super().__init__(http)
        self._config = config
        self._hears_all = listens or config.answer_in_groups == "all"
        self._token = ""

    # -- asking ------------------------------------------------------------------------------------------------------
    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Finding | None]:
        """The answer, and what is wrong with it. A code that is not in the table is told in Feishu's own words."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = HttpRequest(method, f"{self._config.api_base}{path}", body, headers)
        try:
            answer = await self._asker.ask(request)
        except PlatformError as error:
            return {}, unreached(error, "api_base")
        found = answer.json()
        if found is None:
            what = f"{path.rpartition('/')[2]}: HTTP {answer.status} without a readable answer"
            return {}, wrong(what, "api_base", _IN_BETWEEN)
        code = found.get("code")
        if code == 0:
            return found, None
        if isinstance(code, int) and code in _CURES:
            what, key, cure = _CURES[code]
            return found, wrong(f"{what} (code {code})", key, cure)
        log_id = answer.headers.get("x-tt-logid", "")
        what = f"{path.rpartition('/')[2]}: {plain(str(found.get('msg', '')))} (code {code})"
        return found, wrong(
            what, "app_id", f"look the code up in Feishu's documents; log id {log_id or 'none'}"
        )

    async def credentials(self, running: Mapping[str, str]) -> tuple[Finding, ...]:
        """A token, really fetched; then the bot's own name, which proves that the token is taken."""
        del running
        config = self._config
        secret = config.app_secret.get_secret_value()
        answer, trouble = await self._ask(
            "POST",
            "/open-apis/auth/v3/tenant_access_token/internal",
            {"app_id": config.app_id, "app_secret": secret},
        )
        if trouble is not None:
            return (trouble,)
        token = answer.get("tenant_access_token")
        if not isinstance(token, str) or not token:
            return (wrong("Feishu's answer holds no token", "api_base", _IN_BETWEEN),)
        self._token = token
        minutes = minutes_of(answer.get("expire"))
        return (
            fine(f"Feishu issued a token for {config.app_id} (good for {minutes} min)"),
            await self._identity(),
        )

    async def _identity(self) -> Finding:
        answer, trouble = await self._ask("GET", "/open-apis/bot/v3/info")
        if trouble is not None:
            return trouble
        info = answer.get("bot")
        if not isinstance(info, dict):
            what, key, cure = _CURES[11205]
            return wrong(what, key, cure)
        status = info.get("activate_status", _ACTIVE)
        name = plain(str(info.get("app_name", "")), 40)
        if status != _ACTIVE:
            known = _STATUSES.get(status) if isinstance(status, int) else None
            return wrong(f'the app "{name}" {known or "has an unknown status"}', "app_id", _PUBLISH)
        return fine(f'the bot is called "{name}" and is in use')

    async def permissions(self) -> tuple[Finding, ...]:
        """The scopes that the tenant granted, against those that this config needs."""
        answer, trouble = await self._ask("GET", "/open-apis/application/v6/scopes")
        if trouble is not None:
            return (trouble,)
        data = answer.get("data")
        listed = data.get("scopes") if isinstance(data, dict) else None
        granted = {
            str(entry.get("scope_name"))
            for entry in (listed if isinstance(listed, list) else [])
            if isinstance(entry, dict) and entry.get("grant_status") == 1
        }
        wanted = [*SCOPES, *([ALL_MESSAGES] if self._hears_all else [])]
        missing = [s for s in wanted if not granted.intersection((s.name, *s.wider))]
        if not missing:
            return (fine(f"all {len(wanted)} scopes are granted"),)
        cure = f"grant it: {self._grant_url(missing)} ; then {_PUBLISH}"
        return tuple(
            (wrong if scope.vital else doubt)(
                f"the scope {scope.name} is not granted: {scope.purpose}", "app_id", cure
            )
            for scope in missing
        )

    def _grant_url(self, missing: list[_Scope]) -> str:
        """The console's page with these scopes ticked."""
        names = ",".join(scope.name for scope in missing)
        return f"{self._config.api_base}/app/{self._config.app_id}/auth?q={names}&op_from=openapi&token_type=tenant"

    async def connection(self) -> tuple[Finding, ...]:
        """An address for a long connection, asked for as lark-oapi does and not used."""
        config = self._config
        if config.mode != "websocket":
            return ()
        secret = config.app_secret.get_secret_value()
        answer, trouble = await self._ask(
            "POST", "/callback/ws/endpoint", {"AppID": config.app_id, "AppSecret": secret}
        )
        if trouble is not None:
            return (trouble,)
        data = answer.get("data")
        host = host_of(data.get("URL")) if isinstance(data, dict) else ""
        if not host:
            return (wrong("Feishu named no address for a long connection", "mode", "run this again later"),)  # fmt: skip
        what = (
            f"Feishu names an address for a long connection ({host}); it was not opened, because a second connection would be "
            "given a share of the events"
        )
        return (fine(what, "mode"),)

    # -- being asked -------------------------------------------------------------------------------------------------
    def handshakes(self) -> tuple[Handshake, ...]:
        """The console's check of the URL: encrypted, then signed as well, then signed by somebody else (§1.1, §2)."""
        config = self._config
        if config.mode != "webhook":
            return ()
        challenge = secrets.token_hex(8)
        plaintext = {
            "challenge": challenge,
            "token": config.verification_token.get_secret_value(),
            "type": "url_verification",
        }
        key = config.encrypt_key.get_secret_value()
        body = json.dumps({"encrypt": crypto.encrypt(key, json.dumps(plaintext).encode())}).encode()

        def echoes(status: int, answer: bytes) -> bool:
            try:
                return status == 200 and json.loads(answer) == {"challenge": challenge}
            except ValueError:
                return False

        return (
            Handshake("URL check, encrypted", _post(body, {}), echoes),
            Handshake("URL check, encrypted and signed", _post(body, _signed(key, body)), echoes),
            Handshake(
                "a forged signature",
                _post(body, _signed(secrets.token_hex(16), body)),
                lambda status, _: status == 401,
                forged=True,
            ),
        )


def _post(body: bytes, headers: Mapping[str, str]) -> WebhookRequest:
    return WebhookRequest("POST", {"content-type": "application/json", **headers}, {}, body)


def _signed(key: str, body: bytes) -> dict[str, str]:
    timestamp, nonce = str(int(time.time())), secrets.token_hex(8)
    return {
        "x-lark-request-timestamp": timestamp,
        "x-lark-request-nonce": nonce,
        "x-lark-signature": crypto.sign(key, timestamp, nonce, body),
    }

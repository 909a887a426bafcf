"""The check-up of a DingTalk bot (dingtalk.md §1.1, §2.1, §3, §5): token, permissions, ticket of a stream, handshakes.

DingTalk has no call that lists an app's permissions. So each one is tried with a name that does not exist: an app that lacks the
permission is told so, one that has it is told that the name is unknown, and nothing happens. Every try counts as one API call of
the month. A ticket for the stream is asked for and not used; it lapses after 90 s.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bot.config import DingTalkBotConfig
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
from bot.platforms.dingtalk import crypto
from bot.platforms.dingtalk.socket import ROBOT_TOPIC
from bot.platforms.http import HttpRequest, SharedHttp

_COPY = "copy Client ID and Client Secret again from the console, Credentials and Basic Information"
# Words of §3 and §4.3 that say what to mend, read from top to bottom.
_CURES: tuple[tuple[re.Pattern[str], str, str, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), what, key, cure)
    for pattern, what, key, cure in (
        (r"invalidClientIdOrSecret", "client_id or client_secret is wrong", "client_secret", _COPY),
        (r"IpNotInWhiteList", "this machine's address is not on the app's IP whitelist", "client_id",
         "in the console: Security Settings → server egress IP → add this machine's outgoing address"),
        (r"ApiCountLimitForOrg", "the organisation's API calls of this month are used up", "monthly_calls",
         "wait for the next month or buy more; answers come whole through the question's session meanwhile"),
        (r"Qp[sm]LimitFor", "too many calls of this app at the moment", "client_id", "run this again in a minute"),
        (r"InvalidAuthentication", "the token is refused although it was just issued", "client_secret", "run this again"),
        (r"bot\.stopped|robot\.stopped", "the robot was stopped", "robot_code", "start it again in the console, Robot"),
        (r"robotCode", "robot_code is not this app's robot", "robot_code", "leave robot_code empty: it is then client_id"),
    )
)  # fmt: skip
_DENIED = "AccessTokenPermissionDenied"
_PUBLISH = "in the console: Version Management and Release → publish a version"
_NOBODY = "hearth-doctor"


@dataclass(frozen=True, slots=True)
class _Probe:
    """A call about something that does not exist. `needed_for` the permission is."""

    permission: str
    needed_for: str
    method: str
    path: str
    body: Mapping[str, Any]


class DingTalkCheckup(Asking):
    """One per run of the doctor."""

    def __init__(self, config: DingTalkBotConfig, http: SharedHttp) -> None:
        super().__init__(http)
        self._config = config
        self._token = ""

    # -- asking ------------------------------------------------------------------------------------------------------
    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any], Finding | None]:
        """Status and answer; a remark when there is none that can be read."""
        headers = {"x-acs-dingtalk-access-token": self._token} if self._token else {}
        request = HttpRequest(method, f"{self._config.api_base}{path}", body, headers)
        try:
            answer = await self._asker.ask(request)
        except PlatformError as error:
            return 0, {}, unreached(error, "api_base")
        found = answer.json()
        if found is None or found.get("punish"):
            what = (
                "this machine's address is shut out for 5 minutes: too many calls"
                if found
                else f"HTTP {answer.status} without a readable answer"
            )
            return answer.status, {}, wrong(what, "api_base", "wait some minutes; see whether a proxy stands between")  # fmt: skip
        return answer.status, found, None

    async def credentials(self, running: Mapping[str, str]) -> tuple[Finding, ...]:
        """A token, really fetched; it is exempt from the month's count."""
        del running
        config = self._config
        body = {
            "appKey": config.client_id,
            "appSecret": config.client_secret.get_secret_value(),
        }
        status, answer, trouble = await self._ask("POST", "/v1.0/oauth2/accessToken", body)
        if trouble is not None:
            return (trouble,)
        token = answer.get("accessToken")
        if status >= 300 or not isinstance(token, str) or not token:
            return (_refused("the token", status, answer),)
        self._token = token
        minutes = minutes_of(answer.get("expireIn"))
        return (fine(f"DingTalk issued a token for {config.client_id} (good for {minutes} min)"),)

    async def permissions(self) -> tuple[Finding, ...]:
        """One try per permission that this config needs."""
        remarks: list[Finding] = []
        for probe in self._probes():
            remark, is_of_app = await self._try(probe)
            remarks.append(remark)
            if is_of_app:  # the others would say the same
                return tuple(remarks)
        n_tries = len(remarks)
        if self._config.card_template:
            remarks.append(
                doubt(
                    "whether the card template and its variables fit cannot be told without sending a card",
                    "card_template",
                    "ask the bot something; if the answer comes whole, /readyz tells why",
                )
            )
        return (*remarks, fine(f"these tries cost {n_tries} of the month's API calls"))

    def _probes(self) -> list[_Probe]:
        robot = self._config.robot_code or self._config.client_id
        track = f"{_NOBODY}-{secrets.token_hex(8)}"
        download = {"downloadCode": _NOBODY, "robotCode": robot}
        probes = [
            _Probe("qyapi_robot_sendmsg", "answers after a question's session has ended, and files",
                   "POST", "/v1.0/robot/messageFiles/download", download),
        ]  # fmt: skip
        if self._config.card_template:
            frame = {"outTrackId": track, "guid": secrets.token_hex(16), "key": self._config.card_content_key,
                     "content": "…", "isFull": True, "isFinalize": False, "isError": False}  # fmt: skip
            card = {"outTrackId": track, "cardData": {"cardParamMap": {}}}
            probes += [
                _Probe("Card.Instance.Write", "growing answers", "PUT", "/v1.0/card/instances", card),
                _Probe("Card.Streaming.Write", "growing answers", "PUT", "/v1.0/card/streaming", frame),
            ]  # fmt: skip
        return probes

    async def _try(self, probe: _Probe) -> tuple[Finding, bool]:
        """What became of a try, and whether that holds for every call of the app."""
        status, answer, trouble = await self._ask(probe.method, probe.path, probe.body)
        if trouble is not None:
            return trouble, True
        code = str(answer.get("code", ""))
        if _DENIED in code:
            detail = answer.get("accessdenieddetail")
            scopes = detail.get("requiredScopes") if isinstance(detail, dict) else None
            named = ", ".join(map(str, scopes)) if isinstance(scopes, list) else probe.permission
            cure = f"in the console: Permission Management → search for it → apply; then {_PUBLISH}"
            what = f"the app lacks the permission {plain(named)}: {probe.needed_for}"
            return wrong(what, "client_id", cure), False
        if found := _known(code):
            return found, True
        if status >= 500:
            busy = f"{probe.permission}: DingTalk was busy (HTTP {status})"
            return doubt(busy, "client_id", "run this again"), False
        return fine(f"the permission {probe.permission} is granted"), False

    async def connection(self) -> tuple[Finding, ...]:
        """A ticket for the stream, which is not used."""
        config = self._config
        if config.mode != "stream":
            return ()
        body = {
            "clientId": config.client_id,
            "clientSecret": config.client_secret.get_secret_value(),
            "subscriptions": [{"type": "CALLBACK", "topic": ROBOT_TOPIC}],
            "ua": "hearth",
            "localIp": "127.0.0.1",
        }
        status, answer, trouble = await self._ask("POST", "/v1.0/gateway/connections/open", body)
        if trouble is not None:
            return (trouble,)
        host = host_of(answer.get("endpoint"))
        if status >= 300 or not host or not answer.get("ticket"):
            code = str(answer.get("code", ""))
            return (
                _known(code)
                or wrong(
                    f"DingTalk gives no ticket for the stream (HTTP {status}, {plain(code) or 'no code'})",
                    "mode",
                    f"set the robot's message receiving mode to Stream, check client_id and client_secret; then {_PUBLISH}",
                ),
            )
        what = (
            f"DingTalk gives a ticket for the stream ({host}); it was not used, because a second connection would be given a "
            "share of the messages"
        )
        return (fine(what, "mode"),)

    # -- being asked -------------------------------------------------------------------------------------------------
    def handshakes(self) -> tuple[Handshake, ...]:
        """DingTalk has no check of the URL. A signed request whose body is no message passes the signature and is then refused
        with 400; a forged one is refused with 401 (§1.1, §5.8)."""
        config = self._config
        if config.mode != "webhook":
            return ()
        secret = config.client_secret.get_secret_value()
        now_ms = str(int(time.time() * 1000))
        signed = {"timestamp": now_ms, "sign": crypto.robot_signature(now_ms, secret)}
        forged = {"timestamp": now_ms, "sign": crypto.robot_signature(now_ms, secrets.token_hex(8))}
        made = [
            Handshake("a signed request", _post(signed), _is(400)),
            Handshake("a forged signature", _post(forged), _is(401), forged=True),
        ]
        if config.card_callback_url:
            card_secret = config.card_callback_secret.get_secret_value()
            clicked = {
                "x-ddpaas-signature-timestamp": now_ms,
                "x-ddpaas-signature": crypto.card_signature(
                    now_ms, card_secret or crypto.own_card_secret(secret)
                ),
            }
            made.append(Handshake("a signed click on a card", _post(clicked), _is(400), "/card"))
        return tuple(made)


def _is(wanted: int) -> Any:
    return lambda status, _: status == wanted


def _post(headers: Mapping[str, str]) -> WebhookRequest:
    return WebhookRequest("POST", {"content-type": "application/json", **headers}, {}, b"[]")


def _known(code: str) -> Finding | None:
    for pattern, what, key, cure in _CURES:
        if pattern.search(code):
            return wrong(f"{what} ({plain(code)})", key, cure)
    return None


def _refused(what: str, status: int, answer: Mapping[str, Any]) -> Finding:
    code = str(answer.get("code", answer.get("errcode", "")))
    said = plain(str(answer.get("message", answer.get("errmsg", ""))))
    return _known(code) or wrong(
        f"{what}: HTTP {status}, {plain(code) or 'no code'}: {said}", "client_id", _COPY
    )

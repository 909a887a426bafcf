"""The platform's HTTP side: one pipeline for the calls of api.dingtalk.com and those of oapi.dingtalk.com.

faults → blocked address → token → scope → rate and month → the call itself → record. Owns the order of its steps, no state
of the world.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from bot.sandbox.dingtalk.errors import ApiError, OldError, qps_limited
from bot.sandbox.records import Call

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.card import Card
    from bot.sandbox.dingtalk.cards import Cards
    from bot.sandbox.dingtalk.clicks import Clicks
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.gateway import Gateway
    from bot.sandbox.dingtalk.judge import Judge
    from bot.sandbox.dingtalk.limits import RateLimits
    from bot.sandbox.dingtalk.robot import Robot
    from bot.sandbox.dingtalk.session import Sessions
    from bot.sandbox.dingtalk.tokens import Tokens
    from bot.sandbox.dingtalk.world import World
    from bot.sandbox.faults import Fault, Faults
    from bot.sandbox.records import Records

Json = dict[str, Any]
MAX_BODY_BYTES = 8 * 1024 * 1024
_SOON_S = (0.25, 0.75)
_HIDDEN_BODIES = frozenset({"token.app_key", "token.corp", "token.old", "gateway.open"})


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a call may touch."""

    config: SandboxConfig
    world: World
    tokens: Tokens
    rates: RateLimits
    faults: Faults
    judge: Judge
    records: Records
    cards: Cards
    robot: Robot
    sessions: Sessions
    clicks: Clicks
    gateway: Gateway


@dataclass(slots=True)
class ApiRequest:
    """One call, parsed."""

    ids: Mapping[str, str]
    query: dict[str, Any]
    body: dict[str, Any]
    raw_bytes: int
    content_type: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One API: `scope` "" needs no token and is not billed; `old` answers in numbers with HTTP 200."""

    method: str
    path: str
    name: str
    handler: Callable[[ApiRequest], Json]
    scope: str = ""
    old: bool = False


@dataclass(slots=True)
class _Answer:
    status: int
    reply: Json
    html: bool = False
    code: int | str = 0


class Api:
    """The REST endpoints of dingtalk.md §1.2, §2.1, §3–§5. `base_url` is known once the server listens."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._refused_at: dict[str, float] = {}
        self.base_url = ""

    def register(self, app: web.Application) -> None:
        """Add the routes. Anything else under /v1.0 is a 404 and a violation."""
        for endpoint in self._endpoints():
            app.router.add_route(endpoint.method, endpoint.path, self._serving(endpoint))
        app.router.add_get("/connect", self._parts.gateway.serve)
        app.router.add_get("/files/{token}", self._file)
        for path in ("/v1.0/{rest:.*}", "/robot/{rest:.*}", "/topapi/{rest:.*}"):
            app.router.add_route("*", path, self._unknown)

    def _endpoints(self) -> list[Endpoint]:
        p = self._parts
        robot, write, stream = "qyapi_robot_sendmsg", "Card.Instance.Write", "Card.Streaming.Write"
        card = "/v1.0/card/instances"
        return [
            Endpoint("POST", "/v1.0/oauth2/accessToken", "token.app_key", lambda q: p.tokens.by_app_key(q.body)),
            Endpoint("POST", "/v1.0/oauth2/{corp_id}/token", "token.corp",
                     lambda q: p.tokens.by_corp(q.ids["corp_id"], q.body)),
            Endpoint("GET", "/gettoken", "token.old", lambda q: p.tokens.by_query(q.query), old=True),
            Endpoint("POST", "/v1.0/gateway/connections/open", "gateway.open", lambda q: p.gateway.open(q.body)),
            Endpoint("POST", "/robot/sendBySession", "session.send",
                     lambda q: p.sessions.send(str(q.query.get("session", "")), q.body, q.raw_bytes, q.content_type),
                     old=True),
            Endpoint("POST", "/v1.0/robot/groupMessages/send", "robot.group_send",
                     lambda q: p.robot.send_to_group(q.body), robot),
            Endpoint("POST", "/v1.0/robot/oToMessages/batchSend", "robot.oto_send",
                     lambda q: p.robot.send_to_people(q.body), robot),
            *(Endpoint("POST", f"/v1.0/robot/{path}", "robot.recall",
                       lambda q, g=group: p.robot.recall(q.body, group=g), robot)  # type: ignore[misc]
              for path, group in (("groupMessages/recall", True), ("groupMessages/batchRecall", True),
                                  ("otoMessages/batchRecall", False))),
            Endpoint("POST", "/v1.0/robot/emotion/reply", "robot.emotion_reply",
                     lambda q: p.robot.emotion(q.body, add=True), robot),
            Endpoint("POST", "/v1.0/robot/emotion/recall", "robot.emotion_recall",
                     lambda q: p.robot.emotion(q.body, add=False), robot),
            Endpoint("POST", "/v1.0/robot/messageFiles/download", "file.url",
                     lambda q: p.robot.file_url(q.body, self.base_url), robot),
            Endpoint("POST", card, "card.create", lambda q: p.cards.create(q.body), write),
            Endpoint("POST", card + "/deliver", "card.deliver", lambda q: p.cards.deliver(q.body), write),
            Endpoint("POST", card + "/createAndDeliver", "card.create_deliver",
                     lambda q: p.cards.create_and_deliver(q.body), write),
            Endpoint("PUT", card, "card.update", lambda q: p.cards.update(q.body), write),
            Endpoint("PUT", "/v1.0/card/streaming", "card.stream", lambda q: p.cards.stream(q.body), stream),
            Endpoint("POST", "/v1.0/card/callbacks/register", "card.register_callback",
                     lambda q: p.clicks.register(q.body), write),
        ]  # fmt: skip

    # -- the pipeline ------------------------------------------------------------------------------------------------
    def _serving(self, endpoint: Endpoint) -> Callable[[web.Request], Any]:
        async def serve(request: web.Request) -> web.StreamResponse:
            return await self._serve(endpoint, request)

        return serve

    async def _serve(self, endpoint: Endpoint, request: web.Request) -> web.StreamResponse:
        begin = time.perf_counter()
        raw = await request.read()
        call = ApiRequest(
            request.match_info, dict(request.query), _body(raw), len(raw), request.content_type
        )
        faults = self._parts.faults
        fault = None if faults.is_down() else faults.take(endpoint.name)
        wait_s = self._parts.config.latency_s + faults.extra_latency_s()
        wait_s += fault.latency_s if fault else 0.0
        held = fault is not None and fault.drop == "after"
        busy, clash = self._enter(endpoint, call)
        try:
            if wait_s > 0 and not held:
                await asyncio.sleep(wait_s)
            if faults.is_down() or (fault is not None and fault.drop == "before"):
                answer, dropped = _Answer(0, {}), "before"
            else:
                answer = self._answer(endpoint, call, request, fault, clash)
                dropped = fault.drop if fault else ""
            if held and wait_s > 0:
                await asyncio.sleep(wait_s)
        finally:
            if busy is not None:
                busy.busy -= 1
                busy.answer_lost = busy.answer_lost or held
        self._record(endpoint, request, call, answer, dropped, (time.perf_counter() - begin) * 1000)
        return _cut(request) if dropped else _response(answer)

    def _enter(self, endpoint: Endpoint, call: ApiRequest) -> tuple[Card | None, ApiError | None]:
        """A streaming call keeps its card busy until it is answered."""
        if endpoint.name != "card.stream":
            return None, None
        try:
            return self._parts.cards.begin_frame(str(call.body.get("outTrackId", ""))), None
        except ApiError as error:
            return None, error

    def _answer(
        self,
        endpoint: Endpoint,
        call: ApiRequest,
        request: web.Request,
        fault: Fault | None,
        clash: ApiError | None,
    ) -> _Answer:
        if self._parts.rates.ip_is_blocked():
            return _Answer(403, {"status": 1111, "punish": "deny"}, code=1111)
        if fault is not None and fault.html:
            return _Answer(fault.status, {}, html=True, code=fault.status)
        try:
            if fault is not None and fault.answers:
                raise _injected(fault, old=endpoint.old)
            if clash is not None:
                raise clash
            self._admit(endpoint, call, request)
            reply = endpoint.handler(call)
        except ApiError as error:
            if error.is_rate:
                self._refused_at[endpoint.name] = self._parts.config.clock()
            return _Answer(error.status, _refusal(error), code=error.code)
        except OldError as error:
            return _Answer(200, {"errcode": error.code, "errmsg": str(error)}, code=error.code)
        return _Answer(200, {"errcode": 0, "errmsg": "ok", **reply} if endpoint.old else reply)

    def _admit(self, endpoint: Endpoint, call: ApiRequest, request: web.Request) -> None:
        """Token, scope, timing, rate and month of a call that needs a token. Raises ApiError."""
        if not endpoint.old and call.body and call.content_type != "application/json":
            self._parts.judge.note("content_type", f"{endpoint.name}: {call.content_type}")
        if not endpoint.scope:
            return
        self._parts.tokens.check(request.headers.get("x-acs-dingtalk-access-token"))
        trusted = self._parts.config.trusted_ips
        if trusted is not None and request.remote not in trusted:
            raise ApiError("Forbidden.AccessDenied.IpNotInWhiteList", f"ip {request.remote}")
        if endpoint.scope not in self._parts.config.scopes:
            raise ApiError(
                "Forbidden.AccessDenied.AccessTokenPermissionDenied", scopes=(endpoint.scope,)
            )
        since = self._parts.config.clock() - self._refused_at.get(endpoint.name, 0.0)
        if _SOON_S[0] < since < _SOON_S[1]:
            self._parts.judge.note("call_too_soon", endpoint.name)
        self._parts.rates.check_api(endpoint.name)

    def _record(
        self,
        endpoint: Endpoint,
        request: web.Request,
        call: ApiRequest,
        answer: _Answer,
        dropped: str,
        ms: float,
    ) -> None:
        secret = endpoint.name in _HIDDEN_BODIES
        path = request.path if "session" in call.query or secret else request.path_qs
        target = {**call.ids}
        if "outTrackId" in call.body:
            target["outTrackId"] = str(call.body["outTrackId"])
        records = self._parts.records
        records.add_call(
            Call(
                id=records.next_id(), at=self._parts.config.clock(), api=endpoint.name, method=request.method,
                path=path, status=answer.status, code=answer.code, ms=ms, request={} if secret else call.body,
                response={} if secret and answer.status == 200 else answer.reply, target=target, dropped=dropped,
            )
        )  # fmt: skip

    async def _file(self, request: web.Request) -> web.StreamResponse:
        faults = self._parts.faults
        fault = None if faults.is_down() else faults.take("file.get")
        if fault is not None and fault.latency_s:
            await asyncio.sleep(fault.latency_s)
        if faults.is_down() or (fault is not None and fault.drop):
            return _cut(request)
        if fault is not None and fault.answers:
            return web.Response(status=fault.status)
        stored, expires = self._parts.world.file_urls.get(request.match_info["token"], (None, 0.0))
        if stored is None or expires <= self._parts.config.clock():
            return web.Response(status=403, text="expired")
        return web.Response(body=stored.data, content_type="application/octet-stream")

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        if self._parts.faults.is_down():
            return _cut(request)
        self._parts.judge.note("unknown_api", f"{request.method} {request.path}")
        error = ApiError("resource.notFound")
        answer = _Answer(404, _refusal(error), code=error.code)
        endpoint = Endpoint(request.method, request.path, "unknown", lambda _: {})
        call = ApiRequest({}, {}, {}, 0, request.content_type)
        self._record(endpoint, request, call, answer, "", 0.0)
        return _response(answer)


def _refusal(error: ApiError) -> Json:
    reply: Json = {
        "code": error.code,
        "message": str(error),
        "requestid": str(uuid.uuid4()).upper(),
    }
    if error.scopes:
        reply["accessdenieddetail"] = {"requiredScopes": list(error.scopes)}
    return reply


def _injected(fault: Fault, *, old: bool) -> ApiError | OldError:
    if fault.reset_s is not None:
        return OldError(130101) if old else qps_limited()
    if old:
        return OldError(fault.code if isinstance(fault.code, int) else -1, fault.msg)
    return ApiError(str(fault.code), fault.msg, status=fault.status)


def _body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request; anything else is empty, so that the call misses its fields."""
    if not raw:
        return {}
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _response(answer: _Answer) -> web.Response:
    if answer.html:
        page = "<html><head><title>Bad Gateway</title></head><body>Tengine</body></html>"
        return web.Response(status=answer.status, text=page, content_type="text/html")
    return web.Response(
        status=answer.status,
        body=msgspec.json.encode(answer.reply),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )


def _cut(request: web.Request) -> web.Response:
    """End the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

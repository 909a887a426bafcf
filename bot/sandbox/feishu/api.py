"""The platform's HTTP side: one pipeline for every API call. Owns the order of its steps, no state of the world.

faults → token → rate → the call itself → record. Business errors are HTTP 400 with {code, msg, error{log_id}} (feishu.md, head).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from bot.sandbox.feishu.errors import ApiError, rate_limited
from bot.sandbox.feishu.files import file_response
from bot.sandbox.feishu.world import StoredFile
from bot.sandbox.records import Call

if TYPE_CHECKING:
    from bot.sandbox.faults import Fault, Faults
    from bot.sandbox.feishu.admission import Admission
    from bot.sandbox.feishu.cardkit import CardKit
    from bot.sandbox.feishu.cardschema import Json
    from bot.sandbox.feishu.clicks import Clicks
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.files import Files
    from bot.sandbox.feishu.judge import Judge
    from bot.sandbox.feishu.limits import RateLimits
    from bot.sandbox.feishu.messages import Messages
    from bot.sandbox.feishu.reactions import Reactions
    from bot.sandbox.feishu.tokens import Tokens
    from bot.sandbox.feishu.world import World
    from bot.sandbox.records import Records

MAX_BODY_BYTES = 8 * 1024 * 1024
_RESET_GRACE_S = 0.25
_TOKEN_API = "auth.token"  # noqa: S105  the name of an endpoint


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
    messages: Messages
    reactions: Reactions
    files: Files
    cardkit: CardKit
    clicks: Clicks
    admission: Admission


@dataclass(slots=True)
class ApiRequest:
    """One call, parsed."""

    ids: Mapping[str, str]
    query: dict[str, Any]
    body: dict[str, Any]


@dataclass(slots=True)
class _Answer:
    status: int
    reply: Json
    headers: dict[str, str] = field(default_factory=dict)
    html: bool = False
    file: StoredFile | None = None


Handler = Callable[[ApiRequest], "Json | StoredFile"]


class Api:
    """The REST endpoints of feishu.md §3–§5."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._blocked_until: dict[str, tuple[float, float]] = {}

    def register(self, app: web.Application) -> None:
        """Add the routes. Anything else under /open-apis is a 404 and a violation."""
        for method, path, name, handler in self._endpoints():
            app.router.add_route(method, f"/open-apis{path}", self._endpoint(name, handler))
        app.router.add_route("*", "/open-apis/{rest:.*}", self._unknown)

    def _endpoints(self) -> list[tuple[str, str, str, Handler]]:
        m, r, k, p = self._parts.messages, self._parts.reactions, self._parts.cardkit, self._parts
        message, card = "/im/v1/messages/{message_id}", "/cardkit/v1/cards/{card_id}"
        element = card + "/elements/{element_id}"
        return [
            ("POST", "/auth/v3/tenant_access_token/internal", _TOKEN_API, lambda q: p.tokens.issue(q.body)),
            ("GET", "/bot/v3/info", "bot.info", self._bot_info),
            ("GET", "/application/v6/scopes", "app.scopes", lambda _: p.admission.scopes()),
            ("GET", "/im/v1/chats/{chat_id}", "chat.get", self._chat),
            ("POST", "/im/v1/messages", "message.create", lambda q: m.create(q.query, q.body)),
            ("POST", message + "/reply", "message.reply", lambda q: m.reply(q.ids["message_id"], q.body)),
            ("PUT", message, "message.edit", lambda q: m.edit(q.ids["message_id"], q.body)),
            ("PATCH", message, "message.patch", lambda q: m.patch(q.ids["message_id"], q.body)),
            ("DELETE", message, "message.recall", lambda q: m.recall(q.ids["message_id"])),
            ("GET", message, "message.get", lambda q: m.get(q.ids["message_id"])),
            ("GET", message + "/reactions", "reaction.list", lambda q: r.list(q.ids["message_id"], q.query)),
            ("POST", message + "/reactions", "reaction.add", lambda q: r.add(q.ids["message_id"], q.body)),
            ("DELETE", message + "/reactions/{reaction_id}", "reaction.delete",
             lambda q: r.delete(q.ids["message_id"], q.ids["reaction_id"])),
            ("GET", message + "/resources/{file_key}", "message.resource", lambda q: p.files.get(q.ids, q.query)),
            ("POST", "/cardkit/v1/cards", "card.create", lambda q: k.create(q.body)),
            ("PUT", card, "card.update", lambda q: k.update(q.ids["card_id"], q.body)),
            ("PATCH", card + "/settings", "card.settings", lambda q: k.settings(q.ids["card_id"], q.body)),
            ("POST", card + "/batch_update", "card.batch_update", lambda q: k.batch_update(q.ids["card_id"], q.body)),
            ("POST", card + "/elements", "element.create", lambda q: k.add_elements(q.ids["card_id"], q.body)),
            ("PUT", element, "element.update",
             lambda q: k.replace_element(q.ids["card_id"], q.ids["element_id"], q.body)),
            ("PATCH", element, "element.patch",
             lambda q: k.patch_element(q.ids["card_id"], q.ids["element_id"], q.body)),
            ("DELETE", element, "element.delete",
             lambda q: k.delete_element(q.ids["card_id"], q.ids["element_id"], q.body)),
            ("PUT", element + "/content", "card.content",
             lambda q: k.content(q.ids["card_id"], q.ids["element_id"], q.body)),
            ("POST", "/interactive/v1/card/update", "card.deferred_update", lambda q: p.clicks.deferred_update(q.body)),
        ]  # fmt: skip

    def _bot_info(self, _: ApiRequest) -> Json:
        bot = self._parts.world.bot
        return {
            "activate_status": self._parts.config.activate_status,
            "app_name": bot.name,
            "avatar_url": "",
            "ip_white_list": [],
            "open_id": bot.id,
        }

    def _chat(self, request: ApiRequest) -> Json:
        chat = self._parts.world.chats.get(request.ids["chat_id"])
        if chat is None:
            raise ApiError(232006)
        if not chat.has_bot:
            raise ApiError(232011)
        if chat.dissolved:
            raise ApiError(232009)
        mode = {"p2p": "p2p", "topic": "topic", "group": "group"}[chat.kind]
        style = "thread" if chat.kind == "topic" else "chat"
        return {
            "name": chat.name,
            "chat_mode": mode,
            "group_message_type": style,
            "tenant_key": self._parts.config.tenant_key,
        }

    # -- the pipeline ------------------------------------------------------------------------------------------------
    def _endpoint(self, name: str, handler: Handler) -> Callable[[web.Request], Any]:
        async def serve(request: web.Request) -> web.StreamResponse:
            return await self._serve(name, handler, request)

        return serve

    async def _serve(self, name: str, handler: Handler, request: web.Request) -> web.StreamResponse:
        begin = time.perf_counter()
        raw = await request.read()
        call = ApiRequest(request.match_info, dict(request.query), _body(raw))
        faults = self._parts.faults
        fault = None if faults.is_down() else faults.take(name)
        wait_s = (
            self._parts.config.latency_s
            + faults.extra_latency_s()
            + (fault.latency_s if fault else 0.0)
        )
        held = fault is not None and fault.drop == "after"
        if wait_s > 0 and not held:
            await asyncio.sleep(wait_s)
        if faults.is_down() or (fault is not None and fault.drop == "before"):
            answer, dropped = _Answer(0, {}), "before"
        else:
            answer = self._answer(name, handler, call, request, fault)
            dropped = fault.drop if fault else ""
        if held and wait_s > 0:
            await asyncio.sleep(wait_s)
        self._record(name, request, call, answer, dropped, (time.perf_counter() - begin) * 1000)
        return _cut(request) if dropped else _response(answer)

    def _answer(
        self,
        name: str,
        handler: Handler,
        call: ApiRequest,
        request: web.Request,
        fault: Fault | None,
    ) -> _Answer:
        log_id = time.strftime("%Y%m%d%H%M%S", time.gmtime()) + secrets.token_hex(9).upper()
        headers = {"X-Tt-Logid": log_id}
        try:
            if fault is not None and fault.answers:
                if fault.html:
                    return _Answer(fault.status, {}, headers, html=True)
                raise _injected(fault)
            if name != _TOKEN_API:
                self._parts.tokens.check(request.headers.get("Authorization"))
                self._parts.admission.check(name, request.remote or "")
            self._look_at_timing(name)
            if name != _TOKEN_API:
                self._parts.rates.check_api(name)
            if call.body and request.content_type != "application/json":
                self._parts.judge.note("content_type", f"{name}: {request.content_type}")
            made = handler(call)
            file = made if isinstance(made, StoredFile) else None
            reply = {} if isinstance(made, StoredFile) else _wrapped(name, made)
        except ApiError as error:
            if error.status == 429:
                self._block(name, error)
            self._parts.cardkit.refused(call.ids.get("card_id", ""), error.code)
            detail = {"log_id": log_id, "troubleshooter": "the sandbox: see feishu.md"}
            return _Answer(
                error.status,
                {"code": error.code, "msg": error.msg, "error": detail},
                headers | error.headers,
            )
        if name != _TOKEN_API:
            self._parts.rates.count_success()
        return _Answer(200, reply, headers, file=file)

    def _block(self, name: str, error: ApiError) -> None:
        reset = error.headers.get("x-ogw-ratelimit-reset")
        if reset is not None:
            now = self._parts.config.clock()
            self._blocked_until[name] = (now, now + float(reset))

    def _look_at_timing(self, name: str) -> None:
        """A call long after a 429 but before its reset did not listen."""
        at, until = self._blocked_until.get(name, (0.0, 0.0))
        if at + _RESET_GRACE_S < self._parts.config.clock() < until - _RESET_GRACE_S:
            self._parts.judge.note("call_before_reset", name)

    def _record(
        self,
        name: str,
        request: web.Request,
        call: ApiRequest,
        answer: _Answer,
        dropped: str,
        ms: float,
    ) -> None:
        records = self._parts.records
        body = call.body if name != _TOKEN_API else {"app_id": call.body.get("app_id")}
        reply = answer.reply if name != _TOKEN_API else {"code": answer.reply.get("code", 0)}
        records.add_call(
            Call(
                id=records.next_id(), at=self._parts.config.clock(), api=name, method=request.method,
                path=request.path_qs, status=answer.status, code=int(answer.reply.get("code", 0)), ms=ms,
                request=body, response=reply, target=dict(call.ids), dropped=dropped,
            )
        )  # fmt: skip

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        if self._parts.faults.is_down():
            return _cut(request)
        self._parts.judge.note("unknown_api", f"{request.method} {request.path}")
        answer = _Answer(404, {"code": 99991300, "msg": "no such api"})
        self._record("unknown", request, ApiRequest({}, {}, {}), answer, "", 0.0)
        return _response(answer)


def _injected(fault: Fault) -> ApiError:
    if fault.reset_s is not None:
        return rate_limited(fault.reset_s)
    return ApiError(int(fault.code), fault.msg, status=fault.status)


def _body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request; anything else is empty, so that the call misses its fields."""
    if not raw:
        return {}
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _wrapped(name: str, data: Json) -> Json:
    if name == _TOKEN_API:
        return {"code": 0, "msg": "ok", **data}
    if name == "bot.info":
        return {"code": 0, "msg": "ok", "bot": data}
    return {"code": 0, "msg": "success", "data": data}


def _response(answer: _Answer) -> web.Response:
    if answer.html:
        page = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
        return web.Response(
            status=answer.status, text=page, content_type="text/html", headers=answer.headers
        )
    if answer.file is not None:
        return file_response(answer.file, answer.headers)
    return web.Response(
        status=answer.status,
        body=msgspec.json.encode(answer.reply),
        headers={"Content-Type": "application/json; charset=utf-8", **answer.headers},
    )


def _cut(request: web.Request) -> web.Response:
    """End the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

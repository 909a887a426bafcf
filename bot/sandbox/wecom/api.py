"""WeCom's HTTP side: one pipeline for every call under /cgi-bin. Owns the order of its steps, no state of the world.

faults → token → caller's address → rate → the call itself → record. Refusals are HTTP 200 with {errcode, errmsg}.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from bot.sandbox.records import Call
from bot.sandbox.wecom import errors
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.wecom.media import file_response
from bot.sandbox.wecom.replies import RESPONSE_URL

if TYPE_CHECKING:
    from bot.sandbox.faults import Fault, Faults
    from bot.sandbox.records import Records
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.exchanges import Exchanges
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.limits import Rates
    from bot.sandbox.wecom.media import Media, Stored
    from bot.sandbox.wecom.replies import Replies
    from bot.sandbox.wecom.sending import Sending
    from bot.sandbox.wecom.tokens import Tokens

Json = dict[str, Any]
MAX_BODY_BYTES = 32 * 1024 * 1024
_SECRETS = frozenset({"access_token", "corpsecret", "response_code"})
_FREE = frozenset({"gettoken", "aibot.response"})


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a call may touch."""

    config: WeComConfig
    tokens: Tokens
    rates: Rates
    faults: Faults
    judge: Judge
    records: Records
    media: Media
    sending: Sending
    replies: Replies
    exchanges: Exchanges


@dataclass(slots=True)
class Request:
    """One call, parsed. `upload` is (file name, bytes) of a multipart body."""

    query: dict[str, str]
    body: Json
    remote: str
    upload: tuple[str, bytes] | None = None


@dataclass(slots=True)
class _Answer:
    status: int
    reply: Json
    file: Stored | None = None
    html: bool = False


Handler = Callable[[Request], "Json | Stored"]


class Api:
    """The endpoints of wecom.md §2.6 and §4."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._under_way: dict[str, int] = {}
        self.trusted_ips = parts.config.trusted_ips

    def register(self, app: web.Application) -> None:
        """Add the routes. Anything else under /cgi-bin is a 404 and a violation."""
        p = self._parts
        calls: list[tuple[str, str, str, Handler]] = [
            ("GET", "/gettoken", "gettoken", self._gettoken),
            ("GET", "/agent/get", "agent.get", self._agent),
            ("GET", "/getcallbackip", "getcallbackip", lambda _: {"ip_list": ["127.0.0.1"]}),
            ("POST", "/message/send", "message.send", lambda q: p.sending.send(q.body)),
            ("POST", "/message/recall", "message.recall", lambda q: p.sending.recall(q.body)),
            ("POST", "/message/update_template_card", "message.update_template_card",
             lambda q: p.sending.update_card(q.body)),
            ("GET", "/media/get", "media.get", lambda q: p.media.get(q.query.get("media_id"))),
            ("POST", "/media/upload", "media.upload", self._upload),
            ("POST", "/aibot/response", "aibot.response", self._response),
        ]  # fmt: skip
        for method, path, name, handler in calls:
            app.router.add_route(method, f"/cgi-bin{path}", self._endpoint(name, handler))
        app.router.add_route("*", "/cgi-bin/{rest:.*}", self._unknown)
        app.router.add_get("/media/{handle}", p.media.serve)

    # -- the calls themselves ----------------------------------------------------------------------------------------
    def _gettoken(self, request: Request) -> Json:
        try:
            self._parts.rates.check_token()
        except ApiError:
            self._parts.judge.note("token_storm", "gettoken is called all the time")
            raise
        return self._parts.tokens.issue(request.query)

    def _agent(self, request: Request) -> Json:
        """The app of this secret, and no other."""
        config = self._parts.config
        if request.query.get("agentid") != str(config.agent_id):
            raise ApiError(errors.OTHER_AGENT)
        return {
            "agentid": config.agent_id,
            "name": config.bot_name,
            "description": "",
            "allow_userinfos": {"user": []},
            "allow_partys": {"partyid": list(config.visible_parties)},
            "allow_tags": {"tagid": []},
            "close": int(config.agent_closed),
            "redirect_domain": "",
            "home_url": "",
        }

    def _upload(self, request: Request) -> Json:
        if request.upload is None:
            raise ApiError(errors.BAD_PARAMETER, "media is missing")
        name, data = request.upload
        kind = request.query.get("type", "")
        media_id = self._parts.media.keep(data, name, kind)
        return {
            "type": kind,
            "media_id": media_id,
            "created_at": str(int(self._parts.config.clock())),
        }

    def _response(self, request: Request) -> Json:
        """response_url: plain JSON, once, within the hour."""
        p = self._parts
        exchange = p.exchanges.by_code.get(request.query.get("response_code", ""))
        if exchange is None:
            p.judge.note("response_url_unknown", "no such response_code")
            raise ApiError(errors.BAD_RESPONSE_CODE)
        where = f"response_url of {exchange.msgid}"
        if "encrypt" in request.body:
            p.judge.note("response_encrypted", where)
            raise ApiError(errors.BAD_PARAMETER, "the body must be plain JSON")
        if exchange.response_body is not None:
            # The same words again are a repeat after a lost answer: refused as any second use, but no fault of the bot.
            if exchange.response_body != request.body:
                p.judge.note("response_url_reused", where)
            raise ApiError(errors.BAD_RESPONSE_CODE)
        if p.config.clock() >= exchange.at + p.config.limits.response_url_s:
            p.judge.note("response_url_late", where)
            raise ApiError(errors.BAD_RESPONSE_CODE)
        kind = p.replies.kind_of(request.body, RESPONSE_URL, where)
        p.replies.post(exchange.chat, request.body, kind, where, answers=exchange.question_id)
        exchange.response_body = request.body
        return {}

    # -- the pipeline ------------------------------------------------------------------------------------------------
    def _endpoint(self, name: str, handler: Handler) -> Callable[[web.Request], Any]:
        async def serve(request: web.Request) -> web.StreamResponse:
            return await self._serve(name, handler, request)

        return serve

    async def _serve(self, name: str, handler: Handler, request: web.Request) -> web.StreamResponse:
        begin = time.perf_counter()
        call = await _parse(request)
        faults = self._parts.faults
        fault = None if faults.is_down() else faults.take(name)
        wait_s = self._parts.config.latency_s + faults.extra_latency_s() + (fault.latency_s if fault else 0.0)  # fmt: skip
        held = fault is not None and fault.drop == "after"
        self._look_at_order(name, call, 1)
        allowed = self._parts.rates.enter()
        try:
            if wait_s > 0 and not held:
                await asyncio.sleep(wait_s)
            if faults.is_down() or (fault is not None and fault.drop == "before"):
                answer, dropped = _Answer(0, {}), "before"
            else:
                answer = self._answer(name, handler if allowed else _crowded, call, fault)
                dropped = fault.drop if fault else ""
            if held and wait_s > 0:
                await asyncio.sleep(wait_s)
        finally:
            self._parts.rates.leave()
            self._look_at_order(name, call, -1)
        self._record(name, request, call, answer, dropped, (time.perf_counter() - begin) * 1000)
        return _cut(request) if dropped else _response(answer)

    def _answer(self, name: str, handler: Handler, call: Request, fault: Fault | None) -> _Answer:
        p = self._parts
        try:
            if fault is not None and fault.answers:
                if fault.html:
                    return _Answer(fault.status, {}, html=True)
                raise _injected(fault)
            if name not in _FREE:
                p.tokens.check(call.query.get("access_token"))
                self._check_ip(name, call)
            p.rates.check_api(name)
            value = handler(call)
        except ApiError as error:
            return _Answer(error.status, {"errcode": error.code, "errmsg": error.msg})
        if not isinstance(value, dict):
            return _Answer(200, {"errcode": 0}, file=value)
        return _Answer(200, {"errcode": 0, "errmsg": "ok", **value})

    def _check_ip(self, name: str, call: Request) -> None:
        if self.trusted_ips is None or call.remote in self.trusted_ips or name == "getcallbackip":
            return
        detail = (
            f", hint: [1764374400_1_sandbox], from ip: {call.remote}, "
            "more info at https://open.work.weixin.qq.com/devtool/query?e=60020"
        )
        raise ApiError(errors.BAD_IP, detail)

    def _look_at_order(self, name: str, call: Request, change: int) -> None:
        """Messages to one person that are under way together may arrive in any order."""
        if name != "message.send":
            return
        people = str(call.body.get("touser"))
        count = self._under_way[people] = self._under_way.get(people, 0) + change
        if change > 0 and count > 1:
            self._parts.judge.note("parallel_sends", f"message.send to {people}")

    def _record(
        self, name: str, request: web.Request, call: Request, answer: _Answer, dropped: str, ms: float
    ) -> None:  # fmt: skip
        records = self._parts.records
        hidden = {key: value for key, value in call.query.items() if key not in _SECRETS}
        reply = {key: value for key, value in answer.reply.items() if key not in _SECRETS}
        records.add_call(
            Call(
                id=records.next_id(), at=self._parts.config.clock(), api=name, method=request.method,
                path=request.path, status=answer.status, code=int(answer.reply.get("errcode", 0)), ms=ms,
                request=call.body, response=reply, target=hidden, dropped=dropped,
            )
        )  # fmt: skip

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        if self._parts.faults.is_down():
            return _cut(request)
        self._parts.judge.note("unknown_api", f"{request.method} {request.path}")
        return web.Response(status=404, text="404")


def _crowded(_: Request) -> Json:
    raise ApiError(errors.TOO_MANY_AT_ONCE)


def _injected(fault: Fault) -> ApiError:
    status = fault.status if fault.status >= 500 else 200
    if fault.reset_s is not None:
        return ApiError(errors.TOO_OFTEN)
    return ApiError(int(fault.code), fault.msg, status=status)


async def _parse(request: web.Request) -> Request:
    """Query and body; a body that is no JSON object is empty, so that the call misses its fields."""
    call = Request(dict(request.query), {}, request.remote or "")
    if request.content_type.startswith("multipart/"):
        form = await request.post()
        media = form.get("media")
        if isinstance(media, web.FileField):
            call.upload = (media.filename, media.file.read())
        return call
    raw = await request.read()
    try:
        body = msgspec.json.decode(raw) if raw else {}
    except msgspec.DecodeError:
        body = {}
    call.body = body if isinstance(body, dict) else {}
    return call


def _response(answer: _Answer) -> web.Response:
    if answer.html:
        page = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
        return web.Response(status=answer.status, text=page, content_type="text/html")
    if answer.file is not None:
        return file_response(answer.file)
    return web.Response(
        status=answer.status,
        body=msgspec.json.encode(answer.reply),
        headers={"Content-Type": "application/json; charset=UTF-8"},
    )


def _cut(request: web.Request) -> web.Response:
    """End the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

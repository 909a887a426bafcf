"""The page's API on the sandbox's own server: state, events, and what a person does in the browser. Loopback only.

Every request must name one of our own hosts, and a request that changes something must come from our own page: a
foreign site must not be able to speak into it, not even by DNS rebinding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from bot.sandbox.feishu import views
from bot.sandbox.feishu.hub import Hub
from bot.sandbox.feishu.people import SayOptions
from bot.sandbox.feishu.world import Message

if TYPE_CHECKING:
    from bot.sandbox.feishu.records import Attempt, Push
    from bot.sandbox.feishu.sandbox import FeishuSandbox
    from bot.sandbox.feishu.world import Chat, User

STATIC = Path(__file__).resolve().parent.parent / "static"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TEXT_CHARS = 20_000
_DOWN_S = 10.0
_SLOW_S = 0.8
_FAULT_S = 10.0
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; style-src 'self'; require-trusted-types-for 'script'; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Json = dict[str, Any]


class Page:
    """The page's side of one sandbox. Owns the hub."""

    def __init__(self, sandbox: FeishuSandbox) -> None:
        self._sandbox = sandbox
        self._hub = Hub()
        self._last_push: Push | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        sandbox.world.listen(self._on_change)
        sandbox.records.on_call.append(lambda call: self._hub.send("trace", views.call_trace(call)))
        sandbox.records.on_attempt.append(self._on_attempt)

    def register(self, app: web.Application) -> None:
        """Add the routes."""
        app.on_response_prepare.append(_harden)
        for method, path, handler in (
            ("GET", "/", self._index),
            ("GET", "/sandbox/state", self._state),
            ("GET", "/sandbox/events", self._events),
            ("POST", "/sandbox/say", self._say),
            ("POST", "/sandbox/recall", self._recall),
            ("POST", "/sandbox/press", self._press),
            ("POST", "/sandbox/fault", self._fault),
            ("POST", "/sandbox/new_chat", self._new_chat),
        ):
            app.router.add_route(method, path, self._guarded(handler))
        for prefix in ("/static", "/sandbox/static"):
            app.router.add_get(prefix + "/{path:.+}", self._guarded(self._static))

    async def close(self) -> None:
        """End the streams and what is still being said."""
        self._hub.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- events out --------------------------------------------------------------------------------------------------
    def _on_change(self, kind: str, thing: Any) -> None:
        if kind == "message":
            self._hub.send("message", views.message_view(thing))
        elif kind == "reaction":
            self._hub.send(
                "reaction", {"message_id": thing.id, "reactions": views.reactions_view(thing)}
            )
        elif kind == "removed":
            self._hub.send("removed", {"id": thing.id, "chat_id": thing.chat.id})
        elif kind == "chat":
            self._hub.send("chat", views.chat_view(thing))

    def _on_attempt(self, push: Push, attempt: Attempt) -> None:
        self._last_push = push
        path = urlsplit(self._sandbox.courier.event_url).path
        self._hub.send("trace", views.push_trace(push, attempt, path))

    # -- guards ------------------------------------------------------------------------------------------------------
    def _guarded(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guarded(request: web.Request) -> web.StreamResponse:
            refusal = self._refusal(request)
            if refusal:
                return web.json_response({"error": refusal}, status=403)
            try:
                return await handler(request)
            except (LookupError, ValueError) as error:
                return web.json_response({"error": str(error)}, status=400)

        return guarded

    def _refusal(self, request: web.Request) -> str:
        host = request.headers.get("Host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name not in _LOOPBACK and host not in self._sandbox.config.page_hosts:
            return "this page answers only to its own host name"
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "requests from other sites are refused"
        if (
            request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}
            and request.path != "/"
        ):
            return "requests from other sites are refused"
        if request.method == "POST" and request.content_type != "application/json":
            return "send application/json"
        return ""

    # -- requests in -------------------------------------------------------------------------------------------------
    async def _index(self, _: web.Request) -> web.StreamResponse:
        return _file("index.html")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return _file(request.match_info["path"])

    async def _state(self, _: web.Request) -> web.StreamResponse:
        config = self._sandbox.config
        for card in self._sandbox.world.cards.values():
            card.expire_streaming(config.clock(), config.limits.streaming_s)
        view = views.state_view(self._sandbox.world, dict(config.notes))
        # Whoever opens the stream with this id misses nothing that happens in between.
        return web.json_response(view | {"last_event_id": self._hub.last_id}, dumps=_dumps)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return await self._hub.serve(request)

    async def _say(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        chat, user, text = self._chat(body), self._user(body), body.get("text")
        if not isinstance(text, str) or not text.strip() or len(text) > _TEXT_CHARS:
            raise ValueError(f"text must have 1 to {_TEXT_CHARS} characters")
        target = body.get("reply_to")
        # Longest names first, so that "@Al" does not take the place of "@Alex".
        people = sorted(
            (u for u in chat.members if f"@{u.name}" in text), key=lambda u: -len(u.name)
        )
        bot_named = f"@{self._sandbox.bot.name}" in text
        mentions = [*([self._sandbox.bot] if bot_named else []), *people]
        options: SayOptions = {"mentions": mentions}
        if target:
            options["reply_to"] = self._message(target)
        sending = self._sandbox.say(
            chat, user, text, bool(body.get("mention_bot", False)), **options
        )
        # Not awaited: the page sees the message at once, and the push in the trace when it is done.
        task: asyncio.Task[None] = asyncio.create_task(_finish(sending), name="page say")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.json_response({"ok": True})

    async def _recall(self, request: web.Request) -> web.StreamResponse:
        message = self._message((await _body(request)).get("message_id"))
        if message.sender.bot:
            raise ValueError("only a person's own message can be recalled here")
        if not message.recalled:
            await self._sandbox.recall(message)
        return web.json_response({"ok": True})

    async def _press(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        result = await self._sandbox.press(
            self._message(body.get("message_id")), body.get("value"), self._user(body)
        )
        return web.json_response({"toast": result.toast, "code": result.code})

    async def _fault(self, request: web.Request) -> web.StreamResponse:
        kind = (await _body(request)).get("kind")
        faults = self._sandbox.faults
        match kind:
            case "down":
                faults.down(_DOWN_S)
            case "slow":
                faults.slow(_SLOW_S, _FAULT_S)
            case "rate_limit":
                faults.rate_limit("*", 5, reset_s=2.0)
            case "duplicate":
                if self._last_push is None:
                    raise LookupError("nothing was delivered yet")
                await self._sandbox.redeliver(self._last_push)
            case "clear":
                faults.clear()
            case _:
                raise ValueError("kind must be down, slow, rate_limit, duplicate or clear")
        return web.json_response({"ok": True, "for_s": _FAULT_S if kind in {"down", "slow"} else 0})

    async def _new_chat(self, request: web.Request) -> web.StreamResponse:
        name = (await _body(request)).get("name")
        if not isinstance(name, str) or not 1 <= len(name.strip()) <= 60:
            raise ValueError("name must have 1 to 60 characters")
        people = [user for user in self._sandbox.world.users.values() if not user.bot]
        chat = self._sandbox.add_group(name.strip(), people)
        if self._sandbox.courier.event_url:
            await self._sandbox.bot_added(chat)
        return web.json_response({"chat": views.chat_view(chat)})

    # -- looking things up -------------------------------------------------------------------------------------------
    def _chat(self, body: Json) -> Chat:
        chat = self._sandbox.world.chats.get(str(body.get("chat_id")))
        if chat is None:
            raise LookupError("no such chat")
        return chat

    def _user(self, body: Json) -> User:
        user = self._sandbox.world.users.get(str(body.get("user_id")))
        if user is None or user.bot:
            raise LookupError("no such person")
        return user

    def _message(self, message_id: Any) -> Message:
        message = self._sandbox.world.messages.get(str(message_id))
        if message is None:
            raise LookupError("no such message")
        return message


async def _finish(sending: Awaitable[Any]) -> None:
    await sending


async def _body(request: web.Request) -> Json:
    try:
        body = msgspec.json.decode(await request.read())
    except msgspec.DecodeError:
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004  answered as a 400
    return body


def _file(name: str) -> web.StreamResponse:
    path = (STATIC / name).resolve()
    if not path.is_relative_to(STATIC) or not path.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(path)


def _dumps(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def _harden(request: web.Request, response: web.StreamResponse) -> None:
    if not request.path.startswith("/open-apis"):
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)

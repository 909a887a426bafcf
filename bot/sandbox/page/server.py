"""The page's API on a sandbox's own server: state, events, and what a person does in the browser. Loopback only.

Every request must name one of our own hosts, and a request that changes something must come from our own page: a
foreign site must not be able to speak into it, not even by DNS rebinding. What a verb does is the platform's matter
(`PageHost`); this module knows none.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from bot.sandbox.page.hub import Hub

if TYPE_CHECKING:
    from bot.sandbox.faults import Faults

STATIC = Path(__file__).resolve().parent.parent / "static"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TEXT_CHARS = 20_000
_NAME_CHARS = 200
_MIN_FILE_BYTES = 6  # WeCom takes nothing smaller
# Together with base64's third more it stays under the sandboxes' limit of a body.
MAX_FILE_BYTES = 4 * 2**20
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
Send = Callable[[str, Json], None]


@dataclass(frozen=True, slots=True)
class Sentence:
    """What a person typed. `reply_to` is a message's id or ""."""

    chat_id: str
    user_id: str
    text: str
    mention_bot: bool
    reply_to: str


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file that a person sends. `is_image`: it goes as a picture."""

    chat_id: str
    user_id: str
    name: str
    data: bytes
    is_image: bool


class PageHost(Protocol):
    """One platform's side of the page. Ids that do not exist are LookupErrors; both those and ValueErrors become a 400."""

    @property
    def hosts(self) -> Collection[str]:
        """Further values of the Host header under which the page may be opened."""
        ...

    @property
    def faults(self) -> Faults:
        """The switches behind the tab "break things"."""
        ...

    def attach(self, send: Send) -> None:
        """From now on call `send(kind, data)` for every change: message, reaction, removed, chat, trace."""
        ...

    def state(self) -> Json:
        """Everything as it is: platform, bot, users, chats, messages, notes."""
        ...

    def prepare(self, sentence: Sentence) -> Awaitable[object]:
        """Check a sentence; what comes back says it (the page sees it at once and the push when it is done)."""
        ...

    def prepare_file(self, sent: SentFile) -> Awaitable[object]:
        """The same for a file, which is a message of its own."""
        ...

    async def recall(self, message_id: str) -> None:
        """A person takes the own message back."""
        ...

    async def press(self, message_id: str, value: Any, user_id: str) -> Json:
        """A click on a button; `{toast, code}` for the page."""
        ...

    async def duplicate(self) -> None:
        """Deliver the last event once more."""
        ...

    async def new_chat(self, name: str) -> Json:
        """A new group with everybody and the bot, as the page draws it."""
        ...


class Page:
    """The page's side of one sandbox. Owns the hub."""

    def __init__(self, host: PageHost) -> None:
        self._host = host
        self._hub = Hub()
        self._tasks: set[asyncio.Task[None]] = set()
        host.attach(self._hub.send)

    def register(self, app: web.Application) -> None:
        """Add the routes."""
        app.on_response_prepare.append(_harden)
        for method, path, handler in (
            ("GET", "/", self._index),
            ("GET", "/sandbox/state", self._state),
            ("GET", "/sandbox/events", self._events),
            ("POST", "/sandbox/say", self._say),
            ("POST", "/sandbox/send_file", self._send_file),
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
        if name not in _LOOPBACK and host not in self._host.hosts:
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
        # Whoever opens the stream with this id misses nothing that happens in between.
        view = self._host.state() | {"last_event_id": self._hub.last_id}
        return web.json_response(view, dumps=_dumps)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return await self._hub.serve(request)

    async def _say(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        text = body.get("text")
        if not isinstance(text, str) or not text.strip() or len(text) > _TEXT_CHARS:
            raise ValueError(f"text must have 1 to {_TEXT_CHARS} characters")
        sending = self._host.prepare(
            Sentence(
                str(body.get("chat_id")),
                str(body.get("user_id")),
                text,
                bool(body.get("mention_bot", False)),
                str(body.get("reply_to") or ""),
            )
        )
        return self._begin(sending)

    def _begin(self, sending: Awaitable[object]) -> web.StreamResponse:
        """Not awaited: the page sees the message at once, and the push in the trace when it is done."""
        task: asyncio.Task[None] = asyncio.create_task(_finish(sending), name="page say")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.json_response({"ok": True})

    async def _send_file(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        name, coded = str(body.get("name", "")).strip(), body.get("data")
        if not 1 <= len(name) <= _NAME_CHARS or not isinstance(coded, str):
            raise ValueError(f"name must have 1 to {_NAME_CHARS} characters, data must be base64")
        try:
            data = base64.b64decode(coded, validate=True)
        except ValueError:
            raise ValueError("data must be base64") from None
        if not _MIN_FILE_BYTES <= len(data) <= MAX_FILE_BYTES:
            raise ValueError(
                f"a file must have {_MIN_FILE_BYTES} bytes to {MAX_FILE_BYTES // 2**20} MiB"
            )
        is_image = bool(body.get("is_image", False))
        sent = SentFile(str(body.get("chat_id")), str(body.get("user_id")), name, data, is_image)
        return self._begin(self._host.prepare_file(sent))

    async def _recall(self, request: web.Request) -> web.StreamResponse:
        await self._host.recall(str((await _body(request)).get("message_id")))
        return web.json_response({"ok": True})

    async def _press(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        shown = await self._host.press(
            str(body.get("message_id")), body.get("value"), str(body.get("user_id"))
        )
        return web.json_response(shown)

    async def _fault(self, request: web.Request) -> web.StreamResponse:
        kind = (await _body(request)).get("kind")
        faults = self._host.faults
        match kind:
            case "down":
                faults.down(_DOWN_S)
            case "slow":
                faults.slow(_SLOW_S, _FAULT_S)
            case "rate_limit":
                faults.rate_limit("*", 5, reset_s=2.0)
            case "duplicate":
                await self._host.duplicate()
            case "clear":
                faults.clear()
            case _:
                raise ValueError("kind must be down, slow, rate_limit, duplicate or clear")
        return web.json_response({"ok": True, "for_s": _FAULT_S if kind in {"down", "slow"} else 0})

    async def _new_chat(self, request: web.Request) -> web.StreamResponse:
        name = (await _body(request)).get("name")
        if not isinstance(name, str) or not 1 <= len(name.strip()) <= 60:
            raise ValueError("name must have 1 to 60 characters")
        return web.json_response({"chat": await self._host.new_chat(name.strip())})


async def _finish(sending: Awaitable[object]) -> None:
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
    if request.path == "/" or request.path.startswith(("/sandbox/", "/static/")):
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)

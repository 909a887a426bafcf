"""A stand-in for the sandbox server: serves the page with the strictest CSP and plays a scripted bot behind the page API.

For the browser tests and for working on the page alone: `python tests/browser/mock_stage.py --port 8090`. It knows
nothing of the bot or of Feishu's rules; the real stage is `bot.sandbox.app`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web

STATIC = Path(__file__).resolve().parents[2] / "bot" / "sandbox" / "static"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
BOT = {"id": "ou_bot", "name": "Hearth", "bot": True}
USERS = [{"id": "ou_lin", "name": "小林"}, {"id": "ou_alex", "name": "Alex"}]
ANSWER = """Water boils when its **vapor pressure** equals the pressure of the air around it.

- At sea level that is at 100 °C.
- On a mountain the air is thinner, so it boils *earlier*: about 85 °C at 4,500 m.

```python
def boiling_point(height_m: float) -> float:
    return 100 - height_m / 300
```

That is why pasta takes longer in the mountains."""
NOTES = {
    "model": "SmolLM2-135M-Instruct",
    "language": "zh",
    "sample_questions": [
        "Why is the sky blue?",
        "Write a haiku about a warm fireplace.",
        "What are three good habits for learning a language?",
        "Explain what a CPU cache is in two sentences.",
    ],
    "tiny_model": True,
    "real_model_hint": "hearth demo --model /path/to/model.gguf",
}

Json = dict[str, Any]


class MockStage:
    """Owns the played chats, the open event streams and the tasks of replies that are growing."""

    def __init__(self, *, answer: str = ANSWER, step_s: float = 0.05, steps: int = 8) -> None:
        self.answer = answer
        self.step_s = step_s
        self.steps = steps
        self.said: list[Json] = []
        self.pressed: list[Json] = []
        self.recalled: list[str] = []
        self.faults: list[str] = []
        self.failing = False
        # Cleared by a test that wants a reply to stay unfinished until it has looked.
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self._ids = itertools.count(1)
        self._events = itertools.count(1)
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops: dict[str, asyncio.Event] = {}
        people = [user["id"] for user in USERS]
        self.chats: list[Json] = [
            {"id": "oc_group", "name": "Hearth 试用群", "kind": "group", "members": people},
            {"id": "oc_topic", "name": "Design topics", "kind": "topic", "members": people},
            {"id": "oc_direct", "name": "小林", "kind": "p2p", "members": ["ou_lin"]},
        ]
        self.messages: dict[str, Json] = {}

    # -- server ------------------------------------------------------------------------------------------------------
    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application()
        app.router.add_get("/", self._index)
        app.router.add_static("/static", STATIC)
        app.router.add_get("/sandbox/state", self._state)
        app.router.add_get("/sandbox/events", self._serve_events)
        for verb in ("say", "recall", "press", "fault", "new_chat"):
            app.router.add_post(f"/sandbox/{verb}", getattr(self, f"_{verb}"))
        app.on_response_prepare.append(_harden)
        app.on_shutdown.append(self._close)
        return app

    async def _close(self, _: web.Application) -> None:
        self.drop_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_streams(self) -> None:
        """Cut every open event stream."""
        for queue in self._streams:
            queue.put_nowait(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _index(self, _: web.Request) -> web.FileResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "bot": {"name": BOT["name"], "open_id": BOT["id"]},
                "users": USERS,
                "chats": self.chats,
                "messages": list(self.messages.values()),
                "notes": NOTES,
            }
        )

    async def _serve_events(self, request: web.Request) -> web.StreamResponse:
        if self.failing:
            raise web.HTTPServiceUnavailable
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams.add(queue)
        try:
            await response.prepare(request)
            await response.write(b"retry: 300\n\n")
            while (frame := await queue.get()) is not None:
                await response.write(frame)
        except ConnectionError:
            pass
        finally:
            self._streams.discard(queue)
        return response

    # -- what the page does ------------------------------------------------------------------------------------------
    async def _say(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.said.append(body)
        user = next(user for user in USERS if user["id"] == body["user_id"])
        text = f"@Hearth {body['text']}" if body["mention_bot"] else body["text"]
        message = self.put(body["chat_id"], user | {"bot": False}, text, body.get("reply_to"))
        if body["mention_bot"]:
            message["mentions"] = [{"key": "@_user_1", "id": BOT["id"], "name": BOT["name"]}]
        self.send("message", message)
        self.trace(
            "webhook", "im.message.receive_v1", {"decrypted": {"event": {"message": message["id"]}}}
        )
        if body["mention_bot"] or body["chat_id"] == "oc_direct":
            self._spawn(self._reply(message))
        return web.json_response({"ok": True})

    async def _recall(self, request: web.Request) -> web.Response:
        message = self.messages[(await request.json())["message_id"]]
        message["recalled"] = True
        self.recalled.append(message["id"])
        self.send("message", message)
        self.trace("webhook", "im.message.recalled_v1", {"message_id": message["id"]})
        return web.json_response({"ok": True})

    async def _press(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.pressed.append(body)
        self.trace("webhook", "card.action.trigger", {"decrypted": body["value"]})
        if body["value"]["action"] == "stop":
            self._stops[body["message_id"]].set()
            return web.json_response({"toast": {"type": "info", "content": "Stopping"}, "code": 0})
        return web.json_response({"toast": {"type": "success", "content": "Done"}, "code": 0})

    async def _fault(self, request: web.Request) -> web.Response:
        kind = (await request.json())["kind"]
        self.faults.append(kind)
        if kind == "rate_limit":
            self.trace(
                "api",
                "card.content #9",
                {"response": {"code": 99991400}},
                status=429,
                code=99991400,
            )
        return web.json_response({"ok": True, "for_s": 10 if kind in {"down", "slow"} else 0})

    async def _new_chat(self, request: web.Request) -> web.Response:
        name = (await request.json())["name"]
        chat = {
            "id": f"oc_new{next(self._ids)}",
            "name": name,
            "kind": "group",
            "members": ["ou_lin", "ou_alex"],
        }
        self.chats.append(chat)
        self.send("chat", chat)
        self.send("message", self.put(chat["id"], BOT, "Hello, I am Hearth. Mention me and ask."))
        return web.json_response({"chat": chat})

    # -- the scripted bot --------------------------------------------------------------------------------------------
    async def _reply(self, question: Json) -> None:
        question["reactions"] = [{"id": "r1", "emoji": "Typing", "by": BOT["name"]}]
        self.send("reaction", {"message_id": question["id"], "reactions": question["reactions"]})
        self.trace("api", "reaction.create", {"request": {"emoji_type": "Typing"}})
        await asyncio.sleep(self.step_s)
        message = self.put(question["chat_id"], BOT, "", question["id"])
        message["kind"] = "card"
        message["thread_id"] = question["thread_id"]
        stop = self._stops[message["id"]] = asyncio.Event()
        for step in range(1, self.steps + 1):
            text = self.answer[: len(self.answer) * step // self.steps]
            message["card"] = card(text, streaming=True, turn=message["id"])
            self.send("message", message)
            self.trace(
                "api",
                f"card.content #{step} · {len(text)} chars",
                {"request": {"content": text[:80], "sequence": step}},
            )
            await asyncio.sleep(self.step_s)
            if step == self.steps - 1:
                await first_of(self.may_finish, stop)
            if stop.is_set():
                break
        message["card"] = card(
            text + ("\n\n*Stopped.*" if stop.is_set() else ""), streaming=False, turn=message["id"]
        )
        self.send("message", message)
        self.send("reaction", {"message_id": question["id"], "reactions": []})
        question["reactions"] = []
        self.trace("api", "card.settings", {"request": {"streaming_mode": False}})

    # -- building blocks ---------------------------------------------------------------------------------------------
    def put(self, chat_id: str, sender: Json, text: str, reply_to: str | None = None) -> Json:
        """Keep a new text message (not sent to the page yet)."""
        number = next(self._ids)
        above = self.messages.get(reply_to or "")
        topic = chat_id == "oc_topic"
        message: Json = {
            "id": f"om_{number}",
            "chat_id": chat_id,
            "sender": {"id": sender["id"], "name": sender["name"], "bot": sender["bot"]},
            "at_ms": int(time.time() * 1000),
            "kind": "text",
            "text": text,
            "reply_to": reply_to,
            "thread_id": (above["thread_id"] if above else f"omt_{number}") if topic else None,
            "recalled": False,
            "reactions": [],
            "mentions": [],
        }
        self.messages[message["id"]] = message
        return message

    def send(self, kind: str, data: Json) -> None:
        """One event to every open page."""
        frame = f"id: {next(self._events)}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()
        for queue in self._streams:
            queue.put_nowait(frame)

    def trace(
        self, direction: str, title: str, detail: Json, *, status: int = 200, code: int = 0
    ) -> None:
        """One line for the side panel."""
        webhook = direction == "webhook"
        self.send(
            "trace",
            {
                "id": f"t{next(self._ids)}",
                "at": int(time.time() * 1000),
                "direction": direction,
                "method": "POST" if webhook else "PUT" if title.startswith("card") else "POST",
                "path": "/webhook/feishu"
                if webhook
                else "/open-apis/cardkit/v1/cards/7355372766134157313/elements/answer/content",
                "status": status,
                "code": code,
                "ms": 3.4 if webhook else 12.8,
                "title": title,
                "detail": json.dumps(detail, indent=2),
                "encrypted": webhook,
            },
        )


def card(text: str, *, streaming: bool, turn: str) -> Json:
    """A card as the sandbox shows it to the page: the answer and its buttons."""
    names = (
        [("stop", "Stop", "danger")]
        if streaming
        else [("regenerate", "Regenerate", "default"), ("new_topic", "New topic", "default")]
    )
    buttons = [
        {
            "tag": "button",
            "element_id": "",
            "text": label,
            "type": kind,
            "value": {"action": action, "turn_id": turn},
        }
        for action, label, kind in names
    ]
    columns = [
        {"tag": "column", "element_id": "", "elements": [], "buttons": [button]}
        for button in buttons
    ]
    return {
        "elements": [
            {"tag": "markdown", "element_id": "answer", "content": text},
            {
                "tag": "column_set",
                "element_id": "controls",
                "elements": columns,
                "buttons": [],
            },
        ],
        "streaming": streaming,
        "summary": text[:40],
        "title": "",
        "streaming_config": {},
    }


async def first_of(*events: asyncio.Event) -> None:
    """Return when one of them is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Content-Security-Policy"] = CSP
    response.headers["X-Content-Type-Options"] = "nosniff"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=8090)
    options.add_argument(
        "--step", type=float, default=1.0, help="seconds between two updates of a card"
    )
    chosen = options.parse_args()
    web.run_app(MockStage(step_s=chosen.step).app(), host="127.0.0.1", port=chosen.port)

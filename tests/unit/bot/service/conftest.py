"""Small doubles for the outside of the service: a clock, an adapter whose replies are recorded, a scripted engine."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from bot.config import parse_config
from bot.domain.types import (
    Attachment,
    ChatKind,
    InboundMessage,
    Outcome,
    PartState,
    Quoted,
    ReplyPart,
    ReplyTarget,
    Sender,
    TurnState,
)
from bot.errors import TooLarge
from bot.platforms.base import (
    EventSink,
    Link,
    MayConnect,
    PartLedger,
    ReplyView,
    WebhookReply,
    always,
)
from bot.service.app import Service
from bot.service.clock import SystemClock
from bot.store import Store
from engine.errors import EngineUnavailable
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    EngineRequest,
    EngineState,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    ModelInfo,
    Priority,
    Queued,
    Rendered,
    Role,
    Started,
    Usage,
)


class FakeClock:
    """Time that moves only when a test says so; waiting tasks run in between."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._start = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._now_s)

    def monotonic(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        await self.wait(asyncio.Event(), seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        if event.is_set():
            return True
        due = asyncio.Event()
        entry = (self._now_s + (timeout_s if timeout_s is not None else 1e12), due)
        self._sleepers.append(entry)
        tasks = [asyncio.create_task(event.wait()), asyncio.create_task(due.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sleepers.remove(entry)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return event.is_set()

    async def advance(self, seconds: float) -> None:
        """Let time pass, in the order in which sleepers are due."""
        end = self._now_s + seconds
        await settle()
        while self._sleepers:
            due_s, due = min(self._sleepers, key=lambda entry: entry[0])
            if due_s > end:
                break
            self._now_s = max(self._now_s, due_s)
            due.set()
            await settle()
        self._now_s = end
        await settle()


async def settle(rounds: int = 30) -> None:
    """Let every ready task run."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def eventually(
    check: Callable[[], Awaitable[bool]] | Callable[[], bool], timeout_s: float = 40.0
) -> None:
    """Wait until something holds; it is an error when it does not within the time."""
    async with asyncio.timeout(timeout_s):
        while True:
            result = check()
            if (await result) if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.005)


@dataclass
class Shown:
    """What a person sees of one turn's reply: one message, edited."""

    turn_id: str
    views: list[ReplyView] = field(default_factory=list)
    final: ReplyView | None = None
    n_finishes: int = 0


class RecordingDriver:
    """A reply on the recording platform. Commits its part before each call, as the contract asks."""

    def __init__(self, adapter: RecordingAdapter, target: ReplyTarget, ledger: PartLedger) -> None:
        self._adapter = adapter
        self._target = target
        self._ledger = ledger
        parts = ledger.parts()
        self._part = parts[0] if parts else ReplyPart(ledger.turn_id, 0, "text", "key")

    async def prepare(self) -> None:
        self._adapter.n_prepared += 1

    async def show(self, view: ReplyView) -> None:
        await self._call("show", view)
        self._adapter.shown(self._ledger.turn_id).views.append(view)
        await self._save(PartState.CONFIRMED, view)
        self._adapter.n_confirmed += 1

    async def finish(self, view: ReplyView) -> None:
        if self._part.state is PartState.CLOSED and self._part.confirmed_rev >= view.rev:
            return
        await self._call("finish", view)
        shown = self._adapter.shown(self._ledger.turn_id)
        shown.final = view
        shown.n_finishes += 1
        await self._save(PartState.CLOSED, view)

    def interval_s(self) -> float:
        return self._adapter.interval_s

    async def _call(self, verb: str, view: ReplyView) -> None:
        await self._save(PartState.ATTEMPTED, view)
        if self._adapter.gate is not None:
            await self._adapter.gate.wait()
        if self._adapter.errors:
            error = self._adapter.errors.pop(0)
            if error is not None:
                raise error

    async def _save(self, state: PartState, view: ReplyView) -> None:
        rev = view.rev if state is not PartState.ATTEMPTED else self._part.confirmed_rev
        self._part = replace(self._part, state=state, confirmed_rev=rev, message_id="m")
        await self._ledger.save(self._part)


class RecordingAdapter:
    """A platform that does what it is told. `errors` are raised by the next calls, one each (None = fine)."""

    platform = "recording"

    def __init__(self, name: str = "feishu", app_id: str = "app") -> None:
        self.name = name
        self.app_id = app_id
        self.replies: dict[str, Shown] = {}
        self.errors: list[Exception | None] = []
        self.gate: asyncio.Event | None = None
        self.interval_s = 0.0
        self.n_prepared = 0
        self.n_confirmed = 0
        self.alive: dict[str, str] = {}
        self.n_alive = 0
        self.toasts: list[str] = []
        self.files: dict[str, Any] = {}
        self.fetched: list[tuple[str, str]] = []
        self.quotes: dict[str, Quoted] = {}
        self.looked_up: list[str] = []
        self.welcomed: list[str] = []

    def shown(self, turn_id: str) -> Shown:
        return self.replies.setdefault(turn_id, Shown(turn_id))

    @property
    def finals(self) -> list[str]:
        return [s.final.text for s in self.replies.values() if s.final is not None]

    display_name = "Ember"
    link = Link.NONE
    listening: MayConnect | None = None

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def listen(self, sink: EventSink, may_connect: MayConnect = always) -> None:
        self.listening = may_connect

    async def hang_up(self) -> None:
        self.listening = None

    def receive(self, request: Any) -> Any:
        raise NotImplementedError

    def button_reply(self, toast: str, *, kind: str = "info") -> WebhookReply:
        self.toasts.append(toast)
        return WebhookReply(200, {"toast": toast, "kind": kind})

    async def welcome(self, target: ReplyTarget, text: str) -> WebhookReply | None:
        self.welcomed.append(text)
        return WebhookReply(200, text)

    def open_reply(self, target: ReplyTarget, ledger: PartLedger) -> RecordingDriver:
        return RecordingDriver(self, target, ledger)

    async def find_alive(self, target: ReplyTarget) -> str:
        return ""

    async def show_alive(self, target: ReplyTarget) -> str:
        self.n_alive += 1
        token = f"sign-{self.n_alive}"
        self.alive[token] = target.reply_to
        return token

    async def fetch(self, attachment: Attachment, target: ReplyTarget, *, max_bytes: int) -> bytes:
        """What `files` holds for the attachment's key: bytes, or an error to raise."""
        self.fetched.append((attachment.remote_key, target.reply_to))
        found = self.files[attachment.remote_key]
        if isinstance(found, list):
            found = found.pop(0)
        if isinstance(found, Exception):
            raise found
        if len(found) > max_bytes:
            raise TooLarge("too large")
        return found

    async def look_up(self, quoted: Quoted, target: ReplyTarget) -> Quoted | None:
        self.looked_up.append(quoted.message_id)
        return self.quotes.get(quoted.message_id)

    async def clear_alive(self, target: ReplyTarget, token: str) -> None:
        assert self.alive.pop(token) == target.reply_to

    def health(self) -> dict[str, str]:
        return {}


@dataclass
class Script:
    """How the engine treats one request: words to say, or a failure after some of them."""

    words: Sequence[str] = ("Hello", " there")
    fail_after: int | None = None
    failure: Failed | None = None
    hold: asyncio.Event | None = None
    thinking: int = 0
    reason: FinishReason = FinishReason.STOP
    place: int = 0
    with_ids: bool = True


class ScriptEngine:
    """One id per byte of prompt, one id per word of reply; a request with generated ids goes on behind them."""

    def __init__(self, n_ctx: int = 4096, fingerprint: str = "model-a") -> None:
        self.info: ModelInfo | None = ModelInfo(
            name="main", path="x", fingerprint=fingerprint, n_ctx_tokens=n_ctx
        )
        self.scripts: list[Script] = []
        # What summaries and warm-ups get.
        self.background = Script(words=["Nothing."])
        self.requests: list[EngineRequest] = []
        self.forgotten: list[str] = []
        self.warmed: list[tuple[str, str, tuple[int, ...]]] = []
        self.with_ids = True
        self._cancelled: dict[str, asyncio.Event] = {}

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def wait_ready(self, timeout_s: float) -> ModelInfo:
        if self.info is None:
            raise EngineUnavailable("loading")
        return self.info

    async def cancel(self, request_id: str) -> None:
        if request_id in self._cancelled:
            self._cancelled[request_id].set()

    async def warm(self, cache_key: str, scope: str, tokens: Sequence[int]) -> None:
        self.warmed.append((cache_key, scope, tuple(tokens)))

    async def forget(self, cache_key: str) -> None:
        self.forgotten.append(cache_key)

    async def stats(self) -> EngineStats:
        return EngineStats(state=EngineState.READY)

    async def count(self, text: str) -> int:
        return len(text.encode())

    async def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> Rendered:
        return render_bytes(messages, with_ids=self.with_ids)

    async def submit(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        self.requests.append(request)
        if request.priority >= Priority.BACKGROUND:
            script = self.background
        else:
            script = self.scripts.pop(0) if self.scripts else Script()
        cancelled = self._cancelled[request.id] = asyncio.Event()
        try:
            if script.place:
                yield Queued(request_id=request.id, place=script.place)
            if script.hold is not None and not script.words:
                await _either(script.hold, cancelled)
            yield Started(request_id=request.id, cached_tokens=0)
            async for event in self._speak(request, script, cancelled):
                yield event
        finally:
            del self._cancelled[request.id]

    async def _speak(
        self, request: EngineRequest, script: Script, cancelled: asyncio.Event
    ) -> AsyncIterator[EngineEvent]:
        done = len(request.generated_tokens)
        n_said = done
        for n, word in enumerate(script.words):
            if n < done:
                continue
            if cancelled.is_set():
                break
            if script.fail_after == n:
                yield script.failure or Failed(
                    request_id=request.id, code=FailureCode.ENGINE_DIED, retryable=True
                )
                return
            ids = (1000 + n,) if self.with_ids else ()
            text = "" if n < script.thinking else word
            yield Delta(request_id=request.id, token_ids=ids, text=text)
            n_said = n + 1
            if script.hold is not None and n == 0:
                await _either(script.hold, cancelled)
        reason = FinishReason.CANCELLED if cancelled.is_set() else script.reason
        yield Finished(
            request_id=request.id,
            reason=reason,
            usage=Usage(),
            answer_start=script.thinking,
            n_answer=max(0, n_said - script.thinking),
        )


async def _either(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_MARKS = {Role.SYSTEM: 301, Role.USER: 302, Role.ASSISTANT: 303}
END = 300


def render_bytes(
    messages: Sequence[ChatMessage], *, with_ids: bool = True, thinking_open: bool = False
) -> Rendered:
    """A chat template of one id per byte, a mark before and an end behind each message."""
    ids: list[int] = []
    starts = []
    tail_start = 0
    for message in messages:
        starts.append(len(ids))
        ids.append(_MARKS[message.role])
        ids.extend(message.token_ids or message.content.encode())
        if message.role is Role.ASSISTANT:
            tail_start = len(ids)
        ids.append(END)
    ids.append(_MARKS[Role.ASSISTANT])
    return Rendered(
        token_ids=tuple(ids) if with_ids else (),
        n_tokens=len(ids),
        starts=tuple(starts),
        tail_start=tail_start,
        thinking_open=thinking_open,
        exact=with_ids,
    )


def text_of(request: EngineRequest) -> str:
    """The prompt as text, one line per message."""
    marks = {301: "\n<system>", 302: "\n<user>", 303: "\n<assistant>", 300: ""}
    pieces: list[bytes] = []
    for token in request.prompt_tokens:
        if token in marks:
            pieces.append(marks[token].encode())
        elif token >= 1000:
            pieces.append(f"«{token}»".encode())
        else:
            pieces.append(bytes([token]))
    return b"".join(pieces).decode()


_counter = itertools.count(1)


def message(text: str, **changes: Any) -> InboundMessage:
    """A direct message from Ann, with changes."""
    n = next(_counter)
    base = InboundMessage(
        app_id="app",
        dedupe_key=f"om_{n}",
        event_id=f"ev_{n}",
        message_id=f"om_{n}",
        chat_id="chat",
        chat_kind=ChatKind.DIRECT,
        topic_id=None,
        sender=Sender("ann", "Ann"),
        text=text,
        mentions_bot=False,
        sent_at=datetime.now(UTC),
        target=ReplyTarget("app", "chat", f"om_{n}"),
    )
    return replace(base, **changes)


CONFIG: dict[str, Any] = {
    "models": {"main": {"backend": "fake", "n_ctx": 4096}},
    "chat": {"language": "en", "show_date": False, "max_new_tokens": 64},
    "access": {"per_user_per_minute": 0},
    "summarizer": {"enabled": False},
    "bots": {
        "feishu": {
            "platform": "feishu",
            "app_id": "app",
            "app_secret": "secret-secret",
            "encrypt_key": "encrypt-key",
            "verification_token": "token-token",
        }
    },
}


def make_config(**sections: dict[str, Any]) -> Any:
    """The test configuration with some keys of some sections changed."""
    data = {name: dict(section) for name, section in CONFIG.items()}
    for name, keys in sections.items():
        data[name] = {**data.get(name, {}), **keys}
    return parse_config(data, Path())


class World:
    """A service on a real database with the outside played. `restart` starts a new one without closing the old."""

    def __init__(self, folder: Path, clock: Any) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/hearth.db"
        self.clock = clock
        self.config = make_config()
        self.adapter = RecordingAdapter()
        self.engine: Any = ScriptEngine()
        self.more_engines: dict[str, Any] = {}
        self.registry = CollectorRegistry()
        self.store: Any = None
        self.service: Any = None
        # What the watch of the machine has seen; nothing yet.
        self.machine: Any = types.SimpleNamespace(latest=None, alarms=())

    async def open(self) -> World:
        self.store = Store(self.url)
        await self.store.open()
        await self.start()
        return self

    async def start(self) -> None:
        self.registry = CollectorRegistry()
        self.service = Service(
            self.config,
            self.store,
            {self.adapter.name: self.adapter},
            {"main": self.engine, **self.more_engines},
            self.clock,
            self.registry,
            self.machine,
        )
        await self.service.start()

    def kill(self) -> None:
        """As kill -9 would: no task gets to do anything more."""
        dispatcher = self.service.dispatcher
        summarizer = self.service.summarizer
        self.service.timers._scheduler.shutdown(wait=False)
        index = [self.service.recall_index._task]
        for task in [*summarizer._tasks, *index, *dispatcher._loops, *dispatcher._tasks.values()]:
            task.cancel()
        dispatcher._tasks.clear()

    async def close(self) -> None:
        await self.service.close(1.0)
        await self.store.close()

    async def say(self, text: str, **changes: Any) -> InboundMessage:
        said = message(text, **changes)
        await self.service.inbox.accept("feishu", self.adapter, (said,))
        return said

    async def turn(self, said: InboundMessage) -> Any:
        return await self.store.turn_of_message("app", said.message_id)

    async def settled(self, said: InboundMessage) -> Any:
        """The turn of a message, once it has ended."""
        ended = {TurnState.DONE, TurnState.FAILED, TurnState.CANCELLED}

        async def has_ended() -> bool:
            turn = await self.turn(said)
            return turn is not None and turn.state in ended

        await eventually(has_ended)
        return await self.turn(said)

    async def answer(self, said: InboundMessage) -> str:
        """The text of the finished reply to a message."""
        return (await self.final(said)).text

    async def final(self, said: InboundMessage) -> ReplyView:
        turn = await self.settled(said)
        view = self.adapter.shown(turn.id).final
        assert view is not None
        assert view.outcome is not Outcome.GROWING
        return view


@asynccontextmanager
async def open_world(folder: Path, clock: Any) -> AsyncIterator[World]:
    world = await World(folder, clock).open()
    try:
        yield world
    finally:
        await world.close()


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def blank_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database to copy: migrating anew for every test is most of their time."""
    path = tmp_path_factory.mktemp("blank") / "hearth.db"

    async def make() -> None:
        store = Store(f"sqlite:///{path}")
        await store.open()
        await store.close()

    asyncio.run(make())
    return path


@pytest.fixture(autouse=True)
def quiet_logs() -> Any:
    """Log lines are for people; drawing them costs more than the tests."""
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
async def world(tmp_path: Path, blank_database: Path) -> AsyncIterator[World]:
    shutil.copy(blank_database, tmp_path / "hearth.db")
    async with open_world(tmp_path, SystemClock()) as opened:
        yield opened


@pytest.fixture(scope="session")
def tools() -> Any:
    """This module's helpers (test folders are not packages)."""
    return types.SimpleNamespace(
        message=message,
        Script=Script,
        ScriptEngine=ScriptEngine,
        RecordingAdapter=RecordingAdapter,
        FakeClock=FakeClock,
        make_config=make_config,
        eventually=eventually,
        settle=settle,
        text_of=text_of,
        render_bytes=render_bytes,
        World=World,
    )

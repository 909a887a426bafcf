"""Hearth in front of a played platform, in each of its modes, with what a person sees measured: for the table of all modes.

The sandboxes are strict and keep the platforms' documented limits; the model is the scripted one. Everything runs in the
test's own event loop but the engine's child.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bot.app import Hearth
from bot.config import parse_config
from bot.sandbox.dingtalk import DEFAULT_TEMPLATE, DingTalkSandbox
from bot.sandbox.dingtalk import SandboxConfig as DingTalkConfig
from bot.sandbox.dingtalk import visible_text as dingtalk_text
from bot.sandbox.faults import Fault, Faults
from bot.sandbox.feishu import FeishuSandbox
from bot.sandbox.feishu import SandboxConfig as FeishuConfig
from bot.sandbox.feishu.judge import visible_text as feishu_text
from bot.sandbox.tables import dingtalk_table, feishu_table, wecom_table
from bot.sandbox.wecom import WeComConfig, WeComSandbox
from bot.sandbox.wecom import visible_text as wecom_text

BOT = "played"
REPLY = "Water boils earlier on a mountain, because the air presses less on it. " * 12 + "END"
SHORT = "Water boils earlier on a mountain. " * 3 + "END"
QUESTION = "Why does water boil earlier there?"
MARK = "(may be a repeat)"
LOOK_S = 0.01
CONNECT_S = 150.0
_BUSY = -1  # wecom.md §4.3
QUICK_LADDER = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Mode:
    """One platform in one mode. `make` builds its sandbox around given faults; `table` is the bot's [bots.*] table.

    `text` is what a person reads in a message, `grows` whether more may come in it. `connections`: the long connections
    that are open (None: events come by webhook); `cut` ends them without a word.
    """

    make: Callable[[Faults], Any]
    table: Callable[[Any], dict[str, Any]]
    text: Callable[[Any], str]
    grows: Callable[[Any], bool]
    connections: Callable[[Any], int] | None = None
    cut: Callable[[Any], Any] | None = None


def _feishu(mode: str) -> Mode:
    def make(faults: Faults) -> FeishuSandbox:
        sandbox = FeishuSandbox(FeishuConfig(redelivery_s=QUICK_LADDER), faults=faults)
        if mode == "websocket":
            sandbox.use_long_connection()
        return sandbox

    def table(sandbox: FeishuSandbox) -> dict[str, Any]:
        return feishu_table(sandbox.config, sandbox.base_url, mode)  # type: ignore[arg-type]

    def grows(message: Any) -> bool:
        return message.card is not None and message.card.streaming

    long = mode == "websocket"
    return Mode(
        make, table, feishu_text, grows,
        connections=(lambda sandbox: len(sandbox.gateway.sockets)) if long else None,
        cut=(lambda sandbox: sandbox.gateway.cut()) if long else None,
    )  # fmt: skip


def _dingtalk(mode: str, *, cards: bool) -> Mode:
    def make(faults: Faults) -> DingTalkSandbox:
        return DingTalkSandbox(DingTalkConfig(redelivery_s=QUICK_LADDER), faults=faults)

    def table(sandbox: DingTalkSandbox) -> dict[str, Any]:
        card = {"card_template": DEFAULT_TEMPLATE, "card_buttons_key": "buttons"} if cards else {}
        return dingtalk_table(sandbox.config, sandbox.base_url, mode) | card  # type: ignore[arg-type]

    def grows(message: Any) -> bool:
        card = message.card
        return card is not None and (card.growing or card.kept_source != card.source)

    long = mode == "stream"
    return Mode(
        make, table, dingtalk_text, grows,
        connections=(lambda sandbox: len(sandbox.gateway.connections)) if long else None,
        cut=(lambda sandbox: sandbox.gateway.cut()) if long else None,
    )  # fmt: skip


def _wecom(mode: str) -> Mode:
    def make(faults: Faults) -> WeComSandbox:
        return WeComSandbox(WeComConfig(mode=mode, redelivery_s=(0.5, 1.0)), faults=faults)  # type: ignore[arg-type]

    def table(sandbox: WeComSandbox) -> dict[str, Any]:
        return wecom_table(sandbox.config, sandbox.base_url)

    long = mode == "websocket"
    return Mode(
        make, table, wecom_text, lambda message: message.streaming,
        connections=(lambda sandbox: int(sandbox.gateway.live is not None)) if long else None,
        cut=(lambda sandbox: sandbox.cut_socket()) if long else None,
    )  # fmt: skip


MODES: Mapping[str, Mode] = {
    "Feishu, webhook": _feishu("webhook"),
    "Feishu, long connection": _feishu("websocket"),
    "DingTalk, webhook, card": _dingtalk("webhook", cards=True),
    "DingTalk, stream, card": _dingtalk("stream", cards=True),
    "DingTalk, stream, no template": _dingtalk("stream", cards=False),
    "WeCom AI bot, callback": _wecom("callback"),
    "WeCom AI bot, long connection": _wecom("websocket"),
    "WeCom self-built app": _wecom("app"),
}


class FlakyFaults(Faults):
    """A share of all calls fails, each in another way, the same ones in every run. Fetching a token always works.

    A call may be lost before it is done, done and its answer lost, or get a gateway's page; a frame of a long connection is
    told that the platform is busy; a callback is lost on its way or on its way back. With `keep_connections` nothing is
    lost that would cut a long connection: that is another trial.
    """

    def __init__(self, share: float, *, keep_connections: bool, seed: int = 7) -> None:
        super().__init__()
        self._share = share
        self._spared = ("token", "gateway", "bot.info", "stream.push", "ws.subscribe", "ws.ping")
        if keep_connections:
            self._spared += ("callback.",)
        self._random = random.Random(seed)
        self.n_failed = 0

    def take(self, api: str) -> Fault | None:
        """The fault of this call, if it fails."""
        if any(word in api for word in self._spared) or self._random.random() >= self._share:
            return None
        self.n_failed += 1
        if api.startswith("ws."):
            return Fault(api, code=_BUSY)
        if api.startswith("callback."):
            return Fault(api, drop=self._random.choice(("before", "after")))
        kind = self._random.randrange(3)
        if kind == 2:
            return Fault(api, status=502, html=True)
        return Fault(api, drop=("before", "after")[kind])


@dataclass
class Seen:
    """What became of one question on the person's screen. Times are seconds since it was written."""

    sent: Any
    begun_s: float
    first_s: float = 0.0
    n_updates: int = 0
    last: tuple[str, ...] = field(default=())


class Played:
    """A running Hearth on a played platform."""

    def __init__(self, mode: Mode, sandbox: Any, reply: str) -> None:
        self.mode = mode
        self.sandbox = sandbox
        self.reply = reply
        self._n_calls = len(sandbox.records.calls)

    # -- asking ------------------------------------------------------------------------------------------------------
    async def ask(self, *, twice: bool = False) -> Seen:
        """A new person asks in a direct chat; the event may come twice at once."""
        user = self.sandbox.add_user(f"person {len(self.sandbox.world.users)}")
        seen = Seen(None, time.perf_counter())
        seen.sent = await self.sandbox.say(self.sandbox.direct_chat(user), user, QUESTION)
        if twice:
            await self.sandbox.redeliver(seen.sent)
        return seen

    async def watch(self, asked: Sequence[Seen], timeout_s: float = 60.0) -> None:
        """Look at the screens until every answer stands there and nothing grows. Raises AssertionError."""
        until = time.perf_counter() + timeout_s
        while sum(not self._look(one) for one in asked):
            if time.perf_counter() > until:
                shown = [one.last for one in asked]
                raise AssertionError(f"no whole answer within {timeout_s} s: {str(shown)[-600:]}")
            await asyncio.sleep(LOOK_S)

    def _look(self, one: Seen) -> bool:
        replies = self.sandbox.replies(one.sent)
        texts = tuple(text for m in replies if (text := clean(self.mode.text(m))))
        if texts and texts != one.last:
            one.last = texts
            one.n_updates += 1
            one.first_s = one.first_s or time.perf_counter() - one.begun_s
        whole = any(text.endswith("END") for text in texts)
        return whole and not any(self.mode.grows(m) for m in replies)

    # -- judging -----------------------------------------------------------------------------------------------------
    def check(self, asked: Sequence[Seen]) -> dict[str, Any]:
        """One visible message per question, with the model's text; anything else is said to be a possible repeat."""
        n_repeats = 0
        for one in asked:
            self._look(one)
            plain = [text for text in one.last if MARK not in text]
            n_repeats += len(one.last) - len(plain)
            assert len(plain) <= 1, f"{len(plain)} messages answer one question: {plain!r:.300}"
            assert one.last, "no answer"
            for text in one.last:
                said = clean(text.replace(MARK, ""))
                assert said == clean(self.reply), f"another text than the model's: …{said[-200:]}"
        violations = self.sandbox.violations
        assert not violations, f"the platform frowns: {violations[:3]}"
        first = sorted(one.first_s for one in asked)
        return {
            "answers": f"{len(asked)}/{len(asked)}",
            "messages per answer": "1" if not n_repeats else f"1 (+{n_repeats} marked)",
            "text": "equal",
            "updates": round(sum(one.n_updates for one in asked) / len(asked), 1),
            "first text s": f"{first[len(first) // 2]:.2f} / {first[-1]:.2f}",
            **self._calls(),
        }

    def _calls(self) -> dict[str, Any]:
        calls = self.sandbox.records.calls[self._n_calls :]
        refused = sum(bool(c.code or c.dropped or c.status >= 400) for c in calls)
        return {"calls": len(calls), "refused": refused}

    async def cut(self) -> float:
        """Cut the long connection; seconds until there is another one."""
        assert self.mode.cut is not None
        assert self.mode.connections is not None
        done = self.mode.cut(self.sandbox)
        if done is not None:
            await done
        begun_s = time.perf_counter()
        while self.mode.connections(self.sandbox):
            await asyncio.sleep(LOOK_S)
        while not self.mode.connections(self.sandbox):
            assert time.perf_counter() - begun_s < 60, "not back within 60 s"
            await asyncio.sleep(LOOK_S)
        return time.perf_counter() - begun_s


def clean(text: str) -> str:
    """What a person reads: without the invisible characters that keep a model's tags and mentions from working."""
    return " ".join(text.replace("\u200b", "").replace("\u2060", "").split())


@asynccontextmanager
async def played(
    folder: Path,
    name: str,
    *,
    reply: str = REPLY,
    delay_s: float = 0.003,
    faults: Faults | None = None,
) -> AsyncIterator[Played]:
    """Hearth and the platform of this mode, connected."""
    mode = MODES[name]
    async with mode.make(faults or Faults()) as sandbox:
        fake = {"reply": reply, "token_delay_s": str(delay_s)}
        model = {"backend": "fake", "n_ctx": 8192, "n_parallel": 16, "fake": fake}
        config = parse_config(
            {
                "server": {"port": 0, "shutdown_s": 1.0},
                "storage": {"url": "sqlite:///hearth.db"},
                "models": {"main": model},
                "chat": {"language": "en", "show_date": False, "max_new_tokens": 2000},
                "access": {"per_user_per_minute": 0},
                "bots": {BOT: mode.table(sandbox)},
            },
            folder,
        )
        hearth = Hearth(config)
        await hearth.start()
        try:
            assert hearth.web is not None
            for engine in hearth.engines.values():
                await engine.wait_ready(60.0)
            if mode.connections is None:
                sandbox.subscribe(f"{hearth.web.url}/webhook/{BOT}")
            else:
                await _connected(mode, sandbox)
            yield Played(mode, sandbox, reply)
        finally:
            await hearth.close()


async def _connected(mode: Mode, sandbox: Any) -> None:
    """Feishu's own client takes seconds to be imported, on a busy machine many."""
    assert mode.connections is not None
    until = time.perf_counter() + CONNECT_S
    while not mode.connections(sandbox):
        assert time.perf_counter() < until, f"no long connection within {CONNECT_S:g} s"
        await asyncio.sleep(LOOK_S)


# -- the trials ----------------------------------------------------------------------------------------------------------
async def one_question(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """A person asks and reads."""
    async with played(folder, name, **options) as stage:
        asked = [await stage.ask()]
        await stage.watch(asked)
        return stage.check(asked)


async def ten_at_once(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """Ten people in ten chats, within a moment, under the platform's limits."""
    async with played(folder, name, **options) as stage:
        asked = await asyncio.gather(*(stage.ask() for _ in range(10)))
        await stage.watch(asked, 90.0)
        return stage.check(asked)


async def failing_calls(folder: Path, name: str, *, n: int = 5, **options: Any) -> dict[str, Any]:
    """A fifth of all calls fails while several people ask."""
    faults = FlakyFaults(0.2, keep_connections=MODES[name].connections is not None)
    async with played(folder, name, faults=faults, **options) as stage:
        asked = await asyncio.gather(*(stage.ask() for _ in range(n)))
        await stage.watch(asked, 150.0)
        return stage.check(asked) | {"failed on purpose": faults.n_failed}


async def cut_socket(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """The long connection is cut in the middle of an answer, and somebody asks while it is away."""
    async with played(folder, name, **options) as stage:
        first = await stage.ask()
        await asyncio.sleep(0.5)
        cutting = asyncio.create_task(stage.cut())
        await asyncio.sleep(0.05)
        second = await stage.ask()
        back_s = await cutting
        await stage.watch([first, second], 90.0)
        return stage.check([first, second]) | {"back s": round(back_s, 1)}


async def three_times(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """Every event comes three times: twice while it is answered, once after."""
    async with played(folder, name, **options) as stage:
        asked = [await stage.ask(twice=True) for _ in range(2)]
        await stage.watch(asked)
        for one in asked:
            await stage.sandbox.redeliver(one.sent)
        await asyncio.sleep(0.5)
        return stage.check(asked)

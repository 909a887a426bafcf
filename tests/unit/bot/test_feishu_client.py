"""The REST client and the adapter on a scripted wire: codes, tokens, pauses, identity, signs of life."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bot.config import FeishuBotConfig
from bot.domain.types import ReplyTarget
from bot.errors import (
    Ambiguous,
    FallBack,
    GiveUp,
    PlatformError,
    RetryLater,
    TargetGone,
)
from bot.platforms.budget import MemoryBudget
from bot.platforms.feishu import FeishuAdapter, open_adapter
from bot.platforms.feishu.client import Call, FeishuClient, chat_limit
from bot.platforms.feishu.errors import (
    CardKitRefused,
    CardLost,
    MonthSpent,
    NoThreadReply,
    NotReplyable,
    SequenceStale,
    SlowDown,
    StreamingOff,
    TokenRefused,
    TooBig,
    judge,
)
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp
from bot.platforms.limits import Limit, RateLimiter


def answer(body: Any, status: int = 200, **headers: str) -> HttpAnswer:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return HttpAnswer(status, named, json.dumps(body).encode())


class Wire(SharedHttp):
    """Answers from a script by path ending; otherwise everything succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[HttpRequest] = []
        self.script: dict[str, list[HttpAnswer | Exception]] = defaultdict(list)
        self.tokens = 0

    async def _move(self, request: HttpRequest) -> HttpAnswer:
        self.sent.append(request)
        for ending, answers in self.script.items():
            if request.url.endswith(ending) and answers:
                scripted = answers.pop(0)
                if isinstance(scripted, Exception):
                    raise scripted
                return scripted
        if request.url.endswith("/tenant_access_token/internal"):
            self.tokens += 1
            return answer({"code": 0, "tenant_access_token": f"t-{self.tokens}", "expire": 7200})
        if request.url.endswith("/bot/v3/info"):
            return answer({"code": 0, "msg": "ok", "bot": {"open_id": "ou_bot"}})
        return answer({"code": 0, "data": {"reaction_id": "r1", "message_id": "om_2"}})

    def paths(self) -> list[str]:
        return [request.url.partition("/open-apis")[2] for request in self.sent]


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def client(wire: Wire) -> FeishuClient:
    return FeishuClient("http://127.0.0.1:1", "cli_1", "secret", wire, MemoryBudget(0))


PING = Call("ping", "GET", "/open-apis/ping")


# -- codes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (99991663, TokenRefused), (99991665, TokenRefused), (99991672, CardKitRefused), (10015, GiveUp), (99991401, GiveUp),
        (99991400, SlowDown), (230020, SlowDown), (11232, SlowDown), (99991403, MonthSpent), (230049, RetryLater), (18121, RetryLater),
        (230011, TargetGone), (231003, TargetGone), (230110, TargetGone), (230019, TargetGone), (232009, TargetGone), (230002, TargetGone),
        (230025, TooBig), (230022, GiveUp), (230028, GiveUp), (230035, GiveUp), (230001, FallBack), (230054, FallBack),
        (230071, NoThreadReply), (230072, NotReplyable), (300317, SequenceStale), (300309, StreamingOff), (200850, StreamingOff),
        (200510, StreamingOff), (200810, RetryLater), (200860, TooBig), (300305, TooBig), (200740, CardLost), (200750, CardLost),
        (300311, CardLost), (300302, FallBack), (10002, FallBack), (300120, RetryLater), (123456, FallBack),
    ],
)  # fmt: skip
def test_codes(number: int, kind: type[PlatformError]) -> None:
    error = judge("x", 400, {}, {"code": number, "msg": ""})
    assert type(error) is kind
    assert error.code == number


@pytest.mark.parametrize(
    ("msg", "kind"),
    [
        ("ErrCode: 11310; ErrMsg: card table number over limit", TooBig),
        ("ErrCode: 11310; ErrMsg: card action is lock", RetryLater),
        ("ErrCode: 11310; ErrMsg: cardid is invalid", CardLost),
        ("ErrCode: 100290; ErrMsg: invalid user", FallBack),
        ("ErrCode: 200570; bad image key", FallBack),
        ("ErrCode: 200860; too big", TooBig),
        ("nothing known", FallBack),
    ],
)
def test_what_is_inside_230099(msg: str, kind: type[PlatformError]) -> None:
    assert type(judge("x", 400, {}, {"code": 230099, "msg": msg})) is kind


def test_done_is_not_an_error() -> None:
    assert judge("x", 200, {}, {"code": 0}) is None
    assert judge("x", 400, {}, {"code": 200770}) is None


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [(502, None, RetryLater), (503, None, RetryLater), (504, None, Ambiguous), (500, {}, Ambiguous), (200, None, Ambiguous),
     (429, None, SlowDown), (404, None, GiveUp), (403, None, RetryLater), (302, None, RetryLater), (500, {"code": 777}, RetryLater), (429, {"code": 777}, SlowDown)],
)  # fmt: skip
def test_answers_without_a_known_code(
    status: int, body: dict[str, Any] | None, kind: type[PlatformError]
) -> None:
    assert type(judge("x", status, {}, body)) is kind


@pytest.mark.parametrize(
    ("header", "after_s"), [("7", 7.0), ("", 1.0), ("x", 1.0), ("9999", 60.0), ("-3", 0.1)]
)
def test_how_long_a_rate_limit_lasts(header: str, after_s: float) -> None:
    error = judge("x", 429, {"x-ogw-ratelimit-reset": header}, {"code": 99991400})
    assert isinstance(error, SlowDown)
    assert error.after_s == after_s


# -- the client -------------------------------------------------------------------------------------------------------
async def test_an_invalid_token_is_replaced_once(wire: Wire, client: FeishuClient) -> None:
    wire.script["/ping"] = [answer({"code": 99991663}, 400)]
    await client.call(PING)
    used = [
        request.headers.get("Authorization")
        for request in wire.sent
        if request.url.endswith("/ping")
    ]
    assert used == ["Bearer t-1", "Bearer t-2"]
    wire.script["/ping"] = [answer({"code": 99991663}, 400)] * 3
    with pytest.raises(RetryLater):
        await client.call(PING)
    assert len(wire.script["/ping"]) == 1
    await client.tokens.close()


async def test_a_wrong_secret_is_said_and_gives_up(wire: Wire, client: FeishuClient) -> None:
    wire.script["/internal"] = [answer({"code": 10015, "msg": "app secret invalid"}, 400)]
    with pytest.raises(GiveUp):
        await client.call(PING)
    wire.script["/internal"] = [answer({"code": 0})]
    with pytest.raises(RetryLater):
        await client.call(PING)
    await client.tokens.close()


async def test_a_full_chat_does_not_slow_the_others(wire: Wire, client: FeishuClient) -> None:
    send = Call("send", "POST", "/open-apis/a", limits=(chat_limit("a"),), max_wait_s=0.5)
    wire.script["/a"] = [answer({"code": 230020}, 400, x_ogw_ratelimit_reset="30")]
    with pytest.raises(SlowDown):
        await client.call(send)
    with pytest.raises(RetryLater) as refused:
        await client.call(send)
    assert refused.value.after_s == pytest.approx(30, abs=1)
    await client.call(
        Call("send", "POST", "/open-apis/b", limits=(chat_limit("b"),), max_wait_s=0.5)
    )
    wire.script["/b"] = [answer({"code": 99991400}, 429, x_ogw_ratelimit_reset="30")]
    with pytest.raises(SlowDown):
        await client.call(
            Call("send", "POST", "/open-apis/b", limits=(chat_limit("b"),), max_wait_s=0.5)
        )
    with pytest.raises(RetryLater):
        await client.call(
            Call("send", "POST", "/open-apis/c", limits=(chat_limit("c"),), max_wait_s=0.5)
        )
    await client.call(Call("other", "POST", "/open-apis/d", max_wait_s=0.5))
    await client.tokens.close()


# -- the adapter ------------------------------------------------------------------------------------------------------
def adapter_on(wire: Wire, **more: Any) -> FeishuAdapter:
    config = FeishuBotConfig(
        platform="feishu", app_id="cli_1", app_secret="s", encrypt_key="k", verification_token="v",
        api_base="http://127.0.0.1:1", **more,
    )  # fmt: skip
    return open_adapter("feishu", config, wire, MemoryBudget(config.monthly_calls))


def target(age: timedelta = timedelta(0), reply_to: str = "om_1") -> ReplyTarget:
    return ReplyTarget(
        "cli_1", "oc_1", reply_to, {"sent_at": (datetime.now(UTC) - age).isoformat()}
    )


async def test_the_identity_is_learnt_once(wire: Wire) -> None:
    adapter = adapter_on(wire)
    await adapter.start()
    assert adapter.health()["identity"] == "known"
    await asyncio.sleep(0.05)
    assert wire.paths().count("/bot/v3/info") == 1
    await adapter.close()


async def test_a_platform_that_is_down_does_not_stop_the_start(wire: Wire) -> None:
    wire.script["/bot/v3/info"] = [HttpAnswer(502, {}, b"<html>"), ConnectionResetError()]
    adapter = adapter_on(wire)
    await adapter.start()
    assert adapter.health()["identity"] == "unknown"
    assert "error" in adapter.health()
    async with asyncio.timeout(30):
        while adapter.health()["identity"] == "unknown":
            await asyncio.sleep(0.02)
    assert "error" not in adapter.health()
    await adapter.close()


async def test_it_can_be_closed_while_the_platform_hangs(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: HttpRequest) -> HttpAnswer:
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(wire, "_move", hang)
    monkeypatch.setattr("bot.platforms.feishu.adapter._IDENTITY_WAIT_S", 0.01)
    adapter = adapter_on(wire)
    await adapter.start()
    await adapter.close()
    leftover = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert leftover == []


async def test_a_sign_of_life_comes_and_goes(wire: Wire) -> None:
    adapter = adapter_on(wire)
    token = await adapter.show_alive(target())
    assert token == "r1"
    assert wire.sent[-1].body == {"reaction_type": {"emoji_type": "Typing"}}
    wire.script["/reactions/r1"] = [HttpAnswer(502, {}, b"")]
    await adapter.clear_alive(target(), token)
    assert wire.paths()[-2:] == ["/im/v1/messages/om_1/reactions/r1"] * 2
    await adapter.close()


async def test_no_sign_of_life_where_it_would_only_disturb(wire: Wire) -> None:
    adapter = adapter_on(wire, monthly_calls=10)
    assert await adapter.show_alive(target(timedelta(minutes=3))) == ""
    assert await adapter.show_alive(target(reply_to="")) == ""
    for _ in range(10):
        adapter.client.budget.count()
    assert await adapter.show_alive(target()) == ""
    await adapter.clear_alive(target(), "")
    assert wire.sent == []
    await adapter.close()


@pytest.mark.parametrize(
    "fault",
    [answer({"code": 231003}, 400), answer({"code": 99991672}, 400), ConnectionResetError()],
)
async def test_a_failing_sign_of_life_is_no_error(
    wire: Wire, fault: HttpAnswer | Exception
) -> None:
    adapter = adapter_on(wire)
    wire.script["/reactions"] = [fault]
    assert await adapter.show_alive(target()) == ""
    wire.script["/reactions/r1"] = [fault]
    await adapter.clear_alive(target(), "r1")
    await adapter.close()


def test_a_button_is_answered_by_a_toast_only(wire: Wire) -> None:
    adapter = adapter_on(wire)
    assert adapter.button_reply("Stopped.").body == {
        "toast": {"type": "info", "content": "Stopped."}
    }
    assert adapter.button_reply("").body == {}


async def test_health_names_the_trouble_of_now_and_forgets_it(wire: Wire) -> None:
    adapter = adapter_on(wire)
    await adapter.start()
    assert "error" not in adapter.health()
    wire.script["/om_1/reactions"] = [
        OSError("cut"),
        answer({"code": 99991403}, 429),
        answer({"code": 230011}, 400),
    ]
    await adapter.show_alive(target())
    assert "connection lost" in adapter.health()["error"]
    await adapter.show_alive(target())
    assert "the month's calls are used up" in adapter.health()["error"]
    assert adapter.health()["cards"] == "spared"
    with pytest.raises(TargetGone):  # one message's own matter: neither trouble nor its end
        await adapter.api.add_reaction("om_1", "Typing")
    assert "the month's calls are used up" in adapter.health()["error"]
    await adapter.api.add_reaction("om_1", "Typing")
    assert "error" not in adapter.health()
    await adapter.close()


async def test_targets_that_are_idle_are_forgotten() -> None:
    now = 1000.0

    async def sleep(seconds: float) -> None:
        raise AssertionError(f"nothing had to wait, not even {seconds} s")

    limiter = RateLimiter(clock=lambda: now, sleep=sleep)
    for n in range(200):
        await limiter.acquire((Limit(f"chat:{n}", 3.5, 1.0),))
        limiter.pause(f"chat:{n}", 5.0)
    assert limiter.size == 400
    now += 61.0
    await limiter.acquire((Limit("chat:0", 3.5, 1.0),))
    assert limiter.size == 1

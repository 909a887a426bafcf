"""The way out and the adapter on a scripted wire: codes, tokens, pauses, registration, health."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from bot.config import DingTalkBotConfig
from bot.domain.types import InboundEvent, InboundMessage, ReplyTarget, Unreadable
from bot.errors import (
    Ambiguous,
    FallBack,
    GiveUp,
    PlatformError,
    Rejected,
    RetryLater,
    TargetGone,
)
from bot.platforms.base import WebhookRequest
from bot.platforms.budget import MemoryBudget
from bot.platforms.dingtalk import DingTalkAdapter, crypto, open_adapter
from bot.platforms.dingtalk.client import Call, DingTalkClient, chat_limits
from bot.platforms.dingtalk.errors import (
    Blocked,
    CardExists,
    CardRefused,
    MonthSpent,
    NotDingTalk,
    SessionEnded,
    SlowDown,
    TokenRefused,
    TooBig,
    judge,
    judge_session,
)
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp
from bot.platforms.limits import Limit, RateLimiter


def answer(body: Any, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {}, json.dumps(body).encode())


class Wire(SharedHttp):
    """Answers from a script by path ending; otherwise everything succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[HttpRequest] = []
        self.script: dict[str, list[HttpAnswer | Exception]] = defaultdict(list)
        self.tokens = 0

    async def _move(self, request: HttpRequest) -> HttpAnswer:
        self.sent.append(request)
        await asyncio.sleep(0)
        for ending, answers in self.script.items():
            if request.url.partition("?")[0].endswith(ending) and answers:
                found = answers.pop(0)
                if isinstance(found, Exception):
                    raise found
                return found
        if request.url.endswith("/accessToken"):
            self.tokens += 1
            return answer({"accessToken": f"t{self.tokens}", "expireIn": 7200})
        return answer({"errcode": 0, "success": True})

    def paths(self) -> list[str]:
        return [request.url.rpartition("/")[2] for request in self.sent]


def client(wire: Wire, monthly_calls: int = 0) -> DingTalkClient:
    bases = ("https://api.dingtalk.com", "https://oapi.dingtalk.com")
    return DingTalkClient(bases, "ding1", "s3cret", wire, MemoryBudget(monthly_calls))


PING = Call("ping", "POST", "/v1.0/ping", {})
DENIED = "Forbidden.AccessDenied."
TABLE: list[tuple[int, dict[str, Any], type[PlatformError] | None]] = [
    (200, {}, None),
    (200, {"success": True}, None),
    (200, {"errcode": 0, "errmsg": "ok"}, None),
    (400, {"code": "InvalidAuthentication"}, TokenRefused),
    (401, {"code": "whatever"}, TokenRefused),
    (400, {"code": "invalidClientIdOrSecret"}, GiveUp),
    (403, {"code": DENIED + "IpNotInWhiteList"}, GiveUp),
    (403, {"code": DENIED + "QpsLimitForAppkeyAndApi"}, SlowDown),
    (403, {"code": DENIED + "QpmLimitForAppkeyAndApi"}, SlowDown),
    (403, {"code": DENIED + "QpsLimitForApi"}, SlowDown),
    (403, {"code": DENIED + "ApiCountLimitForOrg"}, MonthSpent),
    (200, {"errcode": 88}, TokenRefused),
    (200, {"errcode": 40014}, TokenRefused),
    (200, {"errcode": 42001}, TokenRefused),
    (200, {"errcode": 90018}, SlowDown),
    (200, {"errcode": 90002}, SlowDown),
    (200, {"errcode": 90020}, MonthSpent),
    (200, {"errcode": 130101}, SlowDown),
    (200, {"errcode": 410100}, SlowDown),
    (200, {"errcode": 460101}, TooBig),
    (200, {"errcode": 430104}, GiveUp),
    (200, {"errcode": 310000}, FallBack),
    (200, {"errcode": -1}, RetryLater),
    (429, {"code": "x"}, SlowDown),
    (500, {"code": "unknownError"}, Ambiguous),
    (503, {"code": "ServiceUnavailable"}, RetryLater),
    (400, {"code": "system.busy"}, RetryLater),
    (403, {"code": "forbidden", "message": "card concurrency protection"}, RetryLater),
    (200, {"status": 1111, "punish": "deny"}, Blocked),
    (400, {"code": "cardAlreadyExist"}, CardExists),
    (400, {"code": "param.templateNotExist"}, CardRefused),
    (400, {"code": "templateUnpublished"}, CardRefused),
    (400, {"code": "contentUnsafe"}, GiveUp),
    (400, {"code": "param.stream.content"}, TooBig),
    (400, {"code": "param.stream.contentEmpty"}, FallBack),
    (400, {"code": "param.stream.outTrackId"}, FallBack),
    (400, {"code": "invalidParameter.msgParam.tooLong"}, TooBig),
    (400, {"code": "send.too.fast"}, SlowDown),
    (400, {"code": "send.byToken.tooFast"}, SlowDown),
    (400, {"code": "staffId.notExisted"}, TargetGone),
    (400, {"code": "bot.stopped"}, GiveUp),
    (400, {"code": "chatbotId.notAllow.sendOTO"}, GiveUp),
    (404, {"message": "x"}, FallBack),
    (200, {"code": []}, FallBack),
    (200, {"errcode": {"a": 1}}, FallBack),
]


@pytest.mark.parametrize(("status", "body", "kind"), TABLE)
def test_the_table(status: int, body: dict[str, Any], kind: type[PlatformError] | None) -> None:
    error = judge("x", status, body)
    assert type(error) is (kind or type(None))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, Ambiguous), (302, NotDingTalk), (403, Blocked), (404, NotDingTalk), (413, TooBig), (429, SlowDown),
        (500, Ambiguous), (502, RetryLater), (503, RetryLater), (504, Ambiguous),
    ],
)  # fmt: skip
def test_answers_that_are_no_json(status: int, kind: type[PlatformError]) -> None:
    assert type(judge("x", status, None)) is kind


def test_a_missing_scope_is_named() -> None:
    body = {"code": DENIED + "AccessTokenPermissionDenied", "accessdenieddetail": {"requiredScopes": ["Card.Streaming.Write"]}}  # fmt: skip
    error = judge("card_stream", 403, body)
    assert isinstance(error, CardRefused)
    assert "Card.Streaming.Write" in str(error)
    assert isinstance(judge("group_send", 403, body), GiveUp)
    assert isinstance(judge("group_send", 403, {**body, "accessdenieddetail": "?"}), GiveUp)


def test_a_session_needs_no_token() -> None:
    assert isinstance(judge_session(200, {"errcode": 300001}), SessionEnded)
    assert isinstance(judge_session(200, {"errcode": 40014}), SessionEnded)
    assert isinstance(judge_session(404, None), NotDingTalk)
    assert judge_session(200, {"errcode": 0}) is None
    assert isinstance(judge_session(200, {"success": False}), Ambiguous)


# -- tokens -------------------------------------------------------------------------------------------------------------
async def test_one_token_for_all_who_wait() -> None:
    wire = Wire()
    ours = client(wire)
    await asyncio.gather(*(ours.call(PING) for _ in range(5)))
    assert wire.tokens == 1
    assert ours.budget.told() == "5"


async def test_a_refused_token_is_replaced_once() -> None:
    wire = Wire()
    ours = client(wire)
    wire.script["/ping"] = [answer({"code": "InvalidAuthentication"}, 400)]
    await ours.call(PING)
    assert wire.tokens == 2
    wire.script["/ping"] = [answer({"code": "InvalidAuthentication"}, 400)] * 2
    with pytest.raises(RetryLater):
        await ours.call(PING)
    assert wire.tokens == 3


@pytest.mark.parametrize("status", [400, 401])
async def test_a_wrong_secret_is_said_without_telling_it(status: int) -> None:
    wire = Wire()
    ours = client(wire)
    wire.script["/accessToken"] = [answer({"code": "invalidClientIdOrSecret"}, status)]
    with pytest.raises(GiveUp, match="client_id or client_secret is wrong") as caught:
        await ours.call(PING)
    assert "s3cret" not in str(caught.value)
    assert ours.trouble


async def test_a_token_without_a_token() -> None:
    wire = Wire()
    wire.script["/accessToken"] = [answer({"expireIn": 7200})]
    with pytest.raises(RetryLater):
        await client(wire).call(PING)


async def test_a_machine_that_is_shut_out_calls_nothing_for_five_minutes() -> None:
    wire, clock = Wire(), 0.0
    ours = client(wire)
    ours.limiter = RateLimiter(clock=lambda: clock)
    wire.script["/ping"] = [answer({"status": 1111, "punish": "deny"}, 403)]
    with pytest.raises(Blocked):
        await ours.call(PING)
    clock, n_sent = 280.0, len(wire.sent)
    with pytest.raises(SlowDown):
        await ours.call(Call("pong", "POST", "/v1.0/pong", {}))
    with pytest.raises(SlowDown):
        await ours.post_session(
            "https://oapi.dingtalk.com/robot/sendBySession?session=s", {}, "cid"
        )
    assert len(wire.sent) == n_sent
    clock = 301.0
    await ours.call(PING)


async def test_a_page_instead_of_a_token_judges_nobody() -> None:
    wire = Wire()
    wire.script["/accessToken"] = [HttpAnswer(status, {}, b"<html>") for status in (302, 404, 403)]
    for _ in range(3):
        with pytest.raises(RetryLater):
            await client(wire).call(PING)


# -- limits -------------------------------------------------------------------------------------------------------------
async def test_a_rate_limit_pauses_its_api_alone() -> None:
    wire = Wire()
    ours = client(wire)
    clock = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    ours.limiter = RateLimiter(clock=lambda: clock, sleep=sleep)
    wire.script["/ping"] = [answer({"code": "QpsLimitForApi"}, 403)]
    with pytest.raises(SlowDown):
        await ours.call(PING)
    assert ours.budget.told() == "0"
    await ours.call(Call("pong", "POST", "/v1.0/pong", {}))
    assert clock < 1.0
    await ours.call(PING)
    assert clock >= 2.0
    ours.limiter.pause("api:ping", 50.0)
    with pytest.raises(SlowDown):
        await ours.call(PING)


async def test_a_shut_out_machine_rests() -> None:
    wire = Wire()
    ours = client(wire)
    wire.script["/ping"] = [answer({"status": 1111, "punish": "deny"})]
    with pytest.raises(Blocked):
        await ours.call(PING)
    with pytest.raises(SlowDown):
        await ours.call(Call("pong", "POST", "/v1.0/pong", {}))


async def test_never_more_than_ten_calls_a_second() -> None:
    clock = 0.0
    went: list[float] = []

    async def sleep(seconds: float) -> None:
        went.append(clock + seconds)

    wire = Wire()
    ours = client(wire)
    ours.limiter = RateLimiter(clock=lambda: clock, sleep=sleep)
    for _ in range(40):
        await ours.call(PING)
    times = [0.0] * (40 - len(went)) + went
    assert max(sum(at <= other < at + 1.0 for other in times) for at in times) <= 10


async def test_never_more_than_twenty_messages_a_minute_to_one_chat() -> None:
    limits: tuple[Limit, ...] = chat_limits("cid")
    assert {limit.target for limit in limits} == {"chat:cid"}
    assert min(limit.burst + limit.rate_per_s * 60 for limit in limits) <= 20


async def test_the_month_is_remembered() -> None:
    wire = Wire()
    ours = client(wire, 100)
    wire.script["/ping"] = [answer({"code": "ApiCountLimitForOrg"}, 403)]
    with pytest.raises(MonthSpent):
        await ours.call(PING)
    assert ours.budget.calls_left() == 0.0


# -- the adapter --------------------------------------------------------------------------------------------------------
def adapter(wire: Wire, **config: Any) -> DingTalkAdapter:
    settings = {"platform": "dingtalk", "client_id": "ding1", "client_secret": "s3cret", "mode": "webhook", **config}  # fmt: skip
    return open_adapter("ding", DingTalkBotConfig(**settings), wire, MemoryBudget(100))


async def test_clicks_are_registered_until_it_succeeds() -> None:
    wire = Wire()
    wire.script["/register"] = [answer({"code": "system.busy"}, 503)]
    ours = adapter(wire, card_callback_url="https://bot.example/webhook/ding/card", card_template="t.schema")  # fmt: skip
    assert ours.health()["buttons"]
    await ours.start()
    for _ in range(400):
        if "buttons" not in ours.health():
            break
        await asyncio.sleep(0.01)
    await ours.close()
    body = next(dict(r.body or {}) for r in wire.sent if r.url.endswith("/register"))
    assert body["callbackUrl"] == "https://bot.example/webhook/ding/card"
    assert body["apiSecret"] == crypto.own_card_secret("s3cret")
    assert body["forceUpdate"] is True
    assert wire.paths().count("register") == 2


async def test_a_stream_takes_no_webhooks() -> None:
    ours = adapter(Wire(), mode="stream")
    with pytest.raises(Rejected) as refusal:
        ours.receive(WebhookRequest("POST", {}, {}, b"{}"))
    assert refusal.value.status == 404
    assert "deaf_since" in ours.health()
    await ours.close()


def genuine(body: dict[str, Any]) -> WebhookRequest:
    now = str(int(datetime.now(UTC).timestamp() * 1000))
    headers = {"timestamp": now, "sign": crypto.robot_signature(now, "s3cret")}
    return WebhookRequest("POST", headers, {}, json.dumps(body).encode())


def test_a_spent_quota_is_told_until_messages_have_content_again() -> None:
    ours = adapter(Wire())
    message = {"msgId": "m", "conversationId": "c", "senderId": "s", "msgtype": "text"}
    events: tuple[InboundEvent, ...] = ours.receive(genuine({**message, "errorCode": 20001})).events
    assert isinstance(events[0], Unreadable)
    assert "quota" in ours.health()["error"]
    events = ours.receive(genuine({**message, "text": {"content": "x"}})).events
    assert isinstance(events[0], InboundMessage)
    assert "error" not in ours.health()


async def test_small_things() -> None:
    ours = adapter(Wire(), robot_name="小助手")
    assert (ours.display_name, ours.app_id, ours.platform) == ("小助手", "ding1", "dingtalk")
    target = ReplyTarget("ding1", "c", "m")
    assert await ours.show_alive(target) == ""
    assert await ours.find_alive(target) == ""
    await ours.clear_alive(target, "")
    assert ours.button_reply("toast").body == {}
    health = ours.health()
    assert health["cards"] == "no card_template is configured"
    assert health["calls_this_month"] == "0 of 100"
    assert "s3cret" not in repr(ours.config) + str(health)

"""How an answer grows in DingTalk, against a scripted wire: only the moving of bytes is replaced, all mapping is real.

The wire keeps what people would see: cards with what they show, and messages.
"""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bot.config import DingTalkBotConfig
from bot.domain.types import Outcome, PartState, ReplyPart, ReplyTarget
from bot.errors import Ambiguous, GiveUp, RetryLater, TargetGone
from bot.platforms.base import Button, ReplyView
from bot.platforms.budget import MemoryBudget
from bot.platforms.dingtalk.api import DingTalkApi
from bot.platforms.dingtalk.client import DingTalkClient
from bot.platforms.dingtalk.desk import ReplyDesk
from bot.platforms.dingtalk.errors import SlowDown
from bot.platforms.dingtalk.reply import DingTalkReply
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp
from bot.platforms.limits import RateLimiter

STOP, AGAIN = Button("stop", "停止"), Button("regenerate", "重新回答")
API, OAPI = "https://api.dingtalk.com", "https://oapi.dingtalk.com"
NAMES = {
    "POST /v1.0/oauth2/accessToken": "token",
    "POST /v1.0/card/instances/createAndDeliver": "create",
    "PUT /v1.0/card/streaming": "stream",
    "PUT /v1.0/card/instances": "put",
    "POST /v1.0/robot/groupMessages/send": "group",
    "POST /v1.0/robot/oToMessages/batchSend": "person",
    "POST /robot/sendBySession": "session",
}
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def refusal(code: str, status: int = 400, **more: Any) -> HttpAnswer:
    return HttpAnswer(status, {}, json.dumps({"code": code, "message": "no", **more}).encode())


def errcode(number: int) -> HttpAnswer:
    return HttpAnswer(200, {}, json.dumps({"errcode": number, "errmsg": "no"}).encode())


@dataclass
class Card:
    shown: str
    buttons: list[str]
    state: str = "processing"
    params: dict[str, str] = field(default_factory=dict)
    frames: list[str] = field(default_factory=list)


def labels(raw: str) -> list[str]:
    return [button["event"]["params"]["actionId"] for button in json.loads(raw)]


class Wire(SharedHttp):
    """DingTalk in miniature. `faults[name]` are answers or exceptions for the next calls of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.faults: dict[str, list[HttpAnswer | Exception]] = defaultdict(list)
        # Done, but the answer is lost on the way.
        self.lost: dict[str, int] = defaultdict(int)
        self.cards: dict[str, Card] = {}
        self.messages: list[str] = []
        self.guids: dict[str, str] = {}

    async def _move(self, request: HttpRequest) -> HttpAnswer:
        path = request.url.removeprefix(API).removeprefix(OAPI).partition("?")[0]
        name = NAMES[f"{request.method} {path}"]
        body = dict(request.body or {})
        if name not in {"token", "session"}:
            assert request.headers["x-acs-dingtalk-access-token"] == "t1"
        self.names.append(name)
        self.bodies.append(body)
        if self.faults[name]:
            fault = self.faults[name].pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        answer = getattr(self, f"play_{name}")(body)
        if self.lost[name]:
            self.lost[name] -= 1
            raise TimeoutError
        if isinstance(answer, HttpAnswer):
            return answer
        return HttpAnswer(200, {}, json.dumps(answer).encode())

    def play_token(self, body: dict[str, Any]) -> Any:
        return {"accessToken": "t1", "expireIn": 7200}

    def play_create(self, body: dict[str, Any]) -> Any:
        assert body["cardTemplateId"] == "t.schema"
        params = body["cardData"]["cardParamMap"]
        assert all(isinstance(value, str) for value in params.values())
        if body["outTrackId"] in self.cards:
            return refusal("cardAlreadyExist")
        made = Card(params["content"], labels(params.get("buttons", "[]")), params=dict(params))
        self.cards[body["outTrackId"]] = made
        space = body["openSpaceId"]
        delivered = {"spaceType": "X", "spaceId": space, "success": True, "carrierId": "carrier"}
        return {"success": True, "result": {"outTrackId": "x", "deliverResults": [delivered]}}

    def play_stream(self, body: dict[str, Any]) -> Any:
        if body["guid"] in self.guids:
            assert self.guids[body["guid"]] == body["content"]
            return {"success": True, "result": True}
        self.guids[body["guid"]] = body["content"]
        assert body["isFull"] is True
        assert body["content"]
        card = self.cards.get(body["outTrackId"])
        if card is None:
            return refusal("param.stream.outTrackId")
        if card.state == "finished":
            return refusal("card.finished")
        card.shown = body["content"]
        card.frames.append(body["content"])
        card.state = "finished" if body["isFinalize"] else "inputting"
        return {"success": True, "result": True}

    def play_put(self, body: dict[str, Any]) -> Any:
        assert body["cardUpdateOptions"] == {"updateCardDataByKey": True}
        card = self.cards[body["outTrackId"]]
        params = body["cardData"]["cardParamMap"]
        card.params.update(params)
        card.shown = params.get("content", card.shown)
        card.buttons = labels(params["buttons"]) if "buttons" in params else card.buttons
        return {"success": True, "result": True}

    def play_session(self, body: dict[str, Any]) -> Any:
        what = body[body["msgtype"]]
        self.messages.append(what.get("text") or what["content"])
        return {"errcode": 0, "errmsg": "ok"}

    def play_group(self, body: dict[str, Any]) -> Any:
        param = json.loads(body["msgParam"])
        self.messages.append(param.get("text") or param["content"])
        return {"processQueryKey": "q1"}

    play_person = play_group


class Ledger:
    def __init__(self, turn_id: str = "turn1") -> None:
        self.turn_id = turn_id
        self._parts: dict[int, ReplyPart] = {}
        self.states: list[tuple[int, PartState]] = []

    def parts(self) -> tuple[ReplyPart, ...]:
        return tuple(self._parts[n] for n in sorted(self._parts))

    async def save(self, part: ReplyPart) -> None:
        self._parts[part.n] = part
        self.states.append((part.n, part.state))


class World:
    """A desk whose clock and calendar the test moves."""

    def __init__(self, **config: Any) -> None:
        self.wire = Wire()
        self.now = NOW
        self.clock = 1000.0
        settings: dict[str, Any] = {
            "platform": "dingtalk", "client_id": "ding1", "client_secret": "secret", "card_template": "t.schema",
            "card_buttons_key": "buttons", **config,
        }  # fmt: skip
        self.config = DingTalkBotConfig(**settings)
        self.budget = MemoryBudget(self.config.monthly_calls, now=lambda: NOW)
        self.client = DingTalkClient((API, OAPI), "ding1", "secret", self.wire, self.budget)
        self.client.limiter = RateLimiter(clock=lambda: self.clock, sleep=self._sleep)
        self.desk = ReplyDesk(
            DingTalkApi(self.client), self.config, now=lambda: self.now, clock=lambda: self.clock
        )
        self.ledger = Ledger()

    async def _sleep(self, seconds: float) -> None:
        self.clock += seconds

    def target(self, **opaque: str) -> ReplyTarget:
        inside = {
            "kind": "group", "user": "ann", "nick": "安", "robot": "ding1", "webhook": f"{OAPI}/robot/sendBySession?session=s",
            "webhook_until": (NOW + timedelta(minutes=90)).isoformat(), **opaque,
        }  # fmt: skip
        return ReplyTarget("ding1", "cidA", "msg1", inside)

    def reply(self, **opaque: str) -> DingTalkReply:
        return DingTalkReply(self.desk, self.target(**opaque), self.ledger)

    @property
    def card(self) -> Card:
        (only,) = self.wire.cards.values()
        return only

    def calls(self) -> list[str]:
        return [name for name in self.wire.names if name != "token"]


def grow(text: str, rev: int = 1, **more: Any) -> ReplyView:
    return ReplyView(rev, text, **{"buttons": (STOP,), "possible_repeat": "(可能重复)", **more})


def done(text: str, rev: int = 99, outcome: Outcome = Outcome.COMPLETE, **more: Any) -> ReplyView:
    fields = {"buttons": (AGAIN,), "possible_repeat": "(可能重复)", "refused": "抱歉。", **more}
    return ReplyView(rev, text, outcome=outcome, **fields)


async def insist(world: World, reply: DingTalkReply, view: ReplyView) -> None:
    """As the streamer does: again after what may be repeated."""
    for _ in range(30):
        try:
            await (reply.show(view) if view.outcome is Outcome.GROWING else reply.finish(view))
        except RetryLater as error:
            world.clock += error.after_s
        except Ambiguous:
            world.clock += 1.0
        else:
            return
    raise AssertionError("never done")


# -- cards --------------------------------------------------------------------------------------------------------------
async def test_a_card_grows_and_closes() -> None:
    world = World()
    reply = world.reply()
    await reply.prepare()
    assert world.calls() == []
    await reply.show(grow("一\n二"))
    assert (world.card.shown, world.card.state) == ("一<br>二", "inputting")
    assert world.card.buttons == ["stop"]
    await reply.show(grow("一\n二", 2))
    await reply.show(grow("一\n二\n三", 3))
    await reply.finish(done("一\n二\n三\n四"))
    assert world.calls() == ["create", "stream", "stream", "stream", "put"]
    assert (world.card.shown, world.card.state) == ("一<br>二<br>三<br>四", "finished")
    assert world.card.params["content"] == "一<br>二<br>三<br>四"
    assert world.card.buttons == ["regenerate"]
    assert world.ledger.parts()[0].state is PartState.CLOSED
    await reply.finish(done("一\n二\n三\n四"))
    assert len(world.calls()) == 5
    assert world.desk.n_growing == 0


async def test_the_new_card_holds_nothing_of_the_answer() -> None:
    world = World()
    world.wire.faults["stream"] = [refusal("system.busy", 503)]
    with pytest.raises(RetryLater):
        await world.reply().show(grow("geheim"))
    assert world.card.shown == "…"
    body = next(b for b in world.wire.bodies if "cardTemplateId" in b)
    assert body["callbackType"] == "STREAM"
    assert body["openSpaceId"] == "dtv1.card//IM_GROUP.cidA"
    assert body["imGroupOpenDeliverModel"]["robotCode"] == "ding1"
    assert body["imGroupOpenDeliverModel"]["atUserIds"] == {"ann": "安"}


async def test_a_card_in_a_chat_of_two() -> None:
    world = World(mode="webhook", card_callback_url="https://bot.example/webhook/ding/card")
    await world.reply(kind="direct").show(grow("x"))
    body = next(b for b in world.wire.bodies if "cardTemplateId" in b)
    assert body["openSpaceId"] == "dtv1.card//IM_ROBOT.ann"
    assert body["imRobotOpenDeliverModel"]["spaceType"] == "IM_ROBOT"
    assert body["imRobotOpenDeliverModel"]["robotCode"] == "ding1"
    assert body["callbackType"] == "HTTP"
    assert body["callbackRouteKey"] == world.desk.route_key


async def test_without_a_way_back_a_card_has_no_buttons() -> None:
    world = World(mode="webhook")
    await world.reply().show(grow("x"))
    assert world.card.buttons == []
    assert "callbackType" not in world.wire.bodies[-2]


async def test_a_status_gives_way_to_the_answer() -> None:
    world = World()
    reply = world.reply()
    await reply.show(grow("", status="第 3 位"))
    assert world.card.shown == "第 3 位"
    await reply.show(grow("答", 2))
    assert world.card.shown == "答"


async def test_templates_with_a_flow_status() -> None:
    world = World(card_flow_status=True, card_buttons_key="")
    reply = world.reply()
    await reply.show(grow("x"))
    assert world.card.params["flowStatus"] == "2"
    await reply.finish(done("xy"))
    assert world.card.params["flowStatus"] == "3"


async def test_the_prebuilt_template_gets_its_copy() -> None:
    world = World(card_content_key="msgContent")
    world.wire.play_create = lambda body: {
        "success": True,
        "result": {"deliverResults": [{"success": True}]},
    }  # type: ignore[method-assign]
    world.wire.play_stream = world.wire.play_put = lambda body: {"success": True}  # type: ignore[method-assign]
    reply = world.reply()
    await reply.show(grow("x"))
    await reply.finish(done("xy"))
    params = world.wire.bodies[-1]["cardData"]["cardParamMap"]
    assert params["msgContent"] == params["staticMsgContent"] == "xy"


@pytest.mark.parametrize("documented", [True, False])
async def test_a_long_answer_goes_on_in_the_next_card_and_then_in_messages(
    documented: bool,
) -> None:
    world = World(documented=documented)
    reply = world.reply()
    text = "".join(f"第{n}段，" + "很长的一段话。" * 20 + "\n\n" for n in range(90)).strip()
    for end in range(500, len(text), 700):
        await insist(world, reply, grow(text[:end], end))
        assert world.wire.messages == []
    await insist(world, reply, done(text, 10**6))
    cards = list(world.wire.cards.values())
    assert len(cards) == 3
    assert [card.state for card in cards] == ["finished"] * 3
    assert max(len(card.shown) for card in cards) <= (1000 if documented else 2500)
    if documented:
        assert max(len(frame.encode()) for card in cards for frame in card.frames) <= 1000
    shown = "".join([card.shown for card in cards] + world.wire.messages)
    assert shown.replace("\n", "") == text.replace("\n", "")
    assert len(world.wire.messages) >= 1


@pytest.mark.parametrize("name", ["create", "stream", "put"])
@pytest.mark.parametrize(
    "fault",
    [
        refusal("system.busy", 503),
        refusal("Forbidden.AccessDenied.QpsLimitForAppkeyAndApi", 403),
        refusal("Forbidden.concurrency", 403, message="concurrent update"),
        refusal("InvalidAuthentication", 401),
        HttpAnswer(502, {}, b"<html>"),
        HttpAnswer(500, {}, b""),
        TimeoutError(),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
async def test_any_fault_ends_in_one_whole_answer(name: str, fault: Any, times: int) -> None:
    world = World()
    world.wire.faults[name] = [fault] * times
    reply = world.reply()
    for rev, text in enumerate(["one", "one two"], 1):
        await insist(world, reply, grow(text, rev))
    await insist(world, reply, done("one two three"))
    assert (world.card.shown, world.card.state) == ("one two three", "finished")
    assert world.wire.messages == []


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("name", ["create", "stream", "put"])
async def test_answers_that_are_lost(name: str, restart: bool) -> None:
    """Done, but the answer to the call did not arrive; perhaps the process dies, too."""
    world = World()
    reply = world.reply()
    if name != "create":
        await reply.show(grow("one"))
    world.wire.lost[name] = 1
    with pytest.raises(Ambiguous):
        await (reply.show(grow("one")) if name == "create" else reply.finish(done("one two")))
    await insist(world, world.reply() if restart else reply, done("one two"))
    assert (world.card.shown, world.card.state) == ("one two", "finished")
    assert world.card.buttons == ["regenerate"]
    assert world.wire.messages == []


async def test_every_update_has_a_guid_of_its_own() -> None:
    world = World()
    reply = world.reply()
    for rev, text in enumerate(["1", "2", "1", "2"]):
        await reply.show(grow("", rev, status=text))
    assert len(world.wire.guids) == 4
    world.wire.faults["stream"] = [refusal("Forbidden.QpsLimitForApi", 403)]
    await insist(world, reply, done("x"))
    refused, made = [b["guid"] for b in world.wire.bodies if b.get("isFinalize")]
    assert refused != made


async def test_a_name_that_was_used_has_no_effect() -> None:
    world = World()
    answer = {"success": True, "result": {"deliverResults": []}}
    world.wire.lost["create"] = 1
    reply = world.reply()
    with pytest.raises(Ambiguous):
        await reply.show(grow("one"))
    world.wire.faults["create"] = [HttpAnswer(200, {}, json.dumps(answer).encode())]
    await reply.show(grow("one"))
    assert world.card.shown == "one"


async def test_a_card_that_was_not_delivered() -> None:
    world = World()
    entry = {"spaceId": "x", "success": False, "errorMsg": "spaceId is illegal"}
    answer = {"success": True, "result": {"deliverResults": [{"success": True}, entry]}}
    world.wire.faults["create"] = [HttpAnswer(200, {}, json.dumps(answer).encode())]
    reply = world.reply()
    await reply.show(grow("one"))
    await reply.show(grow("one two"))
    await reply.finish(done("one two three"))
    assert world.wire.messages == ["@ann\n\none two three"]
    assert world.calls() == ["create", "session"]


@pytest.mark.parametrize(
    "fault",
    [
        refusal("param.templateNotExist"),
        refusal("Forbidden.AccessDenied.AccessTokenPermissionDenied", 403,
                accessdenieddetail={"requiredScopes": ["Card.Instance.Write"]}),
    ],
)  # fmt: skip
async def test_cards_that_cannot_work_are_left_alone_for_a_while(fault: HttpAnswer) -> None:
    world = World()
    world.wire.faults["create"] = [fault]
    reply = world.reply()
    await reply.show(grow("one"))
    await reply.finish(done("one"))
    assert world.desk.why_whole()
    second = DingTalkReply(world.desk, world.target(), Ledger("turn2"))
    await second.show(grow("x"))
    assert world.calls() == ["create", "session"]
    world.clock += 601
    await second.show(grow("x"))
    assert world.calls()[-2:] == ["create", "stream"]


async def test_a_card_that_cannot_be_closed_is_followed_by_the_whole_answer() -> None:
    world = World()
    reply = world.reply()
    await reply.show(grow("one"))
    world.wire.faults["stream"] = [HttpAnswer(500, {}, b"")] * 9
    await insist(world, reply, done("one two"))
    assert world.wire.messages == ["(可能重复)\n\none two"]
    assert world.calls().count("stream") == 1 + 5
    assert "could not be closed" in world.desk.why_whole()
    assert [part.state for part in world.ledger.parts()] == [PartState.CLOSED] * 2


async def test_too_many_calls_never_lead_to_a_message() -> None:
    world = World()
    reply = world.reply()
    await reply.show(grow("one"))
    world.wire.faults["stream"] = [refusal("Forbidden.QpsLimitForAppkeyAndApi", 403)] * 12
    await insist(world, reply, done("one two"))
    assert (world.card.shown, world.wire.messages) == ("one two", [])
    assert world.desk.interval_s() > 1.2


async def test_a_text_that_is_too_long_after_all() -> None:
    world = World()
    reply = world.reply()
    world.wire.faults["stream"] = [refusal("param.stream.content")]
    text = ("词" * 60 + "\n\n") * 36
    await insist(world, reply, grow(text))
    await insist(world, reply, done(text))
    shown = "".join(card.shown for card in world.wire.cards.values())
    assert len(world.wire.cards) == 2
    assert shown.replace("\n", "") == text.replace("\n", "")


async def test_the_soft_cap_ends_growing() -> None:
    world = World(monthly_calls=100, stream_until=0.8)
    for _ in range(79):
        world.budget.count()
    assert not world.desk.why_whole()
    world.budget.count()
    assert world.desk.why_whole() == "80% of the month's calls are used (80 of 100)"
    reply = world.reply()
    await reply.show(grow("one"))
    await reply.finish(done("one"))
    assert world.calls() == ["session"]
    assert world.budget.used.calls == 80


async def test_the_month_is_spent() -> None:
    world = World()
    world.wire.faults["create"] = [refusal("Forbidden.AccessDenied.ApiCountLimitForOrg", 403)]
    reply = world.reply()
    await reply.show(grow("one"))
    await reply.finish(done("one"))
    assert world.calls() == ["create", "session"]
    assert "none is left" in world.budget.told()
    assert world.desk.why_whole()


def test_many_replies_share_the_pace() -> None:
    world = World()
    assert world.desk.interval_s() == pytest.approx(1.2)
    held = [object.__new__(DingTalkReply) for _ in range(30)]
    for reply in held:
        world.desk.growing(reply, True)
    assert world.desk.interval_s() == pytest.approx(5.0)
    held.clear()
    del reply
    gc.collect()
    assert world.desk.n_growing == 0


# -- messages -----------------------------------------------------------------------------------------------------------
async def test_without_a_template_one_message_through_the_session() -> None:
    world = World(card_template="")
    reply = world.reply()
    await reply.show(grow("一"))
    assert world.calls() == []
    await reply.finish(done("一\n二"))
    assert world.calls() == ["session"]
    assert world.wire.messages == ["@ann\n\n一  \n二"]
    assert world.wire.bodies[-1]["at"] == {"atUserIds": ["ann"], "isAtAll": False}
    assert world.budget.used.calls == 0
    await world.reply().finish(done("一\n二"))
    assert world.calls() == ["session"]


async def test_in_a_chat_of_two_nobody_is_mentioned() -> None:
    world = World(card_template="")
    await world.reply(kind="direct").finish(done("x"))
    assert world.wire.messages == ["x"]
    assert "at" not in world.wire.bodies[-1]


async def test_a_session_that_has_ended() -> None:
    world = World(card_template="")
    world.now = NOW + timedelta(minutes=89, seconds=30)
    await world.reply(nick="安[x](y)").finish(done("x"))
    assert world.calls() == ["group"]
    assert world.wire.messages == ["@安 x y\n\nx"]
    world = World(card_template="")
    world.wire.faults["session"] = [errcode(300001)]
    await world.reply(kind="direct").finish(done("x"))
    assert world.calls() == ["session", "person"]
    assert world.wire.bodies[-1]["userIds"] == ["ann"]
    assert world.wire.bodies[-1]["msgKey"] == "sampleMarkdown"


@pytest.mark.parametrize(
    "webhook",
    [
        "https://evil.example/robot/sendBySession?session=s",
        "http://oapi.dingtalk.com/robot/sendBySession?session=s",
        "https://oapi.dingtalk.com.evil.example/x",
        "https://oapi.dingtalk.com@evil.example/x",
        "https://evil.example\\@oapi.dingtalk.com/x",
        "https://oapi.dingtalk.com:444/x",
        "https://oapi.dingtalk.com:x/x",
        "http://127.0.0.1/x",
        "file:///etc/passwd",
        "",
        "https://oapi.dingtalk.com/x\r\nHost: evil",
    ],
)
async def test_only_dingtalk_is_answered(webhook: str) -> None:
    """cases: the body that names the webhook is covered by no signature."""
    world = World(card_template="")
    await world.reply(webhook=webhook).finish(done("x"))
    assert world.calls() == ["group"]


async def test_people_from_outside_after_the_session() -> None:
    world = World()
    reply = world.reply(kind="direct", user="", webhook="")
    await reply.show(grow("x"))
    assert world.calls() == []
    with pytest.raises(TargetGone):
        await reply.finish(done("x"))
    await reply.finish(done("x"))
    assert world.wire.messages == []


async def test_a_message_that_may_have_arrived_says_so() -> None:
    world = World(card_template="")
    world.wire.lost["session"] = 1
    reply = world.reply()
    with pytest.raises(Ambiguous):
        await reply.finish(done("x"))
    await reply.finish(done("x"))
    assert world.wire.messages == ["@ann\n\nx", "@ann\n\n(可能重复)\n\nx"]


async def test_a_card_that_is_left_in_mid_answer_does_not_go_on_moving() -> None:
    world = World()
    reply = world.reply()
    await reply.show(grow("one"))
    world.wire.faults["stream"] = [refusal("Forbidden.whatever", 403)]
    await reply.show(grow("one two", 2))
    assert (world.card.state, world.card.shown, world.card.buttons) == ("finished", "one", [])
    await reply.finish(done("one two three"))
    assert world.wire.messages == ["(可能重复)\n\none two three"]


async def test_where_answers_are_lost_for_long_few_copies_are_sent() -> None:
    world = World(card_template="")
    world.wire.lost["session"] = 100
    reply, began, unsure = world.reply(), world.clock, 0
    while world.clock < began + 600:
        try:
            await reply.finish(done("x"))
        except Ambiguous:
            unsure += 1
            world.clock += 1.0
        except RetryLater as error:
            world.clock += error.after_s
    assert unsure == 1
    assert len(world.wire.messages) <= 7
    world.wire.lost["session"] = 0
    await insist(world, reply, done("x"))
    assert world.ledger.parts()[-1].state is PartState.CLOSED


async def test_after_the_session_and_without_calls_an_answer_waits_for_more() -> None:
    world = World()
    reply = world.reply(webhook_until=(NOW - timedelta(minutes=1)).isoformat())
    spent = refusal("Forbidden.AccessDenied.ApiCountLimitForOrg", 403)
    world.wire.faults["group"] = [spent]
    with pytest.raises(RetryLater) as caught:
        await reply.finish(done("one"))
    assert caught.value.after_s >= 60
    await reply.finish(done("one"))
    assert world.wire.messages == ["@安\n\none"]


async def test_a_message_of_an_earlier_process() -> None:
    world = World(card_template="")
    world.wire.lost["session"] = 1
    with pytest.raises(Ambiguous):
        await world.reply().finish(done("x"))
    await world.reply().finish(done("x"))
    assert world.wire.messages[-1] == "@ann\n\n(可能重复)\n\nx"
    world = World(card_template="")
    world.wire.faults["session"] = [errcode(-1)]
    with pytest.raises(RetryLater):
        await world.reply().finish(done("x"))
    await world.reply().finish(done("x"))
    assert world.wire.messages == ["@ann\n\nx"]


async def test_long_messages_are_cut_and_paced() -> None:
    world = World(card_template="")
    text = ("段落。" * 100 + "\n\n") * 40
    began = world.clock
    await insist(world, world.reply(), done(text.strip()))
    assert len(world.wire.messages) >= 4
    assert all(len(message) <= 3800 for message in world.wire.messages)
    assert "".join(world.wire.messages).removeprefix("@ann\n\n").replace("\n", "") == text.replace("\n", "")  # fmt: skip
    assert world.clock - began >= len(world.wire.messages) - 1


async def test_from_markdown_to_text() -> None:
    world = World(card_template="")
    world.wire.faults["session"] = [errcode(400105)]
    world.wire.faults["group"] = [refusal("invalidParameter.msgParam")]
    await world.reply().finish(done("**x**"))
    assert world.calls() == ["session", "group", "group"]
    assert world.wire.bodies[-1]["msgKey"] == "sampleText"
    assert world.wire.messages == ["@安 **x**"]


@pytest.mark.parametrize("listed", ["invalidStaffIdList", "filteredStaffIdList"])
async def test_a_person_who_cannot_be_written_to(listed: str) -> None:
    world = World(card_template="")
    answer = json.dumps({"processQueryKey": "q", listed: ["ann"]}).encode()
    world.wire.faults["person"] = [HttpAnswer(200, {}, answer)]
    with pytest.raises(TargetGone):
        await world.reply(kind="direct", webhook="").finish(done("x"))


async def test_a_person_who_is_written_to_too_often() -> None:
    world = World(card_template="")
    answer = json.dumps({"flowControlledStaffIdList": ["ann"]}).encode()
    world.wire.faults["person"] = [HttpAnswer(200, {}, answer)]
    reply = world.reply(kind="direct", webhook="")
    with pytest.raises(SlowDown):
        await reply.finish(done("x"))
    await reply.finish(done("x"))
    assert world.wire.messages == ["x"]


# -- endings ------------------------------------------------------------------------------------------------------------
async def test_sensitive_content_in_a_card() -> None:
    world = World()
    reply = world.reply()
    await reply.show(grow("gut"))
    world.wire.faults["stream"] = [refusal("param.contentUnsafe")]
    with pytest.raises(GiveUp):
        await reply.finish(done("gut schlecht"))
    assert (world.card.shown, world.card.state) == ("gut\n\n抱歉。", "finished")
    with pytest.raises(GiveUp):
        await reply.finish(done("gut schlecht"))
    assert world.wire.messages == []


async def test_sensitive_content_in_a_message() -> None:
    world = World(card_template="")
    world.wire.faults["session"] = [errcode(430102)]
    with pytest.raises(GiveUp):
        await world.reply().finish(done("schlecht"))
    assert world.wire.messages == ["抱歉。"]


async def test_a_question_that_was_taken_back() -> None:
    world = World()
    reply = world.reply()
    await reply.show(grow("half"))
    await reply.finish(done("half more", outcome=Outcome.SILENT, buttons=()))
    assert (world.card.shown, world.card.state, world.card.buttons) == ("half", "finished", [])
    world = World(card_template="")
    await world.reply().finish(done("half", outcome=Outcome.SILENT))
    assert world.calls() == []


async def test_notices_stand_below() -> None:
    world = World()
    reply = world.reply()
    await reply.show(grow("half"))
    await reply.finish(done("half", outcome=Outcome.STOPPED, notice="已停止。"))
    assert world.card.shown == "half\n\n已停止。"
    world = World(card_template="")
    await world.reply(kind="direct").finish(done("", outcome=Outcome.FAILED, notice="没能回答。"))
    assert world.wire.messages == ["没能回答。"]


async def test_nothing_is_called_before_it_is_written_down() -> None:
    world = World()
    seen: list[PartState] = []
    move = world.wire._move

    async def spy(request: HttpRequest) -> HttpAnswer:
        if "/card/" in request.url:
            seen.append(world.ledger.states[-1][1])
        return await move(request)

    world.wire._move = spy  # type: ignore[method-assign]
    reply = world.reply()
    await reply.show(grow("one"))
    await reply.finish(done("one two"))
    assert seen[0] is PartState.ATTEMPTED
    assert set(seen[1:]) == {PartState.CONFIRMED}

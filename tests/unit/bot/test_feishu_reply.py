"""How an answer grows in Feishu, against a scripted wire: only the moving of bytes is replaced, all mapping is real.

The wire keeps what people would see: messages, and what the card behind each shows.
"""

from __future__ import annotations

import gc
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from bot.config import FeishuBotConfig
from bot.domain.types import Outcome, PartState, ReplyPart, ReplyTarget
from bot.errors import Ambiguous, FallBack, GiveUp, RetryLater, TargetGone
from bot.platforms.base import Button, ReplyView
from bot.platforms.budget import MemoryBudget
from bot.platforms.feishu.api import FeishuApi
from bot.platforms.feishu.client import FeishuClient
from bot.platforms.feishu.desk import ReplyDesk
from bot.platforms.feishu.reply import FeishuReply
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp

STOP, AGAIN = Button("stop", "Stop"), Button("regenerate", "Again")
ROUTES = [
    ("token", "POST", r"/auth/v3/tenant_access_token/internal"),
    ("reply", "POST", r"/im/v1/messages/([^/]+)/reply"),
    ("send", "POST", r"/im/v1/messages\?receive_id_type=chat_id"),
    ("patch", "PATCH", r"/im/v1/messages/([^/]+)"),
    ("create", "POST", r"/cardkit/v1/cards"),
    ("put_card", "PUT", r"/cardkit/v1/cards/([^/]+)"),
    ("settings", "PATCH", r"/cardkit/v1/cards/([^/]+)/settings"),
    ("content", "PUT", r"/cardkit/v1/cards/([^/]+)/elements/answer/content"),
    ("controls", "PUT", r"/cardkit/v1/cards/([^/]+)/elements/controls"),
    ("add_controls", "POST", r"/cardkit/v1/cards/([^/]+)/elements"),
    ("del_controls", "DELETE", r"/cardkit/v1/cards/([^/]+)/elements/controls"),
]


def code(number: int, msg: str = "", status: int = 400, **headers: str) -> HttpAnswer:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return HttpAnswer(status, named, json.dumps({"code": number, "msg": msg}).encode())


@dataclass
class Card:
    text: str
    streaming: bool
    buttons: list[str]
    summary: str = ""
    sequence: int = 0
    shown: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, raw: str) -> Card:
        data = json.loads(raw)
        elements = data["body"]["elements"]
        config = data["config"]
        assert data["schema"] == "2.0"
        assert config["update_multi"] is True
        assert elements[0]["content"]
        text = elements[0]["content"]
        return cls(text, config.get("streaming_mode", False), labels(elements[1:]),
                   config.get("summary", {}).get("content", ""), shown=[text])  # fmt: skip


def labels(elements: list[dict[str, Any]]) -> list[str]:
    return [c["elements"][0]["text"]["content"] for row in elements for c in row["columns"]]


class Wire(SharedHttp):
    """Feishu in miniature. `faults[name]` are answers or exceptions for the next calls of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.faults: dict[str, list[HttpAnswer | Exception]] = defaultdict(list)
        # Done, but the answer is lost on the way.
        self.lost: dict[str, int] = defaultdict(int)
        self.cards: dict[str, Card] = {}
        self.messages: dict[str, tuple[str, Any]] = {}
        self.uuids: dict[str, str] = {}
        self.max_table_count = 99

    async def _move(self, request: HttpRequest) -> HttpAnswer:
        path = request.url.removeprefix("http://127.0.0.1:1/open-apis")
        found = [
            (name, re.fullmatch(pattern, path))
            for name, method, pattern in ROUTES
            if method == request.method
        ]
        name, match = next((name, match) for name, match in found if match)
        body = dict(request.body or {})
        self.names.append(name)
        self.bodies.append(body)
        if self.faults[name]:
            fault = self.faults[name].pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        answer = getattr(self, f"_{name}")(body, *match.groups())
        if self.lost[name]:
            self.lost[name] -= 1
            raise TimeoutError
        if isinstance(answer, HttpAnswer):
            return answer
        return HttpAnswer(200, {}, json.dumps({"code": 0, **answer}).encode())

    def _token(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"tenant_access_token": "t-1", "expire": 7200}

    def _reply(self, body: dict[str, Any], to: str = "") -> Any:
        assert len(body["uuid"]) <= 50
        if body["uuid"] not in self.uuids:
            content = json.loads(body["content"])
            card_id = (
                content.get("data", {}).get("card_id")
                if body["msg_type"] == "interactive"
                else None
            )
            if card_id and card_id not in self.cards:
                return code(200740)
            if card_id and any(
                kind == "card" and what == card_id for kind, what in self.messages.values()
            ):
                return code(300311)
            message_id = f"om_{len(self.messages) + 1}"
            self.uuids[body["uuid"]] = message_id
            if card_id:
                self.messages[message_id] = ("card", card_id)
            elif body["msg_type"] == "interactive":
                self.messages[message_id] = ("json", Card.of(body["content"]))
            else:
                self.messages[message_id] = (body["msg_type"], content)
        return {"data": {"message_id": self.uuids[body["uuid"]]}}

    _send = _reply

    def _patch(self, body: dict[str, Any], message_id: str) -> Any:
        self.messages[message_id] = ("json", Card.of(body["content"]))
        return {}

    def _create(self, body: dict[str, Any]) -> Any:
        card_id = f"c{len(self.cards) + 1}"
        card = Card.of(body["data"])
        if card.text.count("|---|") - card.text.count("```\n|") > self.max_table_count:
            return code(230099, "ErrCode: 11310; card table number over limit")
        self.cards[card_id] = card
        return {"data": {"card_id": card_id}}

    def _card(self, card_id: str, body: dict[str, Any]) -> Card | HttpAnswer:
        card = self.cards.get(card_id)
        if card is None:
            return code(200740)
        if body["sequence"] <= card.sequence:
            return code(300317)
        card.sequence = body["sequence"]
        return card

    def _put_card(self, body: dict[str, Any], card_id: str) -> Any:
        card = self._card(card_id, body)
        if isinstance(card, HttpAnswer):
            return card
        new = Card.of(body["card"]["data"])
        self.cards[card_id] = replace(new, sequence=card.sequence, shown=[*card.shown, new.text])
        return {}

    def _content(self, body: dict[str, Any], card_id: str) -> Any:
        card = self._card(card_id, body)
        if isinstance(card, HttpAnswer):
            return card
        if not card.streaming:
            return code(300309)
        assert body["content"]
        card.text = body["content"]
        card.shown.append(card.text)
        return {}

    def _settings(self, body: dict[str, Any], card_id: str) -> Any:
        card = self._card(card_id, body)
        if isinstance(card, HttpAnswer):
            return card
        config = json.loads(body["settings"])["config"]
        card.streaming = config["streaming_mode"]
        card.summary = config.get("summary", {}).get("content", card.summary)
        return {}

    def _controls(self, body: dict[str, Any], card_id: str) -> Any:
        card = self._card(card_id, body)
        if isinstance(card, HttpAnswer):
            return card
        card.buttons = labels([json.loads(body["element"])])
        return {}

    def _add_controls(self, body: dict[str, Any], card_id: str) -> Any:
        card = self._card(card_id, body)
        if isinstance(card, HttpAnswer):
            return card
        card.buttons = labels(json.loads(body["elements"]))
        return {}

    def _del_controls(self, body: dict[str, Any], card_id: str) -> Any:
        card = self._card(card_id, body)
        if isinstance(card, HttpAnswer):
            return card
        card.buttons = []
        return {}

    def seen(self) -> list[Card]:
        """What people see, message by message (posts and texts as cards without anything)."""
        out = []
        for kind, what in self.messages.values():
            if kind == "card":
                out.append(self.cards[what])
            elif kind == "json":
                out.append(what)
            elif kind == "post":
                out.append(Card(what["zh_cn"]["content"][0][0]["text"], False, []))
            else:
                out.append(Card(what["text"], False, []))
        return out

    def only(self) -> Card:
        assert len(self.seen()) == 1
        return self.seen()[0]

    def calls(self) -> list[str]:
        """Names of the calls so far, without the token, and forget them."""
        names = [name for name in self.names if name != "token"]
        self.names.clear()
        return names


class Ledger:
    """Parts as the store keeps them: what is saved here survives the process."""

    def __init__(self, turn_id: str = "turn-1") -> None:
        self.turn_id = turn_id
        self.saved: dict[int, ReplyPart] = {}
        self.count = 0

    def parts(self) -> tuple[ReplyPart, ...]:
        return tuple(self.saved[n] for n in sorted(self.saved))

    async def save(self, part: ReplyPart) -> None:
        self.saved[part.n] = part
        self.count += 1


class Stage:
    """One bot, one question, and a clock; `reply()` opens a driver as a (new) process would."""

    def __init__(self, **config: Any) -> None:
        self.wire = Wire()
        self.ledger = Ledger()
        self.now = datetime(2026, 11, 29, tzinfo=UTC)
        self.config = FeishuBotConfig(
            platform="feishu", app_id="cli_1", app_secret="s", encrypt_key="k", verification_token="v",
            api_base="http://127.0.0.1:1", **config,
        )  # fmt: skip
        self.budget = MemoryBudget(0)
        client = FeishuClient(self.config.api_base, "cli_1", "s", self.wire, self.budget)
        client.limiter._sleep = self._sleep
        self.desk = ReplyDesk(FeishuApi(client), self.config, now=lambda: self.now)
        self.target = ReplyTarget("cli_1", "oc_1", "om_q", {"thread": ""})

    async def _sleep(self, _seconds: float) -> None:
        """The limiter's waits are its own test's business."""

    def reply(self) -> FeishuReply:
        return FeishuReply(self.desk, self.target, self.ledger)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def grow(text: str, rev: int = 1, **more: Any) -> ReplyView:
    return ReplyView(
        rev, text, **{"buttons": (STOP,), "possible_repeat": "(maybe a repeat)", **more}
    )


def done(text: str, rev: int = 9, outcome: Outcome = Outcome.COMPLETE, **more: Any) -> ReplyView:
    return ReplyView(
        rev,
        text,
        outcome=outcome,
        **{"buttons": (AGAIN,), "possible_repeat": "(maybe a repeat)", **more},
    )


async def insist(reply: FeishuReply, view: ReplyView, tries: int = 8) -> None:
    """What the streamer does: call again after RetryLater and Ambiguous."""
    for _ in range(tries):
        try:
            await (reply.show(view) if view.outcome is Outcome.GROWING else reply.finish(view))
        except (RetryLater, Ambiguous):
            continue
        return
    raise AssertionError("never done")


def assert_closed(card: Card, text: str, *, buttons: tuple[str, ...] = ("Again",)) -> None:
    assert card.text == text
    assert not card.streaming
    assert tuple(card.buttons) == buttons


# -- the good way -----------------------------------------------------------------------------------------------------
async def test_an_answer_grows_in_one_card_and_closes(stage: Stage) -> None:
    reply = stage.reply()
    await reply.prepare()
    assert stage.wire.calls() == ["create"]
    assert stage.wire.seen() == []
    await reply.show(grow("Hel"))
    assert sorted(stage.wire.calls()) == ["put_card", "reply"]
    assert stage.wire.only().text == "Hel"
    assert stage.wire.only().buttons == ["Stop"]
    assert stage.wire.only().streaming
    await reply.show(grow("Hello wor", 2))
    await reply.show(grow("Hello world", 3))
    assert stage.wire.calls() == ["content", "content"]
    await reply.finish(done("Hello world!", summary="Hello"))
    assert stage.wire.calls() == ["content", "settings", "controls"]
    card = stage.wire.only()
    assert_closed(card, "Hello world!")
    assert card.summary == "Hello"
    growth = card.shown[1:]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(growth))
    part = stage.ledger.parts()[0]
    assert (part.state, part.confirmed_rev, part.covers_to_chars) == (PartState.CLOSED, 9, 12)


async def test_without_preparing_the_card_is_made_with_the_text(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("Hi"))
    assert stage.wire.calls() == ["create", "reply"]
    assert stage.wire.only().text == "Hi"
    await reply.finish(done("Hi"))
    assert stage.wire.calls() == ["settings", "controls"]
    assert_closed(stage.wire.only(), "Hi")


async def test_every_call_is_committed_before_it_is_made(stage: Stage) -> None:
    seen: list[tuple[str, int, int]] = []
    move = stage.wire._move

    async def spy(request: HttpRequest) -> HttpAnswer:
        answer = await move(request)
        parts = stage.ledger.parts()
        sequence = stage.wire.bodies[-1].get("sequence")
        if sequence is not None:
            assert parts[0].sequence >= sequence
        if stage.wire.names[-1] == "reply":
            assert parts[0].state is PartState.ATTEMPTED
            assert parts[0].idem_key == stage.wire.bodies[-1]["uuid"]
        seen.append((stage.wire.names[-1], stage.ledger.count, sequence or 0))
        return answer

    stage.wire._move = spy  # type: ignore[method-assign]  # a spy around the real double
    reply = stage.reply()
    await reply.prepare()
    for rev, text in enumerate(["a", "a b", "a b c"], 1):
        await reply.show(grow(text, rev))
    await reply.finish(done("a b c d"))
    sequences = [sequence for _, _, sequence in seen if sequence]
    assert sequences == sorted(set(sequences))
    assert sequences[0] == 1


async def test_a_whole_answer_is_one_call(stage: Stage) -> None:
    await stage.reply().finish(done("Done.", buttons=()))
    assert stage.wire.calls() == ["reply"]
    assert_closed(stage.wire.only(), "Done.", buttons=())


async def test_finish_again_does_nothing(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("a"))
    await reply.finish(done("a b"))
    stage.wire.calls()
    await reply.finish(done("a b"))
    await reply.show(grow("late", 99))
    await stage.reply().finish(done("a b"))
    assert stage.wire.calls() == []
    assert len(stage.wire.messages) == 1


async def test_a_status_gives_way_to_text_and_an_unchanged_view_costs_nothing(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("", status="3rd in line"))
    assert stage.wire.only().text == "3rd in line"
    stage.wire.calls()
    await reply.show(grow("", 2, status="3rd in line"))
    await reply.show(grow("Yes", 3, status="x"))
    await reply.show(grow("Yes", 4))
    assert stage.wire.calls() == ["put_card"]  # nothing to type on: the status is replaced at once
    assert stage.wire.only().text == "Yes"


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.FAILED, Outcome.LENGTH])
async def test_every_end_closes_the_card_with_its_notice(stage: Stage, outcome: Outcome) -> None:
    reply = stage.reply()
    await reply.show(grow("```py\nprint("))
    await reply.finish(done("```py\nprint(", outcome=outcome, notice="Stopped <at id=all>."))
    assert_closed(stage.wire.only(), "```py\nprint(\n```\n\nStopped &#60;at id=all>.")


async def test_a_reply_in_a_topic_stays_there_and_a_greeting_goes_to_the_chat(stage: Stage) -> None:
    stage.target = ReplyTarget("cli_1", "oc_1", "om_q", {"thread": "1"})
    await stage.reply().finish(done("x"))
    assert stage.wire.bodies[-1]["reply_in_thread"] is True
    stage.target = ReplyTarget("cli_1", "oc_1", "", {})
    stage.ledger = Ledger("turn-2")
    await stage.reply().finish(done("hello all"))
    assert stage.wire.names[-1] == "send"
    assert stage.wire.bodies[-1]["receive_id"] == "oc_1"


async def test_space_at_the_end_of_a_growing_text_is_not_taken_back(stage: Stage) -> None:
    """A final text comes without it: the last edit must still extend what was shown."""
    reply = stage.reply()
    await reply.show(grow("one\n"))
    await reply.show(grow("one\n\n", 2))
    stage.wire.calls()
    await reply.finish(done("one"))
    assert stage.wire.calls() == ["settings", "controls"]
    assert_closed(stage.wire.only(), "one")


async def test_a_restarted_text_replaces_the_old_one(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("an answer that is lost"))
    stage.wire.calls()
    await reply.show(grow("another", 2))
    assert stage.wire.calls() == ["put_card"]
    await reply.finish(done("another one"))
    assert_closed(stage.wire.only(), "another one")


# -- the question is taken back ---------------------------------------------------------------------------------------
async def test_silence_closes_a_card_without_adding_text(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("Half an"))
    await reply.finish(done("Half an answer", outcome=Outcome.SILENT, buttons=(), notice="n"))
    assert_closed(stage.wire.only(), "Half an", buttons=())


async def test_silence_before_anything_was_shown_is_silence(stage: Stage) -> None:
    reply = stage.reply()
    await reply.prepare()
    stage.wire.calls()
    await reply.finish(done("x", outcome=Outcome.SILENT))
    assert stage.wire.calls() == []


async def test_silence_in_another_process(stage: Stage) -> None:
    await stage.reply().show(grow("Half an"))
    await stage.reply().finish(done("Half an answer", outcome=Outcome.SILENT))
    assert_closed(stage.wire.only(), "Half an", buttons=())


@pytest.mark.parametrize("number", [230011, 231003, 230110, 230019, 232009])
async def test_a_recalled_question_stays_unanswered(stage: Stage, number: int) -> None:
    stage.wire.faults["reply"] = [code(number)]
    reply = stage.reply()
    with pytest.raises(TargetGone):
        await reply.show(grow("Hi"))
    await reply.finish(done("Hi there"))
    await stage.reply().finish(done("Hi there"))
    assert stage.wire.messages == {}
    assert "send" not in stage.wire.names


# -- faults on the way ------------------------------------------------------------------------------------------------
async def test_a_lost_answer_to_a_send_is_repeated_with_the_same_uuid(stage: Stage) -> None:
    stage.wire.lost["reply"] = 2
    reply = stage.reply()
    await insist(reply, grow("Hi"))
    await insist(reply, done("Hi there"))
    assert_closed(stage.wire.only(), "Hi there")
    assert len({body["uuid"] for body in stage.wire.bodies if "uuid" in body}) == 1


@pytest.mark.parametrize("name", ["create", "reply", "put_card", "content", "settings", "controls"])
@pytest.mark.parametrize(
    "fault",
    [
        HttpAnswer(502, {}, b"<html>bad gateway</html>"),
        code(99991400, status=429, x_ogw_ratelimit_reset="1"),
        code(200810),
        code(300120, status=500),
        TimeoutError(),
        ConnectionResetError(),
        HttpAnswer(200, {}, b"not json"),
    ],
    ids=["html502", "429", "clicking", "internal", "timeout", "reset", "garbage"],
)
async def test_any_passing_fault_ends_in_one_whole_answer(
    stage: Stage, name: str, fault: Any
) -> None:
    reply = stage.reply()
    stage.wire.faults[name] = [fault, fault]
    await reply.prepare()
    await insist(reply, grow("one"))
    await insist(reply, grow("one two", 2))
    await insist(reply, done("one two three"))
    assert_closed(stage.wire.only(), "one two three")


async def test_the_last_edit_is_refused_once(stage: Stage) -> None:
    """cases A8: no second message, nothing left over."""
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.faults["content"] = [code(99991400, status=429)]
    await insist(reply, done("one two"))
    assert_closed(stage.wire.only(), "one two")


async def test_a_stale_sequence_jumps_and_goes_on(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.cards["c1"].sequence = 50
    await reply.show(grow("one two", 2))
    assert stage.wire.only().text == "one two"
    await reply.finish(done("one two three"))
    assert_closed(stage.wire.only(), "one two three")


async def test_streaming_that_ended_is_switched_on_again(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.calls()
    stage.wire.cards["c1"].streaming = False
    await reply.show(grow("one two", 2))
    assert stage.wire.calls() == ["content", "settings", "content"]
    stage.wire.cards["c1"].streaming = False
    stage.wire.faults["settings"] = [code(200850)] * 9
    await reply.show(grow("one two three", 3))
    assert stage.wire.calls() == ["content", "settings", "put_card"]
    await reply.finish(done("one two three four"))
    assert_closed(stage.wire.only(), "one two three four")


async def test_nine_minutes_begin_anew_by_our_own_clock(stage: Stage) -> None:
    """cases B6: Feishu may drop late updates without an error, so nothing is left to a refusal."""
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.now += timedelta(minutes=9, seconds=1)
    stage.wire.calls()
    await reply.show(grow("one two", 2))
    assert stage.wire.calls() == ["settings", "settings", "content"]
    await reply.show(grow("one two three", 3))
    assert stage.wire.calls() == ["content"]
    stage.now += timedelta(minutes=9, seconds=1)
    await reply.finish(done("one two three four"))
    assert stage.wire.calls() == ["put_card"]
    assert_closed(stage.wire.only(), "one two three four")


@pytest.mark.parametrize("name", ["content", "settings", "controls"])
@pytest.mark.parametrize("number", [2200, 300313, 300309])
async def test_a_refused_closing_step_is_replaced_by_the_whole_card(
    stage: Stage, name: str, number: int
) -> None:
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.faults[name] = [code(number)]
    await reply.finish(done("one two"))
    assert_closed(stage.wire.only(), "one two")


async def test_a_card_id_that_is_not_valid_yet(stage: Stage) -> None:
    stage.wire.faults["reply"] = [code(230099, "ErrCode: 11310; ErrMsg: cardid is invalid")] * 4
    reply = stage.reply()
    await insist(reply, grow("one"))
    await insist(reply, done("one two"))
    assert_closed(stage.wire.only(), "one two")
    assert len(stage.wire.cards) == 2


async def test_an_old_prepared_card_is_not_used(stage: Stage) -> None:
    reply = stage.reply()
    await reply.prepare()
    stage.now += timedelta(minutes=5)
    await reply.show(grow("one"))
    assert stage.wire.messages["om_1"] == ("card", "c2")


async def test_a_card_that_expires_goes_on_in_another(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("one "))
    del stage.wire.cards["c1"]
    stage.wire.cards["gone"] = Card("", False, [])
    await reply.show(grow("one two ", 2))
    await reply.finish(done("one two three"))
    stage.wire.cards["c1"] = Card("one ", False, [])
    assert [card.text.strip() for card in stage.wire.seen()] == ["one", "two three"]


# -- simpler kinds of message -----------------------------------------------------------------------------------------
async def test_without_the_cardkit_scope_a_plain_card_is_patched(stage: Stage) -> None:
    stage.wire.faults["create"] = [code(99991672, "Access denied. cardkit:card:write")]
    reply = stage.reply()
    await reply.show(grow("one"))
    await reply.show(grow("one two", 2))
    assert reply.interval_s() >= 1.5
    await reply.finish(done("one two three"))
    assert stage.wire.calls() == ["create", "reply", "patch", "patch"]
    assert_closed(stage.wire.only(), "one two three")
    stage.ledger = Ledger("turn-2")
    await stage.reply().prepare()
    await stage.reply().show(grow("next"))
    assert stage.wire.calls() == ["reply"]


async def test_a_patched_card_is_sent_once_when_its_answer_is_lost(stage: Stage) -> None:
    stage.wire.faults["create"] = [code(99991672)]
    stage.wire.lost["reply"] = 1
    reply = stage.reply()
    await insist(reply, grow("one"))
    await insist(reply, done("one two"))
    assert_closed(stage.wire.only(), "one two")
    stage.ledger = Ledger("turn-2")
    stage.wire.lost["reply"] = 1
    with pytest.raises(Ambiguous):
        await stage.reply().show(grow("first"))
    await stage.reply().finish(done("first, second"))
    assert [card.text for card in stage.wire.seen()] == ["one two", "first, second"]


async def test_refused_cards_become_a_post_then_a_text(stage: Stage) -> None:
    stage.wire.faults["create"] = [code(300302)]
    reply = stage.reply()
    await reply.show(grow("<at user_id=x>one"))
    await reply.show(grow("<at user_id=x>one two", 2))
    assert stage.wire.messages == {}
    await reply.finish(done("<at user_id=x>one two three"))
    assert stage.wire.messages["om_1"][0] == "post"
    assert stage.wire.only().text == "<\u200bat user_id=x>one two three"
    stage.ledger = Ledger("turn-2")
    stage.wire.faults["reply"] = [code(230001), code(230054)]
    await stage.reply().finish(done("plain"))
    assert stage.wire.messages["om_2"] == ("text", {"text": "plain"})
    assert len(stage.wire.messages) == 2


async def test_when_nothing_works_it_gives_up(stage: Stage) -> None:
    stage.wire.faults["reply"] = [code(230001)] * 9
    with pytest.raises(GiveUp):
        await stage.reply().finish(done("x"))
    stage.wire.faults["reply"] = [code(230035)]
    stage.ledger = Ledger("turn-2")
    with pytest.raises(GiveUp):
        await stage.reply().show(grow("x"))


async def test_what_a_shown_card_says_is_never_said_again(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.faults["content"] = [code(300313)] * 5
    stage.wire.faults["put_card"] = [code(230099, "ErrCode: 200570")]
    await reply.finish(done("one two"))
    assert len(stage.wire.messages) == 1
    assert_closed(stage.wire.only(), "```\none two\n```")
    stage.ledger = Ledger("turn-2")
    stage.wire.faults.clear()
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.faults["content"] = [code(300313)] * 5
    stage.wire.faults["put_card"] = [code(300313)] * 9
    await reply.finish(done("one two"))
    card, rest = stage.wire.seen()[1:]
    assert (card.text, card.streaming, card.buttons) == ("one", False, [])
    assert rest.text.strip() == "two"


# -- the month's calls run out, the chat goes --------------------------------------------------------------------------
async def test_the_last_calls_of_a_month_are_kept_for_endings(stage: Stage) -> None:
    stage.budget._monthly_calls = 100
    reply = stage.reply()
    await reply.show(grow("one"))
    for _ in range(99 - stage.budget.used.calls):
        stage.budget.count()
    stage.wire.calls()
    await reply.show(grow("one two", 2))
    assert stage.wire.calls() == []
    await reply.finish(done("one two three"))
    assert_closed(stage.wire.only(), "one two three")
    stage.ledger = Ledger("turn-2")
    stage.wire.calls()
    whole = stage.reply()
    await whole.prepare()
    await whole.show(grow("four"))
    await whole.finish(done("four five", buttons=()))
    assert stage.wire.calls() == ["reply"]


async def test_a_month_that_ends_in_mid_answer_is_waited_out(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.faults["content"] = [code(99991403, status=429)]
    with pytest.raises(RetryLater) as caught:
        await reply.finish(done("one two"))
    assert caught.value.after_s >= 60
    assert stage.budget.calls_left() == 0
    await reply.finish(done("one two"))
    assert_closed(stage.wire.only(), "one two")


async def test_a_card_stops_moving_where_the_chat_is_gone(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.faults["content"] = [code(230002)]
    with pytest.raises(TargetGone):
        await reply.show(grow("one two", 2))
    assert_closed(stage.wire.only(), "one", buttons=())


# -- an answer that Feishu does not take -----------------------------------------------------------------------------
REFUSED = "Sorry, not taken."


def refusable(view: ReplyView) -> ReplyView:
    return replace(view, refused=REFUSED)


@pytest.mark.parametrize("number", [230022, 230028])
async def test_content_refused_at_first_sight_ends_with_one_sentence(
    stage: Stage, number: int
) -> None:
    stage.wire.faults["reply"] = [code(number)]
    with pytest.raises(GiveUp) as caught:
        await stage.reply().finish(refusable(done("call 13800000000")))
    assert caught.value.code == number
    assert stage.wire.only().text == REFUSED


async def test_content_refused_in_mid_answer_keeps_what_was_taken_and_stops_moving(
    stage: Stage,
) -> None:
    reply = stage.reply()
    await reply.show(refusable(grow("one")))
    stage.wire.faults["content"] = [code(230028)]
    with pytest.raises(GiveUp):
        await reply.show(refusable(grow("one two", 2)))
    assert_closed(stage.wire.only(), f"one\n\n{REFUSED}", buttons=())


async def test_an_apology_is_tried_again_and_in_simpler_ways(stage: Stage) -> None:
    reply = stage.reply()
    await reply.show(refusable(grow("one")))
    stage.wire.faults["content"] = [code(230028), code(230028)]
    stage.wire.faults["put_card"] = [code(99991400), code(230022)]
    with pytest.raises(RetryLater):
        await reply.show(refusable(grow("one two", 2)))
    with pytest.raises(GiveUp):
        await reply.finish(refusable(done("one two three")))
    card, sentence = stage.wire.seen()
    assert (card.text, card.streaming, card.buttons) == ("one", False, [])
    assert sentence.text == REFUSED
    n_calls = len(stage.wire.names)
    with pytest.raises(GiveUp):
        await reply.finish(refusable(done("one two three")))
    assert len(stage.wire.names) == n_calls


async def test_a_refused_plain_card_ends_with_the_sentence(stage: Stage) -> None:
    stage.wire.faults["create"] = [code(99991672)] * 2
    reply = stage.reply()
    await reply.show(refusable(grow("one")))
    stage.wire.faults["patch"] = [code(230022)]
    with pytest.raises(GiveUp):
        await reply.show(refusable(grow("one two", 2)))
    assert stage.wire.only().text == f"one\n\n{REFUSED}"
    assert stage.wire.only().buttons == []


async def test_a_plain_card_that_takes_no_more_updates_goes_on_in_a_post(stage: Stage) -> None:
    stage.wire.faults["create"] = [code(99991672)] * 2
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.faults["patch"] = [code(230072)] * 9
    await reply.show(grow("one two", 2))
    await reply.finish(done("one two three"))
    assert [seen.text.strip() for seen in stage.wire.seen()] == ["one", "two three"]


async def test_a_card_that_cannot_be_hushed_does_not_keep_the_turn_alive(stage: Stage) -> None:
    stage.wire.faults["create"] = [code(99991672)] * 2
    reply = stage.reply()
    await reply.show(grow("one"))
    stage.wire.faults["patch"] = [code(230072)]
    await reply.finish(ReplyView(3, "one", outcome=Outcome.SILENT))
    assert stage.ledger.saved[0].state is PartState.CLOSED


async def test_a_group_without_threads_and_a_message_that_takes_no_reply(stage: Stage) -> None:
    stage.target = ReplyTarget("cli_1", "oc_1", "om_q", {"thread": "1"})
    stage.wire.faults["reply"] = [code(230071)]
    await stage.reply().finish(done("x"))
    assert "reply_in_thread" not in stage.wire.bodies[-1]
    stage.target = ReplyTarget("cli_1", "oc_1", "om_q", {"thread": ""})
    stage.ledger = Ledger("turn-2")
    stage.wire.faults["reply"] = [code(230072)]
    await stage.reply().finish(done("y"))
    assert stage.wire.names[-1] == "send"


# -- long answers -----------------------------------------------------------------------------------------------------
def paragraphs(n: int) -> str:
    return "".join(f"第{i}段。" + "这是一个很长的段落，" * 20 + "\n\n" for i in range(n))


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_long_answer_goes_on_in_further_cards(stage: Stage, streamed: bool) -> None:
    text = paragraphs(90)
    reply = stage.reply()
    if streamed:
        for end in range(500, len(text), 3000):
            await reply.show(grow(text[:end], end))
    await reply.finish(done(text, 10**6))
    seen = stage.wire.seen()
    assert len(seen) >= 3
    assert "".join(card.text for card in seen).replace("\n", "") == text.replace("\n", "")
    assert [tuple(card.buttons) for card in seen] == [()] * (len(seen) - 1) + [("Again",)]
    assert not any(card.streaming for card in seen)
    for body in stage.wire.bodies:
        raw = body.get("content") or body.get("data") or body.get("card", {}).get("data", "")
        assert len(raw.encode()) < 30_000
    parts = stage.ledger.parts()
    assert all(part.state is PartState.CLOSED for part in parts)
    assert [a.covers_from_chars for a in parts[1:]] == [a.covers_to_chars for a in parts[:-1]]


async def test_a_fence_is_closed_and_opened_again(stage: Stage) -> None:
    code_lines = "".join(f"value_{i} = {i}  # {'x' * 60}\n" for i in range(500))
    text = f"Look:\n\n```python\n{code_lines}```\n\nDone."
    await stage.reply().finish(done(text))
    seen = [card.text for card in stage.wire.seen()]
    assert len(seen) >= 2
    assert all(part.count("```") == 2 for part in seen)
    assert all(part.startswith("```python\n") for part in seen[1:])
    lines = [line for part in seen for line in part.split("\n") if line.startswith("value_")]
    assert lines == code_lines.strip().split("\n")


async def test_too_many_tables_for_the_server(stage: Stage) -> None:
    stage.wire.max_table_count = 1
    text = "\n".join("| a | b |\n|---|---|\n| 1 | 2 |\n" for _ in range(3))
    reply = stage.reply()
    await reply.show(grow(text))
    await reply.finish(done(text))
    assert stage.wire.only().text.count("```") == 6


async def test_a_server_with_a_lower_size_limit(stage: Stage) -> None:
    text = paragraphs(30)
    reply = stage.reply()
    await reply.show(grow(text[:200]))
    stage.wire.faults["content"] = [code(200860)] * 2
    await reply.show(grow(text, 2))
    await reply.finish(done(text))
    seen = stage.wire.seen()
    assert len(seen) > 1
    assert "".join(card.text for card in seen).replace("\n", "") == text.replace("\n", "")


# -- a new process ----------------------------------------------------------------------------------------------------
async def test_a_new_process_goes_on_with_the_same_card(stage: Stage) -> None:
    await stage.reply().show(grow("one"))
    stage.wire.calls()
    reply = stage.reply()
    await reply.show(grow("one two", 2))
    assert stage.wire.calls() == ["put_card"]
    await reply.finish(done("one two three"))
    assert_closed(stage.wire.only(), "one two three")


async def test_a_new_process_closes_a_card_left_open(stage: Stage) -> None:
    """cases B1."""
    await stage.reply().show(grow("one"))
    stage.now += timedelta(hours=3)
    stage.wire.cards["c1"].streaming = False
    await stage.reply().finish(done("one", outcome=Outcome.FAILED, notice="Interrupted."))
    assert_closed(stage.wire.only(), "one\n\nInterrupted.")


class Death(BaseException):
    """The process dies here."""


async def die_while_sending(stage: Stage, view: ReplyView, *, arrived: bool) -> None:
    """Run until the message is sent, then die: it may have arrived or not."""
    move = stage.wire._move

    async def dying(request: HttpRequest) -> HttpAnswer:
        sending = request.url.endswith("/reply")
        answer = await move(request) if arrived or not sending else None
        if sending or answer is None:
            raise Death
        return answer

    stage.wire._move = dying  # type: ignore[method-assign]  # the process dies inside this call
    reply = stage.reply()
    with pytest.raises(Death):
        await (reply.show(view) if view.outcome is Outcome.GROWING else reply.finish(view))
    stage.wire._move = move  # type: ignore[method-assign]  # the next process has a working wire


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("kind", ["card", "patch", "post"])
@pytest.mark.parametrize("hours", [0, 2])
async def test_death_while_sending(stage: Stage, arrived: bool, kind: str, hours: int) -> None:
    view = done("one two") if kind == "post" else grow("one")
    if kind == "patch":
        stage.desk.refuse_cards(FallBack("no scope"))
    if kind == "post":
        stage.ledger.saved[0] = ReplyPart("turn-1", 0, "post", "key")
    await die_while_sending(stage, view, arrived=arrived)
    stage.now += timedelta(hours=hours)
    if hours:
        stage.wire.uuids.clear()  # Feishu has forgotten them
    await insist(stage.reply(), done("one two"))
    seen = [card.text for card in stage.wire.seen()]
    if not hours or (kind == "card" and arrived):
        assert seen == ["one two"]
    else:
        assert seen[-1] == "(maybe a repeat)\n\none two"
        assert len(seen) == (2 if arrived else 1)


async def test_death_between_planning_the_next_card_and_closing_the_full_one(stage: Stage) -> None:
    text = paragraphs(60)
    reply = stage.reply()
    await reply.show(grow(text[:400]))
    stage.wire.faults["content"] = [HttpAnswer(502, {}, b"")]
    with pytest.raises(RetryLater):
        await reply.show(grow(text, 2))
    assert len(stage.ledger.parts()) == 2
    await insist(stage.reply(), done(text))
    seen = stage.wire.seen()
    assert "".join(card.text for card in seen).replace("\n", "") == text.replace("\n", "")
    assert not any(card.streaming for card in seen)
    assert all(card.buttons == [] for card in seen[:-1])


# -- pace -------------------------------------------------------------------------------------------------------------
async def test_the_interval_follows_active_replies_and_refusals() -> None:
    stage = Stage(update_interval_s=0.35)
    replies = []
    for n in range(14):
        stage.ledger = Ledger(f"turn-{n}")
        reply = stage.reply()
        await reply.show(grow("x"))
        replies.append(reply)
    assert replies[0].interval_s() == pytest.approx(1.0)
    await replies[0].finish(done("x"))
    assert replies[1].interval_s() == pytest.approx(13 / 14)
    stage.wire.faults["content"] = [code(230020)]
    with pytest.raises(RetryLater):
        await replies[1].show(grow("x y", 2))
    assert replies[2].interval_s() == pytest.approx(2 * 13 / 14, rel=0.05)
    replies.clear()
    del reply
    gc.collect()  # the refusal's traceback still holds one
    assert stage.desk.n_growing == 0


async def test_calls_are_counted_but_not_failed_ones_nor_tokens(stage: Stage) -> None:
    told: list[tuple[str, bool]] = []
    stage.desk.api.client.on_call.append(lambda api, ok: told.append((api, ok)))
    stage.wire.faults["create"] = [HttpAnswer(503, {}, b"")]
    reply = stage.reply()
    await insist(reply, grow("x"))
    assert stage.budget.used.calls == 2
    assert told == [
        ("token", True),
        ("card_create", False),
        ("card_create", True),
        ("message_reply", True),
    ]

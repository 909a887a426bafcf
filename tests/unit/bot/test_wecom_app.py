"""How a self-built app answers: message/send in short messages, its token and its errors, against a scripted wire."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bot.config import WeComAppConfig
from bot.domain.types import Attachment, Outcome, PartState, ReplyPart, ReplyTarget
from bot.errors import Ambiguous, GiveUp, RetryLater, TargetGone
from bot.platforms.base import ReplyDriver, ReplyView
from bot.platforms.budget import MemoryBudget
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp
from bot.platforms.wecom import WeComAppAdapter, apptext, open_adapter

IP_MESSAGE = "not allow to access from your ip, hint: [1], from ip: 203.0.113.9, more info at https://open.work.weixin.qq.com"


class Ledger:
    """Parts as a store keeps them."""

    turn_id = "t1"

    def __init__(self) -> None:
        self._parts: dict[int, ReplyPart] = {}

    def parts(self) -> tuple[ReplyPart, ...]:
        return tuple(self._parts[n] for n in sorted(self._parts))

    async def save(self, part: ReplyPart) -> None:
        self._parts[part.n] = part


class Wire(SharedHttp):
    """WeCom's API in miniature. `faults` are for the next sends."""

    def __init__(self) -> None:
        super().__init__()
        self.token = "token-1"
        self.n_tokens = 0
        self.sent: list[dict[str, Any]] = []
        self.faults: list[dict[str, Any] | Exception | HttpAnswer] = []
        self.token_answer: dict[str, Any] | None = None
        self.lose = 0
        self.token_faults = 0

    async def _move(self, request: HttpRequest) -> HttpAnswer:
        parts = urlsplit(request.url)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        await asyncio.sleep(0)
        if parts.path == "/cgi-bin/gettoken":
            assert query == {"corpid": "ww1", "corpsecret": "s3cret"}
            self.n_tokens += 1
            if self.token_faults:
                self.token_faults -= 1
                raise TimeoutError
            return self._json(self.token_answer or {"errcode": 0, "access_token": self.token, "expires_in": 7200})  # fmt: skip
        if parts.path == "/cgi-bin/media/get":
            if query["media_id"] == "gone":
                return self._json({"errcode": 40007, "errmsg": "invalid media_id"})
            return HttpAnswer(200, {}, b"bytes")
        assert parts.path == "/cgi-bin/message/send"
        if query["access_token"] != self.token:
            return self._json({"errcode": 40014, "errmsg": "invalid access_token"})
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault if isinstance(fault, HttpAnswer) else self._json(fault)
        body = dict(request.body or {})
        content = body[body["msgtype"]]["content"]
        assert 0 < len(content.encode()) <= 2048
        assert "enable_duplicate_check" not in body
        self.sent.append(body)
        if self.lose:
            self.lose -= 1
            raise TimeoutError
        return self._json({"errcode": 0, "msgid": f"id{len(self.sent)}"})

    @staticmethod
    def _json(data: dict[str, Any]) -> HttpAnswer:
        return HttpAnswer(200, {}, json.dumps(data).encode())

    @property
    def texts(self) -> list[str]:
        return [body[body["msgtype"]]["content"] for body in self.sent]


class Stand:
    def __init__(self, **config: Any) -> None:
        self.wire = Wire()
        made = WeComAppConfig(platform="wecom_app", corp_id="ww1", corp_secret="s3cret", agent_id=7, token="t", encoding_aes_key="k" * 43, **config)  # fmt: skip
        adapter = open_adapter("app", made, self.wire, MemoryBudget())
        assert isinstance(adapter, WeComAppAdapter)
        self.adapter = adapter
        self.slept = 0.0
        adapter.client.limiter._sleep = self._sleep
        adapter.client.limiter._clock = lambda: self.slept
        self.ledger = Ledger()

    async def _sleep(self, seconds: float) -> None:
        self.slept += seconds

    def reply(self) -> ReplyDriver:
        return self.adapter.open_reply(ReplyTarget("ww1:7", "zhang", "m1"), self.ledger)


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    made = Stand()
    yield made
    await made.adapter.close()


def done(text: str, **more: Any) -> ReplyView:
    return ReplyView(9, text, **{"outcome": Outcome.COMPLETE, "possible_repeat": "（可能重复）", **more})  # fmt: skip


async def test_the_finished_answer_is_one_text(stand: Stand) -> None:
    reply = stand.reply()
    await reply.prepare()
    await reply.show(ReplyView(1, "half"))
    assert stand.wire.sent == []
    await reply.finish(done("**你好** `x`\n\n- one", notice="note"))
    assert stand.wire.sent == [
        {"touser": "zhang", "agentid": 7, "msgtype": "text", "text": {"content": "你好 x\n\n• one\n\nnote"}}
    ]  # fmt: skip
    part = stand.ledger.parts()[0]
    assert (part.state, part.message_id) == (PartState.CLOSED, "id1")
    await stand.reply().finish(done("**你好** `x`\n\n- one", notice="note"))
    assert len(stand.wire.sent) == 1


async def test_a_long_answer_comes_in_numbered_messages_paced(stand: Stand) -> None:
    text = "".join(f"第{n}段：{'内容。' * 60}\n\n" for n in range(40))
    await stand.reply().finish(done(text))
    texts = stand.wire.texts
    total = len(texts)
    assert total > 10
    assert [text.partition("\n")[0] for text in texts] == [f"({n}/{total})" for n in range(1, total + 1)]  # fmt: skip
    assert "\n\n".join(text.partition("\n")[2] for text in texts) == text.strip()
    assert stand.slept >= (total - 3) * 3 - 1  # 20 a minute behind a burst of 3


async def test_an_answer_with_nothing_in_it(stand: Stand) -> None:
    await stand.reply().finish(done("", notice="模型没有回答"))
    assert stand.wire.texts == ["模型没有回答"]
    await stand.reply().finish(done("", outcome=Outcome.SILENT))
    assert len(stand.wire.texts) == 1


async def test_a_message_whose_fate_is_not_known_says_so(stand: Stand) -> None:
    reply = stand.reply()
    stand.wire.lose = 1
    with pytest.raises(Ambiguous):
        await reply.finish(done("answer"))
    await reply.finish(done("answer"))
    assert stand.wire.texts == ["answer", "（可能重复）\nanswer"]


async def test_where_answers_are_lost_for_long_few_copies_are_sent(stand: Stand) -> None:
    reply, waited = stand.reply(), 0.0
    stand.wire.lose = 100
    with pytest.raises(Ambiguous):
        await reply.finish(done("answer"))
    while waited < 600:
        with pytest.raises(RetryLater) as caught:
            await reply.finish(done("answer"))
        waited += caught.value.after_s
    assert len(stand.wire.texts) <= 8


async def test_a_crash_between_two_messages(stand: Stand) -> None:
    text = "".join(f"第{n}段：{'内容。' * 60}\n\n" for n in range(10))
    reply = stand.reply()
    await stand.adapter.client.tokens.get()
    original = stand.wire._move

    async def dies_at_third(request: HttpRequest) -> HttpAnswer:
        if len(stand.wire.sent) == 2:
            raise RuntimeError("killed")
        return await original(request)

    stand.wire._move = dies_at_third  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await reply.finish(done(text))
    stand.wire._move = original  # type: ignore[method-assign]
    await stand.reply().finish(done(text))
    texts = stand.wire.texts
    assert texts[2].startswith("（可能重复）\n(3/")
    assert len(texts) == len(apptext.cuts(text, markdown=False))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"errcode": -1}, RetryLater),
        ({"errcode": 45009}, RetryLater),
        ({"errcode": 45033}, RetryLater),
        (HttpAnswer(502, {}, b"<html>"), RetryLater),
        (HttpAnswer(403, {}, b"<html>"), RetryLater),
        (HttpAnswer(429, {}, b""), RetryLater),
        (HttpAnswer(500, {}, b""), Ambiguous),
        ({"errcode": 81013}, TargetGone),
        ({"errcode": 0, "invaliduser": "zhang"}, TargetGone),
        ({"errcode": 40056}, GiveUp),
        ({"errcode": 123456}, GiveUp),
    ],
)
async def test_what_codes_mean(stand: Stand, fault: Any, error: type[Exception]) -> None:
    stand.wire.faults = [fault]
    with pytest.raises(error) as caught:
        await stand.reply().finish(done("answer"))
    if isinstance(caught.value, RetryLater):
        stand.slept += caught.value.after_s
        await stand.reply().finish(done("answer"))
        assert stand.wire.texts == ["answer"]


async def test_an_untrusted_address_is_named(stand: Stand) -> None:
    stand.wire.faults = [{"errcode": 60020, "errmsg": IP_MESSAGE}]
    with pytest.raises(GiveUp, match=r"203\.0\.113\.9 is not among the app's trusted IPs"):
        await stand.reply().finish(done("answer"))
    assert "203.0.113.9" in stand.adapter.health()["error"]
    await stand.reply().finish(done("answer"))
    assert "error" not in stand.adapter.health()


async def test_a_refused_token_is_replaced_once_and_by_one_fetch(stand: Stand) -> None:
    await stand.adapter.client.tokens.get()
    stand.wire.token = "token-2"
    replies = [stand.adapter.open_reply(ReplyTarget("ww1:7", f"u{n}", "m"), Ledger()) for n in range(5)]  # fmt: skip
    await asyncio.gather(*(reply.finish(done("answer")) for reply in replies))
    assert len(stand.wire.sent) == 5
    assert stand.wire.n_tokens == 2


async def test_a_token_that_is_always_refused_does_not_loop(stand: Stand) -> None:
    stand.wire.token_answer = {"errcode": 0, "access_token": "wrong", "expires_in": 7200}
    with pytest.raises(RetryLater):
        await stand.reply().finish(done("answer"))
    assert stand.wire.n_tokens == 2


@pytest.mark.parametrize("answer", [{"errcode": 40001, "errmsg": "s3cret"}, {"errcode": 40013}, {"errcode": 0}, {"access_token": "token-1", "expires_in": 0, "errcode": 0}])  # fmt: skip
async def test_a_token_that_cannot_be_had(stand: Stand, answer: dict[str, Any]) -> None:
    stand.wire.token_answer = answer
    await stand.reply().prepare()
    with pytest.raises((GiveUp, RetryLater)) as caught:
        await stand.reply().finish(done("answer"))
    assert "s3cret" not in str(caught.value)
    assert stand.adapter.health()["token"] == "unknown"


async def test_a_token_whose_answer_is_lost_leaves_the_message_unsent(stand: Stand) -> None:
    stand.wire.token_faults = 1
    with pytest.raises(RetryLater):
        await stand.reply().finish(done("answer"))
    await stand.reply().finish(done("answer"))
    assert stand.wire.texts == ["answer"]


async def test_markdown_where_it_is_wanted_and_text_where_it_is_refused() -> None:
    stand = Stand(message_format="markdown")
    await stand.reply().finish(done("# T\n\n**b** [x](https://h)\n\n- one"))
    assert stand.wire.sent[0]["markdown"]["content"] == "# T\n\n**b** [x](https://h)\n\n• one"
    stand.ledger = Ledger()
    stand.wire.faults = [{"errcode": 40008}]
    await stand.reply().finish(done("**b**"))
    assert stand.wire.sent[1] == {"touser": "zhang", "agentid": 7, "msgtype": "text", "text": {"content": "b"}}  # fmt: skip
    await stand.adapter.close()


async def test_attachments_are_fetched_by_their_id(stand: Stand) -> None:
    target = ReplyTarget("ww1:7", "zhang", "m1")

    async def fetch(key: str) -> bytes:
        return await stand.adapter.fetch(Attachment("file", "a", key), target, max_bytes=9)

    assert await fetch('{"media_id": "m"}') == b"bytes"
    with pytest.raises(GiveUp):
        await fetch('{"media_id": "gone"}')


async def test_there_is_no_sign_of_life(stand: Stand) -> None:
    target = ReplyTarget("ww1:7", "zhang", "m1")
    assert await stand.adapter.show_alive(target) == ""
    assert await stand.adapter.find_alive(target) == ""
    assert stand.wire.sent == []


def test_a_number_of_a_message_is_kept_within_the_bytes() -> None:
    made = apptext.message("字" * 3000, number=10, total=12, mark="（可能重复）")
    assert len(made.encode()) <= 2048
    assert re.match(r"（可能重复）\n\(10/12\)\n字", made)


async def test_killed_while_it_waits_for_its_turn_nothing_is_marked_as_a_repeat(
    stand: Stand,
) -> None:
    """Nothing was under way: the record says so."""

    async def killed(_: float) -> None:
        raise asyncio.CancelledError

    text = "".join(f"第{n}段：{'内容很长。' * 60}\n\n" for n in range(12))
    stand.adapter.client.limiter._sleep = killed
    with pytest.raises(asyncio.CancelledError):
        await stand.reply().finish(done(text))
    assert len(stand.wire.sent) == 3
    stand.adapter.client.limiter._sleep = stand._sleep
    await stand.reply().finish(done(text))
    assert "重复" not in "".join(stand.wire.texts)
    assert "".join(stand.wire.texts).count("段：") == 12


async def test_after_a_restart_an_answer_goes_on_in_the_format_it_began_in(stand: Stand) -> None:
    """Its messages were cut in that format: in another one, text would be lost or said twice between two of them."""
    text = "".join(f"第{n}段：[一个链接](https://example.com/{n}) {'**粗体**内容。' * 30}\n\n" for n in range(9))  # fmt: skip
    await _stopped_after(stand, 2, text)
    other = Stand(message_format="markdown")
    other.ledger, other.wire = stand.ledger, stand.wire
    other.adapter.client._http = stand.wire
    await other.reply().finish(done(text))
    assert {body["msgtype"] for body in stand.wire.sent} == {"text"}
    assert [f"第{n}段：" in "".join(stand.wire.texts) for n in range(9)] == [True] * 9
    assert "".join(stand.wire.texts).count("段：") == 9


async def _stopped_after(stand: Stand, n_messages: int, text: str) -> None:
    stand.wire.faults = []
    original = stand.ledger.save

    async def save(part: ReplyPart) -> None:
        if part.n >= n_messages:
            raise asyncio.CancelledError
        await original(part)

    stand.ledger.save = save  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await stand.reply().finish(done(text))
    stand.ledger.save = original  # type: ignore[method-assign]


@pytest.mark.parametrize("per_minute", [1, 20, 26, 27, 28])
async def test_no_minute_has_thirty_messages(per_minute: int) -> None:
    stand = Stand(messages_per_minute=per_minute)
    times: list[float] = []
    for _ in range(120):
        try:
            await stand.adapter.client.turn_of("zhang")
        except RetryLater as error:
            stand.slept += error.after_s
            continue
        times.append(stand.slept)
    assert max(sum(at <= other <= at + 60 for other in times) for at in times) < 30
    await stand.adapter.close()

"""The AI bot by callback: what WeCom sends, when it polls, what it takes and what it notes. wechatpy judges the envelopes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import warnings
from typing import Any

import aiohttp
import pytest

from bot.sandbox.wecom import Limits, ManualClock, WeComSandbox, crypto, visible_text
from tests.support.wecomkit import button_card, hooked, rules, seal, stream

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 40


class Answer:
    """A stream that grows by one word per poll."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)
        self.shown: dict[str, int] = {}

    def __call__(self, body: Any) -> Any:
        if body["msgtype"] == "event":
            return None
        if body["msgtype"] == "stream":
            stream_id = body["stream"]["id"]
            self.shown[stream_id] += 1
            count = self.shown[stream_id]
            return stream(stream_id, " ".join(self.words[:count]), finish=count >= len(self.words))
        stream_id = f"s-{body['msgid']}"
        self.shown.setdefault(stream_id, 0)
        return stream(stream_id, "<think></think>")


async def post_response(url: str, body: Any) -> Any:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return await response.json()


async def test_a_question_is_polled_until_the_answer_is_final() -> None:
    async with hooked() as (sandbox, bot):
        bot.answer = Answer("one", "two", "three")
        user = sandbox.add_user("小林")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        assert sent.acked
        reply = sandbox.replies(sent)[0]
        assert reply.streaming
        assert visible_text(reply) == ""
        assert rules(sandbox) == ["left_streaming"]
        await sandbox.wait_for(lambda: not reply.streaming)
        assert visible_text(reply) == "one two three"
        await asyncio.sleep(0.1)
        first, *polls = bot.seen
        assert len(polls) == 3
        assert first["msgtype"] == "text"
        assert first["text"] == {"content": "hi"}
        assert (first["chattype"], first["from"]) == ("single", {"userid": user.id})
        assert "chatid" not in first
        assert first["response_url"].startswith(sandbox.base_url + "/cgi-bin/aibot/response?")
        assert polls[0]["stream"] == {"id": f"s-{sent.id}"}
        assert "response_url" not in polls[0]
        assert len({body["msgid"] for body in bot.seen}) == 4
        assert sandbox.violations == []


async def test_wechatpy_opens_what_the_sandbox_sends_and_the_sandbox_opens_wechatpys_reply() -> (
    None
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wechatpy's own, at import
        from wechatpy.crypto import WeChatCrypto
    async with hooked() as (sandbox, bot):
        config = sandbox.config
        judge = WeChatCrypto(config.token, config.encoding_aes_key, "")
        user = sandbox.add_user("Alex")
        answers: list[Any] = []

        def answer(body: Any) -> bytes:
            query, raw = bot.requests[-1]
            text = json.loads(raw)["encrypt"]
            plain = judge.decrypt_message(
                {"Encrypt": text}, query["msg_signature"], query["timestamp"], query["nonce"]
            )
            answers.append(json.loads(plain))
            sealed = judge.encrypt_message(
                json.dumps(stream("s1", "answer 你好", finish=True)), query["nonce"], "1764374400"
            )
            import xmltodict

            parts = xmltodict.parse(sealed)["xml"]
            return json.dumps(
                {
                    "encrypt": parts["Encrypt"], "msgsignature": parts["MsgSignature"],
                    "timestamp": int(parts["TimeStamp"]), "nonce": parts["Nonce"],
                }
            ).encode()  # fmt: skip

        bot.answer = answer
        sent = await sandbox.say(sandbox.direct_chat(user), user, "你好" * 50)
        assert answers[0]["text"]["content"] == "你好" * 50
        assert visible_text(sandbox.replies(sent)[0]) == "answer 你好"
        assert sandbox.violations == []


@pytest.mark.parametrize("raw_plus", [False, True])
async def test_url_check(raw_plus: bool) -> None:
    async with hooked() as (sandbox, bot):
        assert await sandbox.url_check(raw_plus=raw_plus)
        sandbox.subscribe(bot.url.replace("/wecom", "/elsewhere"))
        assert not await sandbox.url_check(raw_plus=raw_plus)


async def test_a_message_is_tried_three_times_with_the_same_bytes() -> None:
    async with hooked() as (sandbox, bot):
        bot.status = 503
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        await sandbox.wait_for(lambda: len(sent.attempts) == 3)
        await asyncio.sleep(0.1)
        assert len(bot.requests) == 3
        assert len({(raw, query["nonce"]) for query, raw in bot.requests}) == 1
        assert not sent.acked


async def test_a_lost_answer_and_a_duplicate_must_name_the_same_stream() -> None:
    async with hooked() as (sandbox, bot):
        bot.answer = Answer("done")
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        sandbox.faults.drop("callback.message", after=True)
        sent = await sandbox.say(chat, user, "one")
        assert sandbox.replies(sent) == []
        reply = (await sandbox.wait_for(lambda: sandbox.replies(sent)))[0]
        await sandbox.wait_for(lambda: not reply.streaming)
        assert [len(sandbox.replies(sent)), sandbox.violations] == [1, []]
        numbers = iter(range(9))
        bot.answer = lambda body: (
            stream(f"n{next(numbers)}", "x") if body["msgtype"] == "text"
            else stream(body["stream"]["id"], "y", finish=True)
        )  # fmt: skip
        sandbox.faults.drop("callback.message", after=True)
        sent = await sandbox.say(chat, user, "two")
        await sandbox.wait_for(lambda: "stream_id_changed" in rules(sandbox))
        await sandbox.wait_for(lambda: not sandbox.replies(sent)[0].streaming)
        await sandbox.redeliver(sent)
        assert rules(sandbox) == ["stream_id_changed", "stream_id_changed"]
        assert len(sandbox.replies(sent)) == 1


async def test_a_stream_that_is_never_finished_ends_in_wecoms_words() -> None:
    clock = ManualClock()
    async with hooked(clock=clock) as (sandbox, bot):
        bot.answer = lambda body: stream("s1", "half")
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        clock.advance(361)
        reply = sandbox.replies(sent)[0]
        await sandbox.wait_for(lambda: reply.failed)
        count = len(bot.seen)
        await asyncio.sleep(0.1)
        assert len(bot.seen) == count
        assert rules(sandbox) == ["never_finished"]
        assert "did not finish" in visible_text(reply)


@pytest.mark.parametrize(
    ("reply", "rule"),
    [
        (stream("s1", "", finish=True), "empty_final"),
        (stream("s1", "<think>hm</think> ", finish=True), "empty_final"),
        (stream("s1", "字" * 6827, finish=True), "stream_too_big"),
        (stream("", "x", finish=True), "stream_malformed"),
        (stream("s1", "<think>open", finish=True), "think_open"),
        (stream("s1", "hey <@boss>", finish=True), "mention_injected"),
        (stream("s1", "x", finish=True, feedback={"id": "f" * 257}), "feedback_malformed"),
        ({"msgtype": "text", "text": {"content": "x"}}, "reply_kind"),
        ({"msgtype": "markdown", "markdown": {"content": "x"}}, "reply_kind"),
        ({"msgtype": "template_card", "template_card": {"card_type": "x"}}, "card_malformed"),
        (b"success", "plain_reply"),
        (json.dumps(stream("s1", "x", finish=True)).encode(), "plain_reply"),
    ],
)  # fmt: skip
async def test_first_answers_that_are_not_taken_or_frowned_on(reply: Any, rule: str) -> None:
    async with hooked() as (sandbox, bot):
        bot.answer = lambda _body: reply
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, "hi")
        assert rules(sandbox) == [rule]
        await asyncio.sleep(0.06)
        assert len(bot.seen) == 1


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("nonce", "other", "reply_nonce"),
        ("msgsignature", "0" * 40, "reply_signature"),
        ("timestamp", "1764374400", "reply_fields"),
        ("encrypt", "AAAA", "reply_signature"),
    ],
)
async def test_envelopes_that_are_not_as_written(field: str, value: str, rule: str) -> None:
    async with hooked() as (sandbox, bot):

        def answer(body: Any) -> bytes:
            nonce = bot.requests[-1][0]["nonce"]
            sealed = json.loads(seal(sandbox.config, stream("s", "x", finish=True), nonce))
            return json.dumps({**sealed, field: value}).encode()

        bot.answer = answer
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, "hi")
        assert rule in rules(sandbox)


async def test_poll_answers_that_break_the_rules() -> None:
    async with hooked() as (sandbox, bot):
        later: list[Any] = [None, stream("other", "x"), stream("s1", "end", finish=True)]
        bot.answer = lambda body: stream("s1", "…") if body["msgtype"] == "text" else later.pop(0)
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        await sandbox.wait_for(lambda: not sandbox.replies(sent)[0].streaming)
        assert rules(sandbox) == ["poll_answer", "stream_id_changed"]
        assert visible_text(sandbox.replies(sent)[0]) == "end"


async def test_failing_polls_are_asked_again() -> None:
    async with hooked() as (sandbox, bot):
        bot.answer = Answer("a", "b")
        sandbox.faults.drop("callback.poll", 3)
        sandbox.faults.drop("callback.poll", 1, after=True)
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        await sandbox.wait_for(lambda: not sandbox.replies(sent)[0].streaming)
        assert visible_text(sandbox.replies(sent)[0]) == "a b"
        assert sandbox.violations == []


async def test_response_url_once_plain_and_in_time() -> None:
    clock = ManualClock()
    async with hooked(clock=clock) as (sandbox, bot):
        bot.answer = lambda body: stream("s-" + body["msgid"], "done", finish=True)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        sent = await sandbox.say(chat, user, "hi")
        url = bot.seen[0]["response_url"]
        body = {"msgtype": "markdown", "markdown": {"content": "the rest"}}
        refused = await post_response(url, {"msgtype": "stream", "stream": {"id": "s"}})
        assert refused["errcode"] == 40008
        big = {"msgtype": "markdown", "markdown": {"content": "x" * 20_481}}
        assert (await post_response(url, big))["errcode"] == 45002
        sealed = json.loads(seal(sandbox.config, body, "1"))
        assert (await post_response(url, sealed))["errcode"] == 40058
        assert (await post_response(url, body))["errcode"] == 0
        assert [visible_text(m) for m in sandbox.replies(sent)] == ["done", "the rest"]
        assert (await post_response(url, body))["errcode"] == 93000
        assert "response_url_reused" not in rules(sandbox)
        other = {"msgtype": "markdown", "markdown": {"content": "something else"}}
        assert (await post_response(url, other))["errcode"] == 93000
        await sandbox.say(chat, user, "more")
        clock.advance(3601)
        assert (await post_response(bot.seen[-1]["response_url"], body))["errcode"] == 93000
        assert rules(sandbox) == [
            "reply_kind", "message_too_big", "response_encrypted", "response_url_reused", "response_url_late",
        ]  # fmt: skip
        assert "response_code" not in str(sandbox.calls_of("aibot.response")[0])


async def test_what_a_group_bot_hears() -> None:
    async with hooked() as (sandbox, bot):
        bot.answer = lambda body: stream("s-" + body["msgid"], "ok", finish=True)
        alex, lin = sandbox.add_user("Alex"), sandbox.add_user("小林")
        group = sandbox.add_group("g", [alex, lin])
        assert (await sandbox.say(group, alex, "aside", mention_bot=False)).push is None
        assert (await sandbox.say(group, alex, kind="image", data=PNG)).push is None
        first = await sandbox.say(group, alex, "hello")
        answer = sandbox.replies(first)[0]
        await sandbox.say(group, lin, "and this?", mention_bot=False, quote=answer)
        await sandbox.say(group, lin, kind="mixed", items=[PNG, "look", PNG])
        heard = [body for body in bot.seen if body["msgtype"] != "stream"]
        assert heard[0]["text"]["content"] == "@Hearth hello"
        assert (heard[0]["chattype"], heard[0]["chatid"]) == ("group", group.id)
        assert heard[1]["quote"] == {"msgtype": "text", "text": {"content": "ok"}}
        parts = heard[2]["mixed"]["msg_item"]
        assert [part["msgtype"] for part in parts] == ["image", "text", "image"]
        assert parts[1]["text"]["content"] == "@Hearth look"
        group.has_bot = False
        assert (await sandbox.say(group, alex, "anyone?")).push is None
        assert sandbox.violations == []


async def test_files_voice_and_a_long_paste() -> None:
    clock = ManualClock()
    async with hooked(clock=clock) as (sandbox, bot):
        bot.answer = lambda body: stream("s-" + body["msgid"], "ok", finish=True)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        await sandbox.say(chat, user, kind="file", data=b"notes " * 100, filename="notes.txt")
        await sandbox.say(chat, user, "spoken words", kind="voice")
        await sandbox.paste(chat, user, "长" * 9000)
        file, voice, *paste = bot.seen
        assert voice["voice"] == {"content": "spoken words"}
        assert [len(body["text"]["content"]) for body in paste] == [4000, 4000, 1000]
        assert list(file["file"]) == ["url"]
        key = crypto.key_of(sandbox.config.encoding_aes_key)
        async with aiohttp.ClientSession() as session:
            async with session.get(file["file"]["url"]) as response:
                assert crypto.open_bytes(await response.read(), key) == b"notes " * 100
            clock.advance(301)
            async with session.get(file["file"]["url"]) as response:
                assert response.status == 403
        assert rules(sandbox) == ["media_too_late"]
        # Quoted now, the old file has a URL that lives again.
        asked = next(m for m in sandbox.messages(chat) if m.kind == "file")
        await sandbox.say(chat, user, "sum this up", quote=asked)
        quoted = bot.seen[-1]["quote"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(quoted["file"]["url"]) as response,
        ):
            assert response.status == 200


async def test_three_open_questions_are_the_most() -> None:
    async with hooked() as (sandbox, bot):
        ends: set[str] = set()
        bot.answer = lambda body: (
            stream("s-" + body["msgid"], "…") if body["msgtype"] == "text"
            else stream(body["stream"]["id"], "end", finish=body["stream"]["id"] in ends)
        )  # fmt: skip
        user, other = sandbox.add_user("a"), sandbox.add_user("b")
        chat = sandbox.direct_chat(user)
        sent = [await sandbox.say(chat, user, f"{i}") for i in range(4)]
        assert [s.busy for s in sent] == [False, False, False, True]
        assert (await sandbox.say(sandbox.direct_chat(other), other, "hi")).acked
        ends.add(f"s-{sent[0].id}")
        await sandbox.wait_for(lambda: not sandbox.replies(sent[0])[0].streaming)
        assert (await sandbox.say(chat, user, "now")).acked


async def test_out_of_order_and_copies() -> None:
    async with hooked() as (sandbox, bot):
        bot.answer = lambda body: stream("s-" + body["msgid"], "ok", finish=True)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        sandbox.hold()
        sent = [await sandbox.say(chat, user, text) for text in ("one", "two")]
        assert bot.seen == []
        sandbox.duplicate(3)
        await sandbox.release(reverse=True)
        texts = [body["text"]["content"] for body in bot.seen]
        assert texts == ["two"] * 3 + ["one"] * 3
        assert all(len(s.attempts) == 3 and len(sandbox.replies(s)) == 1 for s in sent)
        assert sandbox.violations == []


async def test_events_cards_and_feedback() -> None:
    async with hooked() as (sandbox, bot):
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        bot.answer = lambda _body: {"msgtype": "text", "text": {"content": "welcome"}}
        await sandbox.enter_chat(user)
        assert bot.seen[0]["event"] == {"eventtype": "enter_chat"}
        assert [visible_text(m) for m in sandbox.messages(chat)] == ["welcome"]
        card = button_card("t1", "Stop", "Again")
        bot.answer = lambda _body: {
            "msgtype": "stream_with_template_card", "template_card": card,
            "stream": stream("s1", "text", finish=True, feedback={"id": "fb-1"})["stream"],
        }  # fmt: skip
        sent = await sandbox.say(chat, user, "hi")
        answer, shown = sandbox.replies(sent)
        assert shown.card == card
        with pytest.raises(LookupError):
            await sandbox.press(shown, "Nothing", user)
        changed = {**button_card("t1"), "main_title": {"title": "Stopped"}}
        bot.answer = lambda _body: {
            "response_type": "update_template_card", "template_card": changed,
        }  # fmt: skip
        pressed = await sandbox.press(shown, "Again", user)
        assert (pressed.updated, visible_text(shown)) == (True, "Stopped")
        event = bot.seen[-1]
        assert event["event"]["template_card_event"] == {
            "card_type": "button_interaction", "event_key": "key-Again", "task_id": "t1",
        }  # fmt: skip
        assert "response_url" in event
        bot.answer = lambda _body: None
        await sandbox.rate(answer, user, 2, "wrong", [3])
        assert bot.seen[-1]["event"]["feedback_event"] == {
            "id": "fb-1", "type": 2, "content": "wrong", "inaccurate_reason_list": [3],
        }  # fmt: skip
        assert sandbox.violations == []


async def test_an_event_is_sent_once_and_takes_no_stream() -> None:
    async with hooked() as (sandbox, bot):
        user = sandbox.add_user("a")
        bot.status = 500
        push = await sandbox.enter_chat(user)
        assert push is not None
        await asyncio.sleep(0.1)
        assert len(push.attempts) == 1
        bot.status = 200
        bot.answer = lambda _body: stream("s", "x", finish=True)
        assert await sandbox.enter_chat(user) is None
        await sandbox.enter_chat(sandbox.add_user("b"))
        assert rules(sandbox) == ["reply_kind"]


async def test_images_go_with_the_final_snapshot_only() -> None:
    digest = hashlib.md5(PNG).hexdigest()
    good = {"msgtype": "image", "image": {"base64": base64.b64encode(PNG).decode(), "md5": digest}}
    bad = {"msgtype": "image", "image": {**good["image"], "md5": "0" * 32}}
    async with hooked() as (sandbox, bot):
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        bot.answer = lambda body: stream("a" + body["msgid"], "", finish=True, msg_item=[good])
        sent = await sandbox.say(chat, user, "hi")
        assert sandbox.replies(sent)[0].data == {"msg_item": [good]}
        assert sandbox.violations == []
        bot.answer = lambda body: stream("b" + body["msgid"], "x", finish=True, msg_item=[bad])
        await sandbox.say(chat, user, "hi")
        bot.answer = lambda body: stream(
            "c" + body["msgid"], "x", finish=True, msg_item=[good] * 11
        )
        await sandbox.say(chat, user, "hi")
        assert rules(sandbox) == ["msg_item_malformed"] * 2


async def test_two_messages_with_the_same_answer_are_seen() -> None:
    async with hooked() as (sandbox, bot):
        bot.answer = lambda body: stream("s-" + body["msgid"], "the same words", finish=True)
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, "hi")
        again = {"msgtype": "markdown", "markdown": {"content": "the same words and more"}}
        await post_response(bot.seen[0]["response_url"], again)
        assert rules(sandbox) == ["two_answers"]


async def test_a_slow_bot_is_cut_off_and_asked_again() -> None:
    async with hooked(deadline_s=0.2) as (sandbox, bot):
        calls: list[Any] = []

        async def answer(body: Any) -> Any:
            calls.append(body)
            if len(calls) == 1:
                await asyncio.sleep(1)
            return stream("s-" + body["msgid"], "ok", finish=True)

        bot.answer = answer
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        await sandbox.wait_for(lambda: sandbox.replies(sent))
        assert [attempt.error for attempt in sent.attempts] == ["timeout", ""]
        assert calls[0] == calls[1]
        assert rules(sandbox) == ["answer_too_slow"]


async def test_forged_requests_and_closing_leave_nothing_behind() -> None:
    before = asyncio.all_tasks()
    async with hooked() as (sandbox, bot):
        attempt = await sandbox.post_raw(b"{}")
        assert attempt.status == 500
        user = sandbox.add_user("a")
        bot.answer = lambda _body: stream("s", "…")
        await sandbox.say(sandbox.direct_chat(user), user, "hi")
        assert any(task.get_name().startswith("poll") for task in asyncio.all_tasks())
    assert asyncio.all_tasks() == before


async def test_a_callback_of_any_shape() -> None:
    async with hooked() as (sandbox, bot):
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        await sandbox.send_event(chat, user, {"msgtype": "hologram", "hologram": {}})
        await sandbox.send_event(chat, user, {"msgtype": "event", "event": {"eventtype": "new"}})
        assert [body["msgtype"] for body in bot.seen] == ["hologram", "event"]
        assert bot.seen[0]["from"] == {"userid": user.id}
        sent = await sandbox.say(chat, user, "hi")
        sandbox.recall(sent)
        assert sent.message.recalled


async def test_nothing_is_pushed_without_a_url_and_quotas_can_be_off() -> None:
    async with WeComSandbox() as sandbox:
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        assert (sent.acked, sent.attempts) == (False, [])
    assert Limits().without_rates().in_flight_per_user is None

"""The DingTalk sandbox by itself: robot callbacks over HTTP, sessions, tokens, rates, the robot's OpenAPI, files, faults."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bot.sandbox.dingtalk import Limits, visible_text
from tests.support.dingtalkkit import Wire, clock_of, hooked, played, rules


def sign(timestamp: str, secret: str) -> str:
    text = f"{timestamp}\n{secret}".encode()
    return base64.b64encode(hmac.new(secret.encode(), text, hashlib.sha256).digest()).decode()


async def markdown(wire: Wire, url: str, text: str = "hi", **more: Any) -> Any:
    body = {"msgtype": "markdown", "markdown": {"title": "t", "text": text}, **more}
    return await wire.call("POST", url, body)


async def test_a_group_message_is_signed_and_complete() -> None:
    async with played() as (sandbox, _), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin, alex = sandbox.add_user("小林"), sandbox.add_user("Alex", outside=True)
        group = sandbox.add_group("组", [lin, alex])
        sent = await sandbox.say(group, lin, "你好", mentions=[alex])
        assert sent.acked
        body, headers = hook.seen[0], hook.headers[0]
        assert headers["sign"] == sign(headers["timestamp"], sandbox.config.client_secret)
        assert headers["content-type"] == "application/json; charset=utf-8"
        assert body["text"] == {"content": " 你好"}
        assert body["msgId"] == sent.id
        assert (body["conversationType"], body["conversationTitle"]) == ("2", "组")
        assert body["conversationId"] == group.id
        assert body["conversationId"].startswith("cid")
        assert (body["senderStaffId"], body["senderId"]) == (lin.staff_id, lin.id)
        assert body["robotCode"] == sandbox.config.client_id
        assert [at.get("staffId") for at in body["atUsers"]] == [None, None]
        assert body["sessionWebhookExpiredTime"] - body["createAt"] == 90 * 60 * 1000
        outsider = await sandbox.say(sandbox.direct_chat(alex), alex, "hi")
        assert "senderStaffId" not in hook.seen[1]
        assert "atUsers" not in hook.seen[1]
        assert outsider.acked


async def test_groups_push_only_what_names_the_robot_and_no_files() -> None:
    async with played() as (sandbox, _), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")
        group, direct = sandbox.add_group("组", [lin]), sandbox.direct_chat(lin)
        await sandbox.say(group, lin, "among us", mention_bot=False)
        await sandbox.say(group, lin, {"downloadCode": "x"}, message_type="audio")
        assert hook.seen == []
        await sandbox.say(
            direct, lin, {"downloadCode": "x", "recognition": "hello"}, message_type="audio"
        )
        assert hook.seen[0]["content"] == {"downloadCode": "x", "recognition": "hello"}
        first = await sandbox.say(group, lin, "one")
        await sandbox.say(group, lin, "two", reply_to=first.message)
        assert hook.seen[2]["originalMsgId"] == first.id
        assert hook.seen[2]["text"]["repliedMsg"]["content"] == {"text": "one"}


async def test_what_is_not_acknowledged_comes_again() -> None:
    async with played(http_ack_s=0.1) as (sandbox, _), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")

        async def slow() -> web.StreamResponse:
            await asyncio.sleep(0.2)
            return web.Response()

        async def failing() -> web.StreamResponse:
            return web.Response(status=500)

        for answer, error, status in ((slow, "timeout", 0), (failing, "", 500)):
            hook.answer = answer
            sent = await sandbox.say(sandbox.direct_chat(lin), lin, "hi")
            assert (sent.attempts[0].error, sent.attempts[0].status) == (error, status)
            hook.answer = None
            await sandbox.wait_for(lambda sent=sent: sent.acked)
            assert hook.seen[-1]["msgId"] == sent.id
        sandbox.repeat_pushes(2)
        before = len(hook.seen)
        await sandbox.say(sandbox.direct_chat(lin), lin, "thrice")
        assert len({body["msgId"] for body in hook.seen[before:]}) == 1
        assert len(hook.seen) == before + 3


async def test_a_body_in_the_answer_is_a_fault() -> None:
    async with played() as (sandbox, _), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")

        async def talking() -> web.StreamResponse:
            return web.json_response({"msgtype": "text", "text": {"content": "hi"}})

        hook.answer = talking
        await sandbox.say(sandbox.direct_chat(lin), lin, "hi")
        assert rules(sandbox) == ["body_in_robot_reply"]


async def test_a_session_answers_its_question_until_it_expires() -> None:
    async with played() as (sandbox, wire), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")
        group = sandbox.add_group("组", [lin])
        first = await sandbox.say(group, lin, "one")
        await sandbox.say(group, lin, "two")
        url = hook.seen[0]["sessionWebhook"]
        reply = await markdown(wire, url, f"@{lin.staff_id} yes", at={"atUserIds": [lin.staff_id]})
        assert (reply.status, reply.body) == (200, {"errcode": 0, "errmsg": "ok"})
        (answer,) = sandbox.replies(first)
        assert visible_text(answer) == f"@{lin.staff_id} yes"
        assert answer.pinged == (lin,)
        clock_of(sandbox).advance(90 * 60)
        late = await markdown(wire, url)
        assert (late.status, late.code) == (200, 300001)
        assert (await markdown(wire, url + "0")).code == 300001
        assert sandbox.violations == []


async def test_what_a_session_refuses() -> None:
    async with played(unsafe_words=frozenset({"forbidden"})) as (sandbox, wire), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")
        await sandbox.say(sandbox.direct_chat(lin), lin, "one")
        url = hook.seen[0]["sessionWebhook"]
        too_long = await markdown(wire, url, "x" * 20_000)
        assert (too_long.status, too_long.code) == (200, 460101)
        assert (await wire.call("POST", url, {"msgtype": "poem", "poem": {}})).code == 400105
        assert (
            await wire.call("POST", url, {"msgtype": "markdown", "markdown": {"text": "x"}})
        ).code == 40035
        assert (await markdown(wire, url, "a forbidden word")).code == 430102
        async with wire.session.post(url, data="text") as reply:
            assert (await reply.json())["errcode"] == 43004
        for _ in range(20):
            assert (await markdown(wire, url)).code == 0
        assert (await markdown(wire, url)).code == 130101
        clock_of(sandbox).advance(60)
        assert (await markdown(wire, url)).code == 0


async def test_mentions_that_nobody_asked_for_are_noted() -> None:
    async with played() as (sandbox, wire), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin, alex = sandbox.add_user("小林"), sandbox.add_user("Alex")
        group = sandbox.add_group("组", [lin, alex])
        await sandbox.say(group, lin, "one")
        url = hook.seen[0]["sessionWebhook"]
        await markdown(wire, url, "no name", at={"atUserIds": [lin.staff_id]})
        await markdown(wire, url, "hello", at={"userIds": [lin.staff_id]})
        await markdown(wire, url, "hey", at={"atUserIds": [alex.staff_id], "isAtAll": True})
        assert set(rules(sandbox)) == {"at_without_text", "unknown_field", "mention_injected"}


async def test_a_forged_webhook_is_caught() -> None:
    async with played() as (sandbox, wire), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")
        await sandbox.say(sandbox.direct_chat(lin), lin, "hi", foreign_webhook=True)
        url = hook.seen[0]["sessionWebhook"]
        assert not url.startswith(sandbox.base_url)
        await markdown(wire, url)
        assert rules(sandbox) == ["sent_to_foreign_host"]


async def test_over_the_month_messages_come_without_content() -> None:
    async with played(limits=Limits(monthly_messages=2)) as (sandbox, wire), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")
        await sandbox.say(sandbox.direct_chat(lin), lin, "one")
        url = hook.seen[0]["sessionWebhook"]
        assert (await markdown(wire, url)).code == 0
        assert (await markdown(wire, url)).code == 90020
        await sandbox.say(sandbox.direct_chat(lin), lin, "two")
        assert hook.seen[1]["errorCode"] == 20001
        assert hook.seen[1]["msgtype"] == "text"
        assert "text" not in hook.seen[1]
        assert (await markdown(wire, hook.seen[1]["sessionWebhook"])).code == 90020


async def test_tokens() -> None:
    async with played(bad_token_status=401) as (sandbox, wire):
        config = sandbox.config
        first = wire.token
        clock_of(sandbox).advance(7000)
        assert (await wire.login()).body == {"accessToken": first, "expireIn": 7200}
        clock_of(sandbox).advance(7000)
        body = {
            "client_id": config.client_id,
            "client_secret": config.client_secret,
            "grant_type": "client_credentials",
        }
        newer = await wire.call("POST", f"/v1.0/oauth2/{config.corp_id}/token", body)
        assert newer.body == {"access_token": first, "expires_in": 7200}
        query = f"appkey={config.client_id}&appsecret={config.client_secret}"
        old = await wire.call("GET", f"/gettoken?{query}")
        assert (old.body["errcode"], old.body["access_token"]) == (0, first)
        assert (await wire.call("GET", "/gettoken?appkey=a&appsecret=b")).code == 40089
        bad = await wire.call("POST", "/v1.0/oauth2/accessToken", {"appKey": "x", "appSecret": "y"})
        assert (bad.status, bad.code) == (400, "invalidClientIdOrSecret")
        assert bad.body["requestid"]
        clock_of(sandbox).advance(7200)
        send = ("POST", "/v1.0/robot/groupMessages/send", {})
        late = await wire.call(*send)
        assert (late.status, late.code) == (401, "InvalidAuthentication")
        await wire.login()
        assert wire.token != first
        assert (await wire.call(*send)).code == "invalidParameter.robotCode"
        sandbox.tokens.revoke()
        assert (await wire.call(*send)).code == "InvalidAuthentication"
        assert sandbox.rates.month_calls == 1
        assert config.client_secret not in str(sandbox.calls)


async def test_rates_month_scope_and_blocked_address() -> None:
    limits = Limits(monthly_calls=21, ip_calls=60)
    async with played(limits=limits, scopes=frozenset({"qyapi_robot_sendmsg"})) as (sandbox, wire):

        def send() -> Any:
            return wire.call("POST", "/v1.0/robot/groupMessages/send", {})

        for _ in range(20):
            assert (await send()).code == "invalidParameter.robotCode"
        refused = await send()
        assert (refused.status, refused.code) == (
            403,
            "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi",
        )
        clock_of(sandbox).advance(0.5)
        await send()
        assert rules(sandbox) == ["call_too_soon"]
        clock_of(sandbox).advance(1.0)
        assert (await send()).status == 400
        spent = await send()
        assert (spent.status, spent.code) == (403, "Forbidden.AccessDenied.ApiCountLimitForOrg")
        denied = await wire.call("PUT", "/v1.0/card/streaming", {})
        assert denied.status == 403
        assert denied.body["accessdenieddetail"] == {"requiredScopes": ["Card.Streaming.Write"]}
        for _ in range(60):
            last = await send()
        assert last.body == {"status": 1111, "punish": "deny"}
        clock_of(sandbox).advance(301)
        assert (await send()).code == "Forbidden.AccessDenied.ApiCountLimitForOrg"


async def test_robot_sends_and_recalls() -> None:
    async with played() as (sandbox, wire):
        lin, alex = sandbox.add_user("小林"), sandbox.add_user("Alex")
        alex.flow_controlled = True
        group = sandbox.add_group("组", [lin])
        robot = sandbox.config.robot
        param = json.dumps({"title": "t", "text": "answer"})
        body = {"robotCode": robot, "msgKey": "sampleMarkdown", "msgParam": param}
        sent = await wire.call(
            "POST", "/v1.0/robot/groupMessages/send", body | {"openConversationId": group.id}
        )
        assert [visible_text(m) for m in sandbox.messages(group)] == ["answer"]
        people = await wire.call(
            "POST",
            "/v1.0/robot/oToMessages/batchSend",
            body | {"userIds": [lin.staff_id, alex.staff_id, "nobody"]},
        )
        assert people.body["invalidStaffIdList"] == ["nobody"]
        assert people.body["flowControlledStaffIdList"] == [alex.staff_id]
        assert [visible_text(m) for m in sandbox.messages(sandbox.direct_chat(lin))] == ["answer"]
        keys = [sent.body["processQueryKey"], "unknown"]
        recall = {"robotCode": robot, "openConversationId": group.id, "processQueryKeys": keys}
        done = await wire.call("POST", "/v1.0/robot/groupMessages/recall", recall)
        assert done.body["successResult"] == keys[:1]
        assert list(done.body["failedResult"]) == ["unknown"]
        assert sandbox.messages(group)[0].recalled
        clock_of(sandbox).advance(86_401)
        await wire.login()
        old = {"robotCode": robot, "processQueryKeys": [people.body["processQueryKey"]]}
        late = await wire.call("POST", "/v1.0/robot/otoMessages/batchRecall", old)
        assert late.body["successResult"] == []
        for wrong, code in (
            ({"robotCode": "other"}, "invalidParameter.robotCode"),
            ({"msgKey": "poem"}, "invalidParameter.msgKey"),
            (
                {"msgParam": json.dumps({"title": "t", "text": "x" * 15_000})},
                "invalidParameter.msgParam.tooLong",
            ),
            ({"msgParam": {"title": "t"}}, "invalidParameter"),
            ({"userIds": ["x"] * 21}, "too.many.people"),
        ):
            reply = await wire.call(
                "POST",
                "/v1.0/robot/oToMessages/batchSend",
                body | {"userIds": [lin.staff_id]} | wrong,
            )
            assert (reply.status, reply.code) == (400, code)
        assert sandbox.violations == []
        lost = await wire.call(
            "POST",
            "/v1.0/robot/groupMessages/send",
            body | {"openConversationId": group.id.lower()},
        )
        assert (lost.status, "processQueryKey" in lost.body) == (200, True)
        assert rules(sandbox) == ["unknown_group"]


async def test_emotions_and_files() -> None:
    async with played() as (sandbox, wire), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")
        direct = sandbox.direct_chat(lin)
        stored = sandbox.add_file("notes.txt", b"hello")
        content = {"downloadCode": stored.code, "fileName": stored.name}
        sent = await sandbox.say(direct, lin, content, message_type="file")
        robot = sandbox.config.robot
        emotion = {
            "robotCode": robot, "openConversationId": direct.id, "openMsgId": sent.id, "emotionType": 2,
            "emotionName": "思考中",
        }  # fmt: skip
        await wire.call("POST", "/v1.0/robot/emotion/reply", emotion)
        assert [r.emoji for r in sent.message.reactions] == ["思考中"]
        await wire.call("POST", "/v1.0/robot/emotion/recall", emotion)
        assert sent.message.reactions == []
        ask = {"robotCode": robot, "downloadCode": hook.seen[0]["content"]["downloadCode"]}
        url = (await wire.call("POST", "/v1.0/robot/messageFiles/download", ask)).body[
            "downloadUrl"
        ]
        async with wire.session.get(url) as reply:
            assert await reply.read() == b"hello"
        clock_of(sandbox).advance(sandbox.config.limits.file_url_s)
        async with wire.session.get(url) as reply:
            assert reply.status == 403
        wrong = await wire.call(
            "POST", "/v1.0/robot/messageFiles/download", ask | {"downloadCode": "x"}
        )
        assert wrong.code == "invalidParameter.downloadCode"


async def test_bad_days() -> None:
    async with played() as (sandbox, wire), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")
        direct = sandbox.direct_chat(lin)
        await sandbox.say(direct, lin, "one")
        url = hook.seen[0]["sessionWebhook"]
        faults = sandbox.faults
        faults.refuse("session.send", -1)
        assert (await markdown(wire, url)).code == -1
        faults.rate_limit("session.send")
        assert (await markdown(wire, url)).code == 130101
        faults.bad_gateway("session.send")
        assert (await markdown(wire, url)).status == 502
        faults.refuse("robot.*", "system.busy", status=503)
        busy = await wire.call("POST", "/v1.0/robot/groupMessages/send", {})
        assert (busy.status, busy.code) == (503, "system.busy")
        assert len(sandbox.messages(direct)) == 1
        faults.drop("session.send", after=True)
        with pytest.raises(aiohttp.ClientError):
            await markdown(wire, url, "it took effect")
        assert visible_text(sandbox.messages(direct)[-1]) == "it took effect"
        faults.drop("session.send")
        with pytest.raises(aiohttp.ClientError):
            await markdown(wire, url, "it did not")
        assert len(sandbox.messages(direct)) == 2
        faults.down()
        with pytest.raises(aiohttp.ClientError):
            await markdown(wire, url)
        faults.up()
        assert (await wire.call("POST", "/v1.0/im/robots/interactiveCards", {})).status == 404
        assert rules(sandbox) == ["unknown_api"]


async def test_two_answers_to_one_question() -> None:
    async with played() as (sandbox, wire), hooked() as hook:
        sandbox.subscribe(hook.url)
        lin = sandbox.add_user("小林")
        await sandbox.say(sandbox.direct_chat(lin), lin, "one")
        url = hook.seen[0]["sessionWebhook"]
        await markdown(wire, url, "part one")
        await markdown(wire, url, "part two")
        assert sandbox.violations == []
        await markdown(wire, url, "part one")
        assert rules(sandbox) == ["two_answers"]

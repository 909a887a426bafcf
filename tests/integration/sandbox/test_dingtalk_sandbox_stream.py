"""The DingTalk sandbox's Stream gateway: tickets, frames, acknowledgements, redelivery, disconnect, dead sockets, clicks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.support.dingtalkkit import CARD, ROBOT, StreamClient, clock_of, played, rules, streaming


async def test_a_ticket_is_good_once_and_for_a_while() -> None:
    async with played() as (sandbox, wire):
        client = StreamClient(wire, (("CALLBACK", ROBOT),))
        opened = await client.open()
        assert opened.body["endpoint"].startswith("ws://127.0.0.1:")
        await client.connect(opened)
        for later in (0.0, 91.0):
            fresh = opened if not later else await client.open()
            clock_of(sandbox).advance(later)
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await StreamClient(wire, client.topics).connect(fresh)
            assert caught.value.status == 401
        body = {"clientId": sandbox.config.client_id, "clientSecret": "wrong", "subscriptions": []}
        assert (await wire.call("POST", "/v1.0/gateway/connections/open", body)).status == 400
        await client.close()


async def test_messages_arrive_as_frames() -> None:
    async with played() as (sandbox, wire), streaming(wire) as client:
        lin = sandbox.add_user("小林")
        sent = await sandbox.say(sandbox.direct_chat(lin), lin, "你好")
        assert sent.acked
        (frame,) = client.frames
        assert (frame["specVersion"], frame["type"]) == ("1.0", "CALLBACK")
        assert frame["headers"]["topic"] == ROBOT
        assert frame["headers"]["contentType"] == "application/json"
        data = json.loads(frame["data"])
        assert (data["msgId"], data["text"]) == (sent.id, {"content": "你好"})
        assert sent.push is not None
        assert sent.push.way == "stream"
        assert sandbox.violations == []


async def test_what_is_not_acked_comes_again_with_another_message_id() -> None:
    async with played(stream_ack_s=0.05) as (sandbox, wire), streaming(wire) as client:
        lin = sandbox.add_user("小林")
        client.acks = False
        sent = await sandbox.say(sandbox.direct_chat(lin), lin, "hi")
        assert sent.attempts[0].error == "timeout"
        await client.ack(client.frames[0])
        client.acks = True
        await sandbox.wait_for(lambda: sent.acked)
        assert client.robot()[0] == client.robot()[1]
        ids = {frame["headers"]["messageId"] for frame in client.frames}
        assert len(ids) == 2
        assert rules(sandbox) == ["late_ack"]


async def test_a_refusing_ack_and_a_malformed_one() -> None:
    async with (
        played(stream_ack_s=0.1, redelivery_s=()) as (sandbox, wire),
        streaming(wire) as client,
    ):
        lin = sandbox.add_user("小林")
        direct = sandbox.direct_chat(lin)
        client.acks = False
        first = asyncio.create_task(sandbox.say(direct, lin, "one"))
        await client.arrived.wait()
        await client.ack(client.frames[0], 500)
        assert [(a.status, a.ok) for a in (await first).attempts] == [(500, False)]
        client.arrived.clear()
        second = asyncio.create_task(sandbox.say(direct, lin, "two"))
        await client.arrived.wait()
        await client.ack(client.frames[1], 200, data={"response": None})
        assert (await second).attempts[0].error == "timeout"
        assert rules(sandbox) == ["bad_ack"]


async def test_one_message_to_one_connection_and_only_where_it_is_wanted() -> None:
    async with played() as (sandbox, wire), streaming(wire) as one, streaming(wire) as two:
        async with streaming(wire, ("EVENT", "*")) as three:
            lin = sandbox.add_user("小林")
            for _ in range(12):
                await sandbox.say(sandbox.direct_chat(lin), lin, "hi")
            assert len(one.frames) + len(two.frames) == 12
            assert one.frames
            assert two.frames
            assert three.frames == []
            three.answer = lambda _frame: {"status": "SUCCESS"}
            push = await sandbox.send_event("chat_update_title", {"title": "新"})
            assert push.acked
            assert three.frames[0]["headers"]["eventType"] == "chat_update_title"
            three.answer = lambda _frame: {"status": "LATER"}
            assert not (await sandbox.send_event("x", {}, retry=False)).acked
        assert sandbox.gateway.most_at_once == 3


async def test_nobody_is_connected() -> None:
    for mode in ("lost", "retry"):
        async with played(stream_deaf=mode) as (sandbox, wire):
            lin = sandbox.add_user("小林")
            sent = await sandbox.say(sandbox.direct_chat(lin), lin, "hi")
            assert sent.attempts[0].error == "no connection"
            async with streaming(wire) as client:
                if mode == "retry":
                    await sandbox.wait_for(lambda sent=sent: sent.acked)
                    assert client.robot()[0]["msgId"] == sent.id
                else:
                    await asyncio.sleep(0.15)
                    assert client.frames == []


async def test_disconnect_drains_the_old_connection() -> None:
    async with played(disconnect_grace_s=0.2) as (sandbox, wire), streaming(wire) as old:
        lin = sandbox.add_user("小林")
        await sandbox.gateway.disconnect()
        await old.arrived.wait()
        assert (old.frames[0]["type"], old.frames[0]["headers"]["topic"]) == (
            "SYSTEM",
            "disconnect",
        )
        async with streaming(wire) as new:
            sent = await sandbox.say(sandbox.direct_chat(lin), lin, "hi")
            assert sent.acked
            assert len(new.frames) == 1
            async with asyncio.timeout(30):
                await old.closed.wait()
            assert len(old.frames) == 1


async def test_pings_cut_and_frozen_sockets() -> None:
    async with played(stream_ack_s=0.1) as (sandbox, wire), streaming(wire) as client:
        lin = sandbox.add_user("小林")
        gateway = sandbox.gateway
        (connection,) = gateway.connections
        assert await gateway.ping(connection)
        client.acks = False
        assert not await gateway.ping(connection)
        gateway.freeze()
        client.acks = True
        sent = await sandbox.say(sandbox.direct_chat(lin), lin, "hi")
        assert sent.attempts[0].error == "timeout"
        assert client.robot() == []
        assert client.socket is not None
        await client.socket.ping()
        gateway.cut()
        async with asyncio.timeout(30):
            await client.closed.wait()
        assert gateway.connections == []
        assert sandbox.violations == []


async def test_an_unanswered_ping_ends_the_connection() -> None:
    async with played(stream_ack_s=0.05, ping_s=0.05) as (sandbox, wire), streaming(wire) as client:
        await asyncio.sleep(0.2)
        assert len(sandbox.gateway.connections) == 1
        client.acks = False
        async with asyncio.timeout(30):
            await client.closed.wait()
        assert rules(sandbox) == ["ping_not_answered"]


async def test_a_slow_or_failing_gateway() -> None:
    async with played() as (sandbox, wire):
        client = StreamClient(wire, (("CALLBACK", ROBOT),))
        sandbox.faults.refuse("gateway.open", "system.busy", status=503)
        assert (await client.open()).status == 503
        sandbox.faults.delay("gateway.open", 0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.open()
        opened = await client.open()
        sandbox.gateway.expire_tickets()
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await client.connect(opened)
        assert sandbox.config.client_secret not in str(sandbox.calls)


async def test_unknown_topics_and_an_evicted_connection() -> None:
    async with played(chatty=True, evict_older=True) as (sandbox, wire), streaming(wire) as first:
        await first.arrived.wait()
        async with streaming(wire) as second:
            async with asyncio.timeout(30):
                await first.closed.wait()
            await sandbox.wait_for(lambda: len(second.frames) == 2)
            topics = [frame["headers"]["topic"] for frame in second.frames]
            assert topics == ["REGISTERED", "/v9.9/nobody/knows"]


async def test_clicks_over_stream() -> None:
    async with played(click_ack_s=0.1) as (sandbox, wire), streaming(wire) as client:
        lin = sandbox.add_user("小林")
        group = sandbox.add_group("组", [lin])
        params = {
            "content": "",
            "buttons": json.dumps([{"text": "Stop", "id": "stop", "params": {"turn": "7"}}]),
        }
        await wire.new_card(group, "t1", callbackType="STREAM", cardData={"cardParamMap": params})
        (message,) = sandbox.messages(group)
        update = {
            "cardData": {"cardParamMap": {"buttons": "[]"}},
            "cardUpdateOptions": {"updateCardDataByKey": True},
        }
        answers: list[Any] = [{"response": {}}, {"cardData": {}}, {"response": update}]
        client.answer = lambda frame: (
            answers.pop(0) if frame["headers"]["topic"] == CARD else {"response": None}
        )
        assert (await sandbox.press(message, "stop", lin)).error == ""
        assert (await sandbox.press(message, "stop", lin)).error == "answer"
        assert (await sandbox.press(message, {"turn": "7"}, lin)).error == ""
        data = json.loads(client.frames[0]["data"])
        assert (data["type"], data["outTrackId"], data["userId"]) == (
            "actionCallback",
            "t1",
            lin.staff_id,
        )
        assert json.loads(data["value"])["cardPrivateData"]["params"] == {"turn": "7"}
        with pytest.raises(LookupError):
            await sandbox.press(message, "stop", lin)
        assert message.card is not None
        assert message.card.params["content"] == ""


async def test_frames_that_are_late_lost_or_last() -> None:
    async with played(stream_ack_s=0.3) as (sandbox, wire):
        lin = sandbox.add_user("小林")
        direct, faults = sandbox.direct_chat(lin), sandbox.faults
        for after in (False, True):
            async with streaming(wire) as client:
                faults.drop("stream.push", after=after)
                sent = await sandbox.say(direct, lin, "hi")
                assert sent.attempts[0].error == "closed"
                async with asyncio.timeout(30):
                    await client.closed.wait()
                assert [message["msgId"] for message in client.robot()] == (
                    [sent.id] if after else []
                )
            async with streaming(wire) as client:
                await sandbox.wait_for(lambda sent=sent: sent.acked)
                assert client.robot()[0]["msgId"] == sent.id
        async with streaming(wire) as client:
            faults.delay("stream.push", 0.05)
            assert (await sandbox.say(direct, lin, "late")).acked
            faults.down()
            assert (await sandbox.say(direct, lin, "down")).attempts[0].error == "closed"
            async with asyncio.timeout(30):
                await client.closed.wait()
        faults.up()
        faults.refuse("gateway.connect", "system.busy", status=503)
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await StreamClient(wire, (("CALLBACK", ROBOT),)).connect()
        faults.drop("gateway.connect", 2)  # aiohttp tries a GET once more by itself
        with pytest.raises(aiohttp.ClientError):
            await StreamClient(wire, (("CALLBACK", ROBOT),)).connect()

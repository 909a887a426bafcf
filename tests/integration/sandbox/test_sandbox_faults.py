"""Faults on demand, waiting, and that closing leaves nothing behind."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from bot.sandbox.feishu import FeishuSandbox, SandboxConfig, visible_text


async def test_codes_statuses_and_pages(make) -> None:
    sandbox, wire = await make()
    sandbox.faults.refuse("bot.*", 300120, status=500)
    sandbox.faults.rate_limit("bot.info", reset_s=7)
    sandbox.faults.bad_gateway("bot.info")
    first, second, third, fourth = [await wire.call("GET", "/bot/v3/info") for _ in range(4)]
    assert (first.status, first.code) == (500, 300120)
    assert (second.status, second.code) == (429, 99991400)
    assert second.headers["x-ogw-ratelimit-reset"] == "7"
    assert third.status == 502
    assert "<html>" in third.body["html"]
    assert fourth.code == 0
    assert [(call.status, call.code) for call in sandbox.calls_of("bot.info")] == [
        (500, 300120), (429, 99991400), (502, 0), (200, 0),
    ]  # fmt: skip


async def test_a_connection_lost_before_and_after(make) -> None:
    sandbox, wire = await make()
    chat = sandbox.add_group("g", [sandbox.add_user("a")])
    for after in (False, True):
        sandbox.faults.drop("message.create", after=after)
        with pytest.raises(aiohttp.ClientError):
            await wire.text(chat.id, uuid="u")
        assert len(sandbox.messages(chat)) == after
    again = await wire.text(chat.id, uuid="u")
    assert again.data["message_id"] == sandbox.messages(chat)[0].id
    assert [call.dropped for call in sandbox.calls_of("message.create")] == ["before", "after", ""]


async def test_a_call_that_is_never_answered_but_applied(make) -> None:
    sandbox, wire = await make()
    chat = sandbox.add_group("g", [sandbox.add_user("a")])
    sandbox.faults.hang("message.create", after=True)
    call = asyncio.create_task(wire.text(chat.id, "shown", uuid="u"))
    await sandbox.wait_for(lambda: sandbox.messages(chat))
    assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [visible_text(message) for message in sandbox.messages(chat)] == ["shown"]


async def test_down_and_up(make) -> None:
    sandbox, wire = await make()
    sandbox.faults.down()
    with pytest.raises(aiohttp.ClientError):
        await wire.call("GET", "/bot/v3/info")
    sandbox.faults.up()
    assert (await wire.call("GET", "/bot/v3/info")).code == 0


async def test_a_delayed_call_is_applied_late(make) -> None:
    sandbox, wire = await make()
    sandbox.faults.delay("bot.info", 0.05)
    await wire.call("GET", "/bot/v3/info")
    assert sandbox.calls_of("bot.info")[0].ms >= 50


async def test_a_refused_card_call_changes_nothing(make) -> None:
    sandbox, wire = await make()
    card_id = await wire.new_card()
    sandbox.faults.refuse("card.content", 300120)
    sandbox.faults.refuse("card.content", 230099, msg="ErrCode: 11310; ErrMsg: card action is lock")
    assert (await wire.content(card_id, "a", 1)).code == 300120
    assert "ErrCode: 11310" in (await wire.content(card_id, "a", 1)).body["msg"]
    assert (await wire.content(card_id, "a", 1)).code == 0


async def test_wait_for(make) -> None:
    sandbox, wire = await make()
    chat = sandbox.add_group("g", [sandbox.add_user("a")])
    waiting = asyncio.create_task(sandbox.wait_for(lambda: sandbox.messages(chat)))
    await asyncio.sleep(0)
    await wire.text(chat.id, uuid="u")
    assert [m.kind for m in await waiting] == ["text"]
    with pytest.raises(TimeoutError, match=r"message\.create=200"):
        await sandbox.wait_for(lambda: False, timeout=0.02)


async def test_calls_are_recorded_and_trimmed(make) -> None:
    sandbox, wire = await make(keep_calls=10)
    for _ in range(15):
        await wire.call("GET", "/bot/v3/info")
    assert 5 <= len(sandbox.calls) <= 11
    chat = sandbox.add_group("g", [sandbox.add_user("a")])
    await wire.text(chat.id, uuid="u")
    call = sandbox.calls[-1]
    assert (call.api, call.method, call.status, call.code) == ("message.create", "POST", 200, 0)
    assert json.loads(call.request["content"]) == {"text": "hello"}
    assert call.response["data"]["chat_id"] == chat.id


async def test_closing_ends_every_task() -> None:
    before = asyncio.all_tasks()
    sandbox = FeishuSandbox(SandboxConfig(redelivery_s=(60.0,)))
    await sandbox.start()
    sandbox.subscribe("http://127.0.0.1:1/")
    user = sandbox.add_user("a")
    await sandbox.say(sandbox.direct_chat(user), user, "hi")
    assert any(task.get_name().startswith("redeliver") for task in asyncio.all_tasks())
    await sandbox.close()
    assert asyncio.all_tasks() == before
    await sandbox.close()

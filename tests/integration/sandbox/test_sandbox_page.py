"""The page's API: state, events with resume, what people do there, and that foreign sites are kept out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import aiohttp.web
import pytest

from bot.sandbox import FeishuSandbox, SandboxConfig, Stage, build_stage, stage_config


@pytest.fixture
async def stage(hook: Any) -> AsyncIterator[Stage]:
    found = build_stage(
        FeishuSandbox(stage_config(notes={"model": "demo"}, page_hosts=("demo.lan:1",)))
    )
    await found.sandbox.start()
    found.sandbox.subscribe(hook.url)
    yield found
    await found.sandbox.close()


@pytest.fixture
async def browser(stage: Stage) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stage.sandbox.base_url) as session:
        yield session


async def events(
    browser: aiohttp.ClientSession, count: int, last_id: str = ""
) -> list[dict[str, Any]]:
    """The next `count` events of the stream."""
    found: list[dict[str, Any]] = []
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with asyncio.timeout(30), browser.get("/sandbox/events", headers=headers) as response:
        assert response.content_type == "text/event-stream"
        while len(found) < count:
            block = await response.content.readuntil(b"\n\n")
            fields = dict(
                line.split(": ", 1) for line in block.decode().splitlines() if ": " in line
            )
            if "event" in fields:
                found.append(
                    {
                        "id": fields["id"],
                        "event": fields["event"],
                        "data": json.loads(fields["data"]),
                    }
                )
    return found


async def say(browser: aiohttp.ClientSession, stage: Stage, text: str, **more: Any) -> None:
    body = {
        "chat_id": stage.group.id,
        "user_id": stage.people[0].id,
        "text": text,
        "mention_bot": True,
        **more,
    }
    async with browser.post("/sandbox/say", json=body) as response:
        assert response.status == 200, await response.text()


async def state(browser: aiohttp.ClientSession) -> dict[str, Any]:
    async with browser.get("/sandbox/state") as response:
        return await response.json()


async def test_state(stage: Stage, browser: aiohttp.ClientSession) -> None:
    found = await state(browser)
    assert found["bot"] == {"name": "Hearth", "open_id": stage.sandbox.bot.id}
    assert [user["name"] for user in found["users"]] == ["小林", "Alex"]
    assert [chat["kind"] for chat in found["chats"]] == ["group", "p2p"]
    assert found["chats"][1]["user_id"] == stage.people[0].id
    assert found["notes"] == {"model": "demo"}
    assert found["messages"] == []


async def test_a_message_is_seen_pushed_and_traced(
    stage: Stage, browser: aiohttp.ClientSession, hook: Any
) -> None:
    newest = (await state(browser))["last_event_id"]
    listening = asyncio.create_task(events(browser, 2, last_id=str(newest)))
    await say(browser, stage, "hello @Alex")
    message, trace = await listening
    assert message["event"] == "message"
    assert message["data"]["text"] == "@Hearth hello @Alex"
    assert message["data"]["sender"] == {"id": stage.people[0].id, "name": "小林", "bot": False}
    assert [m["name"] for m in message["data"]["mentions"]] == ["Hearth", "Alex"]
    assert trace["event"] == "trace"
    assert trace["data"]["direction"] == "webhook"
    assert (trace["data"]["status"], trace["data"]["encrypted"], trace["data"]["path"]) == (
        200,
        True,
        "/hook",
    )
    assert trace["data"]["detail"]["body"].startswith('{"encrypt":"')
    assert stage.sandbox.config.verification_token not in json.dumps(trace)
    assert len(hook.seen) == 1
    resumed = await events(browser, 1, last_id=message["id"])
    assert resumed[0]["id"] == trace["id"]


async def test_a_growing_card_and_its_button(
    stage: Stage, browser: aiohttp.ClientSession, hook: Any, a_card: Any
) -> None:
    await say(browser, stage, "hi")
    sandbox = stage.sandbox
    await sandbox.wait_for(lambda: hook.seen)
    question = sandbox.messages(stage.group)[0]
    config = sandbox.config
    login = {"app_id": config.app_id, "app_secret": config.app_secret}
    async with browser.post(
        "/open-apis/auth/v3/tenant_access_token/internal", json=login
    ) as response:
        headers = {"Authorization": f"Bearer {(await response.json())['tenant_access_token']}"}

    async def api(method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with browser.request(
            method, f"/open-apis{path}", json=body, headers=headers
        ) as response:
            return await response.json()

    button = {
        "tag": "button", "text": {"tag": "plain_text", "content": "Stop"}, "type": "danger",
        "behaviors": [{"type": "callback", "value": {"action": "stop"}}],
    }  # fmt: skip
    row = {"tag": "column_set", "columns": [{"tag": "column", "elements": [button]}]}
    answer = {"tag": "markdown", "element_id": "answer", "content": "…"}
    data = json.dumps(a_card(answer, row))
    card_id = (await api("POST", "/cardkit/v1/cards", {"type": "card_json", "data": data}))["data"][
        "card_id"
    ]
    content = json.dumps({"type": "card", "data": {"card_id": card_id}})
    reply = {"msg_type": "interactive", "content": content, "uuid": "u"}
    await api("POST", f"/im/v1/messages/{question.id}/reply", reply)
    await api(
        "PUT",
        f"/cardkit/v1/cards/{card_id}/elements/answer/content",
        {"content": "growing", "sequence": 1},
    )
    await api(
        "POST",
        f"/im/v1/messages/{question.id}/reactions",
        {"reaction_type": {"emoji_type": "Typing"}},
    )
    first, second = (await state(browser))["messages"]
    assert [(r["emoji"], r["by"]) for r in first["reactions"]] == [("Typing", "Hearth")]
    assert second["kind"] == "card"
    assert second["reply_to"] == question.id
    assert second["card"]["streaming"] is True
    assert second["card"]["elements"][0] == {
        "tag": "markdown",
        "element_id": "answer",
        "content": "growing",
    }
    shown = second["card"]["elements"][1]["elements"][0]["buttons"][0]
    assert (shown["text"], shown["value"], shown["type"]) == ("Stop", {"action": "stop"}, "danger")

    async def toast() -> Any:
        return aiohttp.web.json_response({"toast": {"type": "info", "content": "ok"}})

    hook.answer = toast
    press = {"message_id": second["id"], "value": shown["value"], "user_id": stage.people[1].id}
    async with browser.post("/sandbox/press", json=press) as response:
        assert await response.json() == {"toast": {"type": "info", "content": "ok"}, "code": 0}
    newest = (await state(browser))["last_event_id"]
    stream = await events(browser, newest, last_id="0")
    assert {e["event"] for e in stream} == {"chat", "message", "trace", "reaction"}
    assert [int(e["id"]) for e in stream] == list(range(1, newest + 1))
    traces = json.dumps([e["data"] for e in stream if e["event"] == "trace"], ensure_ascii=False)
    assert config.app_secret not in traces
    assert headers["Authorization"].removeprefix("Bearer ") not in traces
    assert "card.content #1 · 7 chars" in traces


async def test_recall_new_chat_and_faults(
    stage: Stage, browser: aiohttp.ClientSession, hook: Any
) -> None:
    await say(browser, stage, "hi")
    sandbox = stage.sandbox
    await sandbox.wait_for(lambda: hook.seen)
    message = sandbox.messages(stage.group)[0]
    async with browser.post("/sandbox/recall", json={"message_id": message.id}) as response:
        assert response.status == 200
    assert (await state(browser))["messages"][0]["recalled"] is True
    async with browser.post("/sandbox/new_chat", json={"name": "新群"}) as response:
        chat = (await response.json())["chat"]
    assert (chat["name"], chat["kind"]) == ("新群", "group")
    assert len(hook.seen) == 3
    async with browser.post("/sandbox/fault", json={"kind": "duplicate"}) as response:
        assert response.status == 200
    assert len(hook.seen) == 4
    for kind in ("down", "slow", "rate_limit"):
        async with browser.post("/sandbox/fault", json={"kind": kind}) as response:
            assert response.status == 200
    assert sandbox.faults.is_down()
    assert sandbox.faults.extra_latency_s() == 0.8
    assert (await state(browser))["messages"]
    with pytest.raises(aiohttp.ClientError):
        await browser.get("/open-apis/bot/v3/info")
    async with browser.post("/sandbox/fault", json={"kind": "clear"}) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("say", {}),
        ("say", {"chat_id": "oc_none", "user_id": "x", "text": "hi"}),
        ("say", []),
        ("recall", {"message_id": "om_none"}),
        ("press", {"message_id": "om_none"}),
        ("fault", {"kind": "fire"}),
        ("fault", {"kind": "duplicate"}),
        ("new_chat", {"name": ""}),
        ("new_chat", {"name": "x" * 61}),
    ],
)
async def test_bad_requests_get_a_sentence(
    browser: aiohttp.ClientSession, verb: str, body: Any
) -> None:
    async with browser.post(f"/sandbox/{verb}", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": "demo.lan:1"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_foreign_sites_are_kept_out(
    browser: aiohttp.ClientSession, headers: dict[str, str], status: int
) -> None:
    async with browser.get("/sandbox/state", headers=headers) as response:
        assert response.status == status
        assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]


async def test_a_form_of_another_site_cannot_write(
    browser: aiohttp.ClientSession, stage: Stage
) -> None:
    async with browser.post(
        "/sandbox/new_chat", data='{"name":"x"}', headers={"Content-Type": "text/plain"}
    ) as response:
        assert response.status == 403
    assert len(stage.sandbox.world.chats) == 2


async def test_static_files(browser: aiohttp.ClientSession) -> None:
    async with browser.get("/") as response:
        assert response.status == 200
        assert "<html" in (await response.text()).lower()
    for path in ("/static/none.js", "/static/..%2f..%2fapp.py", "/sandbox/static/%2fetc%2fpasswd"):
        async with browser.get(path) as response:
            assert response.status == 404


async def test_without_the_page_there_is_only_the_api(make: Any) -> None:
    sandbox, wire = await make()
    async with wire.session.get(f"{sandbox.base_url}/sandbox/state") as response:
        assert response.status == 404


def test_every_stage_has_its_own_secrets() -> None:
    one, two = stage_config(), stage_config()
    assert one.app_secret != two.app_secret
    assert one.encrypt_key not in {two.encrypt_key, SandboxConfig().encrypt_key}

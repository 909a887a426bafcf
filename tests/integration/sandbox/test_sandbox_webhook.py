"""What the sandbox pushes, how often it tries, and how it judges the answer to a click. lark_oapi is the oracle."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest
from aiohttp import web

from bot.sandbox.feishu import FeishuSandbox, SandboxConfig, crypto, envelope_v1

BUTTON = {
    "tag": "button",
    "element_id": "stop",
    "text": {"tag": "plain_text", "content": "Stop"},
    "behaviors": [{"type": "callback", "value": {"action": "stop", "turn": "t1"}}],
}


def opened(sandbox: FeishuSandbox, body: dict[str, Any]) -> dict[str, Any]:
    return json.loads(crypto.decrypt(body["encrypt"], sandbox.config.encrypt_key))


async def ready(make: Any, hook: Any, **config: Any) -> Any:
    sandbox, wire = await make(**config)
    sandbox.subscribe(hook.url)
    user = sandbox.add_user("小林")
    return sandbox, wire, user, sandbox.add_group("g", [user, sandbox.add_user("Alex")])


async def test_the_event_of_a_message(make, hook, clock) -> None:
    sandbox, _, user, chat = await ready(make, hook)
    sent = await sandbox.say(chat, user, "hi")
    assert sent.acked
    assert list(hook.seen[0]) == ["encrypt"]
    event = opened(sandbox, hook.seen[0])
    headers, raw = hook.headers[0], hook.raw[0]
    stamp, nonce = headers["x-lark-request-timestamp"], headers["x-lark-request-nonce"]
    assert headers["x-lark-signature"] == crypto.signature(
        stamp, nonce, sandbox.config.encrypt_key, raw
    )
    assert stamp == str(int(clock()))
    assert event["schema"] == "2.0"
    assert event["header"] == {
        "event_id": sent.event_id, "event_type": "im.message.receive_v1", "create_time": str(int(clock() * 1000)),
        "token": sandbox.config.verification_token, "app_id": sandbox.config.app_id,
        "tenant_key": sandbox.config.tenant_key,
    }  # fmt: skip
    message = event["event"]["message"]
    assert message["message_id"] == sent.id
    assert message["chat_type"] == "group"
    assert json.loads(message["content"]) == {"text": "@_user_1 hi"}
    assert message["create_time"] == str(int(clock() * 1000))
    assert "thread_id" not in message
    assert message["mentions"] == [{
        "key": "@_user_1", "id": {"open_id": sandbox.bot.id, "union_id": sandbox.bot.union_id},
        "mentioned_type": "bot", "name": "Hearth", "tenant_key": sandbox.config.tenant_key,
    }]  # fmt: skip
    assert event["event"]["sender"]["sender_id"] == {"open_id": user.id, "union_id": user.union_id}
    assert event["event"]["sender"]["sender_type"] == "user"


# The package without its __init__, which would import every service (13 s of CPU); reads [key, sealed, …] from stdin.
_LARK_DECRYPTS = """
import importlib.util, json, sys, types
spec = importlib.util.find_spec("lark_oapi")
package = types.ModuleType("lark_oapi")
package.__path__ = list(spec.submodule_search_locations)
sys.modules["lark_oapi"] = package
from lark_oapi.core.utils.decryptor import AESCipher
key, *sealed = json.load(sys.stdin)
json.dump([AESCipher(key).decrypt_str(text) for text in sealed], sys.stdout)
"""


async def test_lark_oapi_decrypts_what_the_sandbox_sends(make, hook) -> None:
    sandbox, _, user, chat = await ready(make, hook)
    await sandbox.say(chat, user, "你好" * 50)
    await sandbox.bot_added(chat)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", _LARK_DECRYPTS, stdin=PIPE, stdout=PIPE
    )
    sealed = [sandbox.config.encrypt_key, *(body["encrypt"] for body in hook.seen)]
    out, _ = await child.communicate(json.dumps(sealed).encode())
    assert [json.loads(plain) for plain in json.loads(out)] == [
        opened(sandbox, body) for body in hook.seen
    ]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_lark_oapi_accepts_what_the_sandbox_sends(make, hook) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lark_oapi's own deprecations at import
        import lark_oapi
        from lark_oapi.core.model import RawRequest
    sandbox, _, user, chat = await ready(make, hook)
    await sandbox.say(chat, user, "你好")
    await sandbox.bot_added(chat)
    assert await sandbox.url_check("unheard") is False  # the hook does not answer the challenge
    got: list[Any] = []
    handler = (
        lark_oapi.EventDispatcherHandler.builder(
            sandbox.config.encrypt_key, sandbox.config.verification_token
        )
        .register_p2_im_message_receive_v1(got.append)
        .register_p2_im_chat_member_bot_added_v1(got.append)
        .build()
    )
    for headers, raw in zip(hook.headers, hook.raw, strict=True):
        request = RawRequest()
        request.uri = "/hook"
        request.headers = {
            "-".join(w.capitalize() for w in k.split("-")): v for k, v in headers.items()
        }
        request.body = raw
        response = handler.do(request)
        assert response.status_code == 200
    assert json.loads(response.content) == {"challenge": "unheard"}
    assert got[0].event.message.content == '{"text":"@_user_1 你好"}'
    assert got[0].event.message.mentions[0].id.open_id == sandbox.bot.id
    assert got[1].event.chat_id == chat.id


async def test_url_check(make, hook) -> None:
    sandbox, _, _, _ = await ready(make, hook)

    async def answer() -> web.StreamResponse:
        return web.json_response({"challenge": opened(sandbox, hook.seen[-1])["challenge"]})

    hook.answer = answer
    assert await sandbox.url_check("ch-1")
    assert "x-lark-signature" not in hook.headers[0]
    assert opened(sandbox, hook.seen[0]) == {
        "challenge": "ch-1", "token": sandbox.config.verification_token, "type": "url_verification",
    }  # fmt: skip


async def test_the_scope_decides_what_is_pushed(make, hook) -> None:
    sandbox, _, user, chat = await ready(make, hook)
    assert (await sandbox.say(chat, user, "aside", mention_bot=False)).push is None
    assert (
        await sandbox.say(chat, user, "aside", mention_bot=False, mention_all=True)
    ).push is None
    assert (await sandbox.say(sandbox.direct_chat(user), user, "direct")).acked
    assert (await sandbox.say(chat, user, "forced", mention_bot=False, deliver=True)).acked
    events = [opened(sandbox, body)["event"]["message"] for body in hook.seen]
    assert [e["chat_type"] for e in events] == ["p2p", "group"]
    assert "mentions" not in events[0]
    wide, _, user, chat = await ready(make, hook, group_messages="all")
    assert (await wide.say(chat, user, "aside", mention_bot=False)).acked


async def test_mentions_posts_and_other_kinds(make, hook) -> None:
    sandbox, _, user, chat = await ready(make, hook)
    alex = chat.members[1]
    await sandbox.say(chat, user, "remind @Alex and @Hearth", mentions=[alex])
    await sandbox.say(chat, user, {"title": "t", "content": [[{"tag": "text", "text": "body"}]]})
    await sandbox.say(chat, user, {"image_key": "img_1"}, message_type="image", deliver=True)
    await sandbox.say(chat, user, "everybody", mention_all=True)
    first, post, image, everybody = (
        opened(sandbox, body)["event"]["message"] for body in hook.seen
    )
    assert json.loads(first["content"]) == {"text": "remind @_user_2 and @_user_1"}
    assert [m["name"] for m in first["mentions"]] == ["Hearth", "Alex"]
    assert post["message_type"] == "post"
    assert [n["tag"] for n in json.loads(post["content"])["content"][0]] == ["at", "text"]
    assert (image["message_type"], json.loads(image["content"])) == (
        "image",
        {"image_key": "img_1"},
    )
    assert json.loads(everybody["content"])["text"] == "@_user_1 @_all everybody"
    assert everybody["mentions"][1] == {
        "key": "@_all", "id": {"open_id": "", "union_id": "", "user_id": ""}, "name": "所有人",
    }  # fmt: skip


async def test_recall_and_bot_events(make, hook, clock) -> None:
    sandbox, _, user, chat = await ready(make, hook)
    sent = await sandbox.say(chat, user, "hi")
    await sandbox.recall(sent)
    await sandbox.bot_removed(chat)
    assert not chat.has_bot
    await sandbox.bot_added(chat, user)
    recalled, removed, added = (opened(sandbox, body) for body in hook.seen[1:])
    assert recalled["header"]["event_type"] == "im.message.recalled_v1"
    assert recalled["event"] == {
        "message_id": sent.id, "chat_id": chat.id, "recall_time": str(int(clock() * 1000)),
        "recall_type": "message_owner",
    }  # fmt: skip
    assert removed["header"]["event_type"] == "im.chat.member.bot.deleted_v1"
    assert added["header"]["event_type"] == "im.chat.member.bot.added_v1"
    assert added["event"]["operator_id"]["open_id"] == user.id
    assert sent.message.recalled


async def test_schema_one_and_plain_events(make, hook) -> None:
    sandbox, _, _, _ = await ready(make, hook, encrypt_key="")
    push = await sandbox.send_event(envelope_v1(sandbox.config, "message", {"open_id": "ou_1"}))
    assert (push.event_type, push.encrypted) == ("message", False)
    assert hook.seen[0]["uuid"] == push.event_id
    assert hook.seen[0]["event"]["type"] == "message"
    assert "x-lark-signature" not in hook.headers[0]


@pytest.mark.parametrize("status", [500, 404, 302, 201])
async def test_a_failed_push_climbs_the_ladder(make, hook, status: int) -> None:
    sandbox, _, user, chat = await ready(make, hook, redelivery_s=(0.01, 0.01, 0.01, 0.01))
    answers = iter([status, status, status, 200])

    async def answer() -> web.StreamResponse:
        return web.json_response({}, status=next(answers), headers={"Location": "/hook"})

    hook.answer = answer
    sent = await sandbox.say(chat, user, "hi")
    assert not sent.acked
    await sandbox.wait_for(lambda: sent.acked)
    await asyncio.sleep(0.05)
    assert [attempt.status for attempt in sent.attempts] == [status, status, status, 200]
    assert len(set(hook.raw)) == 1
    assert len({headers["x-lark-signature"] for headers in hook.headers}) == 1


async def test_the_ladder_ends(make, hook) -> None:
    sandbox, _, user, chat = await ready(make, hook, redelivery_s=(0.01, 0.01, 0.01, 0.01))

    async def answer() -> web.StreamResponse:
        return web.Response(status=500)

    hook.answer = answer
    sent = await sandbox.say(chat, user, "hi")
    await sandbox.wait_for(lambda: len(sent.attempts) == 5)
    await asyncio.sleep(0.05)
    assert len(sent.attempts) == 5


async def test_the_deadline(make, hook) -> None:
    sandbox, _, user, chat = await ready(make, hook, deadline_s=0.2, redelivery_s=())

    async def answer() -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    hook.answer = answer
    sent = await sandbox.say(chat, user, "hi")
    assert [(a.status, a.error) for a in sent.attempts] == [(0, "timeout")]


async def test_nobody_listens(make, hook) -> None:
    sandbox, _, user, chat = await ready(make, hook, redelivery_s=())
    sandbox.subscribe("http://127.0.0.1:1/hook")
    sent = await sandbox.say(chat, user, "hi")
    assert [(a.status, a.error) for a in sent.attempts] == [(0, "connect")]


async def test_duplicates_on_demand(make, hook) -> None:
    sandbox, _, user, chat = await ready(make, hook)
    sent = await sandbox.say(chat, user, "hi")
    await sandbox.redeliver(sent)
    await sandbox.redeliver(sent, new_event_id=True)
    events = [opened(sandbox, body) for body in hook.seen]
    assert [e["event"]["message"]["message_id"] for e in events] == [sent.id] * 3
    ids = [e["header"]["event_id"] for e in events]
    assert ids[0] == ids[1] != ids[2]


async def test_raw_posts(make, hook) -> None:
    sandbox, _, _, _ = await ready(make, hook)
    attempt = await sandbox.post_raw(b'{"junk":1}', {"X-Lark-Signature": "0"})
    assert attempt.ok
    assert hook.seen == [{"junk": 1}]


async def with_card(
    make: Any, hook: Any, a_card: Any, streaming: bool = False, **config: Any
) -> Any:
    sandbox, wire, user, chat = await ready(make, hook, **config)
    question = await sandbox.say(chat, user, "hi")
    markdown = {"tag": "markdown", "element_id": "answer", "content": "x"}
    card_id = await wire.new_card(markdown, BUTTON, streaming_mode=streaming)
    await wire.reply(
        question.id, "interactive", {"type": "card", "data": {"card_id": card_id}}, uuid="u"
    )
    return sandbox, wire, user, sandbox.replies(question)[0]


def answering(hook: Any, body: Any, status: int = 200) -> None:
    async def answer() -> web.StreamResponse:
        if isinstance(body, str):
            return web.Response(text=body, status=status)
        return web.json_response(body, status=status)

    hook.answer = answer


async def test_a_click(make, hook, a_card, clock) -> None:
    sandbox, wire, user, message = await with_card(make, hook, a_card)
    answering(hook, {"toast": {"type": "info", "content": "stopped"}})
    result = await sandbox.press(message, "stop", user)
    assert (result.code, result.toast) == (0, {"type": "info", "content": "stopped"})
    event = opened(sandbox, hook.seen[-1])
    assert event["header"]["event_type"] == "card.action.trigger"
    assert event["header"]["create_time"] == str(int(clock() * 1_000_000))
    assert event["event"]["action"]["value"] == {"action": "stop", "turn": "t1"}
    assert event["event"]["action"]["tag"] == "button"
    assert event["event"]["operator"]["open_id"] == user.id
    assert event["event"]["context"] == {
        "open_message_id": message.id,
        "open_chat_id": message.chat.id,
    }
    token = event["event"]["token"]
    for _ in range(2):
        assert (
            await wire.call(
                "POST", "/interactive/v1/card/update", {"token": token, "card": a_card()}
            )
        ).code == 0
    assert (
        await wire.call("POST", "/interactive/v1/card/update", {"token": token, "card": a_card()})
    ).code == 10002
    with pytest.raises(LookupError, match="no enabled button"):
        await sandbox.press(message, "regenerate", user)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 200, 0),
        ({"toast": {"type": "shout", "content": "x"}}, 200, 200672),
        ({"toast": "x"}, 200, 200672),
        ({"msg": "ok"}, 200, 200672),
        ("", 200, 200672),
        ("[]", 200, 200672),
        ({}, 500, 200671),
        ({}, 302, 200671),
        ({"card": {"type": "raw"}}, 200, 200673),
        (
            {
                "card": {
                    "type": "raw",
                    "data": {"schema": "2.0", "body": {"elements": [{"tag": "note"}]}},
                }
            },
            200,
            200673,
        ),
        ({"card": {"type": "raw", "data": {"elements": []}}}, 200, 200830),
    ],
)
async def test_answers_to_a_click(make, hook, a_card, body: Any, status: int, code: int) -> None:
    sandbox, _, user, message = await with_card(make, hook, a_card)
    answering(hook, body, status)
    assert (await sandbox.press(message, {"action": "stop"}, user)).code == code
    assert [v.rule for v in sandbox.violations] == (["bad_callback_reply"] if code else [])


async def test_a_card_in_the_answer(make, hook, a_card) -> None:
    sandbox, _, user, message = await with_card(make, hook, a_card)
    new = a_card({"tag": "markdown", "content": "new"}, streaming_mode=False)
    answering(hook, {"card": {"type": "raw", "data": new}})
    assert (await sandbox.press(message, "stop", user)).card is not None
    assert message.card.text == "new"
    streaming, _, user, message = await with_card(make, hook, a_card, streaming=True)
    answering(hook, {"card": {"type": "raw", "data": new}})
    await streaming.press(message, "stop", user)
    assert message.card.text == "x"
    assert "card_in_callback_while_streaming" in [v.rule for v in streaming.violations]


async def test_a_click_locks_the_card(make, hook, a_card) -> None:
    sandbox, wire, user, message = await with_card(
        make, hook, a_card, streaming=True, deadline_s=30.0
    )
    release = asyncio.Event()

    async def answer() -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    hook.answer = answer
    pressing = asyncio.create_task(sandbox.press(message, "stop", user))
    await sandbox.wait_for(lambda: message.card.click_lock)
    assert (await wire.content(message.card.id, "xy", 1)).code == 200810
    release.set()
    assert (await pressing).code == 0
    assert (await wire.content(message.card.id, "xy", 1)).code == 0


async def test_a_click_that_is_not_answered(make, hook, a_card) -> None:
    sandbox, _, user, message = await with_card(make, hook, a_card, deadline_s=0.2, redelivery_s=())

    async def answer() -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    hook.answer = answer
    assert (await sandbox.press(message, "stop", user)).code == 200341
    sandbox.subscribe("http://127.0.0.1:1/")
    assert (await sandbox.press(message, "stop", user)).code in {200341, 200342}
    sandbox.subscribe("")
    assert (await sandbox.press(message, "stop", user)).code == 200340


async def test_a_click_without_a_callback_url() -> None:
    async with FeishuSandbox(SandboxConfig()) as sandbox:
        user = sandbox.add_user("a")
        chat = sandbox.add_group("g", [user])
        message = (await sandbox.say(chat, user, "hi")).message
        with pytest.raises(LookupError):
            await sandbox.press(message, "stop", user)

"""im/v1 of the sandbox, driven by a raw client: every refusal with its code."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from bot.sandbox.feishu import Limits, visible_text

POST = {"zh_cn": {"title": "", "content": [[{"tag": "md", "text": "**hi**"}]]}}
FREE = Limits(per_chat_per_second=None, patches_per_second=None)


async def group(make: Any, **config: Any) -> Any:
    sandbox, wire = await make(**config)
    user = sandbox.add_user("小林")
    return sandbox, wire, user, sandbox.add_group("g", [user])


async def test_tokens_and_identity(make, clock) -> None:
    sandbox, wire = await make()
    again = await wire.login()
    assert again.body["expire"] == 7200
    assert again.body["code"] == 0
    assert "data" not in again.body
    info = await wire.call("GET", "/bot/v3/info")
    assert info.body["bot"]["open_id"] == sandbox.bot.id
    assert "data" not in info.body
    assert info.headers["X-Tt-Logid"]
    clock.advance(7200)
    expired = await wire.call("GET", "/bot/v3/info")
    assert (expired.status, expired.code) == (400, 99991663)
    assert expired.body["error"]["log_id"] == expired.headers["X-Tt-Logid"]
    for header, code in (("", 99991661), ("Bearer u_1", 99991671)):
        assert (
            await wire.call("GET", "/bot/v3/info", headers={"Authorization": header})
        ).code == code
    config = sandbox.config
    bad = {"app_id": config.app_id, "app_secret": "no"}
    assert (await wire.call("POST", "/auth/v3/tenant_access_token/internal", bad)).code == 10015


async def test_secrets_are_not_recorded(make) -> None:
    sandbox, wire = await make()
    recorded = repr(sandbox.calls)
    assert sandbox.config.app_secret not in recorded
    assert wire.token not in recorded


async def test_create_reply_and_what_comes_back(make) -> None:
    sandbox, wire, user, chat = await group(make)
    question = await sandbox.say(chat, user, "hi")
    sent = await wire.text(chat.id, uuid="u1")
    assert sent.data["chat_id"] == chat.id
    assert sent.data["sender"]["id"] == sandbox.config.app_id
    assert "root_id" not in sent.data
    answer = await wire.reply(question.id, "post", POST, uuid="u2")
    assert (answer.data["root_id"], answer.data["parent_id"]) == (question.id, question.id)
    assert "thread_id" not in answer.data
    deeper = await wire.reply(answer.data["message_id"], "text", {"text": "more"}, uuid="u3")
    assert (deeper.data["root_id"], deeper.data["parent_id"]) == (
        question.id,
        answer.data["message_id"],
    )
    by_user = {
        "receive_id": user.id,
        "msg_type": "text",
        "content": '{"text":"direct"}',
        "uuid": "u4",
    }
    direct = await wire.call("POST", "/im/v1/messages?receive_id_type=open_id", by_user)
    assert direct.data["chat_id"] == sandbox.direct_chat(user).id
    assert [visible_text(m) for m in sandbox.replies(question)] == ["**hi**"]
    read = await wire.call("GET", f"/im/v1/messages/{question.id}")
    assert read.data["items"][0]["mentions"][0]["name"] == "Hearth"
    assert sandbox.violations == []


async def test_topics(make) -> None:
    sandbox, wire, user, chat = await group(make)
    topics = sandbox.add_group("t", [user], topic=True)
    first = await sandbox.say(topics, user, "one")
    second = await sandbox.say(topics, user, "two", reply_to=first.message)
    assert first.message.thread_id
    assert second.message.thread_id == first.message.thread_id
    answer = await wire.reply(second.id, "text", {"text": "a"}, uuid="u1")
    assert answer.data["thread_id"] == first.message.thread_id
    assert (answer.data["root_id"], answer.data["parent_id"]) == (first.id, first.id)
    plain = await sandbox.say(chat, user, "three")
    opened = await wire.reply(plain.id, "text", {"text": "b"}, reply_in_thread=True, uuid="u2")
    assert opened.data["thread_id"] == plain.message.thread_id != ""
    private = await sandbox.say(sandbox.direct_chat(user), user, "four")
    refused = await wire.reply(private.id, "text", {"text": "c"}, reply_in_thread=True, uuid="u3")
    assert refused.code == 230071
    assert not private.message.thread_id
    mode = await wire.call("GET", f"/im/v1/chats/{topics.id}")
    assert (mode.data["chat_mode"], mode.data["group_message_type"]) == ("topic", "thread")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"receive_id": ""}, 230001),
        ({"receive_id": "oc_nowhere"}, 230034),
        ({"msg_type": "shout"}, 230001),
        ({"msg_type": 1}, 230001),
        ({"content": {"text": "object"}}, 230001),
        ({"content": "no json"}, 230001),
        ({"content": "[]"}, 230001),
        ({"content": '{"text":""}'}, 230001),
        ({"content": '{"txt":"x"}'}, 230001),
        ({"uuid": "x" * 51}, 230001),
        ({"content": json.dumps({"text": "x" * 153_600})}, 230025),
        ({"msg_type": "post", "content": json.dumps({"post": POST})}, 230001),
        ({"msg_type": "post", "content": json.dumps({"zh_cn": {"content": "x"}})}, 230001),
        ({"msg_type": "post", "content": json.dumps({"zh_cn": {"content": [[{"tag": "h1"}]]}})}, 230001),
        ({"msg_type": "post", "content": json.dumps(
            {"zh_cn": {"content": [[{"tag": "md", "text": "a"}, {"tag": "text", "text": "b"}]]}})}, 230001),
        ({"msg_type": "post", "content": json.dumps(
            {"zh_cn": {"content": [[{"tag": "md", "text": "x" * 31_000}]]}})}, 230025),
        ({"msg_type": "image", "content": "{}"}, 230001),
        ({"msg_type": "interactive", "content": '{"type":"template","data":{"template_id":"A"}}'}, 230099),
        ({"msg_type": "interactive", "content": '{"type":"card","data":{"card_id":"777"}}'}, 230099),
        ({"msg_type": "interactive", "content": '{"schema":"2.0","body":{"elements":[{"tag":"note"}]}}'}, 230099),
    ],
)  # fmt: skip
async def test_refused_sends(make, change: dict[str, Any], code: int) -> None:
    sandbox, wire, _, chat = await group(make)
    body = {
        "receive_id": chat.id,
        "msg_type": "text",
        "content": '{"text":"hi"}',
        "uuid": "u",
        **change,
    }
    reply = await wire.call("POST", "/im/v1/messages?receive_id_type=chat_id", body)
    assert (reply.status, reply.code) == (400, code)
    assert sandbox.messages(chat) == []
    assert sandbox.calls[-1].code == code


async def test_refused_places(make) -> None:
    sandbox, wire, user, chat = await group(make, limits=FREE)
    assert (await wire.call("POST", "/im/v1/messages?receive_id_type=nick", {})).code == 230001
    assert (await wire.reply("om_nothing", "text", {"text": "x"}, uuid="u")).code == 230001
    question = await sandbox.say(chat, user, "hi")
    assert (
        await wire.reply(question.id, "text", {"text": "x"}, uuid="u", reply_in_thread="yes")
    ).code == 230001
    await sandbox.recall(question)
    assert (await wire.reply(question.id, "text", {"text": "x"}, uuid="u")).code == 230011
    for field, value, code in (
        ("muted", True, 230035),
        ("has_bot", False, 230002),
        ("dissolved", True, 232009),
    ):
        setattr(chat, field, value)
        assert (await wire.text(chat.id, uuid=f"u-{field}")).code == code
    assert (await wire.call("GET", f"/im/v1/chats/{chat.id}")).code == 232011
    assert (await wire.call("GET", "/im/v1/chats/oc_none")).code == 232006
    user.blocked_bot = True
    assert (await wire.text(sandbox.direct_chat(user).id, uuid="u9")).code == 230053


async def test_a_uuid_sends_once_in_an_hour(make, clock) -> None:
    sandbox, wire, user, chat = await group(make)
    question = await sandbox.say(chat, user, "hi")
    card_id = await wire.new_card(streaming_mode=False)
    content = {"type": "card", "data": {"card_id": card_id}}
    first = await wire.reply(question.id, "interactive", content, uuid="same")
    again = await wire.reply(question.id, "interactive", content, uuid="same")
    assert again.code == 0
    assert again.data["message_id"] == first.data["message_id"]
    assert (await wire.reply(question.id, "interactive", content, uuid="other")).code == 300311
    assert sandbox.violations == []
    clock.advance(3600)
    assert (await wire.reply(question.id, "interactive", content, uuid="same")).code == 300311
    other = await wire.text(chat.id, "one", uuid="u")
    assert (await wire.text(chat.id, "two", uuid="u")).data["message_id"] == other.data[
        "message_id"
    ]
    assert [v.rule for v in sandbox.violations] == ["uuid_for_other_content"]


async def test_a_send_without_uuid_is_frowned_on(make) -> None:
    sandbox, wire, _, chat = await group(make)
    assert (await wire.text(chat.id)).code == 0
    assert [v.rule for v in sandbox.violations] == ["message_without_uuid"]


async def test_twenty_edits(make) -> None:
    sandbox, wire, user, chat = await group(make)
    sent = (await wire.text(chat.id, uuid="u")).data["message_id"]
    path = f"/im/v1/messages/{sent}"
    for n in range(20):
        body = {"msg_type": "text", "content": json.dumps({"text": f"v{n}"})}
        assert (await wire.call("PUT", path, body)).data["updated"] is True
    assert (
        await wire.call("PUT", path, {"msg_type": "text", "content": '{"text":"v20"}'})
    ).code == 230072
    assert visible_text(sandbox.world.messages[sent]) == "v19"
    question = await sandbox.say(chat, user, "hi")
    edit = {"msg_type": "text", "content": '{"text":"x"}'}
    assert (await wire.call("PUT", f"/im/v1/messages/{question.id}", edit)).code == 230071
    assert (
        await wire.call("PUT", path, {"msg_type": "interactive", "content": "{}"})
    ).code == 230001
    card_id = await wire.new_card(streaming_mode=False)
    shown = await wire.reply(
        question.id, "interactive", {"type": "card", "data": {"card_id": card_id}}, uuid="c"
    )
    assert (
        await wire.call("PUT", f"/im/v1/messages/{shown.data['message_id']}", edit)
    ).code == 230054
    assert (await wire.call("DELETE", path)).code == 0
    assert (await wire.call("PUT", path, edit)).code == 230011
    assert (await wire.call("DELETE", path)).code == 230110
    assert (await wire.call("DELETE", f"/im/v1/messages/{question.id}")).code == 230026


async def test_patching_a_raw_card(make, clock, a_card) -> None:
    sandbox, wire, user, chat = await group(make)
    raw = a_card(streaming_mode=False)
    question = await sandbox.say(chat, user, "hi")
    sent = await wire.reply(question.id, "interactive", raw, uuid="u")
    path = f"/im/v1/messages/{sent.data['message_id']}"

    async def patch(data: Any) -> int:
        return (
            await wire.call(
                "PATCH", path, {"content": data if isinstance(data, str) else json.dumps(data)}
            )
        ).code

    grown = a_card({"tag": "markdown", "content": "grown"}, streaming_mode=False)
    assert await patch(grown) == 0
    assert visible_text(sandbox.replies(question)[0]) == "grown"
    silent = json.loads(json.dumps(grown))
    del silent["config"]["update_multi"]
    assert await patch(silent) == 230001
    assert await patch("no json") == 230099
    assert await patch("x" * 31_000) == 230025
    assert await patch(a_card({"tag": "note"})) == 230099
    assert await patch(grown) == 230020
    clock.advance(1)
    assert await patch(grown) == 0
    clock.advance(14 * 86_400)
    await wire.login()
    assert await patch(grown) == 230031
    text = (await wire.text(chat.id, uuid="t")).data["message_id"]
    assert (await wire.call("PATCH", f"/im/v1/messages/{text}", {"content": "{}"})).code == 230001
    assert sandbox.violations == []


async def test_a_card_sent_by_id_is_not_patched(make, a_card) -> None:
    sandbox, wire, user, chat = await group(make)
    question = await sandbox.say(chat, user, "hi")
    card_id = await wire.new_card(streaming_mode=False)
    sent = await wire.reply(
        question.id, "interactive", {"type": "card", "data": {"card_id": card_id}}, uuid="u"
    )
    path = f"/im/v1/messages/{sent.data['message_id']}"
    assert (await wire.call("PATCH", path, {"content": json.dumps(a_card())})).code == 230001
    assert [v.rule for v in sandbox.violations] == ["patch_of_card_entity"]


async def test_recall_has_a_time_limit(make, clock) -> None:
    _, wire, _, chat = await group(make)
    sent = (await wire.text(chat.id, uuid="u")).data["message_id"]
    clock.advance(86_401)
    await wire.login()
    assert (await wire.call("DELETE", f"/im/v1/messages/{sent}")).code == 230009


async def test_reactions(make) -> None:
    sandbox, wire, user, chat = await group(make)
    question = await sandbox.say(chat, user, "hi")
    other = await sandbox.say(chat, user, "ho")
    path = f"/im/v1/messages/{question.id}/reactions"

    def emoji(name: Any) -> dict[str, Any]:
        return {"reaction_type": {"emoji_type": name}}

    added = await wire.call("POST", path, emoji("Typing"))
    reaction_id = added.data["reaction_id"]
    assert added.data["operator"] == {"operator_id": sandbox.config.app_id, "operator_type": "app"}
    assert [r.emoji for r in question.message.reactions] == ["Typing"]
    for wrong in ("typing", "", None):
        assert (await wire.call("POST", path, emoji(wrong))).code == 231001
    assert (await wire.call("POST", "/im/v1/messages/om_x/reactions", emoji("OK"))).code == 231003
    assert (
        await wire.call("DELETE", f"/im/v1/messages/{other.id}/reactions/{reaction_id}")
    ).code == 231010
    assert (await wire.call("DELETE", f"{path}/none")).code == 231011
    assert sandbox.violations == []
    assert (await wire.call("POST", path, emoji("Typing"))).data["reaction_id"] == reaction_id
    assert [v.rule for v in sandbox.violations] == ["reaction_added_again"]
    assert (await wire.call("DELETE", f"{path}/{reaction_id}")).code == 0
    assert question.message.reactions == []
    await sandbox.recall(question)
    assert (await wire.call("POST", path, emoji("OK"))).code == 231003
    assert (await wire.call("DELETE", f"{path}/{reaction_id}")).code == 231003


async def test_five_messages_a_second_into_one_chat(make, clock) -> None:
    sandbox, wire, user, chat = await group(make)
    codes = [(await wire.text(chat.id, uuid=f"u{n}")).code for n in range(6)]
    assert codes == [0, 0, 0, 0, 0, 230020]
    assert (await wire.text(sandbox.direct_chat(user).id, uuid="v")).code == 0
    clock.advance(1)
    assert (await wire.text(chat.id, uuid="u5")).code == 0


async def test_the_api_rate_and_a_caller_that_does_not_listen(make, clock) -> None:
    sandbox, wire, _, _ = await group(make)
    codes = [await wire.call("GET", "/bot/v3/info") for _ in range(51)]
    assert [r.status for r in codes[-2:]] == [200, 429]
    assert codes[-1].headers["x-ogw-ratelimit-reset"] == "1"
    assert sandbox.violations == []
    clock.advance(0.5)
    assert (await wire.call("GET", "/bot/v3/info")).code == 99991400
    assert [v.rule for v in sandbox.violations] == ["call_before_reset"]
    clock.advance(1)
    assert (await wire.call("GET", "/bot/v3/info")).status == 200


async def test_the_month(make) -> None:
    sandbox, wire, _, _ = await group(make, limits=replace(FREE, monthly_calls=2))
    assert (await wire.call("GET", "/im/v1/chats/oc_none")).code == 232006
    assert [(await wire.call("GET", "/bot/v3/info")).body["code"] for _ in range(3)] == [
        0,
        0,
        99991403,
    ]
    assert sandbox.rates.month_calls == 2


async def test_mentions_in_the_bots_words_are_noticed(make) -> None:
    sandbox, wire, user, chat = await group(make, limits=FREE)
    await wire.text(chat.id, f'<at user_id="{user.id}">小林</at> look', uuid="u1")
    await wire.text(chat.id, '`<at user_id="all"></at>`', uuid="u2")
    at_all = {"zh_cn": {"content": [[{"tag": "md", "text": '<at user_id="all"></at>'}]]}}
    question = await sandbox.say(chat, user, "hi")
    await wire.reply(question.id, "post", at_all, uuid="u3")
    assert [v.rule for v in sandbox.violations] == [
        "mention_injected",
        "mention_in_code",
        "mention_injected",
    ]
    allowed, wire2, _user2, chat2 = await group(make, allowed_mentions=frozenset({"all"}))
    await wire2.text(chat2.id, '<at user_id="all"></at>', uuid="u1")
    assert allowed.violations == []
    assert allowed.messages(chat2)[0].mentions[0].name == "all"


async def test_two_answers_to_one_question(make) -> None:
    sandbox, wire, user, chat = await group(make)
    question = await sandbox.say(chat, user, "hi")
    await wire.reply(question.id, "text", {"text": "The answer is 42."}, uuid="u1")
    await wire.reply(question.id, "text", {"text": "and here is the second part"}, uuid="u2")
    assert sandbox.violations == []
    twice = await wire.reply(question.id, "post", {"zh_cn": {"content": [[{"tag": "md", "text": "The answer is 42. Yes"}]]}}, uuid="u3")  # fmt: skip
    assert [v.rule for v in sandbox.violations] == ["two_answers"]
    await wire.call("DELETE", f"/im/v1/messages/{twice.data['message_id']}")
    assert sandbox.violations == []


async def test_two_questions_in_one_topic_are_two_questions(make) -> None:
    sandbox, wire, user, _ = await group(make)
    topics = sandbox.add_group("t", [user], topic=True)
    first = await sandbox.say(topics, user, "one")
    second = await sandbox.say(topics, user, "two", reply_to=first.message)
    for question, uuid in ((first, "u1"), (second, "u2")):
        await wire.reply(question.id, "text", {"text": "the same words"}, uuid=uuid)
    assert [len(sandbox.replies(question)) for question in (first, second)] == [1, 1]
    assert sandbox.violations == []


async def test_unknown_apis_and_content_types(make) -> None:
    sandbox, wire, _, _ = await group(make)
    assert (await wire.call("GET", "/im/v1/nothing")).status == 404
    async with wire.session.post(
        f"{sandbox.base_url}/open-apis/cardkit/v1/cards",
        data=b'{"type":"card_json"}',
        headers={"Authorization": f"Bearer {wire.token}", "Content-Type": "text/plain"},
    ) as response:
        assert (await response.json())["code"] == 10002
    assert [v.rule for v in sandbox.violations] == ["unknown_api", "content_type"]


async def test_many_at_once(make) -> None:
    sandbox, wire, user, _ = await group(make, limits=FREE.without_rates())
    chats = [sandbox.add_group(f"g{n}", [user]) for n in range(20)]
    replies = await asyncio.gather(
        *(wire.text(c.id, uuid=f"{c.id}{n}"[-50:]) for c in chats for n in range(5))
    )
    assert {r.code for r in replies} == {0}
    assert len({r.data["message_id"] for r in replies}) == 100

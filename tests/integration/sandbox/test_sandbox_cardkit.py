"""CardKit of the sandbox: streaming, sequences, element operations, limits; every refusal with its code."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bot.sandbox.feishu import Limits, visible_text

BUTTON = {
    "tag": "button",
    "element_id": "stop",
    "text": {"tag": "plain_text", "content": "Stop"},
    "behaviors": [{"type": "callback", "value": {"action": "stop"}}],
}
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
FREE = Limits(per_card_per_second=None)


async def shown(make: Any, **config: Any) -> Any:
    """A question answered with a streaming card: (sandbox, wire, card)."""
    sandbox, wire = await make(**{"limits": FREE, **config})
    user = sandbox.add_user("小林")
    question = await sandbox.say(sandbox.add_group("g", [user]), user, "hi")
    card_id = await wire.new_card()
    sent = await wire.reply(
        question.id, "interactive", {"type": "card", "data": {"card_id": card_id}}, uuid="u"
    )
    assert sent.code == 0
    return sandbox, wire, sandbox.world.cards[card_id]


def rules_of(sandbox: Any) -> list[str]:
    return [violation.rule for violation in sandbox.violations]


async def test_a_whole_reply(make) -> None:
    sandbox, wire, card = await shown(make)
    assert len(card.id) <= 20
    for sequence, text in enumerate(("He", "Hello", "Hello world"), 1):
        assert (await wire.content(card.id, text, sequence)).body == {
            "code": 0,
            "msg": "success",
            "data": {},
        }
    assert rules_of(sandbox) == ["left_streaming"]
    done = {"streaming_mode": False, "summary": {"content": "Hello world"}}
    assert (await wire.settings(card.id, done, 4)).code == 0
    assert (card.text, card.streaming, card.sequence, card.summary) == (
        "Hello world",
        False,
        4,
        "Hello world",
    )
    add = {"type": "append", "elements": json.dumps([BUTTON]), "sequence": 5}
    assert (await wire.call("POST", f"/cardkit/v1/cards/{card.id}/elements", add)).code == 0
    assert [button["element_id"] for button in card.buttons] == ["stop"]
    assert visible_text(card.message) == "Hello world"
    assert [(op.kind, op.sequence, op.code, op.text) for op in card.ops] == [
        ("content", 1, 0, "He"), ("content", 2, 0, "Hello"), ("content", 3, 0, "Hello world"),
        ("settings", 4, 0, ""), ("add_elements", 5, 0, ""),
    ]  # fmt: skip
    assert sandbox.violations == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 10002),
        ({"type": "template", "data": "{}"}, 10002),
        ({"type": "card_json", "data": ""}, 10002),
        ({"type": "card_json", "data": {"schema": "2.0"}}, 10002),
        ({"type": "card_json", "data": "{no json"}, 200220),
        ({"type": "card_json", "data": "{}"}, 300307),
        ({"type": "card_json", "data": '{"schema":"1.0","elements":[]}'}, 300303),
        ({"type": "card_json", "data": '{"schema":"2.0","body":{"elements":[]},"x":1}'}, 200621),
        ({"type": "card_json", "data": '{"schema":"2.0","config":{"update_multi":false},"body":{"elements":[]}}'}, 300302),
    ],
)  # fmt: skip
async def test_refused_entities(make, body: dict[str, Any], code: int) -> None:
    sandbox, wire = await make()
    reply = await wire.call("POST", "/cardkit/v1/cards", body)
    assert (reply.status, reply.code) == (400, code)
    assert sandbox.world.cards == {}


async def test_sequences(make) -> None:
    _sandbox, wire, card = await shown(make)
    assert (await wire.content(card.id, "a", 5)).code == 0
    assert (await wire.content(card.id, "ab", 5)).code == 300317
    assert (await wire.settings(card.id, {"streaming_mode": False}, 4)).code == 300317
    for bad in (0, -1, 2**31, "7", None, 1.5, True):
        assert (await wire.content(card.id, "ab", bad)).code == 10002, bad
    assert (await wire.content(card.id, "ab", 2**31 - 1)).code == 0
    assert card.text == "ab"
    assert card.streaming


async def test_uuids(make) -> None:
    _, wire, card = await shown(make)
    assert (await wire.content(card.id, "a", 1, uuid="one")).code == 0
    assert (await wire.content(card.id, "a", 1, uuid="one")).code == 200770
    assert (await wire.content(card.id, "a", 2, uuid="x" * 65)).code == 10002
    assert (await wire.content(card.id, "a", 2, uuid="")).code == 10002
    assert (await wire.content(card.id, "ab", 2, uuid="two")).code == 0


async def test_refused_texts(make) -> None:
    _sandbox, wire, card = await shown(make)
    for text, code in (
        ("", 10002), (None, 10002), (7, 10002), ("x" * 100_001, 10002), ("x" * 31_000, 200860),
        (4 * TABLE, 230099), ("<at id=ou_nobody></at>", 230099), ("![x](https://a/b.png)", 200570),
    ):  # fmt: skip
        assert (await wire.content(card.id, text, 1)).code == code, text
    assert (card.text, card.sequence) == ("…", 0)
    assert [op.code for op in card.ops] == [
        10002,
        10002,
        10002,
        10002,
        200860,
        230099,
        230099,
        200570,
    ]
    assert (await wire.content(card.id, f"{3 * TABLE}```\n{TABLE}```", 1)).code == 0
    assert (await wire.content("777", "x", 1)).code == 200740
    assert (await wire.content(card.id, "x", 2, element="nobody")).code == 300313


async def test_table_limit_is_configurable(make) -> None:
    _, wire, card = await shown(make, limits=replace(FREE, tables_per_card=0))
    assert (await wire.content(card.id, TABLE, 1)).code == 230099


async def test_only_text_streams(make) -> None:
    sandbox, wire = await make(limits=FREE)
    plain = {"tag": "div", "text": {"tag": "plain_text", "element_id": "plain", "content": "x"}}
    card_id = await wire.new_card(BUTTON, plain)
    assert (await wire.content(card_id, "x", 1, element="stop")).code == 300310
    assert (await wire.content(card_id, "y", 1, element="plain")).code == 0
    assert sandbox.world.cards[card_id].text == "y"


async def test_content_needs_streaming(make) -> None:
    sandbox, wire = await make(limits=FREE)
    card_id = await wire.new_card(streaming_mode=False)
    assert (await wire.content(card_id, "x", 1)).code == 300309
    assert sandbox.violations == []
    assert (await wire.settings(card_id, {"streaming_mode": True}, 1)).code == 0
    assert (await wire.content(card_id, "x", 2)).code == 0


async def test_an_update_after_the_close(make) -> None:
    sandbox, wire, card = await shown(make)
    await wire.content(card.id, "final", 1)
    await wire.settings(card.id, {"streaming_mode": False}, 2)
    assert (await wire.content(card.id, "final, late", 3)).code == 300309
    assert rules_of(sandbox) == ["update_after_close"]
    assert card.text == "final"


async def test_text_that_does_not_extend_is_let_pass_and_noted(make) -> None:
    sandbox, wire, card = await shown(make)
    await wire.content(card.id, "Hello", 1)
    assert (await wire.content(card.id, "Help", 2)).code == 0
    assert card.text == "Help"
    assert rules_of(sandbox) == ["text_not_extended", "left_streaming"]


async def test_ten_minutes(make, clock) -> None:
    sandbox, wire, card = await shown(make)
    clock.advance(400)
    assert (await wire.content(card.id, "a", 1)).code == 0
    assert (await wire.settings(card.id, {"streaming_mode": True}, 2)).code == 0
    clock.advance(199)
    assert (await wire.content(card.id, "ab", 3)).code == 0
    clock.advance(1)
    assert (await wire.content(card.id, "abc", 4)).code == 200850
    assert rules_of(sandbox) == ["streaming_timed_out"]
    assert (await wire.settings(card.id, {"streaming_mode": True}, 4)).code == 0
    clock.advance(599)
    assert (await wire.content(card.id, "abc", 5)).code == 0
    clock.advance(1)
    whole = {"card": {"type": "card_json", "data": json.dumps(
        {"schema": "2.0", "body": {"elements": [{"tag": "markdown", "content": "abcd"}]}})}, "sequence": 6}  # fmt: skip
    assert (await wire.call("PUT", f"/cardkit/v1/cards/{card.id}", whole)).code == 0
    assert card.text == "abcd"
    assert sandbox.violations == []


async def test_late_updates_may_be_silent(make, clock) -> None:
    _, wire, card = await shown(make, late_updates="silent")
    clock.advance(600)
    assert (await wire.content(card.id, "late", 1)).code == 0
    assert card.text == "…"


async def test_entities_live_fourteen_days(make, clock) -> None:
    _, wire, card = await shown(make)
    clock.advance(14 * 86_400)
    await wire.login()
    assert (await wire.content(card.id, "x", 1)).code == 200750


async def test_ten_operations_a_second(make, clock) -> None:
    _, wire, card = await shown(make, limits=Limits())
    replies = [await wire.content(card.id, "x" * n, n) for n in range(1, 12)]
    assert [r.code for r in replies] == [0] * 10 + [99991400]
    assert replies[-1].status == 429
    clock.advance(1)
    assert (await wire.content(card.id, "x" * 11, 11)).code == 0


async def test_settings(make) -> None:
    _, wire, card = await shown(make)
    path = f"/cardkit/v1/cards/{card.id}/settings"
    for settings, code in (
        ("", 10002), ("no json", 300122), ("{}", 300122), ('{"streaming_mode":false}', 300122),
        ('{"config":{"colour":1}}', 300122), ('{"config":{"update_multi":false}}', 300302),
    ):  # fmt: skip
        assert (
            await wire.call("PATCH", path, {"settings": settings, "sequence": 1})
        ).code == code, settings
    assert card.streaming


async def test_element_operations(make) -> None:
    sandbox, wire, card = await shown(make)
    path = f"/cardkit/v1/cards/{card.id}/elements"
    sequence = 0

    async def do(method: str, where: str, code: int = 0, **body: Any) -> None:
        nonlocal sequence
        sequence += 1
        packed = {
            key: item if isinstance(item, str) else json.dumps(item) for key, item in body.items()
        }
        reply = await wire.call(method, f"{path}{where}", {**packed, "sequence": sequence})
        assert reply.code == code, reply.body

    note = {"tag": "markdown", "element_id": "note", "content": "note"}
    await do("POST", "", elements=[note], type="insert_before", target_element_id="answer")
    await do("POST", "", elements=[{"tag": "hr"}], type="insert_after", target_element_id="answer")
    row = {
        "tag": "column_set",
        "element_id": "row",
        "columns": [{"tag": "column", "element_id": "col", "elements": []}],
    }
    await do("POST", "", elements=[row], type="append")
    await do("POST", "", elements=[BUTTON], type="append", target_element_id="col")
    assert [item["tag"] for item in card.elements] == ["markdown", "markdown", "hr", "column_set"]
    assert card.text == "note\n…"
    assert card.buttons[0]["element_id"] == "stop"
    await do("POST", "", 300315, elements=[note], type="insert_before", target_element_id="nobody")
    await do("POST", "", 300315, elements=[note], type="insert_before")
    await do("POST", "", 300315, elements=[note], type="beside", target_element_id="answer")
    await do("POST", "", 300315, elements=[note], type="append", target_element_id="answer")
    await do("POST", "", 300315, elements=[], type="append")
    await do("POST", "", 300315, elements="no json", type="append")
    await do("POST", "", 300301, elements=[note], type="append")
    await do("POST", "", 200861, elements=[{"tag": "note"}], type="append")
    await do("PATCH", "/note", partial_element={"content": "other"})
    await do("PATCH", "/note", 300312, partial_element={"tag": "hr"})
    await do("PATCH", "/nobody", 300313, partial_element={"content": "x"})
    await do("PATCH", "/note", 200621, partial_element={"colour": "x"})
    await do("PATCH", "/note", 200860, partial_element={"content": "x" * 31_000})
    await do("PUT", "/note", element={"tag": "markdown", "content": "third"})
    await do("PUT", "/nobody", 300121, element={"tag": "hr"})
    await do("PUT", "/note", 300121, element="no json")
    assert card.text == "third\n…"
    await do("DELETE", "/row")
    await do("DELETE", "/row", 300314)
    assert card.buttons == []
    await do("DELETE", "/note")
    assert card.text == "…"
    assert (await wire.content(card.id, "text", sequence + 1)).code == 0
    assert rules_of(sandbox) == ["left_streaming"]


async def test_too_many_elements(make) -> None:
    _, wire, card = await shown(make)
    body = {"type": "append", "elements": json.dumps([{"tag": "hr"}] * 200), "sequence": 1}
    assert (await wire.call("POST", f"/cardkit/v1/cards/{card.id}/elements", body)).code == 300305
    assert len(card.elements) == 1


async def test_batch_update_is_all_or_nothing(make) -> None:
    sandbox, wire, card = await shown(make)

    async def batch(actions: Any, sequence: int) -> int:
        body = {
            "actions": actions if isinstance(actions, str) else json.dumps(actions),
            "sequence": sequence,
        }
        return (await wire.call("POST", f"/cardkit/v1/cards/{card.id}/batch_update", body)).code

    def act(name: str, **params: Any) -> dict[str, Any]:
        return {"action": name, "params": params}

    finish = [
        act("partial_update_element", element_id="answer", partial_element={"content": "done"}),
        act("add_elements", type="append", elements=[BUTTON]),
        act("partial_update_setting", settings={"config": {"streaming_mode": False}}),
    ]
    assert await batch([*finish, act("delete_elements", element_ids=["nobody"])], 1) == 300314
    assert (card.text, card.buttons, card.streaming, card.sequence) == ("…", [], True, 0)
    assert await batch(finish, 1) == 0
    assert (card.text, card.streaming, card.sequence) == ("done", False, 1)
    assert await batch([act("update_element", element_id="stop", element={"tag": "hr"})], 2) == 0
    assert await batch([act("delete_elements", element_ids=["stop"])], 3) == 0
    assert await batch([act("explode")], 4) == 10002
    assert await batch("no json", 4) == 10002
    assert await batch([], 4) == 10002
    assert sandbox.violations == []


async def test_whole_card_update(make) -> None:
    _, wire, card = await shown(make)
    path = f"/cardkit/v1/cards/{card.id}"

    async def put(data: Any, sequence: int) -> int:
        body = {"card": {"type": "card_json", "data": json.dumps(data)}, "sequence": sequence}
        return (await wire.call("PUT", path, body)).code

    assert await put({"schema": "2.0", "body": {"elements": []}, "x": 1}, 1) == 200621
    assert await put({"schema": "1.0"}, 1) == 300303
    assert (await wire.call("PUT", path, {"sequence": 1})).code == 10002
    assert (
        await wire.call("PUT", path, {"card": {"type": "template", "data": "x"}, "sequence": 1})
    ).code == 10002
    assert card.streaming
    assert (
        await put({"schema": "2.0", "body": {"elements": [{"tag": "markdown", "content": "z"}]}}, 1)
        == 0
    )
    assert (card.text, card.streaming) == ("z", False)


async def test_mentions_in_a_card(make) -> None:
    sandbox, wire, card = await shown(make)
    person = sandbox.add_user("Alex")
    assert (await wire.content(card.id, f"hi <at id={person.id}></at>", 1)).code == 0
    assert (await wire.content(card.id, f"hi <at id={person.id}></at> and more", 2)).code == 0
    assert "mention_injected" in rules_of(sandbox)
    assert rules_of(sandbox).count("mention_injected") == 1


async def test_an_entity_is_sent_once(make) -> None:
    sandbox, wire, card = await shown(make)
    chat = card.message.chat
    body = {
        "receive_id": chat.id, "msg_type": "interactive", "uuid": "v",
        "content": json.dumps({"type": "card", "data": {"card_id": card.id}}),
    }  # fmt: skip
    reply = await wire.call("POST", "/im/v1/messages?receive_id_type=chat_id", body)
    assert reply.code == 300311
    assert len(sandbox.messages(chat)) == 2

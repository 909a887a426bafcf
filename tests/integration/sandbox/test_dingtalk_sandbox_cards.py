"""The DingTalk sandbox's AI cards: creating, delivering, streaming, states, sizes, what people see, clicks over HTTP."""

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

from bot.sandbox.dingtalk import DEFAULT_TEMPLATE, CardButton, Limits, Template, visible_text
from tests.support.dingtalkkit import hooked, played, rules

STOP = CardButton("stop", "Stop", {"action": "stop", "turn": "{turn}"}, hidden_if="done")
AGAIN = CardButton("again", "Again", {"action": "regenerate", "turn": "{turn}"}, shown_if="done")


async def test_a_card_grows_ends_and_is_kept() -> None:
    async with played() as (sandbox, wire):
        lin = sandbox.add_user("小林")
        group = sandbox.add_group("组", [lin])
        question = await sandbox.say(group, lin, "hi")
        made = await wire.new_card(group, "t1")
        (delivered,) = made.body["result"]["deliverResults"]
        assert (delivered["success"], delivered["spaceId"]) == (True, group.id)
        (message,) = sandbox.replies(question)
        card = message.card
        assert card is not None
        assert card.state == "processing"
        assert rules(sandbox) == ["left_growing"]
        assert (await wire.frame("t1", "one")).body == {"success": True, "result": True}
        assert card.state == "inputing"
        await wire.frame("t1", "one two", isFinalize=True)
        assert (card.state, visible_text(message)) == ("finished", "one two")
        assert rules(sandbox) == ["final_text_not_kept"]
        assert (await wire.put("t1", {"content": "one two"})).status == 200
        assert sandbox.violations == []
        late = await wire.frame("t1", "more")
        assert (late.status, late.code) == (400, "param.stream.finalized")
        assert rules(sandbox) == ["frame_after_end"]
        assert [op.kind for op in card.ops] == ["create", "stream", "finalize", "update", "stream"]
        key = {"robotCode": sandbox.config.robot, "processQueryKeys": [delivered["carrierId"]]}
        await wire.call(
            "POST", "/v1.0/robot/groupMessages/recall", key | {"openConversationId": group.id}
        )
        assert message.recalled


async def test_in_a_direct_chat_and_in_wrong_spaces() -> None:
    async with played() as (sandbox, wire):
        lin = sandbox.add_user("小林")
        direct = sandbox.direct_chat(lin)
        assert (await wire.new_card(direct)).body["result"]["deliverResults"][0]["success"]
        robot = sandbox.config.robot
        for space, more, words in (
            (f"IM_ROBOT.{direct.id}", {}, "spaceId is illegal"),
            (
                "IM_GROUP.cidunknown",
                {"imGroupOpenDeliverModel": {"robotCode": robot}},
                "spaceId is illegal",
            ),
            (
                f"IM_ROBOT.{lin.staff_id}",
                {"imRobotOpenDeliverModel": {"spaceType": "IM_ROBOT"}},
                "robotCode is empty",
            ),
            (
                f"IM_ROBOT.{lin.staff_id}",
                {"imRobotOpenDeliverModel": {"robotCode": robot}},
                "spaceType",
            ),
        ):
            reply = await wire.new_card(direct, openSpaceId=f"dtv1.card//{space}", **more)
            (result,) = reply.body["result"]["deliverResults"]
            assert reply.status == 200
            assert not result["success"]
            assert words in result["errorMsg"]
        assert rules(sandbox).count("illegal_space") == 2
        both = await wire.new_card(
            sandbox.add_group("组", [lin]), openSpaceId=f"dtv1.card//im_robot.{lin.staff_id};IM_ROBOT.nobody",
            imRobotOpenDeliverModel={"spaceType": "IM_ROBOT", "robotCode": robot},
        )  # fmt: skip
        assert [r["success"] for r in both.body["result"]["deliverResults"]] == [True, False]


async def test_create_refuses() -> None:
    templates = (Template(), Template("draft.schema", published=False))
    async with played(templates=templates, unsafe_words=frozenset({"forbidden"})) as (
        sandbox,
        wire,
    ):
        group = sandbox.add_group("组", [sandbox.add_user("小林")])
        for more, code in (
            ({"cardTemplateId": "nope.schema"}, "param.templateNotExist"),
            ({"cardTemplateId": "draft.schema"}, "param.templateUnpublished"),
            ({"outTrackId": ""}, "param.outTrackId"),
            ({"openSpaceId": f"IM_GROUP.{group.id}"}, "param.openSpaceId"),
            ({"imGroupOpenDeliverModel": {}}, "param.robotCode"),
            ({"imGroupOpenSpaceModel": {}}, "param.supportForward"),
            ({"cardData": {"cardParamMap": {"content": 1}}}, "param.cardParamMap"),
            ({"cardData": {"cardParamMap": {"k" * 101: ""}}}, "param.cardParamMap"),
            ({"cardData": {"cardParamMap": {"content": "forbidden"}}}, "contentUnsafe"),
            ({"callbackType": "stream"}, "param.callbackType"),
            ({"callbackType": "HTTP"}, "param.callbackRouteKey"),
        ):
            reply = await wire.new_card(group, **more)
            assert (reply.status, reply.code) == (400, code)
        assert sandbox.messages(group) == []


@pytest.mark.parametrize("mode", ["error", "silent"])
async def test_a_track_id_makes_one_card(mode: str) -> None:
    async with played(reused_track=mode) as (sandbox, wire):
        group = sandbox.add_group("组", [sandbox.add_user("小林")])
        sandbox.faults.drop("card.create_deliver", after=True)
        with pytest.raises(aiohttp.ClientError):
            await wire.new_card(group, "t1")
        again = await wire.new_card(group, "t1")
        assert (again.status, again.code) == (
            (400, "cardAlreadyExist") if mode == "error" else (200, None)
        )
        assert len(sandbox.messages(group)) == 1


async def test_frames_refused() -> None:
    templates = (Template(failed_state=False), Template("text.schema", kind="text"))
    async with played(templates=templates) as (sandbox, wire):
        group = sandbox.add_group("组", [sandbox.add_user("小林")])
        await wire.new_card(group, "t1")
        for more, status, code in (
            ({"guid": ""}, 400, "param.stream.guidEmpty"),
            ({"key": ""}, 400, "param.stream.keyEmpty"),
            ({"content": ""}, 400, "param.stream.contentEmpty"),
            ({"outTrackId": "other"}, 400, "param.stream.outTrackId"),
            ({"isFull": False}, 400, "param.stream.isFull"),
            ({"key": "msgContent"}, 500, "unknownError"),
            ({"isError": True}, 500, "unknownError"),
        ):
            reply = await wire.frame("t1", "text", **more)
            assert (reply.status, reply.code) == (status, code)
        await wire.frame("t1", "one", guid="g")
        assert (await wire.frame("t1", "two", guid="g")).status == 200
        card = sandbox.world.cards["t1"]
        assert card.source == "one"
        assert rules(sandbox) == ["guid_reused", "left_growing"]
        await wire.new_card(group, "t2", cardTemplateId="text.schema")
        await wire.frame("t2", "one", isFull=False)
        await wire.frame("t2", " two", isFull=False, isError=True)
        assert (sandbox.world.cards["t2"].source, sandbox.world.cards["t2"].state) == (
            "one two",
            "failed",
        )


async def test_sizes_by_the_documents_and_in_the_field() -> None:
    for sizes in ("documented", "field"):
        async with played(sizes=sizes) as (sandbox, wire):
            group = sandbox.add_group("组", [sandbox.add_user("小林")])
            await wire.new_card(group, "t1")
            (message,) = sandbox.messages(group)
            assert (await wire.frame("t1", "字" * 341)).status == 200
            reply = await wire.frame("t1", "字" * 342)
            kept = await wire.put("t1", {"content": "字" * 342})
            if sizes == "documented":
                assert (reply.status, reply.code) == (400, "param.stream.content")
                assert "content is too large" in reply.body["message"]
                assert kept.code == "param.cardParamMap"
            else:
                assert (reply.status, kept.status) == (200, 200)
                await wire.frame("t1", "字" * 3000)
                assert len(visible_text(message)) == 3000
                await wire.frame("t1", "字" * 3001)
                assert visible_text(message) == ""
                assert "card_blank" in rules(sandbox)
                assert (await wire.frame("t1", "字" * 7000)).code == "param.stream.content"


async def test_an_update_replaces_all_variables_unless_by_key() -> None:
    async with played() as (sandbox, wire):
        group = sandbox.add_group("组", [sandbox.add_user("小林")])
        await wire.new_card(group, "t1", cardData={"cardParamMap": {"content": "", "turn": "7"}})
        card = sandbox.world.cards["t1"]
        await wire.frame("t1", "text")
        await wire.put("t1", {"done": "true"})
        assert card.params == {"content": "", "turn": "7", "done": "true"}
        assert card.source == "text"
        await wire.put("t1", {"done": "true"}, by_key=False)
        assert card.params == {"done": "true"}
        assert card.source == ""
        assert (await wire.put("other", {"a": "b"})).code == "param.outTrackId"


async def test_two_frames_at_once() -> None:
    async with played(latency_s=0.05) as (sandbox, wire):
        group = sandbox.add_group("组", [sandbox.add_user("小林")])
        await wire.new_card(group, "t1")
        replies = await asyncio.gather(wire.frame("t1", "one"), wire.frame("t1", "one two"))
        assert sorted(reply.status for reply in replies) == [200, 403]
        assert "concurrent_frames" in rules(sandbox)
        assert (await wire.frame("t1", "one two")).status == 200


async def test_what_people_read_is_judged() -> None:
    async with played() as (sandbox, wire):
        lin, alex = sandbox.add_user("小林"), sandbox.add_user("Alex")
        group = sandbox.add_group("组", [lin, alex])
        await sandbox.say(group, lin, "hi")
        await wire.new_card(group, "t1")
        await wire.frame(
            "t1", f"<a atId={lin.staff_id}>小林</a> a &lt; b<br>next\n\n- x\n- y", isFinalize=True
        )
        await wire.put("t1", {"content": sandbox.world.cards["t1"].source})
        assert sandbox.violations == []
        assert visible_text(sandbox.messages(group)[-1]) == "@小林 a < b\nnext\n\n- x\n- y"
        await wire.put("t1", {"content": f"one\ntwo <b>x</b> <a atId={alex.staff_id}>Alex</a>"})
        assert rules(sandbox) == ["lines_glued", "tag_swallowed", "mention_injected"]


async def test_the_flow_status_template_ends_by_its_variable() -> None:
    template = Template("flow.schema", key="msgContent", flow_status=True)
    async with played(templates=(template,)) as (sandbox, wire):
        group = sandbox.add_group("组", [sandbox.add_user("小林")])
        await wire.new_card(
            group, "t1", cardTemplateId="flow.schema", cardData={"cardParamMap": {}}
        )
        await wire.put("t1", {"flowStatus": "2", "msgContent": "…"})
        await wire.frame("t1", "text", key="msgContent", isFinalize=True)
        assert rules(sandbox) == ["left_growing"]
        await wire.put("t1", {"flowStatus": "3", "msgContent": "text"})
        assert sandbox.violations == []


async def test_created_first_and_delivered_later() -> None:
    async with played() as (sandbox, wire):
        group = sandbox.add_group("组", [sandbox.add_user("小林")])
        body = wire.card_body(group, "t1")
        assert (await wire.call("POST", "/v1.0/card/instances", body)).body == {
            "success": True,
            "result": "t1",
        }
        assert (await wire.frame("t1", "x")).code == "param.stream.outTrackId"
        done = await wire.call("POST", "/v1.0/card/instances/deliver", body)
        assert done.body["result"][0]["success"]
        assert len(sandbox.messages(group)) == 1


async def test_clicks_over_http() -> None:
    template = Template(buttons=(STOP, AGAIN))
    async with played(templates=(template,), click_ack_s=0.1) as (sandbox, wire), hooked() as hook:
        lin = sandbox.add_user("小林")
        group = sandbox.add_group("组", [lin])
        route = {"callbackRouteKey": "r", "callbackUrl": hook.url, "apiSecret": "s3"}
        registered = await wire.call("POST", "/v1.0/card/callbacks/register", route)
        assert registered.body["result"]["apiSecret"] == "s3"
        other = await wire.call(
            "POST", "/v1.0/card/callbacks/register", route | {"callbackUrl": "http://x"}
        )
        assert other.code == "param.callbackRouteKey"
        params = {"content": "", "turn": "7"}
        await wire.new_card(
            group,
            "t1",
            callbackType="HTTP",
            callbackRouteKey="r",
            cardData={"cardParamMap": params},
        )
        (message,) = sandbox.messages(group)

        async def answer() -> web.StreamResponse:
            update = {
                "cardData": {"cardParamMap": {"done": "true"}},
                "cardUpdateOptions": {"updateCardDataByKey": True},
            }
            return web.json_response(update)

        hook.answer = answer
        result = await sandbox.press(message, "stop", lin)
        assert (result.error, result.status) == ("", 200)
        body, headers = hook.seen[0], hook.headers[0]
        mac = hmac.new(b"s3", headers["x-ddpaas-signature-timestamp"].encode(), hashlib.sha256)
        assert headers["x-ddpaas-signature"] == base64.b64encode(mac.digest()).decode()
        assert (body["outTrackId"], body["userId"], body["spaceId"]) == (
            "t1",
            lin.staff_id,
            group.id,
        )
        content = json.loads(body["content"])
        assert content == {
            "cardPrivateData": {"actionIds": ["stop"], "params": {"action": "stop", "turn": "7"}}
        }
        assert message.card is not None
        assert [button.action_id for button in message.card.buttons] == ["again"]
        with pytest.raises(LookupError):
            await sandbox.press(message, "stop", lin)

        async def slow() -> web.StreamResponse:
            await asyncio.sleep(0.2)
            return web.Response()

        async def wrong() -> web.StreamResponse:
            return web.json_response({"toast": "hi"})

        for bad, error in ((slow, "timeout"), (wrong, "answer")):
            hook.answer = bad
            assert (await sandbox.press(message, {"action": "regenerate"}, lin)).error == error
        assert rules(sandbox).count("bad_callback_reply") == 2


async def test_buttons_from_a_variable_and_a_card_without_callback() -> None:
    async with played(limits=Limits(per_api_per_second=None)) as (sandbox, wire):
        lin = sandbox.add_user("小林")
        group = sandbox.add_group("组", [lin])
        buttons: Any = [{"text": "Stop", "actionId": "a1", "params": {"action": "stop"}}]
        params = {"content": "", "buttons": json.dumps(buttons)}
        await wire.new_card(
            group, "t1", cardTemplateId=DEFAULT_TEMPLATE, cardData={"cardParamMap": params}
        )
        (message,) = sandbox.messages(group)
        assert (await sandbox.press(message, "stop", lin)).error == "no_callback"

"""The AI bot by WebSocket: one subscribed connection, serial frames, a stream's life. wecom-aibot-python-sdk is the judge."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import warnings
from typing import Any

import pytest

from bot.sandbox.wecom import Limits, ManualClock, WeComSandbox, visible_text
from tests.support.wecomkit import SocketBot, button_card, rules, socketed, stream


async def ready(sandbox: WeComSandbox, connect: Any) -> SocketBot:
    bot = await connect()
    assert (await bot.subscribe())["errcode"] == 0
    await sandbox.wait_for(lambda: sandbox.gateway.live is not None)
    return bot


async def test_a_question_and_a_growing_answer() -> None:
    async with socketed() as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("小林")
        group = sandbox.add_group("g", [user])
        sent = await sandbox.say(group, user, "hi")
        assert sent.acked
        frame = await bot.next()
        assert frame["cmd"] == "aibot_msg_callback"
        body = frame["body"]
        assert (body["msgid"], body["chatid"], body["text"]) == (
            sent.id, group.id, {"content": "@Hearth hi"},
        )  # fmt: skip
        assert "response_url" not in body
        for text, finish in (("<think></think>", False), ("one", False), ("one two", True)):
            assert await bot.respond(frame, stream("s1", text, finish=finish)) == 0
        assert await bot.respond(frame, stream("s1", "one two", finish=True)) == 0
        replies = sandbox.replies(sent)
        assert [(visible_text(m), m.updates, m.streaming) for m in replies] == [
            ("one two", 3, False)
        ]
        assert sandbox.violations == []
        assert await bot.respond(frame, stream("s1", "one two three", finish=True)) == 846608
        assert rules(sandbox) == ["after_finish"]


async def test_a_subscription_comes_first_and_must_be_right() -> None:
    async with socketed() as (sandbox, connect):
        bot = await connect()
        assert (await bot.call("aibot_send_msg", {}))["errcode"] == 846609
        assert (await bot.subscribe(secret="wrong"))["errcode"] == 853000
        assert (await bot.call("ping"))["errcode"] == 0
        assert (await bot.subscribe())["errcode"] == 0
        assert rules(sandbox) == ["not_subscribed"]
        assert "sandbox-bot-secret" not in str(sandbox.calls)


async def test_a_callback_bot_has_no_long_connection_and_storms_are_blocked() -> None:
    async with socketed(limits=Limits(subscribes_per_minute=2)) as (sandbox, connect):
        bot = await connect()
        codes = [(await bot.subscribe(secret="wrong"))["errcode"] for _ in range(3)]
        assert codes == [853000, 853000, 45009]
        assert rules(sandbox) == ["subscribe_storm"]


async def test_pings() -> None:
    clock = ManualClock()
    async with socketed(clock=clock, pong="cmd") as (sandbox, connect):
        bot = await ready(sandbox, connect)
        assert (await bot.call("ping"))["cmd"] == "pong"
        clock.advance(30)
        await bot.call("ping")
        assert sandbox.violations == []
        clock.advance(46)
        await bot.call("ping")
        assert rules(sandbox) == ["ping_gap"]


async def test_a_silent_connection_is_closed() -> None:
    async with socketed(silence_s=0.3) as (sandbox, connect):
        bot = await ready(sandbox, connect)
        await asyncio.wait_for(bot.closed.wait(), 5)
        assert rules(sandbox) == ["silent_connection"]


@pytest.mark.parametrize("kicked", ["close", "zombie"])
async def test_the_newer_connection_wins(kicked: str) -> None:
    async with socketed(kicked=kicked) as (sandbox, connect):
        first = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, "one")
        asked = await first.next()
        second = await connect()
        await second.subscribe()
        event = await first.next()
        assert event["body"]["event"] == {"eventtype": "disconnected_event"}
        if kicked == "close":
            await asyncio.wait_for(first.closed.wait(), 5)
        else:
            assert (await first.call("ping"))["errcode"] == 0
            assert await first.respond(asked, stream("s1", "x", finish=True)) == 846609
        # A stream goes on from the new connection under the old req_id.
        assert await second.respond(asked, stream("s1", "x", finish=True)) == 0
        await sandbox.say(sandbox.direct_chat(user), user, "two")
        assert (await second.next())["body"]["text"]["content"] == "two"
        assert sandbox.violations == []
        assert sandbox.gateway.subscriptions == 2


async def test_bots_that_kick_each_other() -> None:
    async with socketed() as (sandbox, connect):
        for _ in range(4):
            bot = await connect()
            await bot.subscribe()
        await sandbox.wait_for(lambda: "kick_war" in rules(sandbox))


async def test_frames_of_one_req_id_must_wait_for_each_other() -> None:
    async with socketed(ack_delay_s=0.2) as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, "one")
        await sandbox.say(sandbox.direct_chat(user), user, "two")
        one, two = await bot.next(), await bot.next()
        # Different questions do not disturb each other.
        acks = [
            await bot.send("aibot_respond_msg", stream(f"s{i}", "…"), frame["headers"]["req_id"])
            for i, frame in enumerate((one, two))
        ]
        assert [(await ack)["errcode"] for ack in acks] == [0, 0]
        assert "frames_not_serial" not in rules(sandbox)
        acks = [
            await bot.send("aibot_respond_msg", stream("s0", text), one["headers"]["req_id"])
            for text in ("a", "ab")
        ]
        assert sorted([(await ack)["errcode"] for ack in acks]) == [0, 6000]
        assert "frames_not_serial" in rules(sandbox)


async def test_a_streams_life_and_going_on_in_a_new_one() -> None:
    clock = ManualClock()
    async with socketed(clock=clock) as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        sent = await sandbox.say(chat, user, "long")
        frame = await bot.next()
        await bot.respond(frame, stream("s1", "first half"))
        clock.advance(330)
        assert await bot.respond(frame, stream("s1", "first half, see below", finish=True)) == 0
        assert await bot.respond(frame, stream("s2", "second half")) == 0
        clock.advance(359)
        assert await bot.respond(frame, stream("s2", "second half.", finish=True)) == 0
        assert sandbox.violations == []
        assert [visible_text(m) for m in sandbox.replies(sent)] == [
            "first half, see below", "second half.",
        ]  # fmt: skip
        await bot.respond(frame, stream("s3", "third"))
        clock.advance(361)
        assert await bot.respond(frame, stream("s3", "third.", finish=True)) == 846608
        assert await bot.respond(frame, stream("s4", "fourth", finish=True)) == 0
        clock.advance(86_400)
        assert await bot.respond(frame, stream("s5", "fifth", finish=True)) == 846604
        assert rules(sandbox) == [
            "stream_too_late", "second_stream_open", "reply_too_late", "left_streaming",
        ]  # fmt: skip


async def test_late_frames_may_be_acked_and_ignored() -> None:
    clock = ManualClock()
    async with socketed(clock=clock, late_frames="silent") as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        frame = await bot.next()
        await bot.respond(frame, stream("s1", "early"))
        clock.advance(360)
        assert await bot.respond(frame, stream("s1", "late", finish=True)) == 0
        assert visible_text(sandbox.replies(sent)[0]) == "early"
        assert rules(sandbox) == ["stream_too_late", "left_streaming"]


async def test_an_equal_final_may_get_no_ack() -> None:
    async with socketed(drop_equal_final=True) as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        frame = await bot.next()
        await bot.respond(frame, stream("s1", "same"))
        ack = await bot.send(
            "aibot_respond_msg", stream("s1", "same", finish=True), frame["headers"]["req_id"]
        )
        await sandbox.wait_for(lambda: not sandbox.replies(sent)[0].streaming)
        assert (await bot.call("ping"))["errcode"] == 0
        assert not ack.done()
        ack.cancel()


@pytest.mark.parametrize(
    ("body", "code", "rule"),
    [
        ({"msgtype": "text", "text": {"content": "x"}}, 40008, "reply_kind"),
        ({"msgtype": "markdown", "markdown": {"content": " "}}, 44004, "empty_message"),
        ({"msgtype": "markdown", "markdown": {"content": "x" * 20_481}}, 45002, "message_too_big"),
        (stream("s", "x" * 20_481), 45002, "stream_too_big"),
        (stream("s", " ", finish=True), 0, "empty_final"),
        (stream("s", "x", finish=True, msg_item=[{}]), 0, "msg_item_by_websocket"),
        ({"msgtype": "template_card", "template_card": {"card_type": "button_interaction"}}, 40058, "card_malformed"),
        ({"msgtype": "file", "file": {"media_id": "none"}}, 40007, ""),
    ],
)  # fmt: skip
async def test_answers_that_are_not_taken(body: Any, code: int, rule: str) -> None:
    async with socketed() as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, "hi")
        assert await bot.respond(await bot.next(), body) == code
        assert rules(sandbox) == ([rule] if rule else [])


async def test_req_ids_commands_and_stream_ids() -> None:
    async with socketed() as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        await sandbox.enter_chat(user)
        entered = await bot.next()
        assert entered["cmd"] == "aibot_event_callback"
        assert await bot.respond(entered, stream("s", "x")) == 846605
        assert (await bot.call("aibot_respond_msg", stream("s", "x")))["errcode"] == 846605
        assert (await bot.call("aibot_dance", {}))["errcode"] == 40058
        await sandbox.say(chat, user, "1")
        await sandbox.say(chat, user, "2")
        one, two = await bot.next(), await bot.next()
        assert await bot.respond(one, stream("s", "x", finish=True)) == 0
        assert await bot.respond(two, stream("s", "x", finish=True)) == 40058
        assert rules(sandbox) == [
            "req_id_unknown", "req_id_unknown", "unknown_command", "stream_id_reused",
        ]  # fmt: skip


async def test_pushes() -> None:
    async with socketed() as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user, stranger = sandbox.add_user("a"), sandbox.add_user("b")
        group = sandbox.add_group("g", [user])
        sandbox.direct_chat(stranger)
        sent = await sandbox.say(group, user, "hi")

        async def push(chat_id: str, text: str, **more: Any) -> int:
            body = {"chatid": chat_id, "msgtype": "markdown", "markdown": {"content": text}, **more}
            return (await bot.call("aibot_send_msg", body))["errcode"]

        assert await push(group.id, "later", chat_type=2) == 0
        assert visible_text(sandbox.replies(sent)[0]) == "later"
        assert not sandbox.replies(sent)[0].linked
        assert await push(group.id.lower(), "x", chat_type=2) == 93006
        assert await push(stranger.id, "x", chat_type=1) == 93006
        assert await push(group.id, "x" * 4097, chat_type=2) == 45002
        group.has_bot = False
        assert await push(group.id, "x", chat_type=2) == 93008
        group.has_bot = True
        assert await push(group.id, "no type") == 0
        assert rules(sandbox) == [
            "chat_unknown", "chat_unknown", "message_too_big", "chat_type_missing",
        ]  # fmt: skip


async def test_thirty_messages_a_minute() -> None:
    clock = ManualClock()
    async with socketed(clock=clock) as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, "hi")
        frame = await bot.next()
        for i in range(40):
            assert await bot.respond(frame, stream("s0", f"{i}")) == 0
        assert await bot.respond(frame, stream("s0", "end", finish=True)) == 0
        body = {"msgtype": "markdown", "markdown": {"content": "more"}}
        codes = [await bot.respond(frame, body) for _ in range(30)]
        assert codes == [0] * 29 + [45009]
        clock.advance(61)
        assert await bot.respond(frame, body) == 0


async def test_events_within_five_seconds() -> None:
    clock = ManualClock()
    async with socketed(clock=clock) as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        await sandbox.enter_chat(user)
        greeting = {"msgtype": "text", "text": {"content": "welcome"}}
        frame = await bot.next()
        req_id = frame["headers"]["req_id"]
        assert (await bot.call("aibot_respond_welcome_msg", greeting, req_id))["errcode"] == 0
        assert (await bot.call("aibot_respond_welcome_msg", greeting, req_id))["errcode"] == 846605
        await sandbox.say(chat, user, "card please")
        asked = await bot.next()
        card = button_card("t1", "Stop")
        await bot.respond(asked, {"msgtype": "template_card", "template_card": card})
        shown = sandbox.messages(chat)[-1]
        await sandbox.press(shown, "Stop", user)
        clicked = (await bot.next())["headers"]["req_id"]
        update = {
            "response_type": "update_template_card",
            "template_card": {**button_card("t1"), "main_title": {"title": "Stopped"}},
        }
        wrong = {**update, "template_card": button_card("t2")}
        assert (await bot.call("aibot_respond_update_msg", wrong, clicked))["errcode"] == 40058
        assert (await bot.call("aibot_respond_update_msg", update, clicked))["errcode"] == 0
        assert visible_text(shown) == "Stopped"
        await sandbox.press(shown, "Stop", user)
        clicked = (await bot.next())["headers"]["req_id"]
        clock.advance(5)
        assert (await bot.call("aibot_respond_update_msg", update, clicked))["errcode"] == 846604
        assert rules(sandbox) == ["second_event_reply", "card_malformed", "reply_too_late"]


async def test_messages_wait_for_a_connection_or_are_lost() -> None:
    async with socketed() as (sandbox, connect):
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "early")
        assert not sent.acked
        bot = await ready(sandbox, connect)
        frame = await bot.next()
        assert frame["body"]["msgid"] == sent.id
        assert sent.acked
        sandbox.cut_socket()
        await asyncio.wait_for(bot.closed.wait(), 5)
        bot = await ready(sandbox, connect)
        await sandbox.redeliver(sent)
        again = await bot.next()
        assert again["body"] == frame["body"]
        assert again["headers"] != frame["headers"]
    async with socketed(offline="lose") as (sandbox, connect):
        user = sandbox.add_user("a")
        await sandbox.say(sandbox.direct_chat(user), user, "early")
        bot = await ready(sandbox, connect)
        await sandbox.say(sandbox.direct_chat(user), user, "later")
        assert (await bot.next())["body"]["text"]["content"] == "later"


async def test_faults_on_frames() -> None:
    async with socketed() as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        frame = await bot.next()
        sandbox.faults.refuse("ws.respond", 6000)
        sandbox.faults.rate_limit("ws.respond")
        assert await bot.respond(frame, stream("s1", "a")) == 6000
        assert await bot.respond(frame, stream("s1", "a")) == 45009
        sandbox.faults.drop("ws.respond", after=True)
        ack = await bot.send("aibot_respond_msg", stream("s1", "ab"), frame["headers"]["req_id"])
        await asyncio.wait_for(bot.closed.wait(), 5)
        assert not ack.done()
        ack.cancel()
        assert visible_text(sandbox.replies(sent)[0]) == "ab"
        bot = await ready(sandbox, connect)
        assert await bot.respond(frame, stream("s1", "abc", finish=True)) == 0
        sandbox.faults.drop("callback.message", after=True)
        await sandbox.say(sandbox.direct_chat(user), user, "and the socket dies")
        await asyncio.wait_for(bot.closed.wait(), 5)
        assert bot.inbox.qsize() == 1
        assert sandbox.violations == []
        assert [call.dropped for call in sandbox.calls_of("ws.respond")] == ["", "", "after", ""]


async def test_a_half_dead_socket_and_a_polite_end() -> None:
    async with socketed() as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        sandbox.mute_socket()
        ack = await bot.send("ping")
        sent = await sandbox.say(chat, user, "into the void")
        await sandbox.wait_for(lambda: sandbox.calls_of("ws.ping"))
        assert bot.inbox.empty()
        assert not ack.done()
        ack.cancel()
        bot = await ready(sandbox, connect)
        assert (await bot.next())["body"]["msgid"] == sent.id
        await sandbox.close_socket()
        await asyncio.wait_for(bot.closed.wait(), 5)
        bot = await ready(sandbox, connect)
        sandbox.faults.down()
        await sandbox.say(chat, user, "while down")
        await asyncio.wait_for(bot.closed.wait(), 5)
        sandbox.faults.up()
        bot = await ready(sandbox, connect)
        assert (await bot.next())["body"]["text"]["content"] == "while down"


async def test_what_is_no_frame_ends_the_connection() -> None:
    async with socketed() as (sandbox, connect):
        for text in ("no json", '{"cmd": "ping"}', '{"cmd": "ping", "headers": {"req_id": ""}}'):
            bot = await connect()
            await bot.ws.send_str(text)
            await asyncio.wait_for(bot.closed.wait(), 5)
        assert rules(sandbox) == ["frame_malformed"] * 3


async def test_uploads() -> None:
    data = bytes(range(256)) * 3000
    digest = hashlib.md5(data).hexdigest()
    async with socketed() as (sandbox, connect):
        bot = await ready(sandbox, connect)
        user = sandbox.add_user("a")
        sent = await sandbox.say(sandbox.direct_chat(user), user, "hi")
        frame = await bot.next()
        begin = {
            "type": "file", "filename": "a.bin", "total_size": len(data), "total_chunks": 2, "md5": digest,
        }  # fmt: skip
        upload_id = (await bot.call("aibot_upload_media_init", begin))["body"]["upload_id"]
        size = 512 * 1024
        codes = []
        for i, part in enumerate((data[:size], data[size:])):
            body = {
                "upload_id": upload_id,
                "chunk_index": i,
                "base64_data": base64.b64encode(part).decode(),
            }
            codes.append((await bot.call("aibot_upload_media_chunk", body))["errcode"])
        assert codes == [0, 0]
        ack = await bot.call("aibot_upload_media_finish", {"upload_id": upload_id})
        media = {"media_id": ack["body"]["media_id"]}
        assert await bot.respond(frame, {"msgtype": "file", "file": media}) == 0
        assert sandbox.replies(sent)[0].data == {"name": "a.bin", "size": len(data)}
        assert sandbox.violations == []
        again = await bot.call("aibot_upload_media_finish", {"upload_id": upload_id})
        assert again["errcode"] == 40058
        assert rules(sandbox) == ["upload_malformed"]


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """wecom-aibot-python-sdk, without TLS (the sandbox speaks plain ws) and without its own output."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports the old API of websockets
        import aibot
        import aibot.ws
    monkeypatch.setattr(aibot.ws, "_SSL_CONTEXT", None)
    return aibot


class Quiet:
    def debug(self, *_: Any) -> None: ...

    info = warn = error = debug


async def test_the_sdk_talks_to_the_sandbox(sdk: Any) -> None:
    async with socketed() as (sandbox, _):
        config = sandbox.config
        options = sdk.WSClientOptions(
            bot_id=config.bot_id, secret=config.bot_secret, ws_url=sandbox.ws_url, logger=Quiet(),
            reconnect_interval=50, heartbeat_interval=50,
        )  # fmt: skip
        client = sdk.WSClient(options)
        files: list[Any] = []

        async def on_text(frame: Any) -> None:
            for text, finish in (("…", False), ("one", False), ("one two", True)):
                await client.reply_stream(frame, "s-" + frame["body"]["msgid"], text, finish)

        async def on_file(frame: Any) -> None:
            file = frame["body"]["file"]
            files.append(await client.download_file(file["url"], file["aeskey"]))
            await client.send_message(
                frame["body"]["from"]["userid"],
                {"msgtype": "markdown", "chat_type": 1, "markdown": {"content": "got it"}},
            )

        async def on_enter(frame: Any) -> None:
            await client.reply_welcome(frame, {"msgtype": "text", "text": {"content": "welcome"}})

        client.on("message.text", on_text)
        client.on("message.file", on_file)
        client.on("event.enter_chat", on_enter)
        await client.connect()
        await sandbox.wait_for(lambda: sandbox.gateway.live)
        user = sandbox.add_user("a")
        chat = sandbox.direct_chat(user)
        await sandbox.enter_chat(user)
        await sandbox.wait_for(lambda: sandbox.messages(chat))
        assert visible_text(sandbox.messages(chat)[0]) == "welcome"
        sent = await sandbox.say(chat, user, "hi")
        await sandbox.wait_for(lambda: [m for m in sandbox.replies(sent) if not m.streaming])
        assert [visible_text(m) for m in sandbox.replies(sent)] == ["one two"]
        sent = await sandbox.say(chat, user, kind="file", data=b"words " * 50, filename="名.txt")
        await sandbox.wait_for(lambda: sandbox.replies(sent))
        assert files == [(b"words " * 50, "名.txt")]
        sandbox.cut_socket()
        await sandbox.wait_for(lambda: sandbox.gateway.live)
        sent = await sandbox.say(chat, user, "after the cut")
        await sandbox.wait_for(lambda: [m for m in sandbox.replies(sent) if not m.streaming])
        await sandbox.wait_for(lambda: sandbox.calls_of("ws.ping"))
        assert sandbox.violations == []
        client.disconnect()
        await sandbox.wait_for(lambda: not sandbox.gateway.live)

"""Hostile bytes at the front door: every one gets a 4xx and one line, no traceback, and the service goes on."""

from __future__ import annotations

import asyncio
import gzip
import logging
import secrets
from typing import Any

import pytest

from bot.logs import OneLine
from bot.sandbox.feishu import visible_text

POST = b"POST /webhook/feishu HTTP/1.1\r\nHost: hearth\r\n"
BOMB = gzip.compress(b"0" * 20_000_000)

HOSTILE = {
    "gzip that is none": POST + b"Content-Encoding: gzip\r\nContent-Length: 7\r\n\r\nnotgzip",
    "gzip bomb": POST
    + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(BOMB), BOMB),
    "unknown encoding": POST + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
    "nonce that is no text": POST
    + b"X-Lark-Signature: ab\r\nX-Lark-Request-Nonce: \xff\xfe\r\nContent-Length: 2\r\n\r\n{}",
    "bad chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    "negative length": POST + b"Content-Length: -5\r\n\r\n",
    "huge header": b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 200,
    "no HTTP": b"FOO\r\n\r\n",
}


async def converse(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(30):
            return await reader.readline()
    finally:
        writer.close()


async def test_nothing_that_is_no_webhook_does_more_than_one_line(make_rig, caplog):
    rig = await make_rig(fake={"reply": "still here"})
    server_log = logging.getLogger("aiohttp.server")
    one_line = OneLine()
    server_log.addFilter(one_line)
    try:
        for name, data in HOSTILE.items():
            status = await converse(rig.web.port, data)
            assert status.split()[1].startswith(b"4"), (name, status)
        _, writer = await asyncio.open_connection("127.0.0.1", rig.web.port)
        writer.write(POST + b"Content-Length: 1000\r\n\r\n{")
        await writer.drain()
        writer.close()
        group = rig.sandbox.add_group("g", [user := rig.sandbox.add_user("Lin")])
        asked = await rig.sandbox.say(group, user, "Are you there?")
        assert await rig.settled(asked) == ["still here"]
    finally:
        server_log.removeFilter(one_line)
    assert not [record for record in caplog.records if record.exc_info]


def message_event(rig: Any, content: str, **fields: Any) -> dict[str, Any]:
    user = rig.sandbox.add_user("Lin")
    config = rig.sandbox.config
    return {
        "schema": "2.0",
        "header": {
            "event_id": secrets.token_hex(8),
            "event_type": "im.message.receive_v1",
            "token": config.verification_token,
            "app_id": config.app_id,
        },
        "event": {
            "sender": {"sender_id": {"open_id": user.id}, "sender_type": "user"},
            "message": {
                "message_id": f"om_{secrets.token_hex(8)}",
                "create_time": "1764374400000",
                "chat_id": rig.sandbox.direct_chat(user).id,
                "chat_type": "p2p",
                "message_type": "text",
                "content": content,
                **fields,
            },
        },
    }


ODD_CONTENTS = [
    ("text", r'{"text":"half an emoji \ud83d"}'),
    ("text", r'{"text":"a \u0000 zero"}'),
    ("file", r'{"file_key":"k","file_name":"\udfff.txt"}'),
    ("post", '{"content":[[{"tag":"text","text":"x"}]],"files":5}'),
    ("post", '{"content":{"a":1},"title":3,"files":{"a":[]}}'),
    ("text", "[" * 100_000),
    ("text", '{"text":null}'),
]


@pytest.mark.parametrize(("kind", "content"), ODD_CONTENTS)
async def test_a_verified_event_of_an_odd_shape_is_acknowledged(make_rig, kind, content):
    rig = await make_rig()
    push = await rig.sandbox.send_event(
        message_event(rig, content, message_type=kind, mentions=[1, {"key": "", "id": None}]),
        retry=False,
    )
    assert [attempt.status for attempt in push.attempts] == [200]


async def test_refused_content_ends_with_a_sentence_and_a_still_card(make_rig):
    rig = await make_rig(fake={"reply": "call 13800000000 now. " * 20, "token_delay_s": "0.005"})
    group = rig.sandbox.add_group("g", [user := rig.sandbox.add_user("Lin")])
    asked = await rig.sandbox.say(group, user, "What is the number?")
    await rig.growing(asked, 5)
    rig.sandbox.faults.refuse("card.content", 230028)
    turn = await rig.ended(asked)
    assert turn.state.value == "failed"
    (reply,) = rig.sandbox.replies(asked)
    assert "did not take this answer" in visible_text(reply)
    assert not reply.card.streaming
    assert not rig.sandbox.violations

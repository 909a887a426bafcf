"""DingTalk's own Python client as the judge of the sandbox: it connects, receives, answers, grows cards and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bot.sandbox.dingtalk import DingTalkSandbox, SandboxConfig, Template, visible_text

PROGRAM = Path(__file__).parents[2] / "support" / "dingtalk_official.py"
SDK_TEMPLATE = Template(
    "382e4302-551d-4880-bf29-a30acfab2e71.schema",
    key="msgContent",
    flow_status=True,
    buttons_key="sys_full_json_obj",
)


class Official:
    """The program, and what it has told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    async def read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.told.append(json.loads(line))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [told for told in self.told if told["kind"] == kind]


@contextlib.asynccontextmanager
async def running(**config: Any) -> AsyncIterator[tuple[DingTalkSandbox, Official]]:
    settings = {"templates": (Template(), SDK_TEMPLATE), "redelivery_s": (0.1, 0.1), **config}
    async with DingTalkSandbox(SandboxConfig(**settings)) as sandbox:
        environment = os.environ | {
            "DINGTALK_OPENAPI_ENDPOINT": sandbox.base_url,
            "NO_PROXY": "127.0.0.1",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), sandbox.config.client_id, sandbox.config.client_secret,
            env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        official = Official()
        reading = asyncio.create_task(official.read(process.stdout))
        try:
            await sandbox.wait_for(lambda: sandbox.gateway.connections, 20)
            yield sandbox, official
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await reading


async def test_the_official_client_talks_and_grows_cards() -> None:
    async with running() as (sandbox, official):
        lin = sandbox.add_user("小林")
        group = sandbox.add_group("组", [lin])
        asked = await sandbox.say(group, lin, "answer")
        (answer,) = await sandbox.wait_for(lambda: sandbox.replies(asked))
        assert (answer.kind, visible_text(answer)) == ("markdown", "an **answer**")
        assert asked.acked
        assert official.of("message")[0] | {"id": ""} == {
            "kind": "message", "id": "", "text": "answer", "nick": "小林", "staff": lin.staff_id,
        }  # fmt: skip
        for words in ("grow", "own card"):
            asked = await sandbox.say(group, lin, words)
            assert asked.acked, asked.attempts
            (message,) = sandbox.replies(asked)
            assert message.card is not None
            assert message.card.shown_state == "finished"
            assert visible_text(message) == "one two"
        assert message.pinged == (lin,)
        first = sandbox.messages(group)[3]
        clicked = await sandbox.press(first, "again", lin)
        assert (clicked.error, visible_text(first)) == ("", "clicked")
        (click,) = official.of("click")
        assert (click["user"], click["content"]["cardPrivateData"]["actionIds"]) == (
            lin.staff_id,
            ["again"],
        )
        assert (await sandbox.send_event("org_dept_create", {"deptId": [1]})).acked
        assert official.of("event")[0]["type"] == "org_dept_create"
        assert [call.code for call in sandbox.calls if call.code] == []
        assert await sandbox.gateway.ping(sandbox.gateway.connections[0])
        # Its Markdown reply names the asker in `at` only, which pings nobody.
        assert [violation.rule for violation in sandbox.violations] == ["at_without_text"]


async def test_the_official_client_fails_and_is_moved() -> None:
    async with running(stream_ack_s=0.3, disconnect_grace_s=0.2) as (sandbox, official):
        lin = sandbox.add_user("小林")
        direct = sandbox.direct_chat(lin)
        failed = await sandbox.say(direct, lin, "fail")
        assert failed.attempts[0].error == "timeout"
        await sandbox.wait_for(lambda: len(failed.attempts) == 3)
        assert len({told["id"] for told in official.of("message")}) == 1
        await sandbox.gateway.disconnect()
        await sandbox.wait_for(lambda: sandbox.gateway.opened == 2)
        answered = await sandbox.say(direct, lin, "answer")
        assert answered.acked
        assert [visible_text(m) for m in sandbox.replies(answered)] == ["an **answer**"]
        # It answers the system frame, closes the old socket first and opens a new one at once.
        assert sandbox.gateway.most_at_once == 1

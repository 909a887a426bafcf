"""Check-ups meet answers that no platform gives, and something that stands between might: each is a remark, none a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bot.config import parse_config
from bot.domain.findings import Level
from bot.platforms.checkup import host_of, minutes_of
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp
from bot.platforms.opening import open_checkup
from bot.sandbox.feishu import SandboxConfig
from bot.sandbox.tables import feishu_table

TOKEN, INFO, SOCKET = "tenant_access_token/internal", "/bot/v3/info", "/callback/ws/endpoint"


class Odd(SharedHttp):
    """Answers by the ending of the path; everything else is `{"code": 0}`."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__()
        self._answers = answers

    async def _move(self, request: HttpRequest) -> HttpAnswer:
        found = next((a for end, a in self._answers.items() if request.url.endswith(end)), {})
        return HttpAnswer(200, {}, json.dumps({"code": 0, **found}).encode())


@pytest.mark.parametrize(
    ("answers", "level", "words"),
    [
        ({TOKEN: {"tenant_access_token": None}}, Level.ERROR, "holds no token"),
        ({TOKEN: {"tenant_access_token": "t", "expire": "soon"}}, Level.OK, "good for 0 min"),
        ({TOKEN: {"tenant_access_token": "t"}, INFO: {"bot": []}}, Level.ERROR, "has no bot"),
        ({TOKEN: {"tenant_access_token": "t"}, INFO: {"bot": {"activate_status": [1]}}}, Level.ERROR, "unknown status"),
        ({TOKEN: {"tenant_access_token": "t"}, SOCKET: {"data": {"URL": "ws://[bad"}}}, Level.ERROR, "named no address"),
    ],
)  # fmt: skip
async def test_odd_answers_are_remarks(answers: dict[str, Any], level: Level, words: str) -> None:
    table = feishu_table(SandboxConfig(), "http://127.0.0.1:1") | {"mode": "websocket"}
    bot = parse_config({"bots": {"feishu": table}}, Path()).bots["feishu"]
    checkup = open_checkup(bot, Odd(answers), listens=False)
    remarks = [
        *await checkup.credentials({}),
        *await checkup.permissions(),
        *await checkup.connection(),
    ]
    assert (level, True) in [(remark.level, words in remark.what) for remark in remarks]


def test_what_is_no_time_and_no_address() -> None:
    assert [minutes_of(value) for value in (7200, 7200.5, None, "7200", [1])] == [120, 120, 0, 0, 0]
    assert [host_of(value) for value in ("wss://a.b/c?d=e", "ws://[bad", None, 7)] == ["a.b", "", "", ""]  # fmt: skip

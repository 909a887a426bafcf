"""Several whole processes on one database: one of them holds a WeCom bot's connection, and after a kill -9 another follows.

WeCom ends the older of two connections of one bot, so that two leaders would show as a war in the sandbox's judgement.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bot.sandbox.wecom import WeComConfig, WeComSandbox, visible_text
from tests.support.stand import ROOT, free_port, toml

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]
# What a process runs: `hearth serve` with shorter leases, or a minute would have to be waited.
_SERVE = """
import asyncio, sys
from pathlib import Path
from bot.cli.serve import serve
from bot.config import load_config
from bot.service import leading
leading.Leading.__init__.__kwdefaults__["terms"] = leading.Terms(lease_s=2.0, renew_s=0.4, ask_s=0.3, margin_s=0.6)
asyncio.run(serve(load_config(Path(sys.argv[1]))))
"""


class Process:
    """One `hearth serve` with a config of its own."""

    def __init__(self, folder: Path, tables: dict[str, dict[str, Any]]) -> None:
        folder.mkdir()
        self.folder = folder
        self.port = free_port()
        tables = {"server": {"port": self.port}, **tables}
        lines = [
            line
            for name, table in tables.items()
            for line in (f"[{name}]", *(f"{key} = {toml(value)}" for key, value in table.items()))
        ]
        (folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.process: asyncio.subprocess.Process | None = None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    async def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _SERVE, str(self.folder / "config.toml"),
                cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    async def facts(self) -> dict[str, str]:
        """/readyz's facts of the bot; {} while it does not answer."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}/readyz") as answer,
            ):
                return dict((await answer.json())["bots"]["wecom"])
        except aiohttp.ClientError:
            return {}

    async def until_idle(self) -> None:
        """Wait until it holds no turn: what is on the screen may not be acknowledged and stored as done yet."""
        async with asyncio.timeout(40), aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"http://127.0.0.1:{self.port}/metrics") as answer:
                    if "\nhearth_turns_active 0.0\n" in await answer.text():
                        return
                await asyncio.sleep(0.05)

    async def until(self, key: str, words: str = "") -> None:
        """Wait until a fact is told, with these words in it."""
        try:
            async with asyncio.timeout(40):
                while key not in (facts := await self.facts()) or words not in facts[key]:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"no {key}; the log ends: {self.log[-2000:]}") from None

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()


@asynccontextmanager
async def processes(folder: Path, storage: str, n: int) -> AsyncIterator[tuple[WeComSandbox, list[Process]]]:  # fmt: skip
    config = WeComConfig(mode="websocket")
    async with WeComSandbox(config) as sandbox:
        tables: dict[str, dict[str, Any]] = {
            "storage": {"url": storage},
            "models.main": {"backend": "fake", "fake": {"reply": "Here I am."}},
            "chat": {"language": "en", "show_date": False},
            "bots.wecom": {
                "platform": "wecom_bot", "mode": "websocket", "bot_id": config.bot_id, "secret": config.bot_secret,
                "api_base": sandbox.base_url, "ws_url": sandbox.ws_url,
            },
        }  # fmt: skip
        made = [Process(folder / f"p{number}", tables) for number in range(n)]
        try:
            yield sandbox, made
        finally:
            for one in made:
                await one.kill()


async def _answered(sandbox: WeComSandbox, text: str) -> None:
    user = next((u for u in sandbox.world.users.values() if not u.bot), None) or sandbox.add_user("Lin")  # fmt: skip
    asked = await sandbox.say(sandbox.direct_chat(user), user, text)
    await sandbox.wait_for(
        lambda: any("Here I am." in visible_text(m) for m in sandbox.replies(asked)), 20
    )


@pytest.mark.postgres
async def test_one_leads_and_another_follows_a_stopped_and_a_killed_one(
    tmp_path: Path, postgres_url: str
) -> None:
    async with processes(tmp_path, postgres_url, 2) as (sandbox, (first, second)):
        await first.start()
        await first.until("connected_since")
        await second.start()
        assert first.process
        assert second.process
        await second.until("connected_process", f":{first.process.pid}:")
        await _answered(sandbox, "Who is there?")
        assert sandbox.gateway.subscriptions == 1
        assert "connected_since" in await first.facts()

        # The leader is stopped; when it wakes up, it throws nobody out.
        await first.until_idle()
        first.process.send_signal(signal.SIGSTOP)
        await sandbox.wait_for(lambda: sandbox.gateway.subscriptions == 2, 20)
        await second.until("connected_since")
        first.process.send_signal(signal.SIGCONT)
        await first.until("connected_process", f":{second.process.pid}:")
        await asyncio.sleep(1.5)  # longer than a connection waits before it is opened again
        assert sandbox.gateway.subscriptions == 2
        assert "connected_since" in await second.facts()
        await _answered(sandbox, "Who answers?")

        # The leader is killed; the other follows.
        await second.until_idle()
        await second.kill()
        await sandbox.wait_for(lambda: sandbox.gateway.subscriptions == 3, 20)
        await first.until("connected_since")
        await _answered(sandbox, "And now?")
        assert sandbox.violations == []


async def test_on_sqlite_the_second_process_says_who_has_the_file_and_follows_at_once(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path, f"sqlite:///{tmp_path}/hearth.db", 2) as (sandbox, (first, second)):  # fmt: skip
        await first.start()
        await first.until("connected_since")
        await second.start()
        assert second.process
        assert await second.process.wait() != 0
        assert first.process
        assert f"is in use by process {first.process.pid}" in second.log
        assert sandbox.gateway.subscriptions == 1
        await first.kill()
        await second.start()
        await second.until("connected_since")
        await _answered(sandbox, "Still there?")
        assert sandbox.violations == []

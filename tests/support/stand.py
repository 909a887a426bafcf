"""A test stand: `hearth serve` as a real process in front of the strict Feishu sandbox, to be killed and started again.

The sandbox lives in the test's own process and survives the kills, as Feishu would.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp

from bot.sandbox.faults import Fault, Faults
from bot.sandbox.feishu import FeishuSandbox, SandboxConfig
from bot.sandbox.feishu.judge import visible_text
from bot.sandbox.feishu.people import SentMessage

ROOT = Path(__file__).parents[2]
BOT = "feishu"


def free_port() -> int:
    """A port that was free a moment ago; the same one is used again after a restart."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def toml(value: Any) -> str:
    """A TOML value; enough for what these tests write."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {toml(item)}' for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return str(value)


@dataclass(slots=True)
class KillPoint:
    """Kill the service at the n-th API call counted from `arm`: before it is applied, or after but before its answer."""

    n: int
    phase: Literal["before", "after"]


class KillingFaults(Faults):
    """The sandbox's faults, with a trigger that kills the service in the middle of a call. Owned by the stand."""

    def __init__(self, stand: Stand) -> None:
        super().__init__()
        self._stand = stand
        self._point: KillPoint | None = None
        self.count = 0
        self.killed_at = ""

    def arm(self, point: KillPoint | None) -> None:
        """Start counting."""
        self._point, self.count, self.killed_at = point, 0, ""

    def take(self, api: str) -> Fault | None:
        """Count, and kill when it is time."""
        self.count += 1
        if self._point is not None and self.count == self._point.n:
            phase, self._point = self._point.phase, None
            self.killed_at = f"{phase} {api}"
            self._stand.kill9()
            return Fault(api, drop=phase)
        return super().take(api)


@dataclass(slots=True)
class Stand:
    """One service and one sandbox. `models` is the [models.main] table; `extra` goes into further tables."""

    folder: Path
    models: dict[str, Any] = field(default_factory=lambda: {"backend": "fake"})
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    bot: dict[str, Any] = field(default_factory=dict)
    sandbox_config: SandboxConfig = field(
        default_factory=lambda: SandboxConfig(redelivery_s=(0.5, 1.0, 2.0, 4.0))
    )
    sandbox: FeishuSandbox = field(init=False)
    faults: KillingFaults = field(init=False)
    port: int = field(init=False, default=0)
    process: asyncio.subprocess.Process | None = field(init=False, default=None)

    async def __aenter__(self) -> Stand:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.faults = KillingFaults(self)
        self.sandbox = FeishuSandbox(self.sandbox_config, faults=self.faults)
        await self.sandbox.start()
        self.port = free_port()
        self.write_config()
        self.sandbox.subscribe(f"http://127.0.0.1:{self.port}/webhook/{BOT}")
        try:
            await self.start_service()
        except BaseException:
            await self.sandbox.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop_service()
        finally:
            await self.sandbox.close()

    # -- the service -------------------------------------------------------------------------------------------------
    def write_config(self) -> None:
        """config.toml for this stand."""
        settings = self.sandbox_config
        tables: dict[str, dict[str, Any]] = {
            "server": {"port": self.port},
            "storage": {"url": "sqlite:///hearth.db"},
            "models.main": self.models,
            "chat": {"language": "en", "show_date": False},
            "access": {"per_user_per_minute": 0},
            f"bots.{BOT}": {
                "platform": "feishu",
                "app_id": settings.app_id,
                "app_secret": settings.app_secret,
                "encrypt_key": settings.encrypt_key,
                "verification_token": settings.verification_token,
                "api_base": self.sandbox.base_url,
                **self.bot,
            },
        }
        for name, table in self.extra.items():
            tables[name] = {**tables.get(name, {}), **table}
        lines = []
        for name, table in tables.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {toml(value)}" for key, value in table.items()]
        (self.folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def log_path(self) -> Path:
        """Everything the service printed, over all its lives."""
        return self.folder / "service.log"

    @property
    def url(self) -> str:
        """The service's own address."""
        return f"http://127.0.0.1:{self.port}"

    async def start_service(self, *, wait: bool = True) -> None:
        """Start the process, and wait until it answers."""
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bot", "serve", "--config", str(self.folder / "config.toml"),
                cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        if wait:
            await self.wait_ready()

    async def wait_ready(self, timeout_s: float = 40.0) -> None:
        """Until /readyz says 200. Raises AssertionError with the end of the log."""
        async with aiohttp.ClientSession() as session:
            for _ in range(int(timeout_s / 0.05)):
                if self.process is None or self.process.returncode is not None:
                    break
                try:
                    async with session.get(f"{self.url}/readyz") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
        raise AssertionError(f"the service is not ready; its log ends:\n{self.log_tail()}")

    def log_tail(self, lines: int = 25) -> str:
        """The end of the log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def kill9(self) -> None:
        """kill -9, now."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)

    async def restart(self) -> None:
        """Wait for a killed process to be gone and start it again."""
        if self.process is not None:
            self.kill9()
            await self.process.wait()
        await self.start_service()

    async def stop_service(self) -> None:
        """SIGTERM, then the hard way."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(30):
                await self.process.wait()
        except TimeoutError:
            self.kill9()
            await self.process.wait()
            raise AssertionError(
                f"SIGTERM did not end the service; its log ends:\n{self.log_tail()}"
            ) from None

    def events(self, name: str) -> list[dict[str, Any]]:
        """The service's log events of one name, over all its lives."""
        found = []
        for line in self.log_path.read_text(errors="replace").splitlines():
            if line.startswith("{") and f'"{name}"' in line:
                event = json.loads(line)
                if event.get("event") == name:
                    found.append(event)
        return found

    async def metrics(self) -> dict[str, float]:
        """/metrics, by name with labels as written there."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/metrics") as response,
        ):
            lines = (await response.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {key: float(value) for key, value in pairs}

    # -- what can be seen --------------------------------------------------------------------------------------------
    def answers(self, question: SentMessage) -> list[str]:
        """The texts of the bot's messages that answer one question."""
        return [visible_text(message) for message in self.sandbox.replies(question)]

    def is_settled(self, question: SentMessage) -> bool:
        """There is an answer and none of its cards is streaming."""
        replies = self.sandbox.replies(question)
        return bool(replies) and all(
            not reply.card or not reply.card.streaming for reply in replies
        )

    async def settled(self, question: SentMessage, timeout_s: float = 30.0) -> list[str]:
        """Wait for a settled answer. Raises AssertionError with the calls and the end of the log."""
        try:
            await self.sandbox.wait_for(lambda: self.is_settled(question), timeout=timeout_s)
        except TimeoutError as error:
            raise AssertionError(f"{error}\nlog ends:\n{self.log_tail()}") from None
        return self.answers(question)

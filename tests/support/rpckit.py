"""A real `hearth rpc-worker` on loopback: started as people start it, its words, and the process that does the lending."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil

from tests.support.stand import free_port

ROOT = Path(__file__).parents[2]


class RpcWorker:
    """One worker; `async with`. `lines` grow while it runs."""

    def __init__(self, *options: str, port: int = 0) -> None:
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.lines: list[str] = []
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RpcWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.lines = []
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bot", "rpc-worker", "--listen", self.address, "--threads", "1", *self._options,
            cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read())
        await self.said("one client at a time")

    async def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        async with asyncio.timeout(10):
            status = await process.wait()
            if self._reading is not None:
                await self._reading
        return status

    async def said(self, words: str, n_times: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until a line with these words has come so often."""
        async with asyncio.timeout(timeout_s):
            while sum(words in line for line in self.lines) < n_times:
                assert self._process is None or self._process.returncode is None, self.lines
                await asyncio.sleep(0.02)

    @property
    def lender(self) -> psutil.Process:
        """The process in which llama.cpp serves."""
        assert self._process is not None
        (child,) = psutil.Process(self._process.pid).children()
        return child

    def kill(self) -> None:
        """kill -9 of what does the lending."""
        self.lender.send_signal(signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(line.decode().strip())

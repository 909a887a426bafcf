"""One life of the engine child, seen from the bot's event loop: start, send, hear, kill, and what it said at the end.

Owns the process, the parent's end of the socket pair and the last lines of the child's output. Must not know requests
or restarts (`engine.client` does). The output may hold anything a native library prints: it is kept for admins only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import site
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]  # the package ships no types

from engine.link import wire
from engine.link.childlog import NATIVE_EVENT, relay

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

# Python's report of a fatal signal alone, with the stacks of four threads, is some 80 lines.
_TAIL_LINES: Final = 200
_TAIL_LINE_CHARS: Final = 500
# A core dump may lie between the last word and the end.
_LAST_WORDS_S: Final = 60.0
_LINE_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 256 * 1024
_ROOT: Final = Path(__file__).resolve().parents[2]

# Secrets of the bot often come as environment variables; the child gets only what Python, the loader and GPU
# libraries read.
_ENV_NAMES: Final = frozenset(
    {"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV"}
)
_ENV_PREFIXES: Final = (
    "LC_", "LD_", "PYTHON", "XDG_", "GGML_", "LLAMA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_",
    "HIP_", "HSA_", "ROCR_", "ROCM_", "GPU_", "AMD_", "VK_", "MESA_", "SYCL_", "ONEAPI_", "ZE_", "GLIBC_", "MALLOC_",
)  # fmt: skip


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the child, made from the bot's.

    GGML_NO_BACKTRACE: an abort must not start a debugger first (DESIGN §6).
    """
    env = {
        name: value
        for name, value in environ.items()
        if name in _ENV_NAMES or name.startswith(_ENV_PREFIXES)
    }
    env["GGML_NO_BACKTRACE"] = "1"
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONFAULTHANDLER"] = "1"
    if str(_ROOT) not in site.getsitepackages():
        env["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(_ROOT), env.get("PYTHONPATH", "")) if part
        )
    return env


class Child:
    """A started child. Owner: the supervisor task of an `EngineProcess`. Use `Child.start`, then `reports`, then `reap`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        logger: Any,
    ) -> None:
        self._log = logger
        self._process = process
        self._reader = reader
        self._writer = writer
        self._tail: deque[tuple[float, str]] = deque(maxlen=_TAIL_LINES)
        self._tail_task = asyncio.create_task(self._keep_tail(), name="engine_child_tail")
        # Something was asked of it, and nothing has come since; when its loop was asked for a sign of life over that.
        self._owes_answer = False
        self.probed_since: float | None = None

    @classmethod
    async def start(cls, logger: Any) -> Child:
        """Start a child that waits for its hello. Raises OSError when the system cannot start a process."""
        ours, theirs = socket.socketpair()
        writer: asyncio.StreamWriter | None = None
        try:
            # First the stream, then the process: a cancelled start must not leave a process behind.
            reader, writer = await asyncio.open_connection(sock=ours)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "engine.link.worker", "--fd", str(theirs.fileno()), "--parent", str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=child_environment(os.environ),
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )  # fmt: skip
        except BaseException:
            (writer or ours).close()
            raise
        finally:
            theirs.close()  # or its end of the stream would never be seen here
        return cls(process, reader, writer, logger)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def rss_bytes(self) -> int:
        """Resident memory; 0 when the process is gone."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    @property
    def private_bytes(self) -> int:
        """Resident memory without mapped files, which go when others need the room; 0 when the process is gone."""
        try:
            info = psutil.Process(self.pid).memory_info()
        except psutil.Error:
            return 0
        return max(0, int(info.rss) - int(info.shared))

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of the child's output, oldest first. For admins, never for users."""
        return tuple(line for _, line in self._tail)

    @property
    def last_words(self) -> tuple[str, ...]:
        """What it has printed within the last minute: of a child that is dead now, what may explain it."""
        since = time.monotonic() - _LAST_WORDS_S
        return tuple(line for at, line in self._tail if at >= since)

    def send(self, command: wire.Command) -> None:
        """Send a frame; a dying child swallows it. Raises WireError for a frame that cannot be sent."""
        frame = wire.encode(command)
        self._owes_answer = self._owes_answer or isinstance(command, wire.Question)
        if not self._writer.is_closing():
            self._writer.write(frame)

    def probe(self) -> None:
        """Ask its loop for a sign of life where something was asked and nothing has come since."""
        if self._owes_answer and self.probed_since is None:
            self.probed_since = time.monotonic()
            self.send(wire.AskStats(seq=0))  # a number that nobody waits for

    async def reports(self) -> AsyncGenerator[wire.Report, None]:
        """What the child says, until its end of the socket closes. Raises WireError for garbage."""
        buffer = wire.FrameBuffer()
        while data := await self._receive():
            self._owes_answer, self.probed_since = False, None
            for payload in buffer.feed(data):
                yield wire.decode_report(payload)

    async def _receive(self) -> bytes:
        try:
            return await self._reader.read(_READ_BYTES)
        except ConnectionError:
            return b""

    def kill(self) -> None:
        """End the process now."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def reap(self, grace_s: float) -> str:
        """Wait for the end, with force after `grace_s`; returns how it ended, in words. Safe to call on a dead child."""
        try:
            async with asyncio.timeout(grace_s):
                status = await self._process.wait()
        except TimeoutError:
            self.kill()
            status = await self._process.wait()
        finally:
            self._writer.close()
        # A grandchild could hold the pipe open for ever; the last words are worth a moment only.
        await asyncio.wait({self._tail_task}, timeout=0.5)
        self._tail_task.cancel()
        await asyncio.wait({self._tail_task})
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        return _describe_status(status)

    async def _keep_tail(self) -> None:
        stream = self._process.stdout
        if stream is None:
            raise RuntimeError("the child was started without a pipe for its output")
        rest = b""
        while data := await stream.read(8192):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_LINE_BYTES:]
            for line in lines:
                self._take_line(line)
        self._take_line(rest)

    def _take_line(self, line: bytes) -> None:
        """Log lines are told again in the bot's log; what native libraries say is kept."""
        told = relay(line, self._log)
        if told is not None and told["event"] != NATIVE_EVENT:
            return
        if text := _printable(str(told.get("line", "")).encode() if told else line):
            self._tail.append((time.monotonic(), text))


def _printable(line: bytes) -> str:
    text = line[:_TAIL_LINE_CHARS].decode("utf-8", "replace").strip()
    return "".join(char if char.isprintable() else " " for char in text)


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"

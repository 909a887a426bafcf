"""One real run in a child process, seen by its parent: what it said, how it ended, and the most memory it took.

However the child ends (an abort in native code, the kernel's killer, a hang), the answer is a value and not an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from engine.backends.memory import available_bytes
from engine.vram.cardwatch import CardWatch
from engine.vram.probe import explain_death
from engine.vram.runs import DIED, HELD, RAM, REFUSED, SLOW
from engine.vram.tunechild import Answer, Failed, Loaded, Measured, Progress, Question

COMMAND: Final = (sys.executable, "-P", "-m", "engine.vram.tunechild")
_LOAD_S: Final = 900.0  # from a slow disk
_LOOK_S: Final = 0.05
_DECODER: Final = msgspec.json.Decoder(Answer)
_TAIL_LINES: Final = 200
# What the kernel says of a process, as far as it is wanted here.
_PEAK: Final = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)

Hear = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """`measured` only when it held; else `reason` is one sentence. Bytes by device: the peak, and what was free before."""

    outcome: str
    reason: str
    measured: Measured | None
    peak: dict[str, int]
    room: dict[str, int]
    seconds: float
    was_killed: bool = False

    @property
    def is_doubtful(self) -> bool:
        """Killed although it took less than half of what was free: others took the memory meanwhile."""
        return self.was_killed and 2 * self.peak.get(RAM, 0) < self.room.get(RAM, 0)


@dataclass(slots=True)
class _Seen:
    """What is known of a child so far; owned by `run_child`."""

    base: int = 0
    highest: int = 0
    room: dict[str, int] = field(default_factory=dict)
    last: Measured | Failed | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))


async def run_child(
    question: Question, limit_s: float, hear: Hear, command: Sequence[str] = COMMAND
) -> Ended:
    """Run one child to its end. `limit_s`: seconds after loading until it is stopped. `hear` is told (phase, done, total).

    A cancelled call leaves no process behind. Raises OSError when no process can be started.
    """
    started = time.monotonic()
    seen = _Seen(room={RAM: available_bytes()})
    is_slow = False
    async with _started(question, command) as process:
        watch = CardWatch(process.pid)
        helpers = [
            asyncio.create_task(_look(process.pid, seen, watch), name="tune_look"),
            asyncio.create_task(_keep_tail(process, seen), name="tune_tail"),
        ]
        try:
            async with asyncio.timeout(_LOAD_S) as timeout:
                await _listen(process, seen, hear, lambda: timeout.reschedule(_in(limit_s)))
                await process.wait()
        except TimeoutError:
            is_slow = True
        finally:
            await _end(process)
            helpers[0].cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            watch.close()
    outcome, reason = _verdict(process.returncode or 0, seen, limit_s, is_slow=is_slow)
    return Ended(
        outcome=outcome,
        reason=reason,
        measured=seen.last if isinstance(seen.last, Measured) and outcome == HELD else None,
        peak=_peaks(seen, watch),
        room=seen.room,
        seconds=time.monotonic() - started,
        was_killed=outcome == DIED and process.returncode == -signal.SIGKILL,
    )


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


@contextlib.asynccontextmanager
async def _started(
    question: Question, command: Sequence[str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A child in a group of its own: Ctrl-C in the terminal is ours to handle."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # or an abort starts a debugger first
        process_group=0,
    )
    try:
        assert process.stdin is not None  # noqa: S101  # asked for above
        process.stdin.write(msgspec.json.encode(question))
        with contextlib.suppress(ConnectionError):  # it may be gone already
            await process.stdin.drain()
        process.stdin.close()
        yield process
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _listen(
    process: asyncio.subprocess.Process, seen: _Seen, hear: Hear, on_loaded: Callable[[], None]
) -> None:
    assert process.stdout is not None  # noqa: S101
    async for line in process.stdout:
        try:
            answer = _DECODER.decode(line)
        except msgspec.DecodeError:
            continue  # cut off in the middle: it is dying
        match answer:
            case Loaded():
                seen.base = answer.base
                seen.room |= answer.free
                on_loaded()
            case Progress():
                hear(answer.phase, answer.done, answer.total)
            case Measured() | Failed():
                seen.last = answer


async def _keep_tail(process: asyncio.subprocess.Process, seen: _Seen) -> None:
    assert process.stderr is not None  # noqa: S101
    while chunk := await process.stderr.read(65536):
        seen.tail.extend(chunk.decode("utf-8", "replace").splitlines())


async def _look(pid: int, seen: _Seen, watch: CardWatch) -> None:
    """The child's memory while it lives: one that dies cannot tell it."""
    while True:
        seen.highest = max(seen.highest, _peak_of(pid))
        watch.look()
        await asyncio.sleep(_LOOK_S)


def _peak_of(pid: int) -> int:
    """The most RAM that a process took so far, in bytes; 0 = it is gone."""
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def _verdict(status: int, seen: _Seen, limit_s: float, *, is_slow: bool) -> tuple[str, str]:
    if is_slow:
        return SLOW, f"stopped: it was not done {limit_s:.0f} s after loading"
    if isinstance(seen.last, Failed):
        return REFUSED, seen.last.reason
    if isinstance(seen.last, Measured):
        return HELD, ""
    if status == -signal.SIGKILL:
        return DIED, "killed by the kernel (signal 9), most likely for want of memory"
    return DIED, explain_death("\n".join(seen.tail), status)


def _peaks(seen: _Seen, watch: CardWatch) -> dict[str, int]:
    """RAM by the child's own word or by what was seen; cards by NVML, or by how much less was free at the end."""
    own = seen.last if isinstance(seen.last, Measured) else Measured()
    peak = {RAM: own.peak or max(0, seen.highest - seen.base)}
    for name in seen.room.keys() - {RAM}:
        peak[name] = max(own.used.get(name, 0), watch.peak.get(name.split(" ")[0], 0))
    return peak

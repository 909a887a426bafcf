"""The engine child: `python -m engine.link.worker --fd N --parent PID`, started by `engine.link.process`.

Owns the model, through `Core`, on the main thread. Three more threads: `reader` sorts incoming frames, `text`
counts and renders, `writer` sends what the main thread does not send itself. Knows nothing of chats or people and imports nothing of the bot.

It never outlives its parent: the kernel kills it when the parent dies (PR_SET_PDEATHSIG), and it exits on the end of
the socket. SIGINT and SIGTERM are ignored, as both reach the whole process group (Ctrl-C, systemd): the parent decides,
by `Shutdown`. If any of its threads fails, the process ends rather than limp; the parent starts another.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if __name__ == "__main__":
    # structlog loads rich for coloured terminals. The child has none, and starts in 0.6 of the time without.
    sys.modules["rich"] = None  # type: ignore[assignment]  # the documented way to make an import fail

import structlog

from engine.core.core import Core
from engine.errors import EngineConfigError
from engine.kv.opening import open_tiers
from engine.link import wire
from engine.link.childlog import configure_child_logging
from engine.link.outbox import Outbox
from engine.link.textdesk import TextDesk
from engine.types import FailureCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.backends.base import Backend
    from engine.config import EngineConfig
    from engine.kv.tiers import KvTiers
    from engine.text.template import ChatTemplate

_log = structlog.get_logger()

EXIT_OK: Final = 0
EXIT_CONFIG: Final = 3
EXIT_FAULT: Final = 70

_PR_SET_PDEATHSIG: Final = 1
_BEAT_EVERY_S: Final = 0.5
_BLOCKED_WAIT_S: Final = 0.02
_FLUSH_S: Final = 2.0
_RECV_BYTES: Final = 256 * 1024


class Wake:
    """A command that does nothing: what the loop was waiting for may have come."""


LoopCommand = (
    wire.Hello
    | wire.Submit
    | wire.Cancel
    | wire.Warm
    | wire.Forget
    | wire.KeepInRam
    | wire.AskStats
    | wire.Shutdown
    | Wake
)


class Loop:
    """Drain commands, step, repeat. Owner: the main thread; it alone calls the core. Sleeps when there is no work."""

    def __init__(
        self,
        core: Core,
        commands: queue.SimpleQueue[LoopCommand],
        outbox: Outbox,
        keep_in_ram: Callable[[int], None],
    ) -> None:
        self._core = core
        self._keep_in_ram = keep_in_ram
        self._commands = commands
        self._outbox = outbox
        self._working = False
        self._n_steps = 0
        self._longest_step_s = 0.0
        self._last_beat = 0.0

    def run(self) -> None:
        """Work until `Shutdown`."""
        wait_s: float | None = None
        while self._drain(wait_s):
            if not self._core.has_work:
                self._set_working(working=False)
                self._outbox.flush(everything=True)
                wait_s = None
                continue
            self._set_working(working=True)
            self._outbox.flush()
            wait_s = 0.0
            if not self._step():  # all wait for memory or a deadline: not repeated at once
                self._outbox.flush(everything=True)
                wait_s = _BLOCKED_WAIT_S

    def _drain(self, wait_s: float | None) -> bool:
        """Apply every waiting command; wait for the first `wait_s` (None = as long as it takes). False = shut down."""
        try:
            command = self._commands.get(block=wait_s != 0.0, timeout=wait_s or None)
            while not isinstance(command, wire.Shutdown):
                self._apply(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return True
        return False

    def _apply(self, command: LoopCommand) -> None:
        match command:
            case wire.Submit(request=request):
                self._core.submit(request)
            case wire.Cancel(request_id=request_id):
                self._core.cancel(request_id)
            case wire.Warm(cache_key=key, scope=scope, tokens=tokens):
                self._core.warm(key, scope, tokens)
            case wire.Forget(cache_key=key):
                gone = wire.Forgotten(cache_key=key)
                self._core.forget(key, lambda: self._outbox.put(gone))
            case wire.KeepInRam(n_bytes=n_bytes):
                self._keep_in_ram(n_bytes)
            case wire.AskStats(seq=seq):
                self._outbox.note(wire.StatsAnswer(seq=seq, stats=self._core.stats()))
            case Wake():
                pass
            case wire.Hello():
                raise wire.WireError("a second hello")
            case wire.Shutdown():
                raise AssertionError("handled by the caller")

    def _step(self) -> bool:
        started = time.monotonic()
        progressed = self._core.step()
        now = time.monotonic()
        self._n_steps += 1
        self._longest_step_s = max(self._longest_step_s, now - started)
        if now - self._last_beat >= _BEAT_EVERY_S:
            self._beat(now)
        return progressed

    def _set_working(self, *, working: bool) -> None:
        if working != self._working:
            self._working = working
            self._beat(time.monotonic())

    def _beat(self, now: float) -> None:
        self._last_beat = now
        self._outbox.note(
            wire.Beat(
                working=self._working,
                n_steps=self._n_steps,
                longest_step_s=self._longest_step_s,
            )
        )


class Reader:
    """Sorts incoming frames by who answers them. Owner: its thread. The end of the stream ends the process.

    Questions that come before the model is loaded cannot happen: the parent asks only after `Ready`.
    """

    def __init__(
        self,
        sock: socket.socket,
        commands: queue.SimpleQueue[LoopCommand],
        report: Callable[[wire.Report], None],
    ) -> None:
        self._sock = sock
        self._commands = commands
        self._report = report
        self.desk: TextDesk | None = None
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def _run(self) -> None:
        buffer = wire.FrameBuffer()
        first = True
        while data := self._receive():
            for payload in buffer.feed(data):
                if first and (version := wire.peek_version(payload)) != wire.WIRE_VERSION:
                    raise wire.WireError(_version_sentence(version))
                first = False
                self._take(payload)
        os._exit(EXIT_OK)

    def _take(self, payload: bytes) -> None:
        try:
            command = wire.decode_command(payload)
        except wire.WireError:
            refusal = wire.refusal_of(payload)
            if refusal is None:
                raise
            _log.error("command_refused", n_bytes=len(payload))
            self._report(refusal)
        else:
            self._sort(command)

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(_RECV_BYTES)
        except OSError:
            return b""

    def _sort(self, command: wire.Command) -> None:
        if not isinstance(command, wire.AskCount | wire.AskRender):
            self._commands.put(command)
        elif self.desk is None:
            raise wire.WireError("a question before the model was loaded")
        else:
            self.desk.put(command)


def _version_sentence(version: int) -> str:
    return (
        f"the bot speaks wire version {version}, the engine on disk {wire.WIRE_VERSION}: "
        "hearth was upgraded while running; restart it"
    )


def _bind_to_parent(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent dies, and exit if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(EXIT_OK)
    # When memory runs out, the child is the one to go: the bot keeps its webhooks and starts another.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end_on_thread_failure(args: threading.ExceptHookArgs) -> NoReturn:
    traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)
    sys.stderr.flush()
    os._exit(EXIT_FAULT)


def _load(config: EngineConfig, outbox: Outbox) -> tuple[Backend, TextDesk, ChatTemplate]:
    """The model, the desk that counts with it, and its template. Raises EngineConfigError."""
    from engine.backends.base import make_backend
    from engine.text.template import ChatTemplate

    backend = make_backend(config)

    def tokenize(text: str, parse_special: bool) -> list[int]:
        return backend.tokenize(text, add_special=False, parse_special=parse_special)

    template = ChatTemplate(
        backend.chat_template(),
        bos_text=backend.bos_text,
        eos_text=backend.eos_text,
        add_bos=backend.add_bos,
        tokenize=tokenize,
        special_texts=backend.special_texts(),
    )
    if template.fallback_reason:
        _log.warning("chat_template_missing", detail=template.fallback_reason)
    desk = TextDesk(lambda text: len(tokenize(text, False)), template, outbox.put)
    return backend, desk, template


def _serve(reader: Reader, commands: queue.SimpleQueue[LoopCommand], outbox: Outbox) -> int:
    """Load, work until told to stop, close. Returns the exit status."""
    hello = commands.get()
    if isinstance(hello, wire.Shutdown):
        return EXIT_OK
    if not isinstance(hello, wire.Hello):
        raise wire.WireError("the first frame is not a hello")
    try:
        backend, desk, template = _load(hello.config, outbox)
    except EngineConfigError as error:
        outbox.put(wire.LoadFailed(message=str(error)))
        return EXIT_CONFIG
    tiers = open_tiers(hello.config, backend, lambda: commands.put(Wake()))
    core = Core(backend, hello.config, outbox.tell, turns=template.turns, tiers=tiers)
    core.before_decode = lambda is_long: outbox.flush(everything=is_long)
    core.is_wanted = lambda: not commands.empty()
    desk.start()
    reader.desk = desk
    outbox.put(wire.Ready(version=wire.WIRE_VERSION, info=backend.info()))
    Loop(core, commands, outbox, functools.partial(_keep_in_ram, tiers)).run()
    core.fail_all(FailureCode.ENGINE_DIED, "the engine is shutting down")
    outbox.flush(everything=True)  # what is kept of the talks is stored now, which takes seconds
    core.close()
    backend.close()
    return EXIT_OK


def _keep_in_ram(tiers: KvTiers | None, n_bytes: int) -> None:
    if tiers is None:
        return
    tiers.limit_ram(n_bytes)
    with contextlib.suppress(AttributeError):  # glibc alone has it: what is free goes back at once
        ctypes.CDLL(None).malloc_trim(0)


def main() -> NoReturn:
    """Entry point of the child."""
    parser = argparse.ArgumentParser(
        prog="engine.link.worker", description="started by hearth; not for hand use"
    )
    parser.add_argument("--fd", type=int, required=True, help="the child's end of the socket pair")
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    args = parser.parse_args()
    _bind_to_parent(args.parent)
    configure_child_logging()
    threading.excepthook = _end_on_thread_failure
    sock = socket.socket(fileno=args.fd)
    commands: queue.SimpleQueue[LoopCommand] = queue.SimpleQueue()
    outbox = Outbox(sock)
    reader = Reader(sock, commands, outbox.put)
    outbox.start()
    reader.start()
    try:
        status = _serve(reader, commands, outbox)
    except Exception:  # noqa: BLE001 - the last stop: the parent names the last line and starts another child
        traceback.print_exc()
        status = EXIT_FAULT
    outbox.close(_FLUSH_S)
    sys.stderr.flush()
    # Daemon threads are in blocking calls and native libraries dislike a late teardown: leave at once.
    os._exit(status)


if __name__ == "__main__":
    main()

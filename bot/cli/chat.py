"""`hearth chat`: the terminal as a platform."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import io
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import SecretStr

from bot.app import Hearth, state_folder
from bot.cli import tinymodel
from bot.cli.main import with_engine
from bot.cli.report import print_plan
from bot.config import AccessConfig, Config, parse_config
from bot.domain.turns import is_terminal
from bot.domain.types import ButtonPressed, InboundEvent, InboundMessage
from bot.errors import HearthError
from bot.logs import set_up_logging
from bot.platforms.terminal import APP_ID, CHAT_ID, TerminalAdapter, terminal_message

LOAD_TIMEOUT_S = 600.0
BOT_NAME = "terminal"
STOP_POLL_S = 0.05


class LineReader:
    """Reads lines in a daemon thread, so that Ctrl-C at the prompt ends the program at once. Owned by one chat."""

    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive
        for stream in (sys.stdin, sys.stdout):  # bytes that are no text must not end the talk
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self.left = False
        self._wanted = threading.Semaphore(0)
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    async def next(self) -> str | None:
        """The next line, None at the end of input."""
        self._wanted.release()
        return await self._lines.get()

    def leave(self) -> None:
        """Ctrl-C at the prompt: the talk ends as if there were no more lines."""
        self.left = True
        self._lines.put_nowait(None)

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            try:
                line = input("you> ") if self._interactive else self._plain()
            except (EOFError, ValueError):
                line = None
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            if line is None:
                return

    @staticmethod
    def _plain() -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")


@contextlib.asynccontextmanager
async def _configured(config: Config | None, engine: str) -> AsyncIterator[Config]:
    """The given config for one person at the keyboard, or a throw-away one with the demo model.

    The conversation has a database of its own: in the service's own one waiting questions of its bots would be taken up
    here, where these bots do not exist.
    """
    with contextlib.ExitStack() as stack:
        if config is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-chat-")))
            data = {
                "models": {"demo": tinymodel.MODEL},
                "chat": {"language": "en", **tinymodel.CHAT},
            }
            config = parse_config(data, folder)
        database = SecretStr(f"sqlite:///{state_folder(config) / 'terminal.db'}")
        config = config.model_copy(
            update={
                "bots": {},
                "access": AccessConfig(admins=(f"{BOT_NAME}:*",), per_user_per_minute=0),
                "storage": config.storage.model_copy(update={"url": database}),
                "log": config.log.model_copy(update={"level": "error"}),
            }
        )
        yield with_engine(config, engine)


async def run_chat(config: Config | None, engine: str) -> None:
    """Talk until the end of input. Ctrl-C stops a running reply; at the prompt it leaves."""
    async with _configured(config, engine) as settings:
        set_up_logging(settings)
        adapter = TerminalAdapter(BOT_NAME, sys.stdout)
        told = print_plan if sys.stdin.isatty() else None  # a script wants answers and faults only
        hearth = Hearth(settings, extra_adapters={BOT_NAME: adapter}, on_plan=told)
        await hearth.start(listen=False)
        try:
            await _talk(hearth, adapter)
        finally:
            await hearth.close()
    if (
        adapter.deaf
    ):  # what is left in the buffer has no reader: or Python would complain of it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise HearthError("the output was closed; nothing more can be shown")


async def _talk(hearth: Hearth, adapter: TerminalAdapter) -> None:
    interactive = sys.stdin.isatty()
    model = await hearth.engines[hearth.config.default_model].wait_ready(LOAD_TIMEOUT_S)
    if interactive:
        adapter.write(
            f"{model.name}: {model.description}, {model.n_ctx_tokens} tokens. /help shows the commands; Ctrl-D leaves.\n"
        )
    reader = LineReader(interactive=interactive)
    user = _user_name()
    loop = asyncio.get_running_loop()
    while not adapter.deaf:
        loop.add_signal_handler(signal.SIGINT, reader.leave)
        line = await reader.next()
        if line is None:
            break
        if not line.strip():
            continue
        adapter.answered.clear()
        message = terminal_message(line, user)
        loop.add_signal_handler(signal.SIGINT, _stop_reply, hearth, adapter, message)
        await _accept(hearth, adapter, message)
        await adapter.answered.wait()
    if reader.left:
        adapter.write("\n")


def _user_name() -> str:
    """Who is at the keyboard; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user{os.getuid()}"


def _stop_reply(hearth: Hearth, adapter: TerminalAdapter, question: InboundMessage) -> None:
    """Ctrl-C during a reply presses its stop button; the task lives on the adapter's loop."""
    task = asyncio.get_running_loop().create_task(
        _press_stop(hearth, adapter, question), name="terminal-stop"
    )
    adapter.background.add(task)
    task.add_done_callback(adapter.background.discard)


async def _press_stop(hearth: Hearth, adapter: TerminalAdapter, question: InboundMessage) -> None:
    """Stop the question's turn. One that ends before it showed anything says nothing itself: the prompt comes back here."""
    turn = await hearth.store.turn_of_message(APP_ID, question.message_id)
    if turn is None:
        return
    key = f"stop-{turn.id}-{uuid.uuid4().hex}"
    sender = question.sender.user_id
    await _accept(
        hearth,
        adapter,
        ButtonPressed(APP_ID, key, key, CHAT_ID, question.message_id, sender, "stop", turn.id),
    )
    while turn is not None and not is_terminal(turn.state):
        await asyncio.sleep(STOP_POLL_S)
        turn = await hearth.store.turn(turn.id)
    if not adapter.answered.is_set():
        adapter.write("\n")
        adapter.answered.set()


async def _accept(hearth: Hearth, adapter: TerminalAdapter, event: InboundEvent) -> None:
    if hearth.service is None:
        raise HearthError(f"{APP_ID}: the service has not started")
    await hearth.service.inbox.accept(BOT_NAME, adapter, (event,))

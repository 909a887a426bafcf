"""The terminal as a platform: `hearth chat` runs the same conversation without any account.

Text is only ever appended, since a terminal cannot edit what scrolled by; status lines overwrite themselves where the
output is a real terminal and are left out elsewhere.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

from bot.domain.types import (
    Attachment,
    ChatKind,
    InboundMessage,
    Outcome,
    PartState,
    Quoted,
    ReplyPart,
    ReplyTarget,
    Sender,
)
from bot.errors import GiveUp, Rejected
from bot.platforms.base import (
    EventSink,
    Link,
    MayConnect,
    PartLedger,
    Received,
    ReplyDriver,
    ReplyView,
    WebhookReply,
    WebhookRequest,
    always,
)

APP_ID = "terminal"
CHAT_ID = "terminal"


def terminal_message(text: str, user_id: str) -> InboundMessage:
    """A line typed by the person at the keyboard."""
    message_id = f"line-{uuid.uuid4().hex}"
    return InboundMessage(
        app_id=APP_ID,
        dedupe_key=message_id,
        event_id=message_id,
        message_id=message_id,
        chat_id=CHAT_ID,
        chat_kind=ChatKind.DIRECT,
        topic_id=None,
        sender=Sender(user_id=user_id, name=user_id),
        text=text,
        mentions_bot=True,
        sent_at=datetime.now(UTC),
        target=ReplyTarget(app_id=APP_ID, chat_id=CHAT_ID, reply_to=message_id),
    )


class TerminalAdapter:
    """Owns the output stream. `answered` is set each time a reply is finished, and when nobody reads any more (`deaf`)."""

    platform = "terminal"
    app_id = APP_ID
    display_name = "Hearth"
    link = Link.NONE

    def __init__(self, name: str, out: TextIO) -> None:
        self.name = name
        self.answered = asyncio.Event()
        self.background: set[asyncio.Task[None]] = set()
        self.deaf = False
        self._out = out
        self._interactive = out.isatty()
        self._status_shown = False

    async def start(self) -> None:
        """Nothing runs in the background."""

    async def close(self) -> None:
        """Wait for what Ctrl-C started."""
        await asyncio.gather(*self.background, return_exceptions=True)

    async def listen(self, sink: EventSink, may_connect: MayConnect = always) -> None:
        """It has a way of its own."""
        del sink, may_connect

    async def hang_up(self) -> None:
        """See `listen`."""

    def receive(self, request: WebhookRequest) -> Received:
        """A terminal has no webhook."""
        raise Rejected(404, f"the terminal takes no {request.method} requests")

    def button_reply(self, toast: str, *, kind: str = "info") -> WebhookReply:
        """A terminal has no buttons."""
        return WebhookReply(200, {"toast": toast, "kind": kind})

    async def welcome(self, target: ReplyTarget, text: str) -> WebhookReply | None:
        """The terminal shows its own first lines."""
        del target, text
        return None

    def open_reply(self, target: ReplyTarget, ledger: PartLedger) -> ReplyDriver:
        """A driver that appends to the terminal."""
        return TerminalReply(self, target, ledger)

    async def show_alive(self, target: ReplyTarget) -> str:
        """Three dots, taken away by the first text."""
        self.status("…")
        return target.reply_to

    async def find_alive(self, target: ReplyTarget) -> str:
        """Nothing on a terminal outlives its process."""
        del target
        return ""

    async def clear_alive(self, target: ReplyTarget, token: str) -> None:
        """The first text already did."""
        del target, token

    async def fetch(self, attachment: Attachment, target: ReplyTarget, *, max_bytes: int) -> bytes:
        """Nothing is ever attached to a line."""
        del attachment, target, max_bytes
        raise GiveUp("the terminal has no attachments")

    async def look_up(self, quoted: Quoted, target: ReplyTarget) -> Quoted | None:
        """A line refers to nothing."""
        del quoted, target
        return None

    def health(self) -> Mapping[str, str]:
        """Always there."""
        return {"terminal": "open"}

    def status(self, text: str) -> None:
        """Show a line that the next output overwrites."""
        if self._interactive and text:
            self._put(f"\r\x1b[2K\x1b[2m{text}\x1b[0m")
            self._status_shown = True

    def write(self, text: str) -> None:
        """Append text."""
        if self._status_shown:
            text = f"\r\x1b[2K{text}"
            self._status_shown = False
        self._put(text)

    def _put(self, text: str) -> None:
        """To the stream; a reader that has gone (`| head`) or a full disk ends the talk, not the program's peace."""
        if self.deaf:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:
            self.deaf = True
            self.answered.set()


class TerminalReply:
    """One reply growing in the terminal. Owned by its turn's streamer."""

    def __init__(self, adapter: TerminalAdapter, target: ReplyTarget, ledger: PartLedger) -> None:
        self._adapter = adapter
        self._target = target
        self._ledger = ledger
        saved = ledger.parts()
        self._part = (
            saved[0]
            if saved
            else ReplyPart(turn_id=ledger.turn_id, n=0, kind="text", idem_key=ledger.turn_id)
        )
        self._printed = 0

    async def prepare(self) -> None:
        """A terminal needs no preparation."""

    async def show(self, view: ReplyView) -> None:
        """Append what is new."""
        if not view.text:
            self._adapter.status(view.status)
            return
        await self._save(PartState.ATTEMPTED, view)
        self._adapter.write(view.text[self._printed :])
        self._printed = len(view.text)

    async def finish(self, view: ReplyView) -> None:
        """Append the rest and the notice, then let the prompt come back."""
        if self._part.state is not PartState.CLOSED and view.outcome is not Outcome.SILENT:
            await self._save(PartState.ATTEMPTED, view)
            rest = view.text[self._printed :]
            notice = f"\n({view.notice})" if view.notice and view.text else view.notice
            self._adapter.write(f"{rest}{notice}\n")
            self._printed = len(view.text)
        await self._save(PartState.CLOSED, view)
        self._adapter.answered.set()

    def interval_s(self) -> float:
        """A terminal can be written to at any time; this only bounds the commits."""
        return 0.05

    async def _save(self, state: PartState, view: ReplyView) -> None:
        part = self._part
        self._part = ReplyPart(
            turn_id=part.turn_id,
            n=0,
            kind="text",
            idem_key=part.idem_key,
            state=state,
            message_id=self._target.reply_to,
            covers_to_chars=len(view.text),
            confirmed_rev=view.rev if state is PartState.CLOSED else part.confirmed_rev,
            opened_at=part.opened_at or datetime.now(UTC),
            attempted_at=datetime.now(UTC),
        )
        await self._ledger.save(self._part)

"""The kinds of message an answer can be shown in, and how each is sent at most once.

A surface owns one `ReplyPart` and saves it before every call (commit before show). It must not cut texts or choose kinds:
that is `reply.py`. The card that grows is in `card.py`; the messages here are sent whole and can never be changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from bot.domain.pacing import unsure_pause_s
from bot.domain.types import PartState, ReplyPart, ReplyTarget
from bot.errors import Ambiguous, FallBack, PlatformError, RetryLater
from bot.platforms.base import Button, PartLedger
from bot.platforms.dingtalk.api import Address, Message
from bot.platforms.dingtalk.desk import ReplyDesk
from bot.platforms.dingtalk.errors import TooBig
from bot.platforms.dingtalk.style import nick
from bot.platforms.dingtalk.track import track_id

log = structlog.get_logger()

# A session lives about 90 min; this much before its end it is no longer trusted (dingtalk.md §4.1).
_SESSION_MARGIN = timedelta(seconds=60)
PLACEHOLDER = "…"


@dataclass(frozen=True, slots=True)
class Face:
    """What one message is to show. `content` is rendered for its kind; `upto_chars` is how much of the text it covers."""

    content: str
    title: str = ""
    buttons: tuple[Button, ...] = ()
    rev: int = 0
    upto_chars: int = 0


@dataclass(slots=True)
class ReplyContext:
    """What all surfaces of one reply share. `session_ended`: the question's sessionWebhook was refused."""

    desk: ReplyDesk
    target: ReplyTarget
    ledger: PartLedger
    address: Address
    session_ended: bool = False

    def session(self) -> str:
        """The sessionWebhook, while it can be used; else ""."""
        opaque, client = self.target.opaque, self.desk.api.client
        webhook = opaque.get("webhook", "")
        if self.session_ended or not webhook or not client.may_post_to(webhook):
            return ""
        try:
            until = datetime.fromisoformat(opaque.get("webhook_until", ""))
        except ValueError:
            return ""
        return webhook if self.desk.now() < until - _SESSION_MARGIN else ""


def planned(context: ReplyContext, n: int, kind: str, covers_from_chars: int) -> ReplyPart:
    """A part that nothing was done for."""
    turn_id = context.ledger.turn_id
    key = track_id(turn_id, n, context.target.app_id)
    return ReplyPart(turn_id, n, kind, key, covers_from_chars=covers_from_chars)


def is_repeat(part: ReplyPart) -> bool:
    """Whether the text of this part may already have been read."""
    return part.idem_key.endswith("-r")


def as_repeat(part: ReplyPart) -> ReplyPart:
    """The part, to be sent once more with the mark of a possible repeat."""
    key = part.idem_key.removesuffix("-r") + "-r"
    return replace(part, idem_key=key, state=PartState.PLANNED, attempted_at=None)


class Surface:
    """One message of an answer. One owner (the reply's driver), one call at a time."""

    kind = ""
    grows = False

    def __init__(self, context: ReplyContext, part: ReplyPart) -> None:
        self.context = context
        self.part = part
        self.closed = part.state is PartState.CLOSED
        # A send of an earlier process or call may have arrived.
        self.uncertain = part.state in {PartState.ATTEMPTED, PartState.AMBIGUOUS}
        self._n_unsure = 0

    @property
    def visible(self) -> bool:
        """The message is known to be in the chat."""
        return self.part.state in {PartState.CONFIRMED, PartState.CLOSED}

    @property
    def content(self) -> str:
        """What the message is known to show, rendered; "" when that is not known."""
        return ""

    async def show(self, face: Face) -> None:
        """Show a growing answer; opens the message on the first call."""
        raise NotImplementedError

    async def close(self, face: Face) -> None:
        """Show the final face; may be repeated after a failure."""
        raise NotImplementedError

    async def hush(self, face: Face) -> None:
        """End without adding text: nothing that still moves."""
        raise NotImplementedError

    async def save(self, **changes: Any) -> None:
        """Commit the part, together with the reply's newest snapshot."""
        self.part = replace(self.part, **changes)
        await self.context.ledger.save(self.part)

    async def mark_closed(self, rev: int) -> None:
        """Nothing more will be sent for this part."""
        if not self.closed:
            await self.save(state=PartState.CLOSED, confirmed_rev=max(rev, self.part.confirmed_rev))
            self.closed = True

    async def _begin(self, face: Face) -> ReplyPart:
        """Commit the attempt; returns the part as it was before, for `_settle`."""
        before = self.part
        await self.save(
            state=PartState.ATTEMPTED,
            attempted_at=before.attempted_at or self.context.desk.now(),
            covers_to_chars=max(face.upto_chars, before.covers_to_chars),
        )
        return before

    async def _settle(self, before: ReplyPart, sent: str | PlatformError, face: Face) -> None:
        """Note how a send ended; raises its error."""
        if isinstance(sent, str):
            self.uncertain = False
            await self.save(
                state=PartState.CONFIRMED,
                message_id=sent,
                opened_at=self.part.opened_at or self.context.desk.now(),
                confirmed_rev=face.rev,
            )
            return
        if isinstance(sent, Ambiguous):
            self.uncertain = True
            self._n_unsure += 1
            await self.save(state=PartState.AMBIGUOUS)
            if self._n_unsure > 1 and not self.grows:
                pause_s = unsure_pause_s(self._n_unsure)
                raise RetryLater(str(sent), code=sent.code, after_s=pause_s)
        else:
            # Certainly not done by this call: as certain as it was before it. The disk says so, too, or a restart
            # would mark the answer as a possible repeat.
            await self.save(state=before.state, attempted_at=before.attempted_at)
        raise sent


class MarkdownMessage(Surface):
    """A message through the question's sessionWebhook while that lives, else as the robot. Neither has an idempotency
    key: what may have arrived is sent once more only with the mark of a possible repeat."""

    kind = "message"
    plain = False

    async def show(self, face: Face) -> None:
        """Nothing: these messages do not grow."""

    async def hush(self, face: Face) -> None:
        """Nothing to take away."""

    async def close(self, face: Face) -> None:
        """Send the final text."""
        if self.visible:
            return
        before = await self._begin(face)
        try:
            sent: str | PlatformError = await self._send(face)
        except PlatformError as error:
            sent = error
        await self._settle(before, sent, face)

    async def _send(self, face: Face) -> str:
        context, api = self.context, self.context.desk.api
        if webhook := context.session():
            try:
                message = self._message(face, by_id=True)
                await api.post_session(webhook, context.address, message, self._names_asker)
            except TooBig:
                raise
            except FallBack as error:
                context.session_ended = True
                log.info("dingtalk_session_ended", turn_id=self.part.turn_id, reason=str(error))
            else:
                return "session"
        return await api.send(context.address, self._message(face, by_id=False))

    @property
    def _names_asker(self) -> bool:
        address = self.context.address
        wanted = self.context.desk.config.mention_asker and address.is_group
        return wanted and self.part.n == 0 and bool(address.user_id or address.nick)

    def _message(self, face: Face, *, by_id: bool) -> Message:
        """A mention needs the person's id in the text (§4.1); the robot's own sends know none, so the name must do."""
        address = self.context.address
        text = face.content
        if self._names_asker:
            named = address.user_id if by_id and address.user_id else nick(address.nick)
            if named and not (self.plain and by_id):  # there DingTalk writes the name itself
                text = f"@{named}" + (" " if self.plain else "\n\n") + text
        return Message(face.title or PLACEHOLDER, text, self.plain)


class PlainMessage(MarkdownMessage):
    """The last resort: text without Markdown."""

    kind = "text"
    plain = True

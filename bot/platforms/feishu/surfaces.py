"""The kinds of message an answer can be shown in, and how each is sent once and only once.

A surface owns one `ReplyPart` and saves it before every call (commit before show). It must not cut texts or choose kinds:
that is `reply.py`. CardKit's streaming card, the kind with a life of its own, is in `cardkit.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from bot.domain.types import PartState, ReplyPart, ReplyTarget
from bot.errors import Ambiguous, GiveUp, PlatformError
from bot.platforms.base import PartLedger
from bot.platforms.feishu import card as cards
from bot.platforms.feishu.api import FeishuApi, Outgoing
from bot.platforms.feishu.card import Face, Typewriter
from bot.platforms.feishu.errors import NoThreadReply, NotReplyable

# A uuid holds for 1 h (feishu.md §4.1); a margin for clocks and slow calls.
UUID_LIFE = timedelta(minutes=55)


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What all surfaces of one reply share."""

    api: FeishuApi
    target: ReplyTarget
    ledger: PartLedger
    typewriter: Typewriter
    now: Callable[[], datetime]


def idem_key(turn_id: str, n: int, kind: str) -> str:
    """The uuid of a part: the same in every process that plans it. ≤ 50 characters with its suffix."""
    return hashlib.sha256(f"{turn_id}:{n}:{kind}".encode()).hexdigest()[:32]


def planned(turn_id: str, n: int, kind: str, covers_from_chars: int) -> ReplyPart:
    """A part that nothing was done for."""
    key = idem_key(turn_id, n, kind)
    return ReplyPart(turn_id, n, kind, key, covers_from_chars=covers_from_chars)


def rekeyed(part: ReplyPart, why: str) -> ReplyPart:
    """The part under a new uuid: `why` is "r" (a possible repeat) or "c" (another card; the first was never shown)."""
    dash = "" if "-" in part.idem_key else "-"
    key = f"{part.idem_key}{dash}{why}"[:50]
    return replace(part, idem_key=key, state=PartState.PLANNED, attempted_at=None)


def is_repeat(part: ReplyPart) -> bool:
    """Whether this part may already have arrived under an older uuid."""
    return "r" in part.idem_key.partition("-")[2]


class Surface:
    """One message of an answer. One owner (the reply's driver), one call at a time."""

    kind = ""

    def __init__(self, context: ReplyContext, part: ReplyPart) -> None:
        self.context = context
        self.part = part
        self.closed = part.state is PartState.CLOSED
        # A send of an earlier process or call may have arrived: what is shown is not known.
        self.uncertain = part.state in {PartState.ATTEMPTED, PartState.AMBIGUOUS}
        # How much of the text people are known to see; None when another process showed it.
        known = part.state is PartState.PLANNED
        self.shown_upto: int | None = part.covers_from_chars if known else None

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
        """End without adding text: no controls, nothing that still moves."""
        raise NotImplementedError

    def refresh_key(self) -> None:
        """Take a new uuid when the old one no longer protects an unconfirmed send (feishu.md §4.1)."""
        attempted_at = self.part.attempted_at
        if self.uncertain and attempted_at and self.context.now() - attempted_at > UUID_LIFE:
            self.part = rekeyed(self.part, "r")

    async def save(self, **changes: Any) -> None:
        """Commit the part, together with the reply's newest snapshot."""
        self.part = replace(self.part, **changes)
        await self.context.ledger.save(self.part)

    async def mark_closed(self, rev: int) -> None:
        """Nothing more will be sent for this part."""
        if not self.closed:
            await self.save(state=PartState.CLOSED, confirmed_rev=max(rev, self.part.confirmed_rev))
            self.closed = True

    async def _begin(self, face: Face, **changes: Any) -> ReplyPart:
        """Commit the attempt; returns the part as it was before, for `_settle`."""
        before = self.part
        if before.state in {PartState.ATTEMPTED, PartState.AMBIGUOUS}:
            self.uncertain = True
        await self.save(
            state=PartState.ATTEMPTED,
            attempted_at=before.attempted_at or self.context.now(),
            covers_to_chars=max(face.upto_chars, before.covers_to_chars),
            **changes,
        )
        return before

    async def _settle(self, before: ReplyPart, sent: str | BaseException, face: Face) -> None:
        """Note how a send ended; raises its error."""
        if isinstance(sent, str):
            await self.save(
                state=PartState.CONFIRMED,
                message_id=sent,
                opened_at=self.part.opened_at or self.context.now(),
                confirmed_rev=face.rev,
            )
            return
        if isinstance(sent, Ambiguous):
            self.uncertain = True
            await self.save(state=PartState.AMBIGUOUS)
        elif isinstance(sent, PlatformError):
            # Certainly not done by this call: as certain as it was before it.
            self.part = replace(self.part, state=before.state, attempted_at=before.attempted_at)
        raise sent

    async def _send(self, msg_type: str, content: str, face: Face) -> None:
        before = await self._begin(face)
        sent = await self._deliver(msg_type, content)
        await self._settle(before, sent, face)

    async def _deliver(self, msg_type: str, content: str) -> str | PlatformError:
        """Reply to the question, or write to the chat when there is none; an error is returned, not raised."""
        try:
            return await self._reply(Outgoing(msg_type, content, self.part.idem_key))
        except PlatformError as error:
            return error

    async def _reply(self, message: Outgoing) -> str:
        target, api = self.context.target, self.context.api
        if not target.reply_to:
            return await api.send(target.chat_id, message)
        in_thread = target.opaque.get("thread") == "1"
        try:
            return await api.reply(
                target.reply_to, target.chat_id, replace(message, in_thread=in_thread)
            )
        except NoThreadReply:
            return await api.reply(target.reply_to, target.chat_id, message)
        except NotReplyable as error:
            if in_thread:  # outside the topic it would be read by the wrong people
                raise GiveUp(str(error), code=error.code) from None
            return await api.send(target.chat_id, message)


class PlainCard(Surface):
    """A card sent by its JSON and updated by PATCH (feishu.md §4.3): one call when the answer is already whole."""

    kind = "patch"

    def __init__(self, context: ReplyContext, part: ReplyPart) -> None:
        super().__init__(context, part)
        self._shown: Face | None = None
        # What the first attempt carried: a uuid is for one content only (feishu.md §4.1). Not known of another process.
        self._attempted: Face | None = None
        self._taken_over = self.uncertain

    @property
    def content(self) -> str:
        """See Surface."""
        return self._shown.content if self._shown else ""

    async def show(self, face: Face) -> None:
        """Send or update."""
        turn_id = self.part.turn_id
        if not self.visible:
            if self.part.state is PartState.PLANNED or self._attempted is None:
                self._attempted = face
            first = self._attempted
            await self._send("interactive", cards.card(first, turn_id), first)
            self._shown = None if self._taken_over else first
            self.shown_upto = first.upto_chars
        shown = self._shown
        if shown is None or (shown.content, shown.buttons) != (face.content, face.buttons):
            await self.save(covers_to_chars=max(face.upto_chars, self.part.covers_to_chars))
            await self.context.api.patch_message(self.part.message_id, cards.card(face, turn_id))
            self._shown, self.shown_upto = face, face.upto_chars

    async def close(self, face: Face) -> None:
        """The last update."""
        await self.show(face)

    async def hush(self, face: Face) -> None:
        """Take the controls away."""
        if self.visible and self.part.message_id:
            await self.show(face)


class _FinalOnly(Surface):
    """Sent once, whole: at most 20 edits are allowed (feishu.md §4.3), so none is made."""

    msg_type = ""

    async def show(self, face: Face) -> None:
        """Nothing: these messages do not grow."""

    async def close(self, face: Face) -> None:
        """Send the final text."""
        if not self.visible:
            await self._send(self.msg_type, self._content(face), face)

    async def hush(self, face: Face) -> None:
        """Nothing to take away."""

    def _content(self, face: Face) -> str:
        raise NotImplementedError


class Post(_FinalOnly):
    """Rich text (feishu.md §4.4)."""

    kind = "post"
    msg_type = "post"

    def _content(self, face: Face) -> str:
        return cards.post(face.content)


class PlainText(_FinalOnly):
    """The last resort."""

    kind = "text"
    msg_type = "text"

    def _content(self, face: Face) -> str:
        return cards.text(face.content)


FINAL_ONLY = {Post.kind, PlainText.kind}

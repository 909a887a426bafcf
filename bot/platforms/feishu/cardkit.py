"""One streaming CardKit card: opening, growing, closing (feishu.md §5).

The card's `sequence` is owned here: it rises with every operation and is committed before each, so that a process that
takes over goes on above it. One call in flight; the newest face wins because the driver only ever hands that in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from bot.domain.types import PartState, ReplyPart
from bot.errors import FallBack, PlatformError, RetryLater
from bot.platforms.base import Button
from bot.platforms.feishu.card import ANSWER_ID, CONTROLS_ID, Face, card, card_by_id, controls
from bot.platforms.feishu.errors import CardLost, SequenceStale, StreamingOff, TooBig
from bot.platforms.feishu.surfaces import ReplyContext, Surface, is_repeat, rekeyed

log = structlog.get_logger()

# Feishu ends streaming 10 min after it was switched on, perhaps without saying so (§5.2, §5.3).
STREAMING_LIFE = timedelta(minutes=9)
# An entity made ahead streams from its creation; an older one is not worth using.
PREPARED_LIFE = timedelta(minutes=4)
_SEQUENCE_JUMP = 100
_SEND_TRIES = 3


class CardKitCard(Surface):
    """A card entity shown by one message. What it shows is known only to the process that showed it."""

    kind = "card"

    def __init__(self, context: ReplyContext, part: ReplyPart) -> None:
        super().__init__(context, part)
        # None = not known (another process showed it): the next update replaces the whole card.
        self.shown: str | None = None
        self.buttons: tuple[Button, ...] | None = None
        self._streaming_since: datetime | None = part.opened_at
        self._whole_only = False
        self._off = False
        self._lost_sends = 0
        self._recreated = 0

    def adopt(self, card_id: str, made_at: datetime) -> None:
        """Use an entity that was made ahead."""
        self.part = replace(self.part, remote_id=card_id)
        self._streaming_since = made_at

    @property
    def content(self) -> str:
        """See Surface."""
        return self.shown or ""

    # -- growing -----------------------------------------------------------------------------------------------------
    async def show(self, face: Face) -> None:
        """Open the card or let it grow."""
        if not self.visible:
            await self._open(face, closing=False)
        elif self.buttons != face.buttons:
            await self._put_card(face, closing=False)
        elif face.content != self.shown:
            if self._whole_only or not self._extends(face):
                await self._put_card(face, closing=False)
            else:
                await self._grow(face)

    async def _open(self, face: Face, *, closing: bool) -> None:
        """The first sight. With an entity made ahead (or by an earlier process) one round trip shows the text."""
        if self._prepared_too_long_ago():
            self._forget_entity()
        made_now = not self.part.remote_id
        if made_now:
            await self._create(face, closing=closing)
        if made_now or is_repeat(self.part):
            before = await self._begin(face, opened_at=self._streaming_since)
            await self._sent(before, await self._deliver("interactive", self._by_id()), face)
            done = made_now
        else:
            done = await self._send_and_put(face, closing=closing)
        if done:
            self._note(face, closing=closing)
        else:
            self.shown = self.buttons = None
            await self._put_card(face, closing=closing)

    async def _send_and_put(self, face: Face, *, closing: bool) -> bool:
        """Both at once; True when the card shows the face."""
        sequence = self.part.sequence + 1
        before = await self._begin(face, opened_at=self._streaming_since, sequence=sequence)
        whole = self._whole(face, closing=closing)
        sent, refusal = await asyncio.gather(
            self._deliver("interactive", self._by_id()),
            self._attempt(self.context.api.put_card(self.part.remote_id, whole, sequence)),
        )
        await self._sent(before, sent, face)
        return refusal is None

    async def _create(self, face: Face, *, closing: bool) -> None:
        card_id = await self.context.api.create_card(self._whole(face, closing=closing))
        self._streaming_since = self.context.now()
        self.part = replace(self.part, remote_id=card_id, sequence=0)

    async def _sent(self, before: ReplyPart, sent: str | BaseException, face: Face) -> None:
        """Settle a send. A card that Feishu does not know (yet) is tried again, then made anew (§5.3)."""
        try:
            await self._settle(before, sent, face)
        except CardLost as error:
            if error.code == 300311 and (self.uncertain or is_repeat(self.part)):
                # An entity can be sent once: the earlier send did arrive, so this card is the answer and no repeat.
                key = self.part.idem_key.partition("-")[0]
                await self.save(state=PartState.CONFIRMED, idem_key=key)
                raise RetryLater(str(error), code=error.code, after_s=0.0) from None
            self._lost_sends += 1
            if self._lost_sends < _SEND_TRIES:
                raise RetryLater(str(error), code=error.code, after_s=0.5) from None
            self._recreated += 1
            if self._recreated > 1:
                raise
            self._lost_sends = 0
            self._forget_entity()
            raise RetryLater(str(error), code=error.code, after_s=0.1) from None

    async def _grow(self, face: Face) -> None:
        if self._streaming_too_long():
            await self._switch_again()
        try:
            await self._content(face)
        except StreamingOff:
            try:
                await self._switch(on=True)
                await self._content(face)
            except (StreamingOff, FallBack):
                self._whole_only = True
                await self._put_card(face, closing=False)

    def _extends(self, face: Face) -> bool:
        """Only longer text is typed; anything else (a status giving way) replaces the element at once (§5.2)."""
        return self.shown is not None and face.content.startswith(self.shown)

    async def _content(self, face: Face) -> None:
        api, card_id = self.context.api, self.part.remote_id
        await self._operate(
            lambda sequence: api.put_content(card_id, ANSWER_ID, face.content, sequence), face
        )
        self.shown, self.shown_upto = face.content, face.upto_chars

    # -- closing -----------------------------------------------------------------------------------------------------
    async def close(self, face: Face) -> None:
        """Final text, then streaming off with the summary, then the controls; whichever fails, the whole card (§5.5)."""
        if not self.visible:
            await self._open(face, closing=True)
            return
        try:
            await self._close_in_steps(face)
        except TooBig:
            raise
        except FallBack as error:
            log.debug("feishu_card_closed_whole", turn_id=self.part.turn_id, code=error.code)
            await self._put_card(face, closing=True)

    async def _close_in_steps(self, face: Face) -> None:
        if self.buttons is None or self.shown is None:
            await self._put_card(face, closing=True)
            return
        if face.content != self.shown:
            typed = self._extends(face) and not self._whole_only and not self._off
            if not typed or self._streaming_too_long():
                await self._put_card(face, closing=True)
                return
            await self._content(face)
        if not self._off:
            await self._switch(on=False, summary=face.summary)
        await self._replace_controls(face)

    async def hush(self, face: Face) -> None:
        """Switch streaming off and take the controls away; the text stays as it is."""
        if not self.part.remote_id or not (self.visible or self.uncertain):
            return
        if not self._off:
            await self._quietly(self._switch(on=False, summary=face.summary))
        await self._quietly(self._replace_controls(replace(face, buttons=())))

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except FallBack as error:
            log.debug("feishu_card_not_hushed", turn_id=self.part.turn_id, code=error.code)

    async def _replace_controls(self, face: Face) -> None:
        if self.buttons == face.buttons:
            return
        api, card_id = self.context.api, self.part.remote_id
        row = controls(face.buttons, self.part.turn_id)
        if not face.buttons:
            await self._operate(lambda n: api.delete_element(card_id, CONTROLS_ID, n))
        elif not self.buttons:
            await self._operate(lambda n: api.append_element(card_id, row, n))
        else:
            await self._operate(lambda n: api.put_element(card_id, CONTROLS_ID, row, n))
        self.buttons = face.buttons

    # -- operations --------------------------------------------------------------------------------------------------
    async def _operate(
        self, operation: Callable[[int], Awaitable[None]], face: Face | None = None
    ) -> None:
        """One operation with the next sequence, committed first. A stale one jumps ahead and is repeated once (300317)."""
        for last in (False, True):
            upto = face.upto_chars if face else 0
            await self.save(
                sequence=self.part.sequence + 1,
                covers_to_chars=max(upto, self.part.covers_to_chars),
            )
            try:
                await operation(self.part.sequence)
            except SequenceStale as error:
                jumped = self.part.sequence + _SEQUENCE_JUMP
                self.part = replace(self.part, sequence=jumped)
                if last:
                    raise RetryLater(str(error), code=error.code) from None
            else:
                break
        if face:
            self.part = replace(self.part, confirmed_rev=face.rev)

    async def _put_card(self, face: Face, *, closing: bool) -> None:
        api, card_id = self.context.api, self.part.remote_id
        whole = self._whole(face, closing=closing)
        await self._operate(lambda sequence: api.put_card(card_id, whole, sequence), face)
        self._note(face, closing=closing)

    async def _switch(self, *, on: bool, summary: str = "") -> None:
        api, card_id = self.context.api, self.part.remote_id
        await self._operate(
            lambda sequence: api.set_streaming(card_id, on=on, summary=summary, sequence=sequence)
        )
        self._off = not on
        if on:
            self._streaming_since = self.context.now()
            self.part = replace(self.part, opened_at=self._streaming_since)

    async def _switch_again(self) -> None:
        """Off and on: the ten minutes begin anew. Merely "on" while it is on may not do that (§5.3, UNCONFIRMED)."""
        try:
            await self._switch(on=False)
            await self._switch(on=True)
        except FallBack:
            self._whole_only = True

    @staticmethod
    async def _attempt(work: Awaitable[None]) -> PlatformError | None:
        try:
            await work
        except PlatformError as error:
            return error
        return None

    def _note(self, face: Face, *, closing: bool) -> None:
        self.shown, self.buttons, self._off = face.content, face.buttons, closing
        self.shown_upto = face.upto_chars

    def _whole(self, face: Face, *, closing: bool) -> str:
        typewriter = None if closing else self.context.typewriter
        return card(face, self.part.turn_id, typewriter=typewriter, closing=closing)

    def _by_id(self) -> str:
        return card_by_id(self.part.remote_id)

    def _forget_entity(self) -> None:
        self.part = replace(rekeyed(self.part, "c"), remote_id="", sequence=0)

    def _age(self) -> timedelta:
        since = self._streaming_since
        return self.context.now() - since if since else timedelta(0)

    def _prepared_too_long_ago(self) -> bool:
        untouched = self.part.state is PartState.PLANNED and not is_repeat(self.part)
        return untouched and bool(self.part.remote_id) and self._age() > PREPARED_LIFE

    def _streaming_too_long(self) -> bool:
        return self._age() > STREAMING_LIFE

"""How one answer grows in Feishu (feishu.md §5.5): which kind of message, where it is cut, what to do when one is refused.

Owns the parts of one reply, one surface each. The first cards of an answer are frozen when they are full and the next goes
on; a simpler kind of message is used only while nothing of a part was shown, so that no answer is ever seen twice.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import structlog

from bot.domain.cutting import cut_where
from bot.domain.types import Outcome, PartState, ReplyPart, ReplyTarget
from bot.errors import FallBack, GiveUp, PlatformError, TargetGone
from bot.platforms.base import PartLedger, ReplyView
from bot.platforms.feishu.apology import Apology, stop_moving
from bot.platforms.feishu.card import PLACEHOLDER, Face, Typewriter, card
from bot.platforms.feishu.cardkit import CardKitCard
from bot.platforms.feishu.desk import ReplyDesk
from bot.platforms.feishu.errors import CardKitRefused, CardLost, TooBig
from bot.platforms.feishu.style import Style
from bot.platforms.feishu.surfaces import (
    FINAL_ONLY,
    PlainCard,
    PlainText,
    Post,
    ReplyContext,
    Surface,
    is_repeat,
    planned,
    rekeyed,
)

log = structlog.get_logger()

_SURFACES: dict[str, type[Surface]] = {
    "card": CardKitCard, "patch": PlainCard, "post": Post, "text": PlainText,
}  # fmt: skip
_SIMPLER = {"card": "post", "patch": "post", "post": "text"}
# Rounds of one call: each rotates to another part or steps down; more means that nothing helps.
_MAX_ROUNDS = 60


class FeishuReply:
    """Implements ReplyDriver for one answer. One owner task; surfaces and their parts belong to it."""

    def __init__(self, desk: ReplyDesk, target: ReplyTarget, ledger: PartLedger) -> None:
        self._desk = desk
        self._ledger = ledger
        typewriter = Typewriter.of(desk.config)
        self._context = ReplyContext(desk.api, target, ledger, typewriter, desk.now)
        self._style = Style(desk.config.table_limit)
        self._prepared: tuple[str, datetime] | None = None
        self._apology: Apology | None = None
        self._surfaces = [self._surface(part) for part in ledger.parts()]
        if self._surfaces:
            self._surfaces[-1].refresh_key()
        # The next part is planned before the one before it is closed: a closed last part ends the reply.
        self._closed = bool(self._surfaces) and self._surfaces[-1].closed

    # -- ReplyDriver -------------------------------------------------------------------------------------------------
    async def prepare(self) -> None:
        """Make a card entity while the model reads; it costs nothing if it is never sent."""
        if self._surfaces or self._prepared or self._desk.sparing or not self._desk.cards_allowed:
            return
        blank = card(Face(PLACEHOLDER), self._ledger.turn_id, typewriter=self._context.typewriter)
        made_at = self._desk.now()
        try:
            self._prepared = (await self._desk.api.create_card(blank), made_at)
        except CardKitRefused as error:
            self._desk.refuse_cards(error)
        except PlatformError as error:
            log.debug("feishu_card_not_prepared", turn_id=self._ledger.turn_id, code=error.code)

    async def show(self, view: ReplyView) -> None:
        """Show a growing view."""
        if self._closed or view.outcome is not Outcome.GROWING:
            return
        if self._apology:
            await self._apology.say()
        if self._desk.sparing:
            return
        if not self._surfaces:
            self._open_first("card" if self._desk.cards_allowed else "patch")
        self._desk.growing(self, self._surfaces[-1].kind not in FINAL_ONLY)
        await self._until_gone(view)

    async def finish(self, view: ReplyView) -> None:
        """Show the final view and close. A view that was never shown goes out in one call per message."""
        if self._closed:
            return
        if self._apology:
            await self._apology.say()
        if view.outcome is Outcome.SILENT:
            await self._hush(view)
            return
        if not self._surfaces or self._untouched():
            self._open_first("patch")
        await self._until_gone(view)

    def interval_s(self) -> float:
        """Seconds between two edits, right now."""
        return self._desk.interval_s(self._surfaces[-1].kind if self._surfaces else "card")

    # -- parts -------------------------------------------------------------------------------------------------------
    def _surface(self, part: ReplyPart) -> Surface:
        return _SURFACES.get(part.kind, PlainText)(self._context, part)

    def _open_first(self, kind: str) -> None:
        surface = self._surface(planned(self._ledger.turn_id, 0, kind, 0))
        if isinstance(surface, CardKitCard) and self._prepared:
            surface.adopt(*self._prepared)
        self._prepared = None
        self._surfaces = [surface]

    def _untouched(self) -> bool:
        """The only part is a streaming card that nobody can have seen: a whole answer needs no streaming."""
        first = self._surfaces[0]
        return (
            len(self._surfaces) == 1
            and first.kind == "card"
            and (first.part.state is PartState.PLANNED and not is_repeat(first.part))
        )

    async def _until_gone(self, view: ReplyView) -> None:
        try:
            await self._advance(view)
        except TargetGone:
            # The chat may be closed to us and the card still be there for others.
            if self._surfaces[-1].visible:
                await stop_moving(self._surfaces[-1], view.rev)
            await self._end(view, self._surfaces[-1])
            raise
        except GiveUp as refusal:
            self._desk.growing(self, False)
            sentence = self._style.sentence("card", view.refused)
            self._apology = Apology(self._surfaces[-1], sentence, view.rev, refusal)
            await self._apology.say()

    async def _advance(self, view: ReplyView) -> None:
        """Bring every part to what the view wants; steps down as often as a kind or a size is refused."""
        final = view.outcome is not Outcome.GROWING
        for _ in range(_MAX_ROUNDS):
            surface = self._surfaces[-1]
            try:
                await self._close_full_ones(view)
                surface = self._surfaces[-1]
                if surface.kind in FINAL_ONLY and not final:
                    return
                cut = self._cut(view, surface)
                if cut is None:
                    await self._show_last(view, surface, final=final)
                    return
                await self._begin_next(surface, cut)
            except FallBack as error:
                if await self._step_down(error, view):
                    return
        raise GiveUp("the answer could not be shown in any kind of message")

    async def _show_last(self, view: ReplyView, surface: Surface, *, final: bool) -> None:
        face = self._face(view, surface.part, len(view.text), last=True)
        if not final:
            await surface.show(face)
            return
        nothing_left = surface.part.covers_from_chars >= len(view.text) and not view.notice
        if surface.visible or surface.part.n == 0 or not nothing_left:
            await surface.close(face)
        await self._end(view, surface)

    async def _end(self, view: ReplyView, surface: Surface) -> None:
        await surface.mark_closed(view.rev)
        self._closed = True
        self._desk.growing(self, False)

    async def _begin_next(self, full: Surface, cut: int) -> None:
        """Plan the part that goes on at `cut`, committed before the full one is closed."""
        part = planned(self._ledger.turn_id, full.part.n + 1, full.kind, cut)
        following = self._surface(part)
        await following.save()
        self._surfaces.append(following)

    async def _close_full_ones(self, view: ReplyView) -> None:
        for surface, following in zip(self._surfaces, self._surfaces[1:], strict=False):
            if surface.closed:
                continue
            end = following.part.covers_from_chars
            await surface.close(self._face(view, surface.part, end, last=False))
            await surface.mark_closed(view.rev)

    async def _hush(self, view: ReplyView) -> None:
        """The question was taken back: nothing is added, nothing goes on moving."""
        for surface in self._surfaces:
            if surface.closed:
                continue
            part = surface.part
            quiet = replace(view, buttons=(), notice="", status="")
            try:
                await surface.hush(self._face(quiet, part, part.covers_to_chars, last=False))
            except (FallBack, GiveUp) as error:
                log.info("feishu_reply_not_hushed", turn_id=part.turn_id, code=error.code)
            await surface.mark_closed(view.rev)
        self._closed = True
        self._desk.growing(self, False)

    # -- faces -------------------------------------------------------------------------------------------------------
    def _cut(self, view: ReplyView, surface: Surface) -> int | None:
        """Where this part must end; None when all that is left fits."""
        start, text = surface.part.covers_from_chars, view.text
        return cut_where(text, start, lambda end: self._style.fits(surface.kind, text, start, end))

    def _face(self, view: ReplyView, part: ReplyPart, end: int, *, last: bool) -> Face:
        final = not last or view.outcome is not Outcome.GROWING
        body = self._style.body(part.kind, view.text, part.covers_from_chars, end, final=final)
        notice = self._style.sentence(part.kind, view.notice if last and final else "")
        if body.strip():
            if is_repeat(part) and view.possible_repeat:
                body = f"{self._style.sentence(part.kind, view.possible_repeat)}\n\n{body}"
            content = f"{body}\n\n{notice}" if notice else body
        else:
            status = "" if final else self._style.sentence(part.kind, view.status)
            content = notice or status or PLACEHOLDER
        summary = view.summary if last else ""
        if final and not summary:
            summary = self._style.preview(view.text, part.covers_from_chars)
        return Face(content, view.buttons if last else (), summary, view.rev, end)

    # -- refusals ----------------------------------------------------------------------------------------------------
    async def _step_down(self, error: FallBack, view: ReplyView) -> bool:
        """Change something so that the next round may succeed. True when nothing is left to do."""
        log.info(
            "feishu_reply_steps_down",
            turn_id=self._ledger.turn_id,
            kind=self._surfaces[-1].kind,
            code=error.code,
        )
        self._unplan_next()
        surface = self._surfaces[-1]
        if isinstance(error, TooBig):
            if not self._style.shrink():
                raise GiveUp(str(error), code=error.code) from error
        elif not surface.visible:
            self._simplify(surface, error)
        elif isinstance(error, CardLost):
            return await self._leave_lost(surface, view)
        elif not self._style.make_plain():
            self._style.make_rich()
            await stop_moving(surface, view.rev)
            return await self._leave_lost(surface, view, _SIMPLER[surface.kind])
        return False

    def _unplan_next(self) -> None:
        """A full part could not be closed: take back the next one, which nothing was done for, and cut anew."""
        if len(self._surfaces) > 1 and not self._surfaces[-2].closed:
            self._surfaces.pop()

    def _simplify(self, surface: Surface, error: FallBack) -> None:
        """Nothing of this part was shown: use the next simpler kind of message for it."""
        if isinstance(error, CardKitRefused) and surface.kind == "card":
            self._desk.refuse_cards(error)
            kind = "patch"
        elif surface.kind in _SIMPLER:
            kind = _SIMPLER[surface.kind]
        else:
            raise GiveUp(str(error), code=error.code) from error
        part = surface.part
        self._surfaces[-1] = self._surface(
            planned(part.turn_id, part.n, kind, part.covers_from_chars)
        )

    async def _leave_lost(self, surface: Surface, view: ReplyView, kind: str = "card") -> bool:
        """A card that people see can no longer be changed: go on behind what it is known to show, in a new message."""
        start = surface.part.covers_from_chars if surface.shown_upto is None else surface.shown_upto
        part = planned(surface.part.turn_id, surface.part.n + 1, kind, start)
        if surface.shown_upto is None and surface.part.covers_to_chars > start:
            part = rekeyed(part, "r")
        following = self._surface(part)
        await following.save()
        await surface.mark_closed(view.rev)
        self._surfaces.append(following)
        return view.outcome is Outcome.GROWING and start >= len(view.text)

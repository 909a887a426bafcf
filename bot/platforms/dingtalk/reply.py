"""How one answer grows in DingTalk (dingtalk.md §5, §6): which kind of message, where it is cut, what to do when one is refused.

Owns the parts of one reply, one surface each. A full card is closed and the next one goes on, the third by messages; what
cannot be shown in a card is sent as Markdown, what cannot be sent as Markdown as plain text.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from bot.domain.cutting import cut_where
from bot.domain.types import Outcome, ReplyPart, ReplyTarget
from bot.errors import Ambiguous, FallBack, GiveUp, PlatformError, RetryLater, TargetGone
from bot.platforms.base import PartLedger, ReplyView
from bot.platforms.dingtalk.api import Address
from bot.platforms.dingtalk.apology import Apology
from bot.platforms.dingtalk.card import AiCard
from bot.platforms.dingtalk.desk import REFUSED_S, TROUBLE_S, ReplyDesk
from bot.platforms.dingtalk.errors import Blocked, CardRefused, MonthSpent, SlowDown, TooBig
from bot.platforms.dingtalk.style import Style
from bot.platforms.dingtalk.surfaces import (
    PLACEHOLDER,
    Face,
    MarkdownMessage,
    PlainMessage,
    ReplyContext,
    Surface,
    as_repeat,
    is_repeat,
    planned,
)

log = structlog.get_logger()

_SURFACES: dict[str, type[Surface]] = {
    AiCard.kind: AiCard, MarkdownMessage.kind: MarkdownMessage, PlainMessage.kind: PlainMessage,
}  # fmt: skip
_SIMPLER = {AiCard.kind: MarkdownMessage.kind, MarkdownMessage.kind: PlainMessage.kind}
# A longer answer goes on in messages: each further card would cost as many calls again.
_MAX_CARDS = 3
# The last update is insisted on this often before the answer is sent as a message instead (§5.5).
_CLOSING_TRIES = 5
_MONTH_SPENT_S = 300.0
# Rounds of one call: each goes on to another part or steps down; more means that nothing helps.
_MAX_ROUNDS = 60


class DingTalkReply:
    """Implements ReplyDriver for one answer. One owner task; surfaces and their parts belong to it."""

    def __init__(self, desk: ReplyDesk, target: ReplyTarget, ledger: PartLedger) -> None:
        self._desk = desk
        self._ledger = ledger
        address = Address.of(target, desk.config.robot_code)
        self._context = ReplyContext(desk, target, ledger, address)
        self._style = Style(documented=desk.config.documented)
        self._apology: Apology | None = None
        self._closing_failures = 0
        self._surfaces = [self._surface(part) for part in ledger.parts()]
        # The next part is planned before the one before it is closed: a closed last part ends the reply.
        self._closed = bool(self._surfaces) and self._surfaces[-1].closed

    # -- ReplyDriver -------------------------------------------------------------------------------------------------
    async def prepare(self) -> None:
        """Nothing: a card is seen as soon as it is made."""

    async def show(self, view: ReplyView) -> None:
        """Show a growing view, where answers grow."""
        if self._closed or view.outcome is not Outcome.GROWING:
            return
        if self._apology:
            await self._apology.say()
        if not self._surfaces:
            if self._desk.why_whole() or not self._can_have_card():
                return
            self._plan_first(AiCard.kind)
        self._desk.growing(self, self._surfaces[-1].grows)
        await self._until_gone(view)

    async def finish(self, view: ReplyView) -> None:
        """Show the final view and close. An answer that was never shown goes out whole: one message, no counted call."""
        if self._closed:
            return
        if self._apology:
            await self._apology.say()
        if view.outcome is Outcome.SILENT:
            await self._hush(view)
            return
        if not self._surfaces:
            self._plan_first(MarkdownMessage.kind)
        await self._until_gone(view)

    def interval_s(self) -> float:
        """Seconds between two updates, right now."""
        return self._desk.interval_s()

    # -- parts -------------------------------------------------------------------------------------------------------
    def _surface(self, part: ReplyPart) -> Surface:
        return _SURFACES.get(part.kind, PlainMessage)(self._context, part)

    def _plan_first(self, kind: str) -> None:
        self._surfaces = [self._surface(planned(self._context, 0, kind, 0))]

    def _can_have_card(self) -> bool:
        """A card in a chat of two is addressed to the person's id in the organisation, which outsiders lack."""
        return self._context.address.is_group or bool(self._context.address.user_id)

    async def _until_gone(self, view: ReplyView) -> None:
        try:
            await self._advance(view)
        except TargetGone:
            await self._finished(view, self._surfaces[-1])
            raise
        except GiveUp as refusal:
            self._desk.growing(self, False)
            self._apology = Apology(self._context, self._surfaces[-1], view, refusal)
            await self._apology.say()

    async def _advance(self, view: ReplyView) -> None:
        """Bring every part to what the view wants; steps down as often as a kind or a size is refused."""
        final = view.outcome is not Outcome.GROWING
        for _ in range(_MAX_ROUNDS):
            surface = self._surfaces[-1]
            try:
                await self._close_full_ones(view)
                surface = self._surfaces[-1]
                if not surface.grows and not final:
                    return
                cut = self._cut(view, surface)
                if cut is None:
                    await self._show_last(view, surface, final=final)
                    return
                await self._begin_next(surface, cut)
            except FallBack as error:
                await self._step_down(error, view)
            except (RetryLater, Ambiguous) as error:
                if not final or not self._has_failed_too_often(surface, error):
                    raise
                await self._step_down(FallBack(str(error), code=error.code), view)
        raise GiveUp("the answer could not be shown in any kind of message")

    def _has_failed_too_often(self, surface: Surface, error: RetryLater | Ambiguous) -> bool:
        if not surface.grows or isinstance(error, (SlowDown, Blocked)):
            return False
        self._closing_failures += 1
        if self._closing_failures < _CLOSING_TRIES:
            return False
        self._desk.refuse_cards(f"cards could not be closed: {error}", TROUBLE_S)
        return True

    async def _show_last(self, view: ReplyView, surface: Surface, *, final: bool) -> None:
        face = self._face(view, surface, len(view.text), last=True)
        if not final:
            await surface.show(face)
            return
        nothing_left = surface.part.covers_from_chars >= len(view.text) and not view.notice
        if surface.visible or surface.part.n == 0 or not nothing_left:
            await surface.close(self._marked(view, surface, face))
        await self._finished(view, surface)

    async def _finished(self, view: ReplyView, surface: Surface) -> None:
        await surface.mark_closed(view.rev)
        self._closed = True
        self._desk.growing(self, False)

    async def _begin_next(self, full: Surface, cut: int) -> None:
        """Plan the part that goes on at `cut`, committed before the full one is closed."""
        n = full.part.n + 1
        goes_on = full.grows and (n >= _MAX_CARDS or bool(self._desk.why_whole()))
        kind = MarkdownMessage.kind if goes_on else full.kind
        following = self._surface(planned(self._context, n, kind, cut))
        await following.save()
        self._surfaces.append(following)

    async def _close_full_ones(self, view: ReplyView) -> None:
        for surface, following in zip(self._surfaces, self._surfaces[1:], strict=False):
            if surface.closed:
                continue
            face = self._face(view, surface, following.part.covers_from_chars, last=False)
            await surface.close(self._marked(view, surface, face))
            await surface.mark_closed(view.rev)

    async def _hush(self, view: ReplyView) -> None:
        """The question was taken back: nothing is added, nothing goes on moving."""
        quiet = replace(view, buttons=(), notice="", status="")
        for surface in self._surfaces:
            if surface.closed:
                continue
            try:
                await surface.hush(
                    self._face(quiet, surface, surface.part.covers_to_chars, last=False)
                )
            except (FallBack, GiveUp) as error:
                log.info("dingtalk_reply_not_hushed", turn_id=surface.part.turn_id, code=error.code)
            await surface.mark_closed(view.rev)
        self._closed = True
        self._desk.growing(self, False)

    # -- faces -------------------------------------------------------------------------------------------------------
    def _cut(self, view: ReplyView, surface: Surface) -> int | None:
        """Where this part must end; None when all that is left fits."""
        start, text = surface.part.covers_from_chars, view.text
        return cut_where(text, start, lambda end: self._style.fits(surface.kind, text, start, end))

    def _face(self, view: ReplyView, surface: Surface, end: int, *, last: bool) -> Face:
        part, kind = surface.part, surface.kind
        final = not last or view.outcome is not Outcome.GROWING
        body = self._style.body(kind, view.text, part.covers_from_chars, end, final=final)
        notice = self._style.sentence(kind, view.notice if last and final else "")
        if body.strip():
            content = f"{body}\n\n{notice}" if notice else body
        else:
            status = "" if final else self._style.sentence(kind, view.status)
            content = notice or status or PLACEHOLDER
        title = (view.summary if last else "") or self._style.title(
            view.text, part.covers_from_chars
        )
        return Face(content, title or content[:40], view.buttons if last else (), view.rev, end)

    def _marked(self, view: ReplyView, surface: Surface, face: Face) -> Face:
        """A message that may already have arrived is sent once more, and says so. Cards are known by their name."""
        if not surface.grows and surface.uncertain and not surface.visible:
            surface.part = as_repeat(surface.part)
            surface.uncertain = False
        if not is_repeat(surface.part) or not view.possible_repeat:
            return face
        mark = self._style.sentence(surface.kind, view.possible_repeat)
        return replace(face, content=f"{mark}\n\n{face.content}")

    # -- refusals ----------------------------------------------------------------------------------------------------
    async def _step_down(self, error: FallBack, view: ReplyView) -> None:
        """Change something so that the next round may succeed."""
        log.info(
            "dingtalk_reply_steps_down",
            turn_id=self._ledger.turn_id,
            kind=self._surfaces[-1].kind,
            reason=str(error),
        )
        if isinstance(error, CardRefused):
            self._desk.refuse_cards(str(error), REFUSED_S)
        self._unplan_next()
        surface = self._surfaces[-1]
        if isinstance(error, MonthSpent) and not surface.grows:
            # No kind of message goes without a call once the session has ended: it waits for more to be bought.
            raise RetryLater(str(error), code=error.code, after_s=_MONTH_SPENT_S) from None
        if isinstance(error, TooBig):
            if not self._style.shrink():
                raise GiveUp(str(error), code=error.code) from error
        elif surface.visible or (surface.grows and surface.uncertain):
            await self._leave_lost(surface, view)
        elif surface.kind in _SIMPLER:
            self._replace_last(_SIMPLER[surface.kind])
        else:
            raise GiveUp(str(error), code=error.code) from error

    def _unplan_next(self) -> None:
        """A full part could not be closed: take back the next one, which nothing was done for, and cut anew."""
        if len(self._surfaces) > 1 and not self._surfaces[-2].closed:
            self._surfaces.pop()

    def _replace_last(self, kind: str) -> None:
        """Nothing of this part was shown: use the next simpler kind of message for it."""
        part = self._surfaces[-1].part
        simpler = planned(self._context, part.n, kind, part.covers_from_chars)
        self._surfaces[-1] = self._surface(as_repeat(simpler) if is_repeat(part) else simpler)

    async def _leave_lost(self, surface: Surface, view: ReplyView) -> None:
        """A card can no longer be changed, and what people see of it is not known (§6): all of it follows as a message."""
        start = surface.part.covers_from_chars
        part = planned(self._context, surface.part.n + 1, MarkdownMessage.kind, start)
        if surface.part.covers_to_chars > start:
            part = as_repeat(part)
        following = self._surface(part)
        await following.save()
        if view.outcome is Outcome.GROWING:  # else the card's end is what was refused
            await self._end_left(surface)
        await surface.mark_closed(view.rev)
        self._surfaces.append(following)

    async def _end_left(self, surface: Surface) -> None:
        """A card that takes no more text perhaps takes an end: nothing goes on moving. The answer does not depend on it."""
        try:
            await surface.hush(Face(PLACEHOLDER))
        except PlatformError as error:
            log.info("dingtalk_card_left_open", turn_id=surface.part.turn_id, code=error.code)

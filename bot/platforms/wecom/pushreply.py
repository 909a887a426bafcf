"""How an answer grows over the long connection (wecom.md §3.3, §3.4): streams pushed one after another, else plain messages.

A stream is left before its life ends or when it is full; the next one goes on behind it, under the same req_id. Where the
req_id takes nothing any more, finished messages are sent instead. A part's `covers_to_chars` is what is known to be shown.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import timedelta

import structlog

from bot.domain.types import Outcome, PartState, ReplyTarget
from bot.errors import Ambiguous, FallBack, GiveUp, PlatformError
from bot.platforms.base import PartLedger, ReplyView
from bot.platforms.wecom import style
from bot.platforms.wecom.errors import Conflict, StreamOver, WindowOver
from bot.platforms.wecom.parts import Part
from bot.platforms.wecom.pushdesk import PushDesk

log = structlog.get_logger()

STREAM, MESSAGE = "stream", "message"
# A stream takes its last frame for so long after it should have been left.
_GRACE = timedelta(seconds=25)
_MAX_ROUNDS = 200


@dataclass(slots=True)
class _Shown:
    """What this process knows of the part it works on."""

    content: str = ""
    text: str = ""
    # Over which connection the closing frame went out without an acknowledgement; and how often it was in conflict.
    closing_over: int = -1
    conflicts: int = 0


class PushedReply:
    """Implements ReplyDriver for one answer over the long connection. One owner task."""

    def __init__(self, desk: PushDesk, target: ReplyTarget, ledger: PartLedger) -> None:
        self._desk = desk
        self._target = target
        self._ledger = ledger
        self._parts = [Part(ledger, record) for record in ledger.parts()]
        self._shown = _Shown()
        self._closed = bool(self._parts) and self._parts[-1].closed
        for part in self._parts:
            if part.kind == STREAM and part.record.remote_id:
                opened_at = part.record.opened_at or desk.now()
                desk.note(part.record.remote_id, opened_at, ledger.turn_id)

    # -- ReplyDriver -------------------------------------------------------------------------------------------------
    async def prepare(self) -> None:
        """The sign of life has opened the bubble."""

    async def show(self, view: ReplyView) -> None:
        """Push the newest snapshot."""
        if not self._closed and view.outcome is Outcome.GROWING:
            await self._until_refused(view, final=False)

    async def finish(self, view: ReplyView) -> None:
        """Push the final view and close."""
        if self._closed:
            return
        if view.outcome is Outcome.SILENT:
            await self._hush(view)
            return
        await self._until_refused(view, final=True)
        self._closed = True

    def interval_s(self) -> float:
        """Seconds between two frames."""
        return self._desk.interval_s()

    # -- rounds ------------------------------------------------------------------------------------------------------
    async def _until_refused(self, view: ReplyView, *, final: bool) -> None:
        """Advance; an answer that is not taken ends with one sentence instead of moving dots."""
        try:
            await self._advance(view, final=final)
        except GiveUp:
            with contextlib.suppress(PlatformError):
                await self._end_bubble(style.sentence(view.refused) or style.UNANSWERED)
            raise

    async def _advance(self, view: ReplyView, *, final: bool) -> None:
        """Bring the last part to what the view wants; each round closes a part or is the last."""
        if not self._parts:
            self._parts.append(self._next_part(0))
        for _ in range(_MAX_ROUNDS):
            part = self._parts[-1]
            try:
                step = self._stream_step if part.kind == STREAM else self._message_step
                if await step(view, part, final=final):
                    return
            except StreamOver as error:
                await self._leave(view, part, error, STREAM)
            except WindowOver as error:
                await self._leave(view, part, error, MESSAGE)
        raise GiveUp("the answer could not be shown")

    def _next_part(self, start: int, kind: str = "") -> Part:
        kind = kind or (STREAM if self._desk.in_window(self._target) else MESSAGE)
        return Part.planned(self._ledger, len(self._parts), kind, start)

    async def _go_on(self, view: ReplyView, part: Part, end: int, following: Part | None = None) -> None:  # fmt: skip
        """Close a part that has arrived; what follows is saved first, because a closed last part ends the reply."""
        following = following or self._next_part(end)
        await following.save()
        self._parts.append(following)
        self._shown = _Shown()
        await part.close(view.rev)

    # -- streams -----------------------------------------------------------------------------------------------------
    async def _stream_step(self, view: ReplyView, part: Part, *, final: bool) -> bool:
        """One frame. True when nothing is left to do now."""
        if part.record.state is PartState.PLANNED:
            await self._open(part)
        age = self._desk.age(part.record.remote_id)
        if age > self._desk.life + _GRACE:
            await self._end_outlived()
            raise StreamOver("the stream has outlived its time")
        end = self._end_of(view, part, old=age > self._desk.life and not final)
        if end is None and not final:
            await self._grow(view, part)
            return True
        if end is None or (final and end >= len(view.text)):
            await self._close_stream(part, self._last_content(view, part), len(view.text))
            await part.close(view.rev)
            return True
        shown = style.body(view.text, part.start, end)
        await self._close_stream(part, self._marked(view, part, shown or style.CONTINUED), end)
        await self._go_on(view, part, end)
        return False

    @staticmethod
    def _end_of(view: ReplyView, part: Part, *, old: bool) -> int | None:
        """Where the stream must end: where it was to end already, where it is full, or here because it is old."""
        if part.record.state is PartState.AMBIGUOUS:
            return min(part.record.covers_to_chars, len(view.text))
        end = style.cut(view.text, part.start)
        return style.pause_cut(view.text, part.start) if end is None and old else end

    async def _open(self, part: Part) -> None:
        """Name the part's stream and commit it. The first one is that of the sign of life, unless another turn has it."""
        stream_id, opened_at = part.record.idem_key, self._desk.now()
        theirs = self._target.opaque.get("stream", "") if part.n == 0 else ""
        known = self._desk.on_screen(theirs)
        if theirs and (known is None or not known.owner):
            stream_id = theirs
            opened_at = known.opened_at if known else self._desk.perhaps_opened_at(self._target)
        if stream_id != theirs or known is None:
            await self._desk.new_message(self._target.chat_id)
        self._desk.note(stream_id, opened_at, self._ledger.turn_id)
        await part.save(state=PartState.ATTEMPTED, remote_id=stream_id, opened_at=opened_at)

    async def _grow(self, view: ReplyView, part: Part) -> None:
        shown = self._marked(view, part, style.body(view.text, part.start, len(view.text)))
        content = shown or style.sentence(view.status) or style.PLACEHOLDER
        if content == self._shown.content:
            return
        await part.save(state=PartState.ATTEMPTED)
        await self._desk.frame(self._target, part.record.remote_id, content, finish=False)
        self._shown.content, self._shown.text = content, view.text
        part.note(len(view.text), view.rev)

    async def _close_stream(self, part: Part, content: str, end: int) -> None:
        """The closing frame, until it is acknowledged or there is no sense in repeating it (§3.4)."""
        if content == self._shown.content:
            content += "\u200b"  # an unchanged last frame may be dropped without an answer
        generation = self._desk.connection.generation
        if part.record.state is not PartState.AMBIGUOUS:
            await part.save(state=PartState.AMBIGUOUS, covers_to_chars=end)
        try:
            await self._desk.frame(self._target, part.record.remote_id, content, finish=True)
        except Ambiguous:
            again = self._shown.closing_over == generation and self._desk.connection.connected
            self._shown.closing_over = generation
            if not again:
                raise
            log.info("wecom_final_frame_unanswered", turn_id=self._ledger.turn_id)
        except Conflict:
            self._shown.conflicts += 1
            if self._shown.conflicts < 2:
                raise
        except StreamOver:
            if not self._repeated_close(part):
                raise

    def _repeated_close(self, part: Part) -> bool:
        """The stream is over after an earlier closing frame: that one had arrived."""
        return part.taken_over or self._shown.closing_over >= 0

    def _last_content(self, view: ReplyView, part: Part, limit: int = style.STREAM_BYTES) -> str:
        shown = style.body(view.text, part.start, len(view.text), limit)
        content = style.joined(shown, style.sentence(view.notice))
        return self._marked(view, part, content or (style.THE_END if part.start else style.UNANSWERED))  # fmt: skip

    @staticmethod
    def _marked(view: ReplyView, part: Part, content: str) -> str:
        mark = style.sentence(view.possible_repeat) if part.is_repeat else ""
        return style.joined(mark, content) if content.strip() else content

    async def _leave(self, view: ReplyView, part: Part, error: FallBack, kind: str) -> None:
        """A stream that takes no more: go on behind what it is known to show, in another message."""
        log.info("wecom_stream_left", turn_id=self._ledger.turn_id, code=error.code, n=part.n)
        # An answer that has started over is shown anew.
        goes_on = style.goes_on(view.text, self._shown.text)
        n_shown = min(len(self._shown.text), len(view.text))
        start = max(n_shown, part.start) if goes_on else part.start
        unsure = part.taken_over and not self._shown.content
        if unsure and part.record.state is not PartState.AMBIGUOUS:
            start = part.record.covers_to_chars
        following = self._next_part(start, kind)
        if unsure and part.record.covers_to_chars > part.start:
            following.mark_repeat()
        await self._go_on(view, part, start, following)

    async def _end_outlived(self) -> None:
        """Nothing goes on moving, if WeCom still takes it; whether it does is no matter, what is shown is known."""
        if self._shown.content:
            with contextlib.suppress(PlatformError):
                await self._end_bubble(self._shown.content + "\u200b")

    # -- messages of our own -----------------------------------------------------------------------------------------
    async def _message_step(self, view: ReplyView, part: Part, *, final: bool) -> bool:
        """One finished message. True when it was the last, or nothing can be done while the answer grows."""
        if not final:
            return True
        if part.record.state in {PartState.ATTEMPTED, PartState.AMBIGUOUS}:
            part.mark_repeat()
        limit = self._desk.config.push_bytes
        end = style.cut(view.text, part.start, limit)
        upto = len(view.text) if end is None else end
        shown = style.body(view.text, part.start, upto, limit)
        content = self._last_content(view, part, limit) if end is None else self._marked(view, part, shown)  # fmt: skip
        await self._desk.new_message(self._target.chat_id)
        before = part.record
        await part.save(state=PartState.ATTEMPTED, attempted_at=self._desk.now())
        try:
            await self._desk.send(self._target, style.clip(content, style.STREAM_BYTES))
        except Ambiguous:
            raise
        except Exception:
            part.record = before  # certainly not done by this call
            raise
        if end is None:
            await part.close(view.rev, upto)
            return True
        part.note(upto, view.rev)
        await self._go_on(view, part, upto)
        return False

    # -- silence -----------------------------------------------------------------------------------------------------
    async def _hush(self, view: ReplyView) -> None:
        """Nothing is added, nothing goes on moving."""
        part = self._parts[-1] if self._parts else None
        if part is not None and not part.closed:
            shown = self._shown.content.replace(style.PLACEHOLDER, "")
            shown = shown or style.body(view.text, part.start, part.record.covers_to_chars)
            await self._end_bubble((shown or style.UNANSWERED) + "\u200b")
            await part.close(view.rev)
        self._closed = True

    async def _end_bubble(self, content: str) -> None:
        part = self._parts[-1] if self._parts else None
        if part is None or part.kind != STREAM or part.closed or not part.record.remote_id:
            return
        try:
            await self._desk.frame(self._target, part.record.remote_id, content, finish=True)
        except (FallBack, GiveUp) as error:
            log.info("wecom_bubble_not_ended", turn_id=self._ledger.turn_id, code=error.code)

"""How an answer grows where WeCom asks for it (wecom.md §2.4, §5): one stream, then the rest once by response_url.

The driver puts snapshots on the shelf; polls take them. An answer counts as shown when a poll took its last snapshot. Where
nobody asks any more, or the bubble is full or too old, the rest goes by response_url and the bubble points to it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import structlog

from bot.domain.types import Outcome, PartState, ReplyTarget
from bot.errors import Ambiguous, FallBack, GiveUp, RetryLater, TargetGone
from bot.platforms.base import PartLedger, ReplyView
from bot.platforms.wecom import style
from bot.platforms.wecom.parts import Part
from bot.platforms.wecom.streams import POLLING_S, Stream, StreamShelf
from bot.platforms.wecom.urls import ResponseUrls

log = structlog.get_logger()

INTERVAL_S = 0.5
# WeCom asks about every second; this long without a poll means that it has stopped.
PATIENCE_S = 12.0


class PolledReply:
    """Implements ReplyDriver for one answer of an AI bot by callback. One owner task."""

    def __init__(
        self,
        shelf: StreamShelf,
        urls: ResponseUrls,
        target: ReplyTarget,
        ledger: PartLedger,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._shelf = shelf
        self._urls = urls
        self._target = target
        self._ledger = ledger
        self._now = now
        self._place = (target.chat_id, target.opaque.get("user", ""))
        self._refused: set[str] = set()
        self._parts = [Part(ledger, record) for record in ledger.parts()]
        self._stream: Stream | None = None
        # The whole answer was put up, and it is not known yet whether a poll took it.
        self._whole = False
        self._patience_s = PATIENCE_S
        # The text that was put up last; an answer that starts over has another one.
        self._told = ""
        self._closed = bool(self._parts) and self._parts[-1].closed
        first = self._parts[0] if self._parts else None
        # Text that an earlier process put up may have been seen.
        self._perhaps_seen = first is not None and first.record.covers_to_chars > 0
        if first is not None and self._parts[-1].kind == "stream" and not first.closed:
            self._stream = self._claim()  # polls that come before the first snapshot find it taken

    # -- ReplyDriver -------------------------------------------------------------------------------------------------
    async def prepare(self) -> None:
        """The bubble was opened by the answer to the question itself."""

    async def show(self, view: ReplyView) -> None:
        """Put up the newest snapshot."""
        if self._closed or view.outcome is not Outcome.GROWING:
            return
        stream = self._growing_stream()
        if stream is None:
            await self._note_end(view.text)
            return
        if view.buttons:  # an answer of the model: earlier messages may have joined its question
            self._shelf.close_older(stream)
        part = await self._first_part()
        end = style.cut(view.text, 0)
        if end is not None:
            await self._fill(view, part, stream, end)
            return
        if part.record.state is PartState.PLANNED or (
            view.text and not part.record.covers_to_chars
        ):
            await self._attempt(part, len(view.text))
        self._tell(stream, view.text)
        shown = style.body(view.text, 0, len(view.text))
        content = shown or style.sentence(view.status) or style.PLACEHOLDER
        self._shelf.put(stream, content, len(view.text), pause=partial(_paused, view.text))

    async def finish(self, view: ReplyView) -> None:
        """Show the final view, see that it is taken, and close."""
        if self._closed:
            return
        if view.outcome is Outcome.SILENT:
            await self._hush(view)
            return
        stream = self._growing_stream()
        if stream is not None:
            await self._put_whole(view, stream)
        if self._stream is not None and self._whole and await self._is_taken(view, self._stream):
            return
        await self._finish_by_url(view)

    def interval_s(self) -> float:
        """Seconds between two snapshots: shorter than the time between two polls."""
        return INTERVAL_S

    # -- the stream --------------------------------------------------------------------------------------------------
    def _claim(self) -> Stream | None:
        stream_id = self._target.opaque.get("stream", "")
        if not stream_id:
            return None
        turn_id = self._ledger.turn_id
        return self._shelf.claim(stream_id, turn_id, self._place, self._age_s())

    def _growing_stream(self) -> Stream | None:
        """Our stream while it can be changed; None when the answer must go on by response_url."""
        if self._parts and self._parts[-1].kind == "url":
            return None
        if self._stream is None:
            self._stream = self._claim()
        if self._stream is None or self._stream.final:
            return None
        return self._stream

    def _age_s(self) -> float:
        try:
            sent_at = datetime.fromisoformat(self._target.opaque.get("sent_at", ""))
        except ValueError:
            return POLLING_S
        return max(0.0, (self._now() - sent_at).total_seconds())

    async def _first_part(self) -> Part:
        if not self._parts:
            self._parts = [Part.planned(self._ledger, 0, "stream", 0)]
        return self._parts[0]

    async def _note_end(self, text: str) -> None:
        """The bubble has ended and was taken: where the rest begins is on disk from now on, for any other process too."""
        ended = self._stream
        if ended is not None and ended.taken_final and self._parts and self._parts[-1].kind == "stream":  # fmt: skip
            await self._url_part(text)

    async def _fill(self, view: ReplyView, part: Part, stream: Stream, end: int) -> None:
        """The bubble is full: the rest waits for the end of the answer."""
        await self._attempt(part, end)
        self._tell(stream, view.text)
        content = style.joined(style.body(view.text, 0, end), style.CONTINUED)
        self._shelf.put(stream, content, end, final=True)

    async def _put_whole(self, view: ReplyView, stream: Stream) -> None:
        """Close the bubble with the whole answer, if it holds it."""
        if view.buttons:
            self._shelf.close_older(stream)
        part = await self._first_part()
        end = style.cut(view.text, 0)
        if end is not None:
            await self._fill(view, part, stream, end)
            return
        await self._attempt(part, len(view.text))
        self._tell(stream, view.text)
        whole = style.joined(style.body(view.text, 0, len(view.text)), style.sentence(view.notice))
        self._whole = self._shelf.put(stream, whole or style.UNANSWERED, len(view.text), final=True)

    async def _is_taken(self, view: ReplyView, stream: Stream) -> bool:
        """Whether WeCom came for the whole answer. False when it must go by response_url."""
        if await self._shelf.wait_taken(stream, self._patience_s):
            await self._end(view, self._parts[0], len(view.text))
            return True
        if self._url():
            self._whole, self._patience_s = False, 0.0
            return False
        if self._age_s() < POLLING_S + PATIENCE_S:
            raise RetryLater("nobody has come for the answer yet", after_s=0.1)
        raise GiveUp("nobody came for the answer, and there is no other way to send it")

    def _tell(self, stream: Stream, text: str) -> None:
        if not style.goes_on(text, self._told):
            # Started over: what polls took is of the earlier text.
            stream.taken_upto = 0
        self._told = text

    async def _attempt(self, part: Part, upto: int) -> None:
        opened_at = part.record.opened_at or self._now()
        await part.save(state=PartState.ATTEMPTED, covers_to_chars=upto, opened_at=opened_at)

    async def _hush(self, view: ReplyView) -> None:
        """Nothing is added, nothing goes on moving."""
        if self._stream is not None and not self._stream.final:
            shown = self._stream.content if self._stream.upto_chars else style.UNANSWERED
            self._shelf.put(self._stream, shown, self._stream.upto_chars, final=True)
        for part in self._parts:
            await part.close(view.rev)
        self._closed = True

    async def _end(self, view: ReplyView, part: Part, upto: int) -> None:
        await part.close(view.rev, upto)
        self._closed = True

    # -- response_url ------------------------------------------------------------------------------------------------
    def _url(self) -> str:
        """The question's own URL, else the person's newest in this chat."""
        own = self._target.opaque.get("url", "")
        expires_at = self._target.expires_at
        in_time = expires_at is None or self._now() < expires_at
        if own and in_time and own not in self._refused:
            return own
        return self._urls.newest(self._place, self._refused)

    async def _finish_by_url(self, view: ReplyView) -> None:
        part = await self._url_part(view.text)
        content = self._rest(view, part)
        while True:
            url = part.record.remote_id if part.taken_over else self._url()
            if not url:
                raise GiveUp("the answer's response_url is used up or has expired")
            try:
                await self._post(part, url, content)
            except (GiveUp, FallBack, TargetGone) as error:
                if not part.taken_over:
                    self._refused.add(url)
                    await part.save(state=PartState.PLANNED, remote_id="")
                    continue
                # One use per URL: a second try is refused when the first one arrived.
                log.info("wecom_url_was_used", turn_id=self._ledger.turn_id, code=error.code)
            await self._end(view, part, len(view.text))
            return

    async def _post(self, part: Part, url: str, content: str) -> None:
        await part.save(
            state=PartState.ATTEMPTED,
            remote_id=url,
            attempted_at=part.record.attempted_at or self._now(),
        )
        try:
            await self._urls.post(self._place, url, content)
        except Ambiguous:
            part.taken_over = True  # from now on a refusal means that it had arrived
            raise
        except RetryLater:
            if not part.taken_over:
                await part.save(state=PartState.PLANNED)
            raise

    async def _url_part(self, text: str) -> Part:
        """The part that goes by response_url, saved before anything is sent."""
        if self._parts and self._parts[-1].kind == "url":
            return self._parts[-1]
        stream, start = self._stream, 0
        known = stream is not None and (stream.polled_s is not None or not self._perhaps_seen)
        if stream is not None and known:
            start = await self._start_behind(stream, text)
        part = Part.planned(self._ledger, len(self._parts), "url", start)
        if self._perhaps_seen and not known:
            part.mark_repeat()
        await part.save()
        self._parts.append(part)
        return part

    async def _start_behind(self, stream: Stream, text: str) -> int:
        """Where the rest begins: behind what polls took. A bubble that nobody comes for points to the next message."""
        if await self._shelf.wait_taken(stream, self._patience_s):
            return self._common(text, stream.upto_chars)
        log.info("wecom_nobody_polls", turn_id=self._ledger.turn_id)
        start = self._common(text, stream.taken_upto)
        told = style.body(text, 0, start)
        self._shelf.take_back(stream, style.joined(told, style.SEE_BELOW), start)
        return start

    def _common(self, text: str, n_chars: int) -> int:
        """As many characters as were told, or none where the answer has started over since."""
        told = self._told[:n_chars]
        is_told = len(told) == n_chars and style.goes_on(text, told)
        return min(n_chars, len(text)) if is_told else 0

    def _rest(self, view: ReplyView, part: Part) -> str:
        start, text = part.start, view.text
        end = style.cut(text, start)
        mark = style.sentence(view.possible_repeat) if part.is_repeat else ""
        shown = style.body(text, start, len(text) if end is None else end)
        cut_off = style.TOO_LONG if end is not None else ""
        content = style.joined(mark, shown, cut_off, style.sentence(view.notice))
        return content or (style.THE_END if start else style.UNANSWERED)


def _paused(text: str) -> tuple[str, int]:
    """What a bubble shows that ends while its text still grows, and how much of the text that is."""
    end = style.pause_cut(text, 0)
    return style.body(text, 0, end), end

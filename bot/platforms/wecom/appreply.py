"""How a self-built app answers (wecom.md §5): nothing grows there, so the finished answer goes out in short messages.

One part per message, sent one after the other. There is no idempotency: a message whose fate is not known is sent once
more and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import structlog

from bot.domain.pacing import unsure_pause_s
from bot.domain.types import Outcome, PartState, ReplyTarget
from bot.errors import Ambiguous, FallBack, GiveUp, PlatformError, RetryLater
from bot.platforms.base import PartLedger, ReplyView
from bot.platforms.wecom import apptext, style
from bot.platforms.wecom.client import WeComClient
from bot.platforms.wecom.parts import Part

log = structlog.get_logger()


class AppReply:
    """Implements ReplyDriver for one answer of a self-built app. One owner task."""

    def __init__(
        self,
        client: WeComClient,
        agent_id: int,
        message_format: Literal["text", "markdown"],
        target: ReplyTarget,
        ledger: PartLedger,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._agent_id = agent_id
        self._format: str = message_format
        self._target = target
        self._ledger = ledger
        self._now = now
        self._n_unsure = 0
        self._parts = [Part(ledger, record) for record in ledger.parts()]
        if self._parts:  # the messages that are out already were cut in this format
            self._format = self._parts[0].kind

    async def prepare(self) -> None:
        """Have a token at hand when the answer is there."""
        try:
            await self._client.tokens.get()
        except PlatformError as error:
            log.debug("wecom_token_not_prepared", turn_id=self._ledger.turn_id, code=error.code)

    async def show(self, view: ReplyView) -> None:
        """Nothing: messages cannot be changed."""

    async def finish(self, view: ReplyView) -> None:
        """Send the messages that are not sent yet."""
        if view.outcome is Outcome.SILENT:
            return
        contents = self._contents(view)
        for number, (content, upto) in enumerate(contents, 1):
            part = self._part(number - 1, upto)
            if not part.closed:
                await self._send(view, part, content, (number, len(contents)))

    def interval_s(self) -> float:
        """Nothing is shown while the answer grows; this only bounds the commits."""
        return 2.0

    def _contents(self, view: ReplyView) -> list[tuple[str, int]]:
        """Each message with the end of what it holds; the notice stands in the last one, or alone."""
        markdown = self._format == "markdown"
        pieces = [
            (apptext.piece(view.text, start, end, markdown=markdown), end)
            for start, end in apptext.cuts(view.text, markdown=markdown)
        ]
        pieces = [(content, end) for content, end in pieces if content.strip()]
        notice = apptext.shield(view.notice)
        if notice and pieces and style.size_bytes(pieces[-1][0] + notice) < apptext.MESSAGE_BYTES - 100:  # fmt: skip
            content, end = pieces.pop()
            pieces.append((f"{content}\n\n{notice}", end))
        elif notice or not pieces:
            pieces.append((notice or style.UNANSWERED, len(view.text)))
        return pieces

    def _part(self, n: int, upto: int) -> Part:
        while len(self._parts) <= n:
            start = self._parts[-1].record.covers_to_chars if self._parts else 0
            self._parts.append(Part.planned(self._ledger, len(self._parts), self._format, start))
        part = self._parts[n]
        part.note(upto, part.record.confirmed_rev)
        return part

    async def _send(
        self, view: ReplyView, part: Part, content: str, place: tuple[int, int]
    ) -> None:
        # Most of a long answer's time is spent here, and nothing is under way meanwhile.
        await self._client.turn_of(self._target.chat_id)
        before = part.record
        if before.state in {PartState.ATTEMPTED, PartState.AMBIGUOUS}:
            part.mark_repeat()
        mark = apptext.shield(view.possible_repeat) if part.is_repeat else ""
        text = apptext.message(content, number=place[0], total=place[1], mark=mark)
        await part.save(state=PartState.ATTEMPTED, attempted_at=self._now())
        try:
            sent = await self._client.send(self._target.chat_id, self._agent_id, self._format, text)
        except Ambiguous as error:
            await part.save(state=PartState.AMBIGUOUS)
            self._n_unsure += 1
            if self._n_unsure == 1:
                raise
            pause_s = unsure_pause_s(self._n_unsure)
            raise RetryLater(str(error), code=error.code, after_s=pause_s) from None
        except FallBack as error:
            part.record = before
            await self._write_plainly(view, error)
            return
        except PlatformError:
            part.record = before  # certainly not done by this call
            await part.save()
            raise
        self._n_unsure = 0
        await part.save(
            state=PartState.CLOSED, message_id=sent, confirmed_rev=view.rev, opened_at=self._now()
        )

    async def _write_plainly(self, view: ReplyView, error: FallBack) -> None:
        """This kind of message is refused: send what is left as text."""
        if self._format == "text":
            raise GiveUp(str(error), code=error.code) from error
        log.info("wecom_markdown_refused", turn_id=self._ledger.turn_id, code=error.code)
        self._format = "text"
        self._parts = [part for part in self._parts if part.closed]
        await self.finish(view)

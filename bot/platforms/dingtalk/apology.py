"""The last words of an answer that DingTalk does not take (sensitive content, a lost permission).

The person gets one sentence instead of silence, in the card that is there or in a message of its own, and no card is left
generating. Owned by the reply's driver, which calls `say` again after RetryLater and Ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import structlog

from bot.domain.markdown import Dialect, escape, plain
from bot.errors import FallBack, GiveUp, TargetGone
from bot.platforms.base import ReplyView
from bot.platforms.dingtalk.surfaces import Face, PlainMessage, ReplyContext, Surface, planned

log = structlog.get_logger()


class Apology:
    """Says `view.refused` once, then raises `refusal`. `last` is the part that could not be shown."""

    def __init__(
        self, context: ReplyContext, last: Surface, view: ReplyView, refusal: GiveUp
    ) -> None:
        self._context = context
        self._last = last
        self._rev = view.rev
        self._refusal = refusal
        self._ways = list(self._plan(view.refused)) if view.refused else []

    async def say(self) -> NoReturn:
        """Try one way after the other. Raises the refusal at the end; RetryLater and Ambiguous when it is to be called again."""
        while self._ways:
            surface, face = self._ways[0]
            try:
                await surface.close(face)
            except TargetGone:
                break
            except (FallBack, GiveUp) as error:
                log.info("dingtalk_apology_refused", turn_id=surface.part.turn_id, kind=surface.kind, code=error.code)  # fmt: skip
                self._ways.pop(0)
                continue
            self._ways.clear()
            await surface.mark_closed(self._rev)
        raise self._refusal

    def _plan(self, sentence: str) -> Iterator[tuple[Surface, Face]]:
        last = self._last
        if last.visible and last.grows:
            harmless = escape(sentence, Dialect.POST)
            if last.content:  # what was taken before stays
                yield last, self._face(f"{last.content}\n\n{harmless}", sentence)
            yield last, self._face(harmless, sentence)
        n = last.part.n + 1 if last.visible or last.grows else last.part.n
        part = planned(self._context, n, PlainMessage.kind, last.part.covers_from_chars)
        yield PlainMessage(self._context, part), self._face(plain(sentence), sentence)

    def _face(self, content: str, sentence: str) -> Face:
        return Face(content, sentence[:40], (), self._rev, self._last.part.covers_to_chars)

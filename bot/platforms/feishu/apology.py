"""The last words of an answer that Feishu does not take (sensitive content, data loss prevention, a lost permission).

The person gets one sentence instead of silence, in the card that is there or in a message of its own, and no card is left
generating. Owned by the reply's driver, which calls `say` again after RetryLater and Ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import structlog

from bot.errors import FallBack, GiveUp, TargetGone
from bot.platforms.feishu.card import Face
from bot.platforms.feishu.surfaces import FINAL_ONLY, PlainText, Surface, planned

log = structlog.get_logger()


async def stop_moving(surface: Surface, rev: int) -> None:
    """Take the controls of a card away and end its streaming, if Feishu lets us."""
    try:
        await surface.hush(Face(surface.content, rev=rev, upto_chars=surface.part.covers_to_chars))
    except (FallBack, GiveUp, TargetGone) as error:
        log.info("feishu_reply_not_hushed", turn_id=surface.part.turn_id, code=error.code)


class Apology:
    """Says `sentence` once, then raises `refusal`. `last` is the part that could not be shown."""

    def __init__(self, last: Surface, sentence: str, rev: int, refusal: GiveUp) -> None:
        self._last = last
        self._rev = rev
        self._refusal = refusal
        self._ways = list(self._plan(sentence)) if sentence else []

    async def say(self) -> NoReturn:
        """Try one way after the other. Raises the refusal at the end; RetryLater and Ambiguous when it is to be called again."""
        while self._ways:
            surface, face = self._ways[0]
            try:
                await surface.close(face)
            except TargetGone:
                break
            except (FallBack, GiveUp) as error:
                log.info("feishu_apology_refused", turn_id=surface.part.turn_id, kind=surface.kind, code=error.code)  # fmt: skip
                self._ways.pop(0)
                if surface is self._last and self._ways and self._ways[0][0] is not surface:
                    await stop_moving(surface, self._rev)
                continue
            self._ways.clear()
            await surface.mark_closed(self._rev)
        raise self._refusal

    def _plan(self, sentence: str) -> Iterator[tuple[Surface, Face]]:
        last = self._last
        if last.visible and last.kind not in FINAL_ONLY:
            if last.content:  # what was taken before stays
                yield last, self._face(f"{last.content}\n\n{sentence}", sentence)
            yield last, self._face(sentence, sentence)
        n = last.part.n + 1 if last.visible else last.part.n
        part = planned(last.part.turn_id, n, PlainText.kind, last.part.covers_from_chars)
        yield PlainText(last.context, part), self._face(sentence, sentence)

    def _face(self, content: str, summary: str) -> Face:
        upto = self._last.shown_upto or self._last.part.covers_from_chars
        return Face(content, summary=summary, rev=self._rev, upto_chars=upto)

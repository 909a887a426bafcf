"""Texts over which the child died while it counted or rendered them: like `suspects`, for questions. Pure; knows no child.

A tokenizer is native code, and what kills it once kills it again. Questions stand beside replies and beside each other, so
one death convicts nobody: a text that was being read in two is not read any more. Whatever is answered is free.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

import msgspec

from engine.link import wire
from engine.link.suspects import remember

DEATHS_BEFORE_REFUSED: Final = 2
_MAX_REMEMBERED: Final = 256


class DeadlyTexts:
    """Owner: one `EngineProcess`, on its event loop. Holds digests of texts, never the texts of those that are answered."""

    def __init__(self) -> None:
        self._open: dict[int, wire.Command] = {}
        self._at_death: list[wire.Command] = []
        self._n_deaths: OrderedDict[bytes, int] = OrderedDict()

    def refuses(self, question: wire.Command) -> bool:
        """Whether it is not to be asked again."""
        if not self._n_deaths:
            return False
        return self._n_deaths.get(_digest(question), 0) >= DEATHS_BEFORE_REFUSED

    def asked(self, seq: int, question: wire.Command) -> None:
        """The child gets a question."""
        if isinstance(question, wire.AskCount | wire.AskRender):
            self._open[seq] = question

    def answered(self, seq: int) -> None:
        """It has lived through it."""
        question = self._open.pop(seq, None)
        if question is not None and self._n_deaths:
            self._n_deaths.pop(_digest(question), None)

    def left(self, seq: int) -> None:
        """Nobody waits for the answer any more."""
        self._open.pop(seq, None)

    def gone(self) -> None:
        """There is no child any more; why is not known yet."""
        self._at_death = list(self._open.values())
        self._open.clear()

    def died(self, *, blame: bool) -> None:
        """Why is known by now: `blame` those that were being read, or nobody."""
        at_death, self._at_death = self._at_death, []
        for digest in {_digest(question) for question in at_death} if blame else ():
            n_deaths = self._n_deaths.get(digest, 0) + 1
            remember(self._n_deaths, digest, n_deaths, _MAX_REMEMBERED)


def _digest(question: wire.Command) -> bytes:
    """The same for the same words, whoever asks."""
    words = (
        question.text
        if isinstance(question, wire.AskCount)
        else [message.content for message in question.messages]
        if isinstance(question, wire.AskRender)
        else []
    )
    return hashlib.blake2b(msgspec.msgpack.encode(words), digest_size=16).digest()

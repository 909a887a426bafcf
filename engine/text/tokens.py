"""Gathers the ids of one prompt. Pure but for the tokenizer it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# (text, whether control tokens are meant where their text stands) -> ids, without BOS and EOS.
Tokenize = Callable[[str, bool], list[int]]


class TokenList:
    """The ids of one prompt so far; text gathers until the next cut, so that each run is tokenized once."""

    __slots__ = ("_run", "_tokenize", "token_ids")

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._run: list[str] = []
        self.token_ids: list[int] = []

    def text(self, text: str) -> None:
        """Text in which control tokens are meant."""
        if text:
            self._run.append(text)

    def literal(self, text: str) -> None:
        """Text that stands for itself, whatever it looks like."""
        self.offset()
        if text:
            self.token_ids += self._tokenize(text, False)

    def exact(self, token_ids: Sequence[int]) -> None:
        """Ids as a model generated them."""
        self.offset()
        self.token_ids += token_ids

    def offset(self) -> int:
        """How many ids there are; what comes next is tokenized apart from what was."""
        if self._run:
            self.token_ids += self._tokenize("".join(self._run), True)
            self._run.clear()
        return len(self.token_ids)

"""Whether two greedy replies are the same, or part where the model itself could not decide.

Tokens that are computed in other chunks have slightly other logits (a continued reply computes its beginning as prompt), so two
tokens that are equally good may change places: that is no fault of whoever interrupted it. The yardstick is measured for each
case: how far mere re-chunking of the same tokens moves the logits there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.backends.modelfile import find_model
from tests.support.forcing import N_BATCH, Forcing, Logits, difference, open_backend, some_text

_CHUNKS: Final = (7, 31, N_BATCH)
# From 512 cells on llama.cpp's attention works in another way.
_MANY: Final = 560


class Judge:
    """Owner of a backend of its own with the demo model; close it."""

    def __init__(self) -> None:
        self._backend = open_backend(find_model("demo", "demo"))
        self._forcing = Forcing(self._backend)

    def close(self) -> None:
        """Free the model."""
        self._backend.close()

    def whole(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """The greedy reply without any interruption; for prompts whose reply is longer than that."""
        return self._forcing.greedy(prompt, n_tokens)

    def verdict(self, prompt: Sequence[int], whole: Sequence[int], told: Sequence[int]) -> str:
        """ "same", or "tie at N: …" for replies that part at a toss-up. Raises AssertionError for any other difference."""
        at = next((i for i, (a, b) in enumerate(zip(whole, told, strict=False)) if a != b), None)
        if at is None:
            assert len(whole) == len(told), f"{len(told)} of {len(whole)} tokens"
            return "same"
        tokens, rest = (*prompt, *whole[:at]), whole[at:]
        plain = self._logits(tokens, (), 1)
        others = [self._logits(tokens, (), n_chunk) for n_chunk in _CHUNKS]
        # What was cut off behind them was computed together with them: so it is with a prompt that is found again.
        others += [self._logits(tokens, rest, N_BATCH, n_beside) for n_beside in (0, _MANY)]
        noise = max(difference(plain, other) for other in others)
        gap = float(abs(plain[whole[at]] - plain[told[at]]))
        behind = float(plain.max() - plain[told[at]])
        assert max(gap, behind) <= 2 * noise, (
            f"token {at} is another one although it is {max(gap, behind):.3f} worse (noise {noise:.3f})"
        )
        return f"tie at {at}: {max(gap, behind):.3f} apart, noise {noise:.3f}"

    def _logits(
        self, tokens: Sequence[int], rest: Sequence[int], n_chunk: int, n_beside: int = 0
    ) -> Logits:
        """Behind the last of `tokens`, computed with `rest` behind them at first, and beside another text in the cache."""
        self._backend.clear()
        self._forcing.feed(1, some_text(self._backend, n_beside, 3) if n_beside else [])
        self._forcing.feed(0, [*tokens, *rest], n_chunk)
        self._backend.seq_rm(0, len(tokens) - 1)
        self._forcing.decode(True, (0, tokens[-1:]))
        return self._forcing.logits(0)

"""Whether replies that part, with other replies beside them, part where the model could as well have said either.

Like `nearties`, for several replies at once. On a CPU a row of logits is bit for bit the same however large the batch is, as
long as the cells of its sequence lie in the order of its tokens. When another reply ends, its cells are filled next, the order
is lost, sums are added up otherwise, and the rounding of quantized activations carries that on from layer to layer: the
demo model's logits then move by 0.5 to 1. So the yardstick has other chunks and cells out of order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.backends.llamacpp import LlamaBackend
from tests.support.forcing import Forcing, Logits, difference, some_text

_N_HOLE = 40


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two replies part, how far apart their tokens' logits are there, and how far logits move for nothing."""

    at: int
    gap: float
    noise: float

    @property
    def is_tossup(self) -> bool:
        return self.gap <= 2 * self.noise


def parting_of(
    backend: LlamaBackend, prompt: Sequence[int], told: Sequence[int], other: Sequence[int]
) -> Parting | None:
    """None for equal replies. Empties the backend. Raises AssertionError when one only ends early."""
    at = next((i for i, (a, b) in enumerate(zip(told, other, strict=False)) if a != b), None)
    if at is None:
        assert len(told) == len(other), f"{len(other)} of {len(told)} tokens"
        return None
    tokens = [*prompt, *told[:at]]
    reference = _logits(backend, tokens, len(prompt), n_chunk=1, has_hole=False)
    ways = [
        _logits(backend, tokens, len(prompt), n_chunk=n_chunk, has_hole=has_hole)
        for n_chunk, has_hole in ((8, False), (1, True), (3, True))
    ]
    backend.clear()
    noise = max(difference(reference, way) for way in ways)
    gap = abs(float(reference[-1][told[at]] - reference[-1][other[at]]))
    return Parting(at, gap, noise)


def _logits(
    backend: LlamaBackend, tokens: Sequence[int], n_prompt: int, *, n_chunk: int, has_hole: bool
) -> Logits:
    """Behind the prompt's last token and all that follow; these fill a hole in front of the prompt, if there is one."""
    forcing = Forcing(backend)
    backend.clear()
    forcing.feed(1, some_text(backend, _N_HOLE, 1))
    forcing.feed(0, tokens[: n_prompt - 1])
    if has_hole:
        backend.seq_rm(1, 0)
    return forcing.follow(0, tokens[n_prompt - 1 :], n_chunk=n_chunk)

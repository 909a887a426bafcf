"""What a chat template writes around turns, as far as the core has to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnMarks:
    """`stop_texts`: ends of turn that the vocabulary has no control token for. `user_header`: the ids between a system prompt
    and the first question, where that question's first characters do not melt into them; empty = nothing certain is known.
    """

    stop_texts: tuple[str, ...] = ()
    user_header: tuple[int, ...] = ()

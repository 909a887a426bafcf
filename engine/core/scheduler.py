"""What goes into the next batch. Pure: no model, no clock, no I/O, invented ids in tests.

It decides and remembers nothing of tokens, sequences or text; those belong to `engine.core.core` and `engine.kv`. Who is served
next is decided by `engine.waitline`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.types import Priority
from engine.waitline import Ticket, WaitLine

__all__ = ["Grant", "Need", "PrefillPace", "Ticket", "WaitLine", "plan_batch"]


@dataclass(frozen=True, slots=True)
class Need:
    """What one running request could compute now. `n_tokens` = 1 with `is_reply` is the next token of a reply."""

    id: str
    n_tokens: int
    is_reply: bool
    priority: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What it computes in this step."""

    id: str
    n_tokens: int


def plan_batch(needs: Sequence[Need], *, n_batch: int, n_prefill: int) -> list[Grant]:
    """Next tokens of running replies first, then prompts within `n_prefill` tokens; never more than `n_batch` in all.

    Prompts of the best priority share the budget evenly, so that a short question passes a long document; less important
    ones get only what is left. `needs` is in order of admission.
    """
    replies = [need for need in needs if need.is_reply][:n_batch]
    grants = [Grant(need.id, 1) for need in replies]
    budget = min(n_prefill, n_batch - len(grants))
    prompts = [need for need in needs if not need.is_reply]
    for priority in sorted({need.priority for need in prompts}):
        shares = _share([need for need in prompts if need.priority == priority], budget)
        grants += shares
        budget -= sum(grant.n_tokens for grant in shares)
    return grants


def _share(needs: list[Need], budget: int) -> list[Grant]:
    """Split a budget evenly; what the small ones leave goes to the others."""
    grants: list[Grant] = []
    left = sorted(needs, key=lambda need: need.n_tokens)
    while left and budget > 0:
        need = left.pop(0)
        n_tokens = min(need.n_tokens, math.ceil(budget / (len(left) + 1)))
        grants.append(Grant(need.id, n_tokens))
        budget -= n_tokens
    return grants


@dataclass(slots=True)
class _ReplyStep:
    """What a step of replies alone takes at one width, and when that was measured last (in steps)."""

    seconds: float
    at_step: int


class PrefillPace:
    """How many prompt tokens a step may compute, from measured step times; owned by the core.

    While replies are decoding, the prompt part of a step may take `STALL_STEPS` times what the replies alone take, so that no
    running reply stalls visibly. How long they take alone is measured per number of replies; where every step holds a piece
    of some prompt, one in `PROBE_EVERY` is left to the replies for that. What a prompt token costs is learned apart with and
    without replies, as small batches may be slow ones.

    Where more people wait for the first word of an answer to something short than read one, all of these prompts are computed
    at once: the few wait once for at most `BURST_S`, and from then on all of them share every step.

    Without replies a step may take `ALONE_S`, so that a cancel or a newcomer is seen soon, but never has under
    `MIN_ALONE_TOKENS`: on a busy machine a low measured rate must not make itself lower. On a fast GPU both are a full batch.
    Background prompts take shorter steps then, since somebody who comes meanwhile waits for the step's end; how often they
    take part beside replies is decided by `engine.core.courtesy`.
    """

    STALL_STEPS = 2.0
    # A stall that nobody sees: with steps shorter than this, larger batches cost nobody anything.
    LEAST_STALL_S = 0.02
    ALONE_S = 0.6
    BACKGROUND_ALONE_S = 0.15
    SHORT_TOKENS = 128
    BURST_S = 1.0
    MIN_TOKENS = 2
    MIN_ALONE_TOKENS = 128
    MIN_BACKGROUND_TOKENS = 32
    PROBE_EVERY = 64
    # While widths change all the time, at most one step in so many is a probe.
    PROBE_GAP = 8
    _FIRST_GUESS_S_PER_TOKEN = 0.004
    _FIRST_GUESS_STEP_S = 0.05
    _WEIGHT = 0.3

    def __init__(self, n_batch: int) -> None:
        self._n_batch = n_batch
        self._alone_s = self._FIRST_GUESS_S_PER_TOKEN
        self._beside_s: float | None = None
        self._reply_steps: dict[int, _ReplyStep] = {}
        self._n_steps = 0
        self._probed_at = -self.PROBE_GAP

    def budget_for(self, needs: Sequence[Need]) -> int:
        """Prompt tokens for the next step, in which these jobs want to go on."""
        prompts = [need for need in needs if not need.is_reply]
        n_replies = len(needs) - len(prompts)
        in_background = all(need.priority >= Priority.BACKGROUND for need in prompts)
        budget = self.budget(n_replies, in_background=in_background)
        short = [
            need.n_tokens
            for need in prompts
            if need.n_tokens <= self.SHORT_TOKENS and need.priority < Priority.BACKGROUND
        ]
        if 0 < n_replies < len(short):
            budget = max(budget, min(sum(short), self._tokens(self.BURST_S, self._alone_s, 1)))
        return budget

    def budget(self, n_replies: int, *, in_background: bool = False) -> int:
        """The same from the number of replies that go on. 0 = a step for the replies alone."""
        if n_replies == 0 and in_background:
            return self._tokens(self.BACKGROUND_ALONE_S, self._alone_s, self.MIN_BACKGROUND_TOKENS)
        if n_replies == 0:
            return self._tokens(self.ALONE_S, self._alone_s, self.MIN_ALONE_TOKENS)
        self._n_steps += 1
        if self._must_probe(n_replies):
            self._probed_at = self._n_steps
            return 0
        step_s = self.reply_step_s(n_replies)
        stall_s = max(self.STALL_STEPS * step_s, self.LEAST_STALL_S)
        token_s = self._alone_s if self._beside_s is None else self._beside_s
        return self._tokens(stall_s, token_s, self.MIN_TOKENS)

    def observe(self, *, n_replies: int, n_prefill: int, elapsed_s: float) -> None:
        """Learn from a finished step."""
        if n_prefill == 0:
            self._note_reply_step(n_replies, elapsed_s)
        elif n_prefill < self.MIN_TOKENS:
            return  # the end of a prompt: too little to measure
        elif n_replies == 0:
            self._alone_s += self._WEIGHT * (elapsed_s / n_prefill - self._alone_s)
        else:
            cost_s = max(elapsed_s - self.reply_step_s(n_replies), elapsed_s / 4) / n_prefill
            before_s = cost_s if self._beside_s is None else self._beside_s
            self._beside_s = before_s + self._WEIGHT * (cost_s - before_s)

    def _tokens(self, seconds: float, token_s: float, least: int) -> int:
        return min(max(least, int(seconds / max(token_s, 1e-9))), self._n_batch)

    def _must_probe(self, n_replies: int) -> bool:
        known = self._reply_steps.get(n_replies)
        if known is not None and self._n_steps - known.at_step < self.PROBE_EVERY:
            return False
        return self._n_steps - self._probed_at >= self.PROBE_GAP

    def reply_step_s(self, n_replies: int) -> float:
        """What a step of so many replies alone takes, in seconds: measured, or that of the nearest known number."""
        if not self._reply_steps:
            return self._FIRST_GUESS_STEP_S
        nearest = min(self._reply_steps, key=lambda n: (abs(n - n_replies), n))
        return self._reply_steps[nearest].seconds

    def _note_reply_step(self, n_replies: int, elapsed_s: float) -> None:
        known = self._reply_steps.get(n_replies)
        if known is None:
            self._reply_steps[n_replies] = _ReplyStep(elapsed_s, self._n_steps)
            return
        # One step that the machine held up is no measure of the others.
        seen_s = min(elapsed_s, 2 * known.seconds)
        known.seconds += self._WEIGHT * (seen_s - known.seconds)
        known.at_step = self._n_steps

"""One request inside the core: its tokens, its text and its times. No decisions; the core makes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.backends.base import Backend, Sampler
from engine.core.lookup import Lookup
from engine.core.scheduler import Ticket
from engine.kv.pool import Seq
from engine.text.output import Piece, ReplyText
from engine.types import EngineRequest, FinishReason, Priority, Usage

# Warm-ups come after everything that somebody waits for.
WARM_PRIORITY = Priority.BACKGROUND + 10
# A shared beginning shorter than this is not worth a place of its own.
MIN_SHARED_TOKENS = 8


@dataclass(slots=True, eq=False)
class Job:
    """A request or a warm-up. Owned by the core; used by its thread only. Times are the core's clock.

    `tokens` is the prompt and all ids of the reply so far, given and sampled; `n_limit` is how long it may become.
    The sequence holds a beginning of it: what is missing there is what there is to compute.
    """

    id: str
    request: EngineRequest
    is_warm: bool
    tokens: list[int]
    n_limit: int
    submitted_at: float
    place: int = 0
    ticket: Ticket | None = None
    seq: Seq | None = None
    sampler: Sampler | None = None
    text: ReplyText | None = None
    lookup: Lookup | None = None
    # The shared prefix that it computes for others too, or that it waits for because another job is computing it.
    builds_prefix: bool = False
    awaits_prefix: bool = False
    # Its conversation's stored blocks are still being read from disk.
    is_loading: bool = False
    forgotten: bool = False
    started: bool = False
    n_cached: int = 0
    admitted_at: float = 0.0
    first_token_at: float = 0.0
    told_progress_at: float = 0.0
    new_ids: list[int] = field(default_factory=list)

    @property
    def priority(self) -> int:
        return WARM_PRIORITY if self.is_warm else self.request.priority

    @property
    def cache_key(self) -> str:
        """The conversation whose KV it uses and leaves behind; none once that was to be forgotten."""
        return "" if self.forgotten else self.request.cache_key

    @property
    def in_background(self) -> bool:
        """Nobody waits for it: it may be displaced."""
        return self.priority >= Priority.BACKGROUND

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt_tokens)

    @property
    def n_given(self) -> int:
        """Tokens that came with the request; all behind them were sampled here."""
        return self.n_prompt + len(self.request.generated_tokens)

    @property
    def n_reply(self) -> int:
        """Ids of the reply, given ones included."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_computed(self) -> int:
        return len(self.seq.tokens) if self.seq else 0

    @property
    def n_to_compute(self) -> int:
        return len(self.tokens) - self.n_computed

    @property
    def prefix(self) -> list[int]:
        """The tokens at the start of the prompt that other conversations of the scope share."""
        return self.tokens[: self.request.n_shared_prefix]

    @property
    def n_shared(self) -> int:
        """Length of that, or 0 where it is too short to be of use."""
        n_shared = self.request.n_shared_prefix
        return n_shared if MIN_SHARED_TOKENS <= n_shared < len(self.tokens) else 0

    @property
    def in_reply(self) -> bool:
        """The next token of the reply is all that is missing."""
        return self.first_token_at > 0 and self.n_to_compute == 1

    @property
    def has_stops(self) -> bool:
        """Whether strings may end the reply, which are seen only in its text."""
        return self.text is not None and self.text.has_stops

    def choose(self, index: int, backend: Backend, offset: int = 0) -> int:
        """The token behind output `offset` of part `index` of the last batch. Raises ValueError without a sampler."""
        if self.sampler is None:
            raise ValueError(f"request {self.id} has no sampler")
        return backend.sample(index, self.sampler, offset)

    def open_reply(self, backend: Backend, stop_texts: tuple[str, ...] = ()) -> bool:
        """Prepare the text and replay the given ids silently. True when they end the reply already."""
        stops = (*self.request.stop, *stop_texts)
        self.text = ReplyText(backend.token_bytes, stops, self.request.thinking_open)
        for token in self.request.generated_tokens:
            if backend.is_eog(token) or self.text.push(token).stopped:
                return True
        return False

    def take(self, token: int, backend: Backend) -> tuple[Piece, FinishReason | None]:
        """The next token of the reply: what it makes visible, and why the reply ends with it, if it does."""
        self.tokens.append(token)
        self.new_ids.append(token)
        if backend.is_eog(token):
            return Piece(), FinishReason.STOP
        piece = self.text.push(token) if self.text else Piece()
        if piece.stopped:
            return piece, FinishReason.STOP
        return piece, FinishReason.LENGTH if len(self.tokens) >= self.n_limit else None

    def usage(self, now: float) -> Usage:
        """What it cost so far."""
        admitted = self.admitted_at or now
        first = self.first_token_at or now
        return Usage(
            n_prompt=self.n_prompt,
            n_cached=min(self.n_cached, self.n_prompt),
            n_generated=self.n_reply,
            queue_s=admitted - self.submitted_at,
            prefill_s=first - admitted if self.admitted_at else 0.0,
            decode_s=now - first,
        )


def keeps_apart(job: Job, running: Iterable[Job]) -> bool:
    """Whether `job` may not run beside these: one of them, or it, is a suspect that has to be computed alone."""
    return any(job.request.alone or other.request.alone for other in running)


def same_talk(a: Job, b: Job) -> bool:
    """Whether two jobs are of one conversation."""
    return (a.request.scope, a.request.cache_key) == (b.request.scope, b.request.cache_key)


def least_needed(job: Job, running: Iterable[Job], *, needs_slot: bool) -> Job | None:
    """Background work that may go for `job`, the least important and newest first. A warm-up gives no slot for a reply."""
    less = [
        other
        for other in running
        if other.in_background
        and other.priority > job.priority
        and not (needs_slot and other.is_warm)
    ]
    return max(less, key=lambda other: (other.priority, other.admitted_at), default=None)

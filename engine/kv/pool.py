"""Sequences in the KV cache: which exist, what they hold, who may share them, and which is thrown out.

Owns every sequence id and every cell of the backend, and all calls that change them except `decode`. It knows no requests,
no text and no time; an order of use is enough for it.

One cache shared by all sequences (`kv_unified`), not one stream per sequence, because
- memory is shared: a kept conversation costs its own cells, where a stream costs a whole window even when idle;
- a prefix is shared by marking cells, where streams copy whole buffers (and abort on a partial copy);
- llama.cpp puts only *consecutive* stream ids into one micro batch: with replies in streams 0, 2, 5 a step is three passes.
What it costs on a CPU is that a query walks past the masked cells of the others: SmolLM2-135M, f16 with flash attention, two
threads, `llama-batched-bench -npp 120 -ntg 96`: 133 / 186 / 214 tokens/s at 1 / 4 / 8 replies, in streams 124 / 192 / 230.
Idle cells have a price, so the sequences that leave first are those that were not used for longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from engine.backends.base import Backend, MemoryKind

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Seq:
    """One sequence. `tokens` is exactly what its cells hold; room for `n_reserved` is kept free for it while it runs.

    `cells` names the cells, one per token, by numbers of the pool's own: shared cells have the same number.
    """

    id: int
    scope: str
    key: str
    is_prefix: bool = False
    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    n_reserved: int = 0
    used_at: int = 0
    # For the KV tiers: the scope's shared beginning, places where later turns may part, and how much is stored.
    n_shared: int = 0
    marks: tuple[int, ...] = ()
    n_saved: int = 0

    @property
    def running(self) -> bool:
        return self.n_reserved > 0

    @property
    def n_to_come(self) -> int:
        """Cells that are promised to it and not yet filled."""
        return max(0, self.n_reserved - len(self.tokens))


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two lists share from the beginning."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next((i for i in range(n) if a[i] != b[i]), n)


class SequencePool:
    """Owner of the backend's sequences; used by the core's thread only."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._free_ids = list(range(backend.n_seq_max))[::-1]
        self._seqs: list[Seq] = []
        self._n_uses = 0
        self._n_cells_ever = 0
        # Holders of a cell, for those that have more than one.
        self._n_holders: dict[int, int] = {}
        self._n_used = 0
        # Told before an idle conversation is thrown out to make room.
        self.on_evict: Callable[[Seq], None] = lambda _: None
        # How often a sequence stopped running: whoever found no room need not try again before that.
        self.n_releases = 0
        # Some places are for conversations, however many system prompts there are.
        self._max_prefixes = max(1, backend.n_seq_max // 4)
        backend.clear()

    @property
    def n_cells_used(self) -> int:
        """Cells that hold something."""
        return self._n_used

    @property
    def n_idle(self) -> int:
        """Kept sequences, shared prefixes included."""
        return sum(not seq.running for seq in self._seqs)

    def __contains__(self, seq: Seq) -> bool:
        return seq in self._seqs

    def n_known(self, scope: str, key: str, tokens: Sequence[int]) -> int:
        """How many of these tokens need no computing, by what is kept now."""
        own, prefix = self._idle_of(scope, key), self._best_prefix(scope, tokens)
        return max(self._reusable(seq.tokens, tokens) if seq else 0 for seq in (own, prefix))

    # Taking, filling and giving back.

    def take(self, scope: str, key: str, tokens: Sequence[int], n_reserve: int) -> Seq | None:
        """A sequence that holds the longest known beginning of `tokens`, and cells for `n_reserve` tokens in all.

        At least the last token is left to compute. None when there is no room, even without all idle sequences; nothing
        has changed then.
        """
        own = self._idle_of(scope, key)
        prefix = self._best_prefix(scope, tokens)
        n_own = self._reusable(own.tokens, tokens) if own else 0
        n_prefix = self._reusable(prefix.tokens, tokens) if prefix else 0
        source, n_known = (prefix, n_prefix) if n_prefix > n_own else (own, n_own)
        if not self._fits(source.cells[:n_known] if source else [], n_reserve):
            return None
        if source is own and own is not None:
            seq = own
            self.cut(seq, n_own)
        else:
            if own is not None:
                self._drop(own)
            seq = self._new(scope, key, source=source, n_known=n_known)
        seq.n_reserved = max(n_reserve, 1)
        self._touch(seq)
        self._make_cells()
        return seq

    def extend(self, seq: Seq, tokens: Sequence[int]) -> None:
        """The backend has computed these tokens behind what the sequence held."""
        seq.tokens += tokens
        seq.cells += range(self._n_cells_ever, self._n_cells_ever + len(tokens))
        self._n_cells_ever += len(tokens)
        self._n_used += len(tokens)

    def cut(self, seq: Seq, length: int) -> None:
        """Keep the first `length` tokens. Where the memory cannot do that exactly, keep none (DESIGN §6)."""
        if length >= len(seq.tokens):
            return
        if self._backend.memory is MemoryKind.RECURRENT:
            length = 0
        self._backend.seq_rm(seq.id, length)
        if length and not self._intact(seq.id, length):
            self._backend.seq_rm(seq.id, 0)
            length = 0
        self._free_cells(seq.cells[length:])
        del seq.tokens[length:], seq.cells[length:]
        seq.n_saved = min(seq.n_saved, length)

    def check(self, seq: Seq) -> None:
        """Empty a sequence whose cells are not what its tokens need (a sliding window that was loaded with gaps)."""
        if seq.tokens and not self._intact(seq.id, len(seq.tokens)):
            _log.warning("kv_sequence_not_intact", n_tokens=len(seq.tokens))
            self._backend.seq_rm(seq.id, 0)
            self._free_cells(seq.cells)
            seq.tokens, seq.cells = [], []

    def n_revocable(self, seq: Seq) -> int:
        """How many tokens may be computed behind what it holds and still be cut off again exactly."""
        if self._backend.memory is MemoryKind.RECURRENT:
            return 0
        n_swa, length = self._backend.n_swa, len(seq.tokens)
        if not n_swa:
            return self._backend.n_ctx_seq
        if length <= n_swa:
            return n_swa - length
        # What lies behind the window may go at any time; while more than the window is still there, it has not gone.
        return max(0, length - n_swa - self._backend.seq_pos_min(seq.id))

    def release(self, seq: Seq, *, keep: bool) -> None:
        """The sequence runs no longer; a kept one becomes the conversation's idle sequence."""
        seq.n_reserved = 0
        self.n_releases += 1
        if not keep or not seq.key or not seq.tokens:
            self._drop(seq)
            return
        for older in self._select(scope=seq.scope, key=seq.key):
            if older is not seq:
                self._drop(older)
        self._touch(seq)

    # Shared beginnings.

    def has_prefix(self, scope: str, tokens: Sequence[int]) -> bool:
        """Whether exactly these tokens are kept as a shared prefix of the scope."""
        wanted = list(tokens)
        return any(
            seq.is_prefix and seq.scope == scope and seq.tokens == wanted for seq in self._seqs
        )

    def publish_prefix(self, seq: Seq, n_tokens: int) -> None:
        """Keep the first `n_tokens` of a sequence as a shared prefix of its scope, if a place for it can be found."""
        exact = self._backend.memory is not MemoryKind.RECURRENT or len(seq.tokens) == n_tokens
        if not exact or n_tokens > len(seq.tokens):
            return
        prefixes = [other for other in self._seqs if other.is_prefix]
        if len(prefixes) >= self._max_prefixes:
            self._drop(min(prefixes, key=lambda other: other.used_at))
        if self._free_ids or self._evict():
            prefix = Seq(self._free_ids.pop(), seq.scope, "", is_prefix=True)
            self._seqs.append(prefix)
            self._share(seq, prefix, n_tokens)
            self._touch(prefix)
            if not prefix.tokens:
                self._drop(prefix)

    def adopt_prefix(self, seq: Seq, tokens: Sequence[int]) -> None:
        """Fill a running sequence from a shared prefix that has become known meanwhile, if it holds more than the sequence."""
        prefix = self._best_prefix(seq.scope, tokens)
        n_known = self._reusable(prefix.tokens, tokens) if prefix else 0
        if prefix is not None and n_known > len(seq.tokens):
            self.cut(seq, 0)
            self._share(prefix, seq, n_known)

    # Throwing out.

    def forget(self, key: str) -> None:
        """Drop every idle sequence of a conversation."""
        for seq in self._select(key=key):
            self._drop(seq)
        for seq in self._seqs:
            if seq.key == key:
                seq.key = ""  # it runs: what it leaves behind belongs to nobody

    def shed(self, n_cells: int) -> None:
        """Throw out idle conversations that are stored elsewhere, the longest unused first, until those that stay hold at
        most `n_cells` cells."""
        idle = [seq for seq in self._seqs if not seq.running and not seq.is_prefix]
        n_idle = sum(len(seq.tokens) - seq.n_shared for seq in idle)
        for seq in sorted(idle, key=lambda seq: seq.used_at):
            if n_idle <= n_cells:
                return
            if seq.key and seq.n_saved >= len(seq.tokens):
                n_idle -= len(seq.tokens) - seq.n_shared
                self._drop(seq)

    def trim_idle(self, scope: str, key: str, tokens: Sequence[int]) -> bool:
        """Whether all of `tokens` is kept for the conversation already. What it holds beyond is cut where that is exact."""
        own = self._idle_of(scope, key)
        if own is None or common_length(own.tokens, tokens) < len(tokens):
            return False
        if self._backend.memory is MemoryKind.ATTENTION:
            self.cut(own, len(tokens))
        return True

    def evict_one(self) -> bool:
        """Throw out the idle sequence that was not used for longest. False = there is none."""
        return self._evict()

    # Bookkeeping.

    def _fits(self, known: list[int], n_reserve: int) -> bool:
        """Whether `n_reserve` tokens, of which cells `known` exist, find room once every idle sequence is gone."""
        running = [seq for seq in self._seqs if seq.running]
        if len(running) >= self._backend.n_seq_max:
            return False
        n_promised = sum(seq.n_to_come for seq in running) + n_reserve - len(known)
        if self._n_used + n_promised <= self._backend.n_cells:
            return True
        held = set(known).union(*(seq.cells for seq in running))
        return len(held) + n_promised <= self._backend.n_cells

    def _make_cells(self) -> None:
        """Evict until every reservation can be met; `_fits` has promised that it can."""
        while self._n_used + sum(seq.n_to_come for seq in self._seqs) > self._backend.n_cells:
            if not self._evict():
                return

    def _evict(self, keep: Seq | None = None) -> bool:
        idle = [seq for seq in self._seqs if not seq.running and seq is not keep]
        if not idle:
            return False
        seq = min(idle, key=lambda seq: seq.used_at)
        self.on_evict(seq)
        self._drop(seq)
        return True

    def _new(self, scope: str, key: str, *, source: Seq | None, n_known: int) -> Seq:
        if not self._free_ids and not self._evict(keep=source):
            self._evict()
            source = None
        seq = Seq(self._free_ids.pop(), scope, key)
        self._seqs.append(seq)
        if source is not None:
            self._share(source, seq, n_known)
        return seq

    def _drop(self, seq: Seq) -> None:
        self._backend.seq_rm(seq.id, 0)
        self._free_cells(seq.cells)
        seq.tokens, seq.cells = [], []
        self._seqs.remove(seq)
        self._free_ids.append(seq.id)

    def _free_cells(self, cells: list[int]) -> None:
        for cell in cells:
            n_holders = self._n_holders.pop(cell, 1)
            if n_holders > 2:
                self._n_holders[cell] = n_holders - 1
            self._n_used -= n_holders == 1

    def _share(self, source: Seq, target: Seq, n_tokens: int) -> None:
        if n_tokens == 0:
            return
        self._backend.seq_cp(source.id, target.id, n_tokens)
        if not self._intact(target.id, n_tokens):
            self._backend.seq_rm(target.id, 0)
            return
        target.tokens, target.cells = source.tokens[:n_tokens], source.cells[:n_tokens]
        for cell in target.cells:
            self._n_holders[cell] = self._n_holders.get(cell, 1) + 1
        self._touch(source)

    def _intact(self, seq_id: int, length: int) -> bool:
        """Whether everything that the next token looks at is still there; True from a cut proves nothing."""
        if self._backend.seq_pos_max(seq_id) != length - 1:
            return False
        if self._backend.memory is MemoryKind.RECURRENT:
            return True
        oldest_needed = max(0, length - self._backend.n_swa) if self._backend.n_swa else 0
        oldest = self._backend.seq_pos_min(seq_id)
        return 0 <= oldest <= oldest_needed

    def _reusable(self, held: Sequence[int], wanted: Sequence[int]) -> int:
        """How much of `held` serves `wanted`, of which at least one token must be computed to have logits."""
        n_same = min(common_length(held, wanted), len(wanted) - 1)
        if self._backend.memory is MemoryKind.RECURRENT and n_same < len(held):
            return 0
        return n_same

    def _best_prefix(self, scope: str, tokens: Sequence[int]) -> Seq | None:
        """The shared prefix that has most in common with these tokens; all of it where a beginning cannot be copied."""
        known = [seq for seq in self._seqs if seq.is_prefix and seq.scope == scope]
        if self._backend.memory is not MemoryKind.ATTENTION:
            known = [seq for seq in known if seq.tokens == list(tokens[: len(seq.tokens)])]
        return max(known, key=lambda seq: common_length(seq.tokens, tokens), default=None)

    def _idle_of(self, scope: str, key: str) -> Seq | None:
        return next(iter(self._select(scope=scope, key=key)), None) if key else None

    def _select(self, *, key: str, scope: str | None = None) -> list[Seq]:
        """Idle sequences of a conversation."""
        return [
            seq
            for seq in self._seqs
            if seq.key == key
            and not seq.running
            and not seq.is_prefix
            and scope in (None, seq.scope)
        ]

    def _touch(self, seq: Seq) -> None:
        self._n_uses += 1
        seq.used_at = self._n_uses

"""Between sequences and KV tiers: what a conversation computed is stored, and comes back when its next message arrives.

Owns which sequences have something unstored and which jobs wait for the disk. Stores a little per step, so that no running
reply waits for it; a conversation that leaves VRAM is stored before it goes. Without tiers every call is a no-op.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from engine.backends.base import Backend, MemoryKind
from engine.core.job import Job
from engine.kv.blocks import BLOCK_TOKENS
from engine.kv.index import Block, Found
from engine.kv.pool import Seq, SequencePool
from engine.kv.tiers import KvTiers, Span
from engine.types import EngineStats

_log = structlog.get_logger()

# Less than this is computed as fast as it is loaded.
_MIN_GAIN_TOKENS: Final = 8
# Blocks stored per step: about 1 ms each for a small model on a CPU, beside a decode of 10 to 100 ms.
_BLOCKS_BESIDE_REPLIES: Final = 2
_BLOCKS_ALONE: Final = 16
# Idle conversations may fill such a part of the cells that running ones fill: each of their cells slows every decode (DESIGN
# §6; 2 µs on a CPU), and they come back in a few milliseconds.
_IDLE_PART: Final = 4
# When nothing has come from the disk for so long, nobody waits for it any more: a network folder may hang for ever.
DISK_PATIENCE_S: Final = 10.0
# What a backend may raise over bytes. Tiers are an optimisation: it must not end the replies that are running.
_BROKEN: Final = (RuntimeError, ValueError, MemoryError)


@dataclass(frozen=True, slots=True)
class Loading:
    """Blocks that a job has been promised, held in RAM for it until it has them."""

    found: Found
    blocks: tuple[Block, ...]


class Keeper:
    """Owned by the core, used by its thread only."""

    def __init__(
        self,
        backend: Backend,
        pool: SequencePool,
        tiers: KvTiers | None,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._pool = pool
        self._tiers = tiers
        self._unsaved: dict[int, Seq] = {}
        self._expected: dict[str, tuple[Block, ...]] = {}
        self._loading: dict[str, Loading] = {}
        # Blocks that the model was given in this step: let go once it has computed something behind them.
        self._given: list[tuple[Block, ...]] = []
        self._clock = clock
        self._n_reads_ended = 0
        self._read_at = 0.0
        if tiers is not None:
            pool.on_evict = self._save_all

    @property
    def has_work(self) -> bool:
        """Whether something waits to be stored."""
        return bool(self._unsaved)

    def complete(self, stats: EngineStats) -> EngineStats:
        """The counters with those of the tiers."""
        if self._tiers is None:
            return stats
        counters = self._tiers.counters
        return msgspec.structs.replace(
            stats,
            kv_ram_bytes=self._tiers.ram_used_bytes,
            kv_disk_bytes=self._tiers.disk_used_bytes,
            kv_saved_tokens_total=counters.n_saved_tokens,
            kv_saved_bytes_total=counters.n_saved_bytes,
            kv_restored_tokens_total=counters.n_restored_tokens,
        )

    def close(self) -> None:
        """Store what is not stored yet, and end the tiers."""
        for seq in list(self._unsaved.values()):
            if not seq.running and seq in self._pool:
                self._save_all(seq)
        if self._tiers is not None:
            self._tiers.close()

    # Coming back.

    def expect(self, job: Job) -> None:
        """A message has arrived: what it will need and VRAM does not hold starts on its way from the disk."""
        if self._tiers is None or not job.cache_key:
            return
        have = self._pool.n_known(job.request.scope, job.cache_key, job.tokens)
        blocks = self._found(job).needed(have, len(job.tokens))
        self._disk_hangs(self._tiers)
        if blocks and self._tiers.hold(blocks, early=True):
            self._expected[job.id] = blocks

    def begin(self, job: Job) -> bool:
        """A job has got its sequence: give it what is stored beyond that. False = it is still being read from disk."""
        if self._tiers is None or job.seq is None or not job.cache_key:
            self._release_expected(job)
            return True
        job.seq.n_shared, job.seq.marks = job.n_shared, (job.n_prompt,)
        if not job.is_warm:
            self._make_quiet([job])  # now, so that its own cells come to lie where those were
        found, have = self._found(job), len(job.seq.tokens)
        if self._backend.memory is MemoryKind.RECURRENT:
            found = found.until_state(len(job.tokens) - 1)
            if found.n_tokens <= have:
                found = Found()
            have = 0
        n_served = min(found.n_tokens, len(job.tokens) - 1)
        blocks = found.needed(have, n_served)
        if (
            not blocks
            or min(blocks[-1].end, n_served) - have < _MIN_GAIN_TOKENS
            or (self._backend.memory is MemoryKind.RECURRENT and blocks[-1].end < n_served)
        ):
            self._release_expected(job)
            return True
        self._disk_hangs(self._tiers)
        self._tiers.hold(blocks)
        self._release_expected(job)
        self._loading[job.id] = Loading(found, blocks)
        return self._load_if_ready(job)

    def go_on(self, running: Iterable[Job]) -> list[Job]:
        """Load what has come from the disk. Returns the jobs that wait for it no longer."""
        waiting = [job for job in running if job.is_loading] if self._loading else []
        return [job for job in waiting if self._load_if_ready(job)]

    def _load_if_ready(self, job: Job) -> bool:
        loading = self._loading.get(job.id)
        if loading is None or self._tiers is None:
            return True
        is_reading = self._tiers.is_reading(loading.blocks)
        job.is_loading = is_reading and not self._disk_hangs(self._tiers)
        if job.is_loading:
            return False
        del self._loading[job.id]
        if job.seq is not None and not is_reading:
            self._load(job, job.seq, loading, self._tiers)
        self._given.append(loading.blocks)
        return True

    def _disk_hangs(self, tiers: KvTiers) -> bool:
        """Whether reads wait and none has ended for too long. Asked before every read as well, where the time begins."""
        if not tiers.n_reads_pending or tiers.n_reads_ended != self._n_reads_ended:
            self._n_reads_ended = tiers.n_reads_ended
            self._read_at = self._clock()
        return self._clock() - self._read_at > DISK_PATIENCE_S

    def leave(self, job: Job) -> None:
        """A job ends or loses its sequence: nothing is held for it any more."""
        self._release_expected(job)
        job.is_loading = False
        loading = self._loading.pop(job.id, None)
        if loading is not None and self._tiers is not None:
            self._tiers.release(loading.blocks)

    def _found(self, job: Job) -> Found:
        request = job.request
        if self._tiers is None:
            return Found()
        return self._tiers.find(request.scope, job.cache_key, job.tokens, job.n_shared)

    def _release_expected(self, job: Job) -> None:
        blocks = self._expected.pop(job.id, None)
        if blocks is not None and self._tiers is not None:
            self._tiers.release(blocks)

    def _load(self, job: Job, seq: Seq, loading: Loading, tiers: KvTiers) -> None:
        if self._backend.memory is MemoryKind.RECURRENT:
            self._pool.cut(seq, 0)
        n_before = len(seq.tokens)
        limit = min(loading.found.n_tokens, len(job.tokens) - 1)
        for block in loading.blocks:
            start, end, data = len(seq.tokens), min(block.end, limit), block.cells.data
            if data is None or start >= end:
                break
            try:
                fits = self._backend.load_cells(seq.id, start, end, data)
            except _BROKEN as error:
                _log.error("kv_load_failed", error=repr(error))
                fits = False
            if not fits:
                _log.warning("kv_block_does_not_fit", start=start, end=end)
                tiers.drop(block)
                break
            self._pool.extend(seq, job.tokens[start:end])
        if self._backend.memory is MemoryKind.RECURRENT:
            self._load_state(seq, loading, tiers)
        self._pool.check(seq)
        tiers.note_restored(max(0, len(seq.tokens) - n_before))

    def _load_state(self, seq: Seq, loading: Loading, tiers: KvTiers) -> None:
        last = loading.blocks[-1]
        state = last.state.data if last.state else None
        if len(seq.tokens) == last.end and state and self._backend.load_state(seq.id, state):
            return
        tiers.drop(last)
        self._pool.cut(seq, 0)

    # Being kept.

    def note(self, seq: Seq) -> None:
        """A turn has ended and its sequence stays: it is stored soon."""
        if self._tiers is not None and seq.key:
            self._unsaved[seq.id] = seq

    def work(self, running: Collection[Job]) -> bool:
        """Store some of what is not stored yet. False = there was nothing to do."""
        if self._tiers is None:
            return False
        while self._given:
            self._tiers.release(self._given.pop())
        busy = any(job.in_reply for job in running)
        n_left = _BLOCKS_BESIDE_REPLIES if busy else _BLOCKS_ALONE
        n_before = n_left
        for seq in list(self._unsaved.values()):
            if n_left > 0 and (seq.running or seq not in self._pool):
                del self._unsaved[seq.id]  # it goes on, and is stored when that ends; or it is gone
            elif n_left > 0:
                n_blocks = self._save(seq, n_left)
                n_left -= n_blocks
                # Nothing to store of it either: a prompt that was cancelled within its scope's shared beginning.
                if not n_blocks or seq.n_saved >= len(seq.tokens):
                    del self._unsaved[seq.id]
        for job in running:
            seq_ = job.seq
            if n_left > 0 and seq_ and len(seq_.tokens) - seq_.n_saved >= BLOCK_TOKENS:
                n_left -= self._save(seq_, n_left, whole=False)
        if busy:
            self._make_quiet(running)
        return n_left < n_before

    def forget(self, key: str, on_gone: Callable[[], None]) -> None:
        """Remove every stored copy of a conversation; `on_gone` as in `KvTiers.forget`."""
        if self._tiers is not None:
            self._tiers.forget(key, on_gone)
        else:
            on_gone()

    def _save_all(self, seq: Seq) -> None:
        """It is about to leave VRAM."""
        if seq.key and seq.n_saved < len(seq.tokens):
            self._save(seq, len(seq.tokens))
        self._unsaved.pop(seq.id, None)

    def _save(self, seq: Seq, n_blocks: int, *, whole: bool = True) -> int:
        """Store at most `n_blocks` blocks of a sequence. Returns how many."""
        if self._tiers is None or not seq.key:
            return 0
        tokens = seq.tokens
        if not whole and self._backend.memory is MemoryKind.RECURRENT:
            tokens = tokens[:-1]  # the turn may end here: the block that ends it brings the state
        spans, n_stored = self._tiers.missing(
            seq.scope, seq.key, tokens, seq.n_shared, marks=seq.marks, whole=whole
        )
        try:
            for span in spans[:n_blocks]:
                self._store(seq, span, self._tiers, with_state=whole)
        except _BROKEN as error:
            _log.error("kv_save_failed", error=repr(error))
            spans, n_stored = [], len(seq.tokens)  # not tried again before there is more of it
        if len(spans) > n_blocks:
            start, n_stored = spans[0].start, spans[n_blocks].start
            if start < seq.n_saved <= n_stored:  # what was stored has gone again: it has no room
                n_stored = len(seq.tokens)
        seq.n_saved = n_stored
        return min(len(spans), n_blocks)

    def _store(self, seq: Seq, span: Span, tiers: KvTiers, *, with_state: bool) -> None:
        cells = self._backend.save_cells(seq.id, span.start, span.end)
        at_end = with_state and span.end == len(seq.tokens)
        state = self._backend.save_state(seq.id) if at_end else None
        tiers.put(span, seq.tokens[span.start : span.end], cells, state or None)

    def _make_quiet(self, running: Iterable[Job]) -> None:
        """Take idle conversations that are stored out of VRAM while they would cost running replies more than they save."""
        if self._backend.memory is MemoryKind.RECURRENT:
            return  # their states lie apart from each other, and take no part in anybody's decode
        self._pool.shed(sum(len(job.tokens) for job in running if job.seq) // _IDLE_PART)

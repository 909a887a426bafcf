"""Measures one loaded model in the moments that decide: a long prompt comes in while everybody is busy, then everybody asks
something behind a long talk at the same moment, and all reply.

Speeds are those of the last two, which are the same tokens behind the same tokens whatever the batch; the first is there for
its peak of memory (with larger batches its pieces lie at other depths, so that its time compares nothing).

Works on the `Backend` protocol alone. Memory is measured by whoever started the process (`engine.vram.tunerun`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.backends.base import Backend, BatchPart, DecodeStatus, MemoryKind
from engine.errors import EngineError
from engine.vram.runs import TURN_PROMPT

# Tokens that are copied to the other sequences at a time: a few MB of RAM.
_PIECE: Final = 64
_SHALLOWEST: Final = 256
_STEPS: Final = (4, 48)  # decodes of all sequences, at least and at most

Tell = Callable[[str, int, int], None]


class NoRoom(EngineError):
    """The sequences do not fit into the cache; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second of all sequences together; `depth` is how many tokens each of them held before it asked."""

    depth: int
    prompt_tps: float
    generation_tps: float


def measure(
    backend: Backend, n_parallel: int, text: list[int], *, depth: int, seconds: float, tell: Tell
) -> Speeds:
    """Takes about `seconds`, or as long as `depth` tokens take. `depth` 0 = the whole window, or what half of the time is
    enough for (256 at least). `tell` hears of the phase and how far it is. Raises NoRoom, DecodeFailed."""
    measuring = _Measuring(backend, n_parallel, text, tell)
    n_prompt = measuring.prompt(depth, seconds / 2)
    prompt_tps = measuring.asking()
    return Speeds(n_prompt, prompt_tps, measuring.generation(seconds / 4))


def longest(backend: Backend, n_parallel: int) -> int:
    """Tokens that every sequence can hold so that what it asks and the steps of generation still fit."""
    room = min(backend.n_ctx_seq, backend.n_cells // n_parallel)
    return max(1, room - min(TURN_PROMPT, room // 8) - _STEPS[1] - 2)


class _Measuring:
    """One measurement. The sequences 0 … n_parallel − 1 are its own."""

    def __init__(self, backend: Backend, n_parallel: int, text: list[int], tell: Tell) -> None:
        self._backend = backend
        self._n = n_parallel
        self._text = text
        self._tell = tell
        self._ends = [0] * n_parallel

    def prompt(self, depth: int, seconds: float) -> int:
        """Sequence 0 computes a long prompt and the others get copies of what it wrote; the last batch is computed while
        all others reply. Returns the tokens of each."""
        backend = self._backend
        limit = longest(backend, self._n)
        wanted = min(depth or self._affordable(seconds), limit)
        last = min(wanted, backend.n_batch - self._n + 1)
        computed = 0
        while computed < wanted - last:
            n_tokens = min(backend.n_batch, wanted - last - computed)
            self._extend(0, n_tokens)
            self._copy(computed, computed + n_tokens)
            computed += n_tokens
            self._tell("prompt", computed, wanted)
        self._copy_state()
        self._together(last)
        self._tell("prompt", wanted, wanted)
        self._copy(computed + 1, computed + last)
        self._copy_state()
        return self._ends[0]

    def asking(self) -> float:
        """Everybody's next question at the same moment, in as few batches as there can be; tokens per second. It is shorter
        where windows are small or a token takes long."""
        depth = self._ends[0]
        room = min(self._backend.n_ctx_seq, self._backend.n_cells // self._n)
        n_each = max(1, min(TURN_PROMPT, room // 8, depth // max(4, self._n)))
        left = [n_each] * self._n
        started = time.perf_counter()
        while any(left):
            parts, room = [], self._backend.n_batch
            for seq_id in range(self._n):
                n_tokens = min(left[seq_id], room)
                if n_tokens:
                    parts.append(self._part(seq_id, n_tokens))
                left[seq_id] -= n_tokens
                room -= n_tokens
            self._decode(parts)
            for part in parts:
                self._ends[part.seq_id] += len(part.tokens)
        return self._n * n_each / (time.perf_counter() - started)

    def _affordable(self, seconds: float) -> int:
        """Tokens that can be computed in so many seconds, by a first piece."""
        n_tokens = min(_PIECE, self._backend.n_batch, longest(self._backend, self._n))
        rate = n_tokens / self._extend(0, n_tokens)
        self._empty(0)
        return max(_SHALLOWEST, round(rate * seconds) // _PIECE * _PIECE)

    def generation(self, seconds: float) -> float:
        """All sequences go on by one token of the text at a time; tokens per second. Choosing tokens is left out: it costs
        the same with all settings."""
        least, most = _STEPS
        spent = 0.0
        n_steps = 0
        for step in range(most + 1):
            started = time.perf_counter()
            self._decode([self._part(i, 1) for i in range(self._n)])
            self._ends = [end + 1 for end in self._ends]
            if step:  # the first one prepares what the others use
                spent += time.perf_counter() - started
                n_steps += 1
            self._tell("generation", n_steps, most)
            if n_steps >= least and spent >= seconds:
                break
        return self._n * n_steps / spent

    def _extend(self, seq_id: int, n_tokens: int) -> float:
        """Compute more of one sequence; seconds."""
        started = time.perf_counter()
        self._decode([self._part(seq_id, n_tokens)])
        self._ends[seq_id] += n_tokens
        return time.perf_counter() - started

    def _copy(self, start: int, end: int) -> None:
        """Give the other sequences cells of their own with what sequence 0 wrote there, without computing it."""
        backend = self._backend
        piece = min(_PIECE, backend.n_swa or _PIECE)
        for at in range(start, end, piece):
            until = min(at + piece, end)
            data = backend.save_cells(0, at, until)
            for seq_id in range(1, self._n):
                if not backend.load_cells(seq_id, at, until, data):
                    raise NoRoom("the conversations do not fit into the KV cache together")
        self._ends[1:] = [end] * (self._n - 1)

    def _copy_state(self) -> None:
        if self._backend.memory is not MemoryKind.RECURRENT or not self._ends[0]:
            return
        state = self._backend.save_state(0)
        for seq_id in range(1, self._n):
            self._backend.load_state(seq_id, state)

    def _empty(self, seq_id: int) -> None:
        self._backend.seq_rm(seq_id, 0)
        self._ends[seq_id] = 0

    def _together(self, n_tokens: int) -> None:
        """One batch of everybody: the end of a long prompt, and a token of each reply."""
        others = [self._part(i, 1) for i in range(1, self._n)]
        self._decode([self._part(0, n_tokens), *others])
        self._ends = [self._ends[0] + n_tokens, *(end + 1 for end in self._ends[1:])]

    def _decode(self, parts: list[BatchPart]) -> None:
        if self._backend.decode(parts) is not DecodeStatus.DONE:
            raise NoRoom("the conversations do not fit into the KV cache together")

    def _part(self, seq_id: int, n_tokens: int) -> BatchPart:
        start = self._ends[seq_id]
        tokens = [self._at(i) for i in range(start, start + n_tokens)]
        return BatchPart(seq_id, start, tokens, 1)

    def _at(self, position: int) -> int:
        return self._text[position % len(self._text)]

"""A real backend that is given its tokens (teacher-forced), so that one early difference cannot lead to another text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import llama_cpp as llama
import numpy as np

from engine.backends.base import BatchPart, DecodeStatus, MemoryKind
from engine.backends.llamacpp import LlamaBackend
from engine.config import EngineConfig

Logits = np.ndarray[Any, np.dtype[np.float32]]

N_FOLLOWED: Final = 16
# Added to the yardstick, which is 0 where chunks happen to make no difference; the logits spread by 3.
EPSILON: Final = 0.005
N_BATCH: Final = 128
_N_VOCAB_REAL: Final = 1000
_PROSE: Final = Path(__file__).parents[2] / "docs" / "architecture.md"


def open_backend(path: str | Path, cache_type: str = "f16", **fields: Any) -> LlamaBackend:
    """A small context on one thread."""
    settings: dict[str, Any] = {
        "name": "t",
        "path": str(path),
        "n_ctx": 1024,
        "kv_cells": 1024,
        "n_parallel": 4,
        "n_batch": N_BATCH,
        "n_threads": 1,
        "cache_type_k": cache_type,
        "cache_type_v": cache_type,
    }
    return LlamaBackend(EngineConfig(**(settings | fields)))


class Forcing:
    """Owner of a backend's sequences while it is measured; every text begins at position 0 of its sequence."""

    def __init__(self, backend: LlamaBackend) -> None:
        self.backend = backend

    def length(self, seq_id: int) -> int:
        """Tokens in a sequence."""
        return self.backend.seq_pos_max(seq_id) + 1

    def decode(self, wants_outputs: bool, *parts: tuple[int, Sequence[int]]) -> None:
        """Compute the next tokens of some sequences in one batch, with logits behind every token or none."""
        status = self.backend.decode(
            [
                BatchPart(seq_id, self.length(seq_id), tokens, len(tokens) * wants_outputs)
                for seq_id, tokens in parts
            ]
        )
        assert status is DecodeStatus.DONE, "the cache is too small for this measurement"

    def logits(self, row: int) -> Logits:
        """Behind a token of the last batch, by its place in it."""
        pointer = llama.llama_get_logits_ith(self.backend._context, row)
        values: Logits = np.ctypeslib.as_array(pointer, shape=(self.backend.n_vocab,)).copy()
        assert np.isfinite(values).all(), "logits that are no numbers"
        return values

    def feed(self, seq_id: int, tokens: Sequence[int], n_chunk: int = N_BATCH) -> None:
        """Compute tokens without looking at logits."""
        for i in range(0, len(tokens), n_chunk):
            self.decode(False, (seq_id, tokens[i : i + n_chunk]))

    def follow(self, seq_id: int, tokens: Sequence[int], *beside: int, n_chunk: int = 1) -> Logits:
        """Compute tokens with the logits behind each, and a step of the sequences `beside` in every batch."""
        rows = []
        for i in range(0, len(tokens), n_chunk):
            chunk = tokens[i : i + n_chunk]
            others = [(other, [(7 * other + i) % 100]) for other in beside]
            place = i % (len(others) + 1)  # the place in the batch must not matter
            self.decode(True, *others[:place], (seq_id, chunk), *others[place:])
            rows += [self.logits(place + j) for j in range(len(chunk))]
        return np.stack(rows)

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """The likeliest tokens behind a prompt, without looking for the end of the text."""
        self.backend.clear()
        self.feed(0, prompt[:-1])
        ids: list[int] = [prompt[-1]]
        for _ in range(n_tokens):
            self.decode(True, (0, ids[-1:]))
            ids.append(int(self.logits(0).argmax()))
        return ids[1:]

    def intact(self, seq_id: int, length: int) -> bool:
        """Whether the next token sees all it should: the condition of engine.kv.pool."""
        if self.backend.seq_pos_max(seq_id) != length - 1:
            return False
        if self.backend.memory is MemoryKind.RECURRENT:
            return True
        oldest = max(0, length - self.backend.n_swa) if self.backend.n_swa else 0
        return 0 <= self.backend.seq_pos_min(seq_id) <= oldest


def some_text(backend: LlamaBackend, n_tokens: int, seed: int) -> list[int]:
    """Tokens of prose for a real model, ordinary tokens for a random one; the same for the same seed."""
    if backend.n_vocab < _N_VOCAB_REAL:
        return random.Random(seed).choices(range(backend.n_vocab - 8), k=n_tokens)
    prose = backend.tokenize(_PROSE.read_text(), add_special=False, parse_special=False)
    start = 331 * seed % (len(prose) - n_tokens)
    return prose[start : start + n_tokens]


def difference(a: Logits, b: Logits) -> float:
    """Largest distance of two logits."""
    return float(np.abs(a - b).max())


def n_wrong_choices(reference: Logits, other: Logits, noise: float) -> int:
    """Rows whose best token is another one although it was best by more than twice the noise."""
    ordered = np.sort(reference, axis=1)
    decided = ordered[:, -1] - ordered[:, -2] > 2 * noise
    return int((decided & (reference.argmax(axis=1) != other.argmax(axis=1))).sum())


@dataclass(frozen=True, slots=True)
class Text:
    """What is computed: a prompt, then the followed tokens; `junk` is what never belonged to it."""

    prompt: list[int]
    followed: list[int]
    junk: list[int]

    @classmethod
    def of(cls, backend: LlamaBackend, n_prompt: int, seed: int = 1) -> Text:
        """A random text."""
        tokens = some_text(backend, n_prompt + N_FOLLOWED + 40, seed)
        end = n_prompt + N_FOLLOWED
        return cls(tokens[:n_prompt], tokens[n_prompt:end], tokens[end:])

    def with_another(self, start: int, end: int) -> Text:
        """The same with other tokens at [start, end) of the prompt."""
        others = [(token + 11) % 250 for token in self.prompt[start:end]]
        return Text([*self.prompt[:start], *others, *self.prompt[end:]], self.followed, self.junk)

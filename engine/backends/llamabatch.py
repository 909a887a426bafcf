"""The arrays behind one `llama_batch`. Import after `engine.backends.llamacpp`, which prepares the environment."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp as llama

from engine.backends.base import BatchPart


class LlamaBatch:
    """Arrays for one `llama_batch`, filled anew for every step; owned by the backend."""

    def __init__(self, n_max: int) -> None:
        self._tokens = (llama.llama_token * n_max)()
        self._positions = (llama.llama_pos * n_max)()
        self._n_seq_ids = (ctypes.c_int32 * n_max)(*([1] * n_max))
        self._seq_ids = (llama.llama_seq_id * n_max)()
        pointer = ctypes.POINTER(llama.llama_seq_id)
        size = ctypes.sizeof(llama.llama_seq_id)
        start = ctypes.addressof(self._seq_ids)
        self._seq_id_pointers = (pointer * n_max)(
            *(ctypes.cast(start + size * i, pointer) for i in range(n_max))
        )
        self._outputs = (ctypes.c_int8 * n_max)()
        self._batch = llama.llama_batch(
            0,
            self._tokens,
            None,
            self._positions,
            self._n_seq_ids,
            self._seq_id_pointers,
            self._outputs,
        )
        # Per part: the rows that have logits.
        self.output_rows: list[range] = []
        # Per part: how many outputs of the batch come before its own.
        self.first_outputs: list[int] = []

    def fill(self, parts: Sequence[BatchPart]) -> Any:
        """The batch for llama_decode; valid until the next call."""
        at = n_outputs = 0
        self.output_rows = []
        self.first_outputs = []
        for part in parts:
            n = len(part.tokens)
            end = at + n
            if n == 1:  # the next token of a reply: nearly all that there is
                self._tokens[at] = part.tokens[0]
                self._positions[at] = part.start
                self._seq_ids[at] = part.seq_id
                self._outputs[at] = part.n_outputs
            else:
                self._tokens[at:end] = list(part.tokens)
                self._positions[at:end] = range(part.start, part.start + n)
                self._seq_ids[at:end] = [part.seq_id] * n
                self._outputs[at:end] = [0] * n
                self._outputs[end - part.n_outputs : end] = [1] * part.n_outputs
            self.output_rows.append(range(end - part.n_outputs, end))
            self.first_outputs.append(n_outputs)
            n_outputs += part.n_outputs
            at = end
        self._batch.n_tokens = at
        return self._batch

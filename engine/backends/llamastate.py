"""Pieces of a sequence's memory as bytes and back, through one scratch sequence. Import after `engine.backends.llamacpp`.

Two kinds of pieces:
- cells: what positions [start, end) wrote, of every layer that keeps one entry per token;
- the state: what a recurrent (or hybrid) model carries along besides, one for the whole sequence, only true for its very end.

llama.cpp writes whole sequences; a piece is cut out by sharing its positions with the scratch sequence, which costs no cell.
It cannot write the cells of a hybrid model without the state, so the state at the end of the bytes (llama-memory-hybrid.cpp,
state_write: attention first) is cut off, and an empty one is put there before they are read again.

With a sliding window a piece may lack what the window no longer showed: llama.cpp does not write cells that the last position
of a piece does not see (a piece longer than the window), and it lets other sequences overwrite such cells at any time, also
while there are free ones. Going on behind what was restored needs none of them; going back would, and llama.cpp's own
`seq_pos_min` tells of no gap in the middle. So gaps are looked for when pieces are read, and `whole_from` tells of them.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import llama_cpp as llama

_ALL: Final = 0
_STATE_ONLY: Final = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_HEADER_BYTES: Final = 8  # magic and sequence id (llama-context.cpp, state_seq_get_data)


class SequenceBytes:
    """Owned by the backend, which owns context and scratch sequence too; used by the loop thread only."""

    def __init__(
        self,
        context: Any,
        scratch: int,
        *,
        has_state: bool,
        has_cells: bool = True,
        has_window: bool = False,
    ) -> None:
        """`scratch` is a sequence id that nobody else uses. `has_state`: recurrent or hybrid; `has_cells`: anything else;
        `has_window`: sliding."""
        self._context = context
        self._kv = llama.llama_get_memory(context)
        self._scratch = scratch
        self._has_state = has_state
        self._has_cells = has_cells
        self._has_window = has_window
        self._whole_from: dict[int, int] = {}
        self._clear()
        self._no_state = self._read(_STATE_ONLY)[_HEADER_BYTES:] if has_state else bytearray()

    def save_cells(self, seq_id: int, start: int, end: int) -> bytearray:
        """The cells of positions [start, end); empty where the model has none."""
        if not self._has_cells:
            return bytearray()
        llama.llama_memory_seq_cp(self._kv, seq_id, self._scratch, start, end)
        try:
            n_state = self._size(_STATE_ONLY) - _HEADER_BYTES if self._has_state else 0
            data = self._read(_ALL)
            del data[len(data) - n_state :]
            return data
        finally:
            self._clear()

    def load_cells(self, seq_id: int, start: int, end: int, data: bytes | bytearray) -> bool:
        """Add positions [start, end) to a sequence, from bytes that cover at least these. False = the bytes do not fit here
        or there is no room; the sequence is as before then."""
        if not self._has_cells:
            return True
        try:
            if self._has_state:
                data = bytes(data) + self._no_state
            if not self._write(self._scratch, data, _ALL):
                return False
            llama.llama_memory_seq_cp(self._kv, self._scratch, seq_id, start, end)
            self._note_gap(seq_id, start, end)
            return True
        finally:
            self._clear()

    def save_state(self, seq_id: int) -> bytearray:
        """The state at the end of a sequence; empty where the model has none."""
        return self._read(_STATE_ONLY, seq_id) if self._has_state else bytearray()

    def load_state(self, seq_id: int, data: bytes | bytearray) -> bool:
        """Give a sequence whose cells end where the state was saved its state. False = the bytes do not fit here."""
        return not self._has_state or self._write(seq_id, data, _STATE_ONLY)

    def whole_from(self, seq_id: int) -> int:
        """Positions below this one may be missing, although `seq_pos_min` is smaller."""
        return self._whole_from.get(seq_id, 0)

    def emptied(self, seq_id: int | None = None) -> None:
        """A sequence (None = every one) holds nothing any more."""
        if seq_id is None:
            self._whole_from.clear()
        else:
            self._whole_from.pop(seq_id, None)

    def shared(self, source: int, target: int) -> None:
        """`target` was empty and has a beginning of `source` now."""
        if source in self._whole_from:
            self._whole_from[target] = self._whole_from[source]

    def _note_gap(self, seq_id: int, start: int, end: int) -> None:
        """The scratch sequence has what the bytes gave; [start, end) of it belongs to the sequence now."""
        if self._has_window:
            oldest = int(llama.llama_memory_seq_pos_min(self._kv, self._scratch))
            if not 0 <= oldest <= start:
                self._whole_from[seq_id] = oldest if start < oldest < end else end

    def _clear(self) -> None:
        llama.llama_memory_seq_rm(self._kv, self._scratch, -1, -1)

    def _size(self, flags: int, seq_id: int | None = None) -> int:
        seq_id = self._scratch if seq_id is None else seq_id
        return int(llama.llama_state_seq_get_size_ext(self._context, seq_id, flags))

    def _read(self, flags: int, seq_id: int | None = None) -> bytearray:
        seq_id = self._scratch if seq_id is None else seq_id
        n_bytes = self._size(flags, seq_id)
        data = bytearray(n_bytes)
        target = (ctypes.c_uint8 * n_bytes).from_buffer(data)
        n_written = llama.llama_state_seq_get_data_ext(
            self._context, target, n_bytes, seq_id, flags
        )
        if n_written != n_bytes or n_bytes <= _HEADER_BYTES:
            raise RuntimeError(f"llama.cpp wrote {n_written} of {n_bytes} bytes of a sequence")
        return data

    def _write(self, seq_id: int, data: bytes | bytearray, flags: int) -> bool:
        source: Any
        if isinstance(data, bytearray):
            source = (ctypes.c_uint8 * len(data)).from_buffer(data)
        else:
            source = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        n_read = int(
            llama.llama_state_seq_set_data_ext(self._context, source, len(data), seq_id, flags)
        )
        return 0 < n_read == len(data)  # 0 = refused

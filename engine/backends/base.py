"""What the core needs of something that runs a model: one context, many sequences, explicit positions.

A backend owns the model, its context and the memory behind it, and nothing else: it knows no requests, no queue and no
policy. Every call except the text questions (`tokenize`, `token_bytes`, `is_eog`, `chat_template`, `info`, …) belongs to
the engine's one loop thread; the text questions may come from any thread, also while `decode` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from engine.config import EngineConfig
from engine.errors import EngineConfigError, EngineError
from engine.types import KvReuse, ModelInfo, Sampling


class MemoryKind(StrEnum):
    """How the state of a sequence can be changed after it was computed (DESIGN §6, "Memory kinds")."""

    ATTENTION = "attention"  # any tail can be cut, any prefix copied
    SLIDING = "sliding"  # as above while the positions inside the window are still there: check `seq_pos_min`
    RECURRENT = "recurrent"  # only whole copies and exact extension


REUSE: Final = {
    MemoryKind.ATTENTION: KvReuse.ANYWHERE,
    MemoryKind.SLIDING: KvReuse.WINDOW,
    MemoryKind.RECURRENT: KvReuse.TURN_ENDS,
}


class DecodeStatus(StrEnum):
    """What became of a batch that did not fail."""

    DONE = "done"
    NO_SLOT = "no_slot"  # no free cells for it; the memory is as before the call


class DecodeFailed(EngineError):
    """The backend gave up in the middle of a batch; the sequences in it hold an unknown number of positions."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Consecutive tokens of one sequence; `start` is the position of the first.

    `n_outputs`: logits of so many of the last tokens are needed, so that `Backend.sample` may be called for them.
    """

    seq_id: int
    start: int
    tokens: Sequence[int]
    n_outputs: int


class Sampler(Protocol):
    """The state of one reply's token choice. Belongs to the loop thread."""

    def close(self) -> None:
        """Free native memory; calling it twice is harmless."""
        ...


class Backend(Protocol):
    """One loaded model. Lengths are tokens; positions start at 0."""

    @property
    def n_ctx_seq(self) -> int:
        """Tokens one conversation may have: min(configured window, training length, cells of one sequence)."""
        ...

    @property
    def n_cells(self) -> int:
        """KV cells shared by all sequences; a cell that several sequences share counts once."""
        ...

    @property
    def n_seq_max(self) -> int:
        """Sequence ids run from 0 to n_seq_max - 1."""
        ...

    @property
    def n_batch(self) -> int:
        """Most tokens in one `decode`."""
        ...

    @property
    def n_outputs_max(self) -> int:
        """Most outputs in one `decode`, all parts together; at least one per reply that may run at once."""
        ...

    @property
    def n_vocab(self) -> int:
        """Token ids run from 0 to n_vocab - 1."""
        ...

    @property
    def memory(self) -> MemoryKind:
        """What may be done to a sequence."""
        ...

    @property
    def n_swa(self) -> int:
        """Length of the sliding window; 0 = none."""
        ...

    @property
    def bos_text(self) -> str:
        """Text of the begin token as chat templates want it; "" = none."""
        ...

    @property
    def eos_text(self) -> str:
        """Text of the end token as chat templates want it; "" = none."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether `tokenize(add_special=True)` puts a begin token in front."""
        ...

    def info(self) -> ModelInfo:
        """What is loaded."""
        ...

    def chat_template(self) -> str:
        """The model's own Jinja template; "" when the file has none."""
        ...

    def special_texts(self) -> tuple[str, ...]:
        """Texts that `tokenize(parse_special=True)` turns into control tokens."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text. Thread-safe."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the visible text; b"" for control tokens. Thread-safe."""
        ...

    def is_eog(self, token_id: int) -> bool:
        """Whether the token ends a reply. Thread-safe."""
        ...

    def new_sampler(self, sampling: Sampling, accepted: Sequence[int]) -> Sampler:
        """A token chooser that behaves as if it had chosen `accepted` already."""
        ...

    def decode(self, parts: Sequence[BatchPart]) -> DecodeStatus:
        """Compute a batch. Raises DecodeFailed, and ValueError for a batch beyond the limits above."""
        ...

    def sample(self, part_index: int, sampler: Sampler, offset: int = 0) -> int:
        """Choose the token behind output `offset` of part `part_index` of the last batch, and let `sampler` accept it.

        Outputs of one part are asked for in order, the next one only when the token chosen is the one that the part has there.
        """
        ...

    def seq_rm(self, seq_id: int, start: int) -> None:
        """Drop positions ≥ `start` of a sequence; 0 empties it. Proves nothing: check `seq_pos_min`/`seq_pos_max`."""
        ...

    def seq_cp(self, source: int, target: int, length: int) -> None:
        """Let `target` (empty) share the first `length` positions of `source`."""
        ...

    def seq_pos_min(self, seq_id: int) -> int:
        """Smallest position from which on everything is held; -1 = the sequence is empty."""
        ...

    def seq_pos_max(self, seq_id: int) -> int:
        """Largest position held; -1 = none."""
        ...

    def save_cells(self, seq_id: int, start: int, end: int) -> bytes | bytearray:
        """What positions [start, end) of a sequence wrote, as bytes; empty where a model keeps nothing per token.

        With a sliding window they may lack what the window no longer showed; `seq_pos_min` tells after `load_cells`. Changes
        nothing, and needs no cell.
        """
        ...

    def load_cells(self, seq_id: int, start: int, end: int, data: bytes | bytearray) -> bool:
        """Add positions [start, end) behind what the sequence holds, from saved bytes that cover at least these. False =
        the bytes are not of this context, or there is no room; the sequence is as before then."""
        ...

    def save_state(self, seq_id: int) -> bytes | bytearray:
        """What a recurrent model carries besides its cells, at the end of a sequence; empty for other models."""
        ...

    def load_state(self, seq_id: int, data: bytes | bytearray) -> bool:
        """Complete a sequence whose cells end where the state was saved. False = the bytes are not of this context."""
        ...

    def state_format(self) -> str:
        """Changes when saved bytes of the same model file would be wrong here (cache types, build)."""
        ...

    def clear(self) -> None:
        """Empty every sequence."""
        ...

    def close(self) -> None:
        """Free the model; calling it twice is harmless."""
        ...


def make_backend(config: EngineConfig) -> Backend:
    """Load what `config` names. Raises EngineConfigError with one sentence when that cannot work."""
    if config.backend == "llama.cpp":
        from engine.backends.llamacpp import LlamaBackend

        return LlamaBackend(config)
    if config.backend == "fake":
        from engine.backends.fake import FakeBackend

        return FakeBackend(config)
    raise EngineConfigError(
        f'models.{config.name}.backend: "{config.backend}" does not run in the engine process; '
        'use "llama.cpp" or "fake"'
    )

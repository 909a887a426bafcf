"""How far logits move when the same text is computed, shared, cut or restored in different ways.

Every way ends in the same followed tokens; the logits behind each are compared with those of the plain way (a prompt in
full batches, then one token after the other, alone). What mere re-chunking of the same tokens gives is the yardstick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.backends.base import BatchPart, DecodeStatus, MemoryKind
from engine.backends.llamacpp import LlamaBackend
from engine.kv.blocks import BLOCK_TOKENS
from tests.support.forcing import (
    EPSILON,
    N_BATCH,
    Forcing,
    Logits,
    Text,
    difference,
    n_wrong_choices,
    some_text,
)

_RECHUNKS: Final = ((1, 1), (7, 2), (31, 8), (70, 3))

# Each of these begins with an empty cache and returns the logits behind the followed tokens.


def plain(
    forcing: Forcing, text: Text, n_chunk: int = N_BATCH, n_followed_chunk: int = 1
) -> Logits:
    """Alone, in chunks of given sizes."""
    forcing.backend.clear()
    forcing.feed(0, text.prompt, n_chunk)
    return forcing.follow(0, text.followed, n_chunk=n_followed_chunk)


def batched(forcing: Forcing, text: Text) -> Logits:
    """Beside three other sequences: one reply, and two prompts in chunks of other sizes."""
    forcing.backend.clear()
    others = [some_text(forcing.backend, len(text.prompt), seed) for seed in (11, 12, 13)]
    forcing.feed(1, others[0][:20])
    at = [0, 20, 0, 0]
    sizes = (48, 1, 31, 17)
    texts = (text.prompt, *others)
    while at[0] < len(text.prompt):
        parts = [
            (seq_id, texts[seq_id][at[seq_id] : at[seq_id] + sizes[seq_id]]) for seq_id in range(4)
        ]
        parts = [part for part in parts if part[1]]
        at = [at[i] + sizes[i] for i in range(4)]
        forcing.decode(False, *sorted(parts, key=lambda part: len(part[1])))
    return forcing.follow(0, text.followed, 1, 2, 3)


def cut(forcing: Forcing, text: Text, length: int) -> Logits | None:
    """Prompt and more were there, all behind `length` is cut and computed again. None = the memory cannot do that."""
    forcing.backend.clear()
    forcing.feed(0, [*text.prompt, *text.junk])
    forcing.backend.seq_rm(0, length)
    if not forcing.intact(0, length):
        return None
    forcing.feed(0, text.prompt[length:])
    return forcing.follow(0, text.followed)


def copied(forcing: Forcing, text: Text, length: int) -> Logits | None:
    """The beginning is shared with a sequence that goes on otherwise. None = the memory cannot do that."""
    forcing.backend.clear()
    whole = forcing.backend.memory is MemoryKind.RECURRENT
    forcing.feed(0, text.prompt[:length] if whole else [*text.prompt[:length], *text.junk])
    forcing.backend.seq_cp(0, 1, length)
    if not forcing.intact(1, length):
        return None
    forcing.feed(0, text.junk)
    forcing.feed(1, text.prompt[length:])
    return forcing.follow(1, text.followed, 0)


# Bytes.


@dataclass(frozen=True, slots=True)
class Saved:
    """A sequence as bytes."""

    blocks: list[tuple[int, int, bytes]]
    state: bytes


def save(forcing: Forcing, seq_id: int, end: int) -> Saved:
    """Every block of the first `end` tokens of a sequence, and its state."""
    backend = forcing.backend
    n_block = min(BLOCK_TOKENS, backend.n_swa or BLOCK_TOKENS)  # as engine.kv.opening
    spans = [(i, min(i + n_block, end)) for i in range(0, end, n_block)]
    blocks = [(start, end, bytes(backend.save_cells(seq_id, start, end))) for start, end in spans]
    return Saved(blocks, bytes(backend.save_state(seq_id)))


def load(forcing: Forcing, seq_id: int, saved: Saved) -> None:
    """All of it into an empty sequence."""
    for start, end, data in saved.blocks:
        assert forcing.backend.load_cells(seq_id, start, end, data), f"block {start} did not fit"
    assert forcing.backend.load_state(seq_id, saved.state), "the state did not fit"
    assert forcing.length(seq_id) == saved.blocks[-1][1]


def fragment(forcing: Forcing) -> None:
    """Fill the cache with pieces of two sequences in turn and drop one of them: every gap is ten cells."""
    n_piece, n_pairs = 10, N_BATCH // 20
    for i in range((forcing.backend.n_cells - 24) // (2 * n_piece * n_pairs)):
        parts = [
            BatchPart(seq_id, (i * n_pairs + j) * n_piece, [seq_id] * n_piece, 0)
            for j in range(n_pairs)
            for seq_id in (4, 5)
        ]
        assert forcing.backend.decode(parts) is DecodeStatus.DONE
    forcing.backend.seq_rm(4, 0)


def restored(forcing: Forcing, text: Text, *, fragmented: bool = False) -> Logits:
    """Saved, dropped, restored, gone on."""
    forcing.backend.clear()
    n_prompt = len(text.prompt)
    forcing.feed(0, text.prompt)
    saved = save(forcing, 0, n_prompt)
    forcing.backend.seq_rm(0, 0)
    if fragmented:
        fragment(forcing)
    load(forcing, 0, saved)
    assert forcing.intact(0, n_prompt)
    # Bytes are in the order of cells, which is that of positions only where nothing else is.
    if not fragmented:
        assert save(forcing, 0, n_prompt) == saved, "what came back is not what was saved"
    return forcing.follow(0, text.followed)


def restored_and_cut(forcing: Forcing, text: Text, length: int) -> Logits | None:
    """Saved with more behind it, restored between other cells, cut, gone on. None = the memory cannot do that."""
    forcing.backend.clear()
    forcing.feed(0, [*text.prompt, *text.junk])
    saved = save(forcing, 0, forcing.length(0))
    forcing.backend.seq_rm(0, 0)
    fragment(forcing)
    load(forcing, 1, saved)
    forcing.backend.seq_rm(1, length)
    if not forcing.intact(1, length):
        return None
    forcing.feed(1, text.prompt[length:])
    return forcing.follow(1, text.followed)


def checkpoint(forcing: Forcing, text: Text, *, state_of: Text | None = None) -> Logits:
    """The state was saved where the prompt ended, the cells only when more was behind it; both restored there.

    With `state_of` the state is another text's, which must be seen.
    """
    forcing.backend.clear()
    if state_of is not None:
        forcing.feed(1, state_of.prompt)
    forcing.feed(0, text.prompt)
    state = bytes(forcing.backend.save_state(0 if state_of is None else 1))
    forcing.feed(0, text.junk)
    saved = save(forcing, 0, len(text.prompt))
    forcing.backend.clear()
    load(forcing, 0, Saved(saved.blocks, state))
    return forcing.follow(0, text.followed)


# All of it.


@dataclass(frozen=True, slots=True)
class Figures:
    """Largest distances from the plain way, over some texts; None = the memory cannot do that, and it was noticed."""

    rechunk: float
    batched: float
    cut: float | None
    copied: float | None
    restored: float
    fragmented: float
    restored_cut: float | None
    checkpoint: float
    # What must be seen: other tokens in a part of the prompt, and another text's state (0 where there is none).
    wrong_cells: float
    wrong_state: float
    n_wrong_choices: int

    @property
    def allowed(self) -> float:
        """The most that a right memory may give."""
        return 2 * self.rechunk + EPSILON


class Measurement:
    """Collects what one way of computing gives over several texts."""

    def __init__(self) -> None:
        self.largest: dict[str, float | None] = {}
        self.pairs: list[tuple[Logits, Logits]] = []

    def add(self, way: str, reference: Logits, logits: Logits | None) -> None:
        """None stays None: a memory that cannot do something for one text cannot for the others."""
        if logits is None:
            self.largest[way] = None
            return
        known = self.largest.get(way, 0.0)
        self.largest[way] = None if known is None else max(known, difference(reference, logits))
        if not way.startswith("wrong"):
            self.pairs.append((reference, logits))

    def figures(self) -> Figures:
        """After all texts."""
        noise = self.largest["rechunk"] or 0.0
        n_wrong = sum(n_wrong_choices(*pair, noise + EPSILON / 2) for pair in self.pairs)
        return Figures(n_wrong_choices=n_wrong, **self.largest)  # type: ignore[arg-type]


def measure(backend: LlamaBackend, *, n_prompt: int = 220, n_texts: int = 1) -> Figures:
    """Every way for `n_texts` random texts."""
    forcing, measurement = Forcing(backend), Measurement()
    for seed in range(1, n_texts + 1):
        text, other = (Text.of(backend, n_prompt, s) for s in (seed, seed + 100))
        reference = plain(forcing, text)
        ways: list[tuple[str, Logits | None]]
        ways = [("rechunk", plain(forcing, text, *sizes)) for sizes in _RECHUNKS]
        ways += [("batched", batched(forcing, text))]
        # At the end, in the middle of a block, and so far back that a window must not have been thrown away.
        ways += [("cut", cut(forcing, text, n)) for n in (n_prompt, n_prompt - 30, 70)]
        ways += [("copied", copied(forcing, text, n)) for n in (70, n_prompt)]
        ways += [("restored", restored(forcing, text))]
        ways += [("fragmented", restored(forcing, text, fragmented=True))]
        ways += [("restored_cut", restored_and_cut(forcing, text, n)) for n in (n_prompt, 70)]
        ways += [("checkpoint", checkpoint(forcing, text))]
        ways += [("wrong_cells", plain(forcing, text.with_another(64, 128)))]
        ways += [("wrong_state", checkpoint(forcing, text, state_of=other))]
        for way, logits in ways:
            measurement.add(way, reference, logits)
    return measurement.figures()

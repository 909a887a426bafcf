"""What is known of stored blocks: which conversation has which, and which of them serve a list of tokens. No I/O, no locks.

`engine.kv.tiers` owns these records and guards them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.kv.blocks import TokenHash
from engine.kv.files import CELLS, STATE, BlockName


@dataclass(slots=True, eq=False)
class Part:
    """The bytes behind one file name: in RAM, on disk, on the way between, or both.

    `unwritten`: they wait for the disk and must stay in RAM; `n_holders`: loads that need them in RAM; `file_bytes`: size of
    the file, kept by the disk's thread.
    """

    name: BlockName
    n_bytes: int
    data: bytes | bytearray | None = None
    on_disk: bool = False
    unwritten: bool = False
    reading: bool = False
    n_holders: int = 0
    file_bytes: int = 0

    @property
    def exists(self) -> bool:
        return self.data is not None or self.on_disk


@dataclass(slots=True, eq=False)
class Block:
    """Positions [start, end) of a conversation. `tokens` is None until a file of an earlier process was read."""

    folder: str
    start: int
    end: int
    digest: str
    cells: Part
    tokens: array[int] | None = None
    state: Part | None = None

    @property
    def parts(self) -> list[Part]:
        return [self.cells, self.state] if self.state else [self.cells]


@dataclass(slots=True, eq=False)
class Talk:
    """The line of blocks of one folder: each begins where the one before it ends."""

    folder: str
    blocks: list[Block] = field(default_factory=list)
    used_at: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks that serve some tokens. All but the last serve whole; `n_tokens` is where the last one stops to serve."""

    blocks: tuple[Block, ...] = ()
    n_tokens: int = 0

    @property
    def n_whole(self) -> int:
        """Where the last block that serves whole ends."""
        return max((block.end for block in self.blocks if block.end <= self.n_tokens), default=0)

    def needed(self, have: int, limit: int) -> tuple[Block, ...]:
        """Those that continue `have` tokens without a gap, up to `limit` tokens."""
        needed, at = [], have
        for block in self.blocks:
            if block.end > at and block.start <= at < min(limit, self.n_tokens):
                needed.append(block)
                at = block.end
        return tuple(needed)

    def until_state(self, limit: int) -> Found:
        """Up to the last block that carries a state and ends within `limit`: what serves a recurrent model."""
        for n in range(len(self.blocks), 0, -1):
            last = self.blocks[n - 1]
            if last.state is not None and last.end <= min(limit, self.n_tokens):
                return Found(self.blocks[:n], last.end)
        return Found()


def match(blocks: Sequence[Block], tokens: Sequence[int]) -> Found:
    """Which of a line of blocks serve `tokens`: whole ones by their digests, then a beginning of the next one where its
    tokens are known and its digest tells that the same came before them."""
    if not blocks or blocks[0].start > len(tokens):
        return Found()
    names = TokenHash()
    names.update(tokens[: blocks[0].start])
    served = []
    for block in blocks:
        wanted = tokens[block.start : block.end]
        if len(wanted) == block.end - block.start and names.with_(wanted) == block.digest:
            names.update(wanted)
            served.append(block)
            continue
        n_same = _n_common(block.tokens or (), wanted)
        if n_same and names.with_(block.tokens or ()) == block.digest:
            return Found((*served, block), block.start + n_same)
        break
    return Found(tuple(served), served[-1].end if served else 0)


def chain_of(
    folder: str, found: Iterable[tuple[BlockName, int]]
) -> tuple[list[Block], list[BlockName]]:
    """The line of blocks made of files that were found, and the names of files that are no part of it.

    A process that died between two writes leaves a second block at the same place: the longer one is taken, and the digest
    decides later whether it is the right one.
    """
    sizes = dict(found)
    cells = sorted(
        (name for name in sizes if name.kind == CELLS), key=lambda name: (name.start, -name.end)
    )
    blocks: list[Block] = []
    used: set[BlockName] = set()
    for name in cells:
        if blocks and name.start != blocks[-1].end:
            continue
        block = Block(folder, name.start, name.end, name.digest, _part(name, sizes[name]))
        used.add(name)
        state = BlockName(name.start, name.end, name.digest, STATE)
        if state in sizes:
            block.state = _part(state, sizes[state])
            used.add(state)
        blocks.append(block)
    return blocks, [name for name in sizes if name not in used]


def _part(name: BlockName, n_bytes: int) -> Part:
    return Part(name, n_bytes, on_disk=True, file_bytes=n_bytes)


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)

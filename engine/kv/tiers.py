"""What left VRAM and can come back: a conversation's blocks in RAM, and behind it on disk.

Owns which blocks exist, where their bytes are, and which go when space is short: the conversation that was not used for
longest first, from RAM to disk only, from disk for good. It knows no backend and no sequence; bytes go in and come out.

- A conversation has one folder, named by hashes of its key and its scope, so forgetting it is removing that; nobody else can
  find anything in it. The shared beginning of a scope (its system prompt) has a folder of its own and is stored once.
- A conversation has one line of blocks. What it once said and no longer has in its prompt is dropped when it goes on.
- A block is believed only if the hash of all tokens up to its end is the one asked for (`engine.kv.blocks`).
- Disk work happens on a thread of its own; the loop never waits for it, also not to forget: that is confirmed later.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from engine.kv.blocks import BLOCK_TOKENS, TokenHash, cut_spans, digest_of, opaque
from engine.kv.disk import Disk
from engine.kv.files import CELLS, STATE, BlockName
from engine.kv.index import Block, Found, Part, Talk, match

_log = structlog.get_logger()

# States are big and only the newest can be needed again, or the one before it when an answer is asked for anew.
_STATES_KEPT: Final = 2
_MIN_HELD_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Span:
    """A block that is to be stored: positions [start, end) of what `folder` holds. `follows`: the digest of the block that
    has to lie before it there; "" = it begins the line."""

    folder: str
    start: int
    end: int
    digest: str
    follows: str = ""


@dataclass(slots=True)
class TierCounters:
    """Since the start of the process; bytes are those of cells and states, without file heads."""

    n_saved_tokens: int = 0
    n_saved_bytes: int = 0
    n_restored_tokens: int = 0


class KvTiers:
    """The core's thread asks and gives; the disk's thread completes what was asked of it."""

    def __init__(
        self,
        *,
        ram_bytes: int,
        disk: Disk | None = None,
        block_tokens: int = BLOCK_TOKENS,
        on_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_loaded` is called from the disk's thread after every read."""
        self._ram_bytes = ram_bytes
        self._disk = disk
        self._block_tokens = block_tokens
        self._on_loaded = on_loaded
        self._lock = threading.RLock()
        self._talks: dict[str, Talk] = {}
        # Those that may have bytes in RAM: most of what is on disk has none, and is not looked at when RAM is short.
        self._in_ram: dict[str, Talk] = {}
        self._n_uses = 0
        self._ram_used = 0
        self._held = 0
        self.counters = TierCounters()
        self.n_reads_pending = 0
        self.n_reads_ended = 0
        if disk is not None:
            for folder, blocks in disk.found:
                self._talks[folder] = Talk(folder, blocks, self._next_use())

    @property
    def ram_used_bytes(self) -> int:
        """Bytes of cells and states in RAM."""
        return self._ram_used

    @property
    def disk_used_bytes(self) -> int:
        """Bytes of files."""
        return self._disk.used_bytes if self._disk else 0

    @property
    def n_talks(self) -> int:
        """Conversations and shared beginnings of which anything is kept."""
        return len(self._talks)

    def limit_ram(self, ram_bytes: int) -> None:
        """From now on use so much RAM: what is on disk, too, leaves it; what is nowhere else is dropped. Any thread."""
        with self._lock:
            self._ram_bytes = ram_bytes
            self._shrink_ram()

    def close(self) -> None:
        """Finish what waits for the disk, as far as a few seconds allow."""
        if self._disk is not None:
            self._disk.close()

    # Finding.

    def find(self, scope: str, key: str, tokens: Sequence[int], n_shared: int) -> Found:
        """The blocks that serve these tokens, in order, wherever they are. `n_shared`: the length of the scope's shared
        beginning, where nothing else is known of the conversation."""
        with self._lock:
            own = self._talks.get(talk_folder(scope, key)) if key else None
            shared, mine = Found(), Found()
            base = n_shared
            if own:
                mine = match(own.blocks, tokens)
                base = own.blocks[0].start if mine.blocks else n_shared
                self._touch(own)
            if base > len(tokens):
                return Found()
            if base and (prefix := self._talks.get(prefix_folder(scope, tokens[:base]))):
                shared = match(prefix.blocks, tokens[:base])
                self._touch(prefix)
            n_tokens = mine.n_tokens or shared.n_tokens
            return Found((*shared.blocks, *mine.blocks), n_tokens)

    def hold(self, blocks: Sequence[Block], *, early: bool = False) -> bool:
        """Bring blocks into RAM and keep them there until `release`; reading goes on in the background.

        `early`: nobody waits for them yet, so False, and nothing done, when too much is held for others that wait.
        """
        n_bytes = sum(block.cells.n_bytes for block in blocks)
        with self._lock:
            if early and self._held + n_bytes > max(self._ram_bytes, _MIN_HELD_BYTES):
                return False
            self._held += n_bytes
            for part in (part for block in blocks for part in block.parts):
                part.n_holders += 1
            for block in blocks:
                for part in block.parts:
                    if part.data is None and part.on_disk and not part.reading and self._disk:
                        part.reading = True
                        self.n_reads_pending += 1
                        self._disk.read(block, part, self._loaded)
        return True

    def release(self, blocks: Sequence[Block]) -> None:
        """The counterpart of `hold`; the model has computed behind them, or was not given them."""
        n_bytes = sum(block.cells.n_bytes for block in blocks)
        with self._lock:
            self._held -= n_bytes
            for part in (part for block in blocks for part in block.parts):
                part.n_holders -= 1
            if self._disk is not None:
                held = {block.folder for block in blocks if block.cells.n_holders}
                for folder in {block.folder for block in blocks} - held:
                    self._disk.proved(folder)
            self._shrink_ram()
            self._shrink_disk()

    def is_reading(self, blocks: Sequence[Block]) -> bool:
        """Whether any of these is still on its way from the disk."""
        with self._lock:
            return any(part.reading for block in blocks for part in block.parts)

    def note_restored(self, n_tokens: int) -> None:
        """So many tokens need no computing thanks to the tiers."""
        self.counters.n_restored_tokens += n_tokens

    def drop(self, block: Block) -> None:
        """A block turned out not to fit here: it and what follows it go."""
        with self._lock:
            talk = self._talks.get(block.folder)
            if talk and self._has(block):
                self._cut(talk, talk.blocks.index(block))

    # Storing.

    def missing(
        self,
        scope: str,
        key: str,
        tokens: Sequence[int],
        n_shared: int,
        *,
        marks: Sequence[int] = (),
        whole: bool,
    ) -> tuple[list[Span], int]:
        """What of a conversation's computed tokens is not stored yet, and how many are (stored or to be stored by these).

        `marks` are places where later turns may part. Without `whole` an unfinished block is left for later.
        """
        spans = []
        with self._lock:
            base = self._base_of(scope, talk_folder(scope, key), tokens, n_shared)
            if base > len(tokens):
                return [], 0
            if base:
                folder = prefix_folder(scope, tokens[:base])
                spans += self._missing_of(folder, 0, tokens[:base], (), whole=True)[0]
            folder = talk_folder(scope, key)
            mine, n_stored = self._missing_of(folder, base, tokens, marks, whole=whole)
        return [*spans, *mine], n_stored

    def _base_of(self, scope: str, folder: str, tokens: Sequence[int], n_shared: int) -> int:
        """Where the conversation's own line begins, which goes on if it can.

        Where a line does not begin behind a known shared beginning its own first blocks were lost: were it taken for one,
        what somebody said would lie in a folder that others share and `forget` does not know.
        """
        own = self._talks.get(folder)
        if own is None or not match(own.blocks, tokens).blocks:
            return n_shared
        start = own.blocks[0].start
        if start in (0, n_shared) or prefix_folder(scope, tokens[:start]) in self._talks:
            return start
        return n_shared

    def _missing_of(
        self, folder: str, base: int, tokens: Sequence[int], marks: Sequence[int], *, whole: bool
    ) -> tuple[list[Span], int]:
        talk = self._talks.get(folder)
        found = match(talk.blocks, tokens) if talk and talk.blocks[0].start == base else Found()
        if talk and found.n_tokens == len(tokens):
            self._touch(talk)
            return [], len(tokens)
        at = max(base, found.n_whole)
        spans, names = [], TokenHash()
        digest = names.update(tokens[:at])
        for start, end in cut_spans(at, len(tokens), marks, self._block_tokens, whole=whole):
            follows = digest if start > base else ""
            digest = names.update(tokens[start:end])
            spans.append(Span(folder, start, end, digest, follows))
        return spans, spans[-1].end if spans else at

    def put(
        self,
        span: Span,
        tokens: Sequence[int],
        cells: bytes | bytearray,
        state: bytes | bytearray | None = None,
    ) -> None:
        """Store a block of `missing`; `tokens` are its own. What the folder held from its start on is dropped.

        Nothing is done where the block that it follows went meanwhile: there was no room for that one either.
        """
        with self._lock:
            talk = self._talks.get(span.folder) or Talk(span.folder)
            digests = ["", *(block.digest for block in talk.blocks)]
            if span.follows not in digests:
                return
            self._cut(talk, digests.index(span.follows))
            self._talks[span.folder] = talk
            self._touch(talk)
            name = BlockName(span.start, span.end, span.digest, CELLS)
            block = Block(
                span.folder,
                span.start,
                span.end,
                span.digest,
                Part(name, len(cells), cells),
                array("i", tokens),
            )
            if state is not None:
                block.state = Part(
                    BlockName(span.start, span.end, span.digest, STATE), len(state), state
                )
            talk.blocks.append(block)
            self._in_ram[talk.folder] = talk
            self._drop_old_states(talk)
            for part in block.parts:
                self._ram_used += part.n_bytes
                self.counters.n_saved_bytes += part.n_bytes
                self._write(block, part)
            self.counters.n_saved_tokens += span.end - span.start
            self._shrink_ram()
            self._shrink_disk()

    def forget(self, key: str, on_gone: Callable[[], None] = lambda: None) -> None:
        """Remove every copy of a conversation, in every scope and of every model file. Nothing of it is found from now on;
        `on_gone` is called once it has left the disk too, from the disk's thread, or here where there is none."""
        prefix = f"{opaque(key)}-"
        with self._lock:
            for folder in [name for name in self._talks if name.startswith(prefix)]:
                self._cut(self._talks[folder], 0)
            if self._disk is not None:
                self._disk.remove_everywhere(prefix, on_gone)
        if self._disk is None:
            on_gone()

    # Bookkeeping; all of it under the lock.

    def _next_use(self) -> int:
        self._n_uses += 1
        return self._n_uses

    def _touch(self, talk: Talk) -> None:
        talk.used_at = self._next_use()
        if self._disk is not None:
            self._disk.touch(talk.folder)

    def _write(self, block: Block, part: Part) -> None:
        if self._disk is not None and self._disk.has_room_for(part):
            part.unwritten = True
            self._disk.write(block, part, self._written)

    def _written(self, part: Part, *, done: bool) -> None:
        with self._lock:
            part.unwritten = False
            part.on_disk = done
            self._shrink_ram()
            self._shrink_disk()

    def _loaded(
        self, block: Block, part: Part, tokens: array[int] | None, data: bytearray | None
    ) -> None:
        """A read has ended; no data = it failed, and the block is worth nothing."""
        with self._lock:
            part.reading = False
            self.n_reads_pending -= 1
            self.n_reads_ended += 1
            if data is None:
                self.drop(block)
            elif part.data is None and self._has(block):
                part.data = data
                self._in_ram[block.folder] = self._talks[block.folder]
                self._ram_used += len(data)
                if tokens and len(tokens) == block.end - block.start:
                    block.tokens = tokens
                self._shrink_ram()
        self._on_loaded()

    def _has(self, block: Block) -> bool:
        """Whether a block is still part of its conversation: it may have been forgotten meanwhile."""
        talk = self._talks.get(block.folder)
        return talk is not None and block in talk.blocks

    def _cut(self, talk: Talk, n_kept: int) -> None:
        """Drop all blocks of a conversation but the first ones."""
        for block in reversed(
            talk.blocks[n_kept:]
        ):  # who dies on the way leaves a line without holes
            for part in block.parts:
                self._drop_part(talk.folder, part)
        del talk.blocks[n_kept:]
        if not talk.blocks:
            self._talks.pop(talk.folder, None)
            self._in_ram.pop(talk.folder, None)

    def _drop_part(self, folder: str, part: Part) -> None:
        if part.data is not None:
            self._ram_used -= len(part.data)
            part.data = None
        if self._disk is not None and (part.on_disk or part.unwritten):
            self._disk.remove(folder, part)
        part.on_disk = False

    def _drop_old_states(self, talk: Talk) -> None:
        with_state = [block for block in talk.blocks if block.state]
        for block in with_state[:-_STATES_KEPT]:
            if block.state and not block.state.n_holders:
                self._drop_part(talk.folder, block.state)
                block.state = None

    def _shrink_ram(self) -> None:
        """Take out of RAM what was not used for longest, until the rest fits."""
        if self._ram_used <= self._ram_bytes:
            return
        for talk in _oldest(self._in_ram):
            for index, block in reversed(list(enumerate(talk.blocks))):
                for part in block.parts:
                    if part.data is not None and not part.unwritten and not part.n_holders:
                        self._ram_used -= len(part.data)
                        part.data = None
                if not all(part.exists or part.reading for part in block.parts):
                    self._cut(talk, index)
                if self._ram_used <= self._ram_bytes:
                    return
            if all(part.data is None for block in talk.blocks for part in block.parts):
                self._in_ram.pop(talk.folder, None)

    def _shrink_disk(self) -> None:
        """Remove from disk what was not used for longest, until the rest fits."""
        if self._disk is None or not self._disk.over_limit():
            return
        for talk in _oldest(self._talks):
            for index, block in reversed(list(enumerate(talk.blocks))):
                for part in block.parts:
                    if part.on_disk and not part.n_holders:
                        self._disk.remove(talk.folder, part)
                        part.on_disk = False
                if not all(part.exists or part.reading for part in block.parts):
                    self._cut(talk, index)
                if not self._disk.over_limit():
                    return


def _oldest(talks: dict[str, Talk]) -> list[Talk]:
    return sorted(talks.values(), key=lambda talk: talk.used_at)


def talk_folder(scope: str, key: str) -> str:
    """The name of a conversation's folder."""
    return f"{opaque(key)}-{opaque(scope)}"


def prefix_folder(scope: str, tokens: Sequence[int]) -> str:
    """The name of the folder of a beginning that the conversations of a scope share."""
    return f"{digest_of(tokens)}-{opaque(scope)}"

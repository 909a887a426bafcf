"""One file per block: its layout, its checks, and the folders they lie in. No threads, no policy.

Layout: magic, CRC-32 of all that follows, number of tokens, number of bytes, tokens (int32), bytes. A file is written beside
its place and renamed, so a reader never sees half of one; it is not synced, since what a power cut takes is computed again.
Files are 0600 in folders of 0700: tokens are what people said.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEAD: Final = struct.Struct("<8sIIQ")
_MAGIC: Final = b"HEARTHKV"
_NAME: Final = re.compile(r"(\d{7})-(\d{7})-([0-9a-f]{24})\.(kv|st)\Z")
_FOLDER: Final = re.compile(r"[0-9a-f]{24}-[0-9a-f]{24}\Z")
_UNFINISHED: Final = ".part"
CELLS: Final = "kv"
STATE: Final = "st"


class DamagedFile(Exception):
    """A file that is not what was written."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """Positions [start, end) of a conversation whose first `end` tokens have this digest; `kind` is CELLS or STATE."""

    start: int
    end: int
    digest: str
    kind: str

    @property
    def file_name(self) -> str:
        return f"{self.start:07d}-{self.end:07d}-{self.digest}.{self.kind}"


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """A conversation's folder as it was found at start."""

    name: str
    used_at: float
    blocks: tuple[tuple[BlockName, int], ...]

    @property
    def n_bytes(self) -> int:
        return sum(n_bytes for _, n_bytes in self.blocks)


class BlockFiles:
    """The folder of one model: `<root>/<format>/<conversation>/<block>`. May be used by several threads on different files.

    Every method but `scan` raises OSError when the disk refuses.
    """

    def __init__(self, root: Path, state_format: str) -> None:
        self.root = root
        self.own = root / state_format
        self._make_own()

    def _make_own(self) -> None:
        self.own.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.root, self.own):
            folder.chmod(0o700)

    def scan(self) -> list[FoundFolder]:
        """What is there of this format. Inside a conversation's folder whatever is no finished block is removed; outside
        of those nothing is touched."""
        found = []
        for path in _conversations(self.own):
            folder = _look_into(path)
            if folder.blocks:
                found.append(folder)
            else:
                self.remove_folder(path)
        return found

    def others(self) -> list[tuple[float, Path, int]]:
        """Conversations of other formats (another model file, other cache types): last use, folder, bytes."""
        found = []
        for entry in _entries(self.root):
            if entry.is_dir(follow_symlinks=False) and Path(entry.path) != self.own:
                for path in _conversations(Path(entry.path)):
                    folder = _look_into(path)
                    found.append((folder.used_at, path, folder.n_bytes))
        return found

    def traced(self, folder: str) -> str:
        """A conversation's folder as seen from the root."""
        return f"{self.own.name}/{folder}"

    def write(
        self, folder: str, name: BlockName, tokens: Sequence[int], data: bytes | bytearray
    ) -> int:
        """Write a block; returns the size of its file."""
        path = self.own / folder / name.file_name
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:  # somebody has removed the whole cache, which they may
            self._make_own()
            path.parent.mkdir(mode=0o700, exist_ok=True)
        ids = array("i", tokens).tobytes()
        crc = zlib.crc32(data, zlib.crc32(ids))
        part = path.with_name(path.name + _UNFINISHED)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_HEAD.pack(_MAGIC, crc, len(tokens), len(data)))
                file.write(ids)
                file.write(data)
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        return _HEAD.size + len(ids) + len(data)

    def read(self, folder: str, name: BlockName) -> tuple[array[int], bytearray]:
        """Tokens and bytes of a block. Raises DamagedFile, and OSError (a missing file included)."""
        path = self.own / folder / name.file_name
        # Neither a link nor a pipe: a pipe would hold up the disk's thread for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise DamagedFile(f"{path.name} is no file")
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise DamagedFile(f"{path.name} is cut off")
            magic, crc, n_tokens, n_bytes = _HEAD.unpack(head)
            size = os.fstat(file.fileno()).st_size
            if magic != _MAGIC or _HEAD.size + 4 * n_tokens + n_bytes != size:
                raise DamagedFile(f"{path.name} has a wrong head or length")
            tokens = array("i")
            tokens.frombytes(file.read(4 * n_tokens))
            data = bytearray(n_bytes)
            file.readinto(data)
        if zlib.crc32(data, zlib.crc32(tokens.tobytes())) != crc:
            raise DamagedFile(f"{path.name} has a wrong checksum")
        if n_tokens not in (0, name.end - name.start):
            raise DamagedFile(f"{path.name} holds {n_tokens} tokens")
        return tokens, data

    def remove(self, folder: str, name: BlockName) -> None:
        """Remove a block, and its folder with the last one; a missing one is fine."""
        path = self.own / folder / name.file_name
        try:
            path.unlink(missing_ok=True)
        except IsADirectoryError:
            shutil.rmtree(path)
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def remove_folder(self, folder: Path) -> None:
        """Remove a conversation whole; a missing one is fine."""
        shutil.rmtree(folder, ignore_errors=True)

    def remove_everywhere(self, prefix: str) -> None:
        """Remove every folder whose name begins so, whatever its format."""
        remove_conversations(self.root, prefix)

    def touch(self, folder: str) -> None:
        """Mark a conversation as used now, for the order after a restart."""
        with contextlib.suppress(OSError):
            os.utime(self.own / folder)


def remove_conversations(root: Path, prefix: str = "") -> None:
    """Remove the conversations in `root` whose folder's name begins so, whatever their format."""
    for entry in _entries(root):
        if entry.is_dir(follow_symlinks=False):
            for path in _conversations(Path(entry.path)):
                if path.name.startswith(prefix):
                    shutil.rmtree(path, ignore_errors=True)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return


def _conversations(folder: Path) -> list[Path]:
    return [
        Path(entry.path)
        for entry in _entries(folder)
        if _FOLDER.match(entry.name) and entry.is_dir(follow_symlinks=False)
    ]


def _look_into(folder: Path) -> FoundFolder:
    blocks = []
    for entry in list(_entries(folder)):
        with contextlib.suppress(OSError):
            match = _NAME.match(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                start, end, digest, kind = match.groups()
                name = BlockName(int(start), int(end), digest, kind)
                blocks.append((name, entry.stat(follow_symlinks=False).st_size))
            elif entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                Path(entry.path).unlink()
    try:
        used_at = folder.stat().st_mtime
    except OSError:
        used_at = 0.0
    return FoundFolder(folder.name, used_at, tuple(blocks))

"""The identity of a model file, as far as stored token ids and KV depend on it. Reads the head of a GGUF, never weights.

Layout of the head, from the public GGUF description: magic, version, counts, key/value metadata, tensor infos
(name, shape, type, offset); tensor data follows, aligned.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from pathlib import Path
from typing import Final

from engine.errors import EngineConfigError

_MAGIC: Final = b"GGUF"
_SCALAR_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_MAX_NESTING: Final = 4


class _Head:
    """A cursor over the bytes of a GGUF head; raises struct.error or ValueError where the file ends or makes no sense."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self.at = 0

    def skip(self, n_bytes: int) -> None:
        self.at += n_bytes
        if self.at > self._size:
            raise ValueError("past the end")

    def u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self.at)[0]
        self.at += 4
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self._data, self.at)[0]
        self.at += 8
        return value

    def skip_string(self) -> None:
        self.skip(self.u64())

    def skip_value(self, kind: int, depth: int = 0) -> None:
        if kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind])
        elif kind == _STRING:
            self.skip_string()
        elif kind == _ARRAY and depth < _MAX_NESTING:
            item, n_items = self.u32(), self.u64()
            if item in _SCALAR_BYTES:
                self.skip(_SCALAR_BYTES[item] * n_items)
                return
            for _ in range(n_items):
                self.skip_value(item, depth + 1)
        else:
            raise ValueError(f"value type {kind}")


def _skip_head(head: _Head) -> int:
    """Go to the end of the tensor infos. Returns the largest data offset in them."""
    head.skip(len(_MAGIC))
    head.u32()
    n_tensors, n_pairs = head.u64(), head.u64()
    for _ in range(n_pairs):
        head.skip_string()
        head.skip_value(head.u32())
    largest = 0
    for _ in range(n_tensors):
        head.skip_string()
        head.skip(8 * head.u32())
        head.u32()
        largest = max(largest, head.u64())
    return largest


def shards(path: Path) -> list[Path]:
    """All files of a model that was split as `…-00001-of-00003.gguf`; otherwise the file alone."""
    match = _SHARD.search(path.name)
    if match is None:
        return [path]
    stem = path.name[: match.start()]
    return sorted(path.parent.glob(f"{stem}-*-of-{match.group(1)}.gguf"))


def fingerprint(path: Path, cache_type_k: str, cache_type_v: str) -> str:
    """Hash of file sizes, metadata, tensor infos and cache types: 32 hex digits.

    Raises EngineConfigError when a file cannot be read, is not a GGUF or ends before its tensor data.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in shards(path):
        try:
            _add_file(digest, file)
        except OSError as error:
            raise EngineConfigError(f"{file} cannot be read: {error.strerror}") from error
    digest.update(f"|{cache_type_k}|{cache_type_v}".encode())
    return digest.hexdigest()


def _add_file(digest: hashlib.blake2b, path: Path) -> None:
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise EngineConfigError(
                f"{path} is not a GGUF file (it does not begin with GGUF); give the path of a .gguf model"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            head = _Head(data)
            try:
                last_tensor = _skip_head(head)
                complete = head.at + last_tensor < n_bytes
            except (struct.error, ValueError, OverflowError):
                complete = False
            if not complete:
                raise EngineConfigError(
                    f"{path} is damaged or cut off ({n_bytes} bytes); download the model file again"
                )
            digest.update(_U64.pack(n_bytes))
            digest.update(data[: head.at])

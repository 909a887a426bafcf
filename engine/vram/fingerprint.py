"""The identity of a model file, as far as stored token ids depend on it. Reads the head of a GGUF, never weights."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Final

from engine.errors import EngineConfigError
from engine.vram.gguf import damaged, read_file, shards

_U64: Final = struct.Struct("<Q")


def fingerprint(path: Path) -> str:
    """Hash of file sizes, metadata and tensor infos: 32 hex digits. Not of cache types: token ids outlive a step back.

    Raises EngineConfigError when a file cannot be read, is not a GGUF or ends before its tensor data.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in shards(path):
        _add_file(digest, file)
    return digest.hexdigest()


def _add_file(digest: hashlib.blake2b, path: Path) -> None:
    head = read_file(path)
    last_tensor = max((tensor.offset for tensor in head.tensors), default=0)
    if head.head_bytes + last_tensor >= head.file_bytes:
        raise damaged(path, head.file_bytes)
    digest.update(_U64.pack(head.file_bytes))
    try:
        with path.open("rb") as file:
            digest.update(file.read(head.head_bytes))
    except OSError as error:
        raise EngineConfigError(f"{path} cannot be read: {error.strerror}") from error

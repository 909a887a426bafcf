"""The head of a GGUF file: metadata and tensor infos, never weights. One reader for the planner and the fingerprint.

Layout, from the public GGUF description: magic, version, counts, key/value metadata, tensor infos (name, shape, type,
offset); tensor data follows, aligned. A damaged file costs at most one pass over its own bytes.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.errors import EngineConfigError

MAGIC: Final = b"GGUF"
_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_MAX_NESTING: Final = 4
_MAX_DIMS: Final = 4  # GGML_MAX_DIMS
_MAX_NAME: Final = 64  # GGML_MAX_NAME
_MAX_VALUES: Final = 2**48  # of a tensor: no disk holds more
_LARGEST: Final = 2**31 - 1  # of a size in the metadata
_VERSIONS: Final = (2, 3)  # that llama.cpp reads
MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS
_KEPT_ITEMS: Final = (
    4096  # numbers of an array that are kept; per-layer arrays are shorter, vocabularies longer
)

# ggml type → (name, values per block, bytes per block), from ggml-common.h.
TENSOR_TYPES: Final = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 40), 10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110), 12: ("q4_K", 256, 144), 13: ("q5_K", 256, 176), 14: ("q6_K", 256, 210),
    15: ("q8_K", 256, 292), 16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2), 26: ("i32", 1, 4), 27: ("i64", 1, 8),
    28: ("f64", 1, 8), 29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Items:
    """An array in the metadata: its length, the bytes of its items, and the items themselves if they are few numbers."""

    n_items: int
    n_bytes: int
    values: tuple[int | float | bool, ...] = ()


Value = int | float | bool | str | Items


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor. `shape` is in ggml's order (the length of a row first), `type` a ggml type."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def n_bytes(self) -> int:
        """Its size. Raises ValueError for a type that is not known or a row that does not fit its blocks."""
        if self.type not in TENSOR_TYPES:
            raise ValueError(f"{self.name} is of the unknown tensor type {self.type}")
        _, per_block, block_bytes = TENSOR_TYPES[self.type]
        n_values = math.prod(self.shape)
        if self.shape and self.shape[0] % per_block:
            raise ValueError(f"{self.name} has rows of {self.shape[0]}, not whole blocks")
        return n_values // per_block * block_bytes


@dataclass(frozen=True, slots=True)
class FileHead:
    """What one file says. `head_bytes` is where the tensor infos end, `file_bytes` the file's size."""

    meta: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    head_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class ModelHead:
    """A model, whether it is one file or many. `missing_bytes` > 0: the data is cut off, or a part is not there."""

    path: Path
    meta: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    file_bytes: int
    missing_bytes: int

    @property
    def architecture(self) -> str:
        """`general.architecture`, "" when the file does not say."""
        value = self.meta.get("general.architecture")
        return printable(value)[:_MAX_NAME] if isinstance(value, str) else ""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    def number(self, key: str, default: int = 0) -> int:
        """A size of the architecture's own metadata (`key` without the architecture). Raises EngineConfigError for one that
        cannot be."""
        value = self.meta.get(f"{self.architecture}.{key}")
        return self._size(key, value, default)

    def numbers(self, key: str, length: int, default: int = 0) -> tuple[int, ...]:
        """A size per layer: the file has one for all, or an array. Raises EngineConfigError for one that cannot be."""
        value = self.meta.get(f"{self.architecture}.{key}")
        if isinstance(value, Items):
            found = tuple(self._size(key, item, default) for item in value.values[:length])
            return found + (default,) * (length - len(found))
        return (self.number(key, default),) * length

    def _size(self, key: str, value: object, default: int) -> int:
        if not isinstance(value, int):
            return default
        if not 0 <= value <= _LARGEST:
            raise EngineConfigError(
                f"{self.path} is damaged: it says {key} = {value}; download the model file again"
            )
        return value


class _Cursor:
    """Where the reader is; raises struct.error or ValueError where the file ends or makes no sense."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self.at = 0

    def take(self, n_bytes: int) -> bytes:
        start = self.at
        self.skip(n_bytes)
        return self._data[start : self.at]

    def skip(self, n_bytes: int) -> None:
        self.at += n_bytes
        if self.at > self._size:
            raise ValueError("past the end")

    def scalar(self, kind: int) -> int | float | bool:
        form = _SCALARS[kind]
        value: int | float | bool = form.unpack_from(self._data, self.at)[0]
        self.at += form.size
        return value

    def u32(self) -> int:
        return int(self.scalar(4))

    def u64(self) -> int:
        return int(self.scalar(10))

    def text(self) -> str:
        return self.take(self.u64()).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Value:
        if kind in _SCALARS:
            return self.scalar(kind)
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY and depth < _MAX_NESTING:
            return self._array(depth)
        raise ValueError(f"value type {kind}")

    def _array(self, depth: int) -> Items:
        kind, n_items = self.u32(), self.u64()
        start = self.at
        if kind not in _SCALARS:
            for _ in range(n_items):
                if kind == _STRING:
                    self.skip(self.u64())
                else:
                    self.value(kind, depth + 1)
            return Items(n_items, self.at - start)
        form = _SCALARS[kind]
        self.skip(form.size * n_items)
        if n_items > _KEPT_ITEMS:
            return Items(n_items, self.at - start)
        values = (form.unpack_from(self._data, start + form.size * i)[0] for i in range(n_items))
        return Items(n_items, self.at - start, tuple(values))

    def pairs(self, n_pairs: int) -> Iterator[tuple[str, Value]]:
        for _ in range(n_pairs):
            key = self.text()
            yield key, self.value(self.u32())

    def tensor(self) -> TensorInfo:
        name, n_dims = self.text(), self.u32()
        if n_dims > _MAX_DIMS or len(name) >= _MAX_NAME:
            raise ValueError(f"{n_dims} dimensions, a name of {len(name)}")
        shape = tuple(self.u64() for _ in range(n_dims))
        if math.prod(shape) > _MAX_VALUES:
            raise ValueError(f"{shape} values")
        return TensorInfo(printable(name), shape, self.u32(), self.u64())


def read_file(path: Path) -> FileHead:
    """One file's head. Raises EngineConfigError when it cannot be read, is no GGUF, or ends inside its head."""
    n_bytes = 0
    try:
        n_bytes = path.stat().st_size
        if not path.is_file():  # reading a pipe would wait for ever
            raise EngineConfigError(f"{path} is no file; give the path of a .gguf model")
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise EngineConfigError(
                    f"{path} is not a GGUF file (it does not begin with GGUF); give the path of a .gguf model"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                if (version := _version(data)) not in _VERSIONS:
                    raise EngineConfigError(
                        f"{path} is of GGUF version {version}, and llama.cpp reads 2 and 3; `hearth model check` says more"
                    )
                return _head(_Cursor(data), n_bytes)
    except OSError as error:
        raise EngineConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, OverflowError, MemoryError):
        raise damaged(path, n_bytes) from None


def damaged(path: Path, n_bytes: int) -> EngineConfigError:
    """The sentence for a file that ends early or makes no sense."""
    return EngineConfigError(
        f"{path} is damaged or cut off ({n_bytes} bytes); download the model file again"
    )


def printable(text: str) -> str:
    """A word of a file as it may be shown: without what would move a terminal's cursor or begin a line."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _version(data: mmap.mmap) -> int:
    return int(struct.unpack_from("<I", data, len(MAGIC))[0])


def _head(cursor: _Cursor, n_bytes: int) -> FileHead:
    """As llama.cpp takes no key twice, a file of zeros is given up at once."""
    n_tensors, n_pairs = _counts(cursor)
    meta: dict[str, Value] = {}
    for key, value in cursor.pairs(n_pairs):
        if key in meta:
            raise ValueError(f"{key} twice")
        meta[key] = value
    tensors = tuple(cursor.tensor() for _ in range(n_tensors))
    return FileHead(meta, tensors, cursor.at, n_bytes)


def _counts(cursor: _Cursor) -> tuple[int, int]:
    cursor.skip(len(MAGIC) + 4)
    return cursor.u64(), cursor.u64()


def layer_counts(path: Path) -> tuple[int, int]:
    """Layers of a model, and those among which some have routed experts (all or none), by its head, which names them early;
    0 = it does not say, or cannot be read."""
    n_layers = n_experts = 0
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            cursor = _Cursor(data)
            for key, value in cursor.pairs(_counts(cursor)[1]):
                if n_layers and key.startswith("tokenizer."):
                    break  # a long list; what is asked for has come before
                if key.endswith(".block_count") and isinstance(value, int):
                    n_layers = max(0, min(value, MAX_LAYERS))
                if key.endswith(".expert_count") and isinstance(value, int):
                    n_experts = value
    except (OSError, struct.error, ValueError, OverflowError, MemoryError):
        return n_layers, 0
    return n_layers, n_layers if n_experts else 0


def shards(path: Path) -> list[Path]:
    """All files of a model that was split as `…-00001-of-00003.gguf`; otherwise the file alone."""
    match = _SHARD.search(path.name)
    if match is None:
        return [path]
    stem, n_parts = path.name[: match.start()], int(match.group(2))
    names = (f"{stem}-{i + 1:05d}-of-{n_parts:05d}.gguf" for i in range(n_parts))
    return [part for name in names if (part := path.parent / name).exists()] or [path]


def read_model(path: Path) -> ModelHead:
    """A model's head, of all its parts. Raises EngineConfigError; a model whose data is cut off or not there yet is read
    all the same (`missing_bytes`), as planning needs only the head."""
    meta: dict[str, Value] = {}
    tensors: list[TensorInfo] = []
    file_bytes = missing = 0
    parts = shards(path)
    for part in parts:
        head = read_file(part)
        meta = head.meta | meta  # the first part has the model's own
        tensors += head.tensors
        file_bytes += head.file_bytes
        try:
            missing += max(0, _end(head) - head.file_bytes)
        except ValueError as error:
            raise EngineConfigError(f"{part} cannot be planned: {error}") from None
    expected = meta.get("split.count", 1)
    if isinstance(expected, int) and len(parts) < expected:
        raise EngineConfigError(
            f"{path} is one of {expected} parts and {len(parts)} are in {path.parent}; put all of them there"
        )
    if not tensors:
        raise EngineConfigError(f"{path} holds no tensors; give the path of a model")
    return ModelHead(path, meta, tuple(tensors), file_bytes, missing)


def _end(head: FileHead) -> int:
    """Where the last tensor of a file ends."""
    alignment = head.meta.get("general.alignment", 32)
    step = int(alignment) if isinstance(alignment, int) and alignment > 0 else 32
    start = -(-head.head_bytes // step) * step
    return max((start + t.offset + t.n_bytes for t in head.tensors), default=head.head_bytes)

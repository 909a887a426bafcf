"""What is wrong with the tensors of one file: their places, their end, and samples of what they hold.

The rules for offsets are those of llama.cpp's own reader (gguf.cpp): each tensor begins where the one before it ends,
rounded up to the alignment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.vram.gguf import FileHead, TensorInfo

AGAIN: Final = "download the file again"
_LARGE: Final = 2**20  # tensors from this size on are looked at in samples, smaller ones whole
_SAMPLE: Final = 4096
_SPARE_BYTES: Final = 2**16  # what may follow the last tensor without a word


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at `path`, and its cure. Not `is_fatal`: it loads, and is not what people want."""

    path: Path
    what: str
    cure: str
    is_fatal: bool = True


def tensor_faults(path: Path, head: FileHead) -> Iterator[Fault]:
    """At most one fault of its layout; where that is right, what the data itself shows (some megabytes are read)."""
    alignment = head.meta.get("general.alignment", 32)
    step = alignment if isinstance(alignment, int) else 0
    if step <= 0 or step & (step - 1):
        yield Fault(path, f"has an impossible alignment ({alignment})", AGAIN)
        return
    start = -(-head.head_bytes // step) * step
    try:
        layout = _layout_fault(path, head, step)
        end = max((start + t.offset + t.n_bytes for t in head.tensors), default=head.head_bytes)
    except ValueError as error:
        yield Fault(path, str(error), f"{AGAIN}, or update Hearth if its quantization is new")
        return
    if layout is not None:
        yield layout
        return
    if end > head.file_bytes:
        lost = [t.name for t in head.tensors if start + t.offset + t.n_bytes > head.file_bytes]
        what = (
            f"ends {_size(end - head.file_bytes)} early ({_size(head.file_bytes)} of {_size(end)}): "
            f"{len(lost)} of {len(head.tensors)} tensors are cut off or missing"
        )
        yield Fault(path, what, f"{AGAIN}, or let the download go on")
        return
    if head.file_bytes - end > max(_SPARE_BYTES, step):
        what = f"goes on for {_size(head.file_bytes - end)} after its last tensor"
        yield Fault(path, what, "compare its size with the published one", is_fatal=False)
    yield from _content_faults(path, head.tensors, start)


def _layout_fault(path: Path, head: FileHead, step: int) -> Fault | None:
    """The first tensor that does not stand where it must. Raises ValueError for one whose size cannot be."""
    expected, names = 0, set()
    for tensor in head.tensors:
        if tensor.name in names:
            return Fault(path, f"holds the tensor {tensor.name} twice", AGAIN)
        names.add(tensor.name)
        if tensor.offset != expected:
            what = f"tensor {tensor.name} has offset {tensor.offset} where {expected} must be"
            return Fault(path, what, AGAIN)
        expected += -(-tensor.n_bytes // step) * step
    return None


def _content_faults(path: Path, tensors: tuple[TensorInfo, ...], start: int) -> Iterator[Fault]:
    zeros, odd = [], []
    with path.open("rb") as file:
        for tensor in tensors:
            at, n_bytes = start + tensor.offset, tensor.n_bytes
            if n_bytes >= _LARGE:
                if _is_hollow(file.fileno(), at, n_bytes):
                    zeros.append(tensor.name)
            elif not _is_finite(os.pread(file.fileno(), n_bytes, at), tensor.type):
                odd.append(tensor.name)
    if zeros:
        what = f"{_names(zeros)} {'holds' if len(zeros) == 1 else 'hold'} nothing but zeros: a download with holes"
        yield Fault(path, what, AGAIN)
    if odd:
        what = f"{_names(odd)} {'holds' if len(odd) == 1 else 'hold'} numbers that are not finite: damaged data"
        yield Fault(path, what, AGAIN)


def _is_hollow(fd: int, at: int, n_bytes: int) -> bool:
    """Whether samples at the begin, in the middle and at the end are all zero."""
    places = (0, n_bytes // 2, n_bytes - _SAMPLE)
    return not any(any(os.pread(fd, _SAMPLE, at + place)) for place in places)


def _is_finite(data: bytes, kind: int) -> bool:
    """Of f32 and f16; other types have no place for a number that is not."""
    import numpy as np  # takes as long as everything else that `hearth model list` needs

    dtype = {0: "<f4", 1: "<f2"}.get(kind)
    return dtype is None or bool(np.isfinite(np.frombuffer(data, dtype)).all())


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"tensor {names[0]}{more}"


def _size(n_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n_bytes >= 1 << shift:
            return f"{n_bytes / (1 << shift):.1f} {unit}"
    return f"{n_bytes} bytes"

"""A model file's faults, each made in a real file: what is said, and that a sound file is called sound."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.vram.gguf import read_file
from engine.vram.modelcheck import Examination, examine_model
from tests.support.shapefiles import write_shape
from tests.support.tinymodels import write_model

Damage = Callable[[Path], Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model("llama", tmp_path_factory.mktemp("model")).read_bytes()


def place(folder: Path, data: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def sentences(examined: Examination) -> str:
    return " | ".join(f"{fault.what}; {fault.cure}" for fault in examined.faults)


def offset_field(data: bytes, folder: Path, index: int) -> int:
    """Where the offset of a tensor stands in the head: the last 8 bytes of its entry."""
    head = read_file(place(folder, data, "probe.gguf"))
    at = head.head_bytes
    for tensor in reversed(head.tensors[index + 1 :]):
        at -= 8 + len(tensor.name.encode()) + 4 + 8 * len(tensor.shape) + 4 + 8
    return at - 8


def test_a_sound_model_has_no_fault(whole: bytes, tmp_path: Path) -> None:
    examined = examine_model(place(tmp_path, whole), (hashlib.sha256(whole).hexdigest().upper(),))
    assert examined.faults == ()
    assert examined.is_sound
    assert examined.meta["general.architecture"] == "llama"
    assert examined.file_bytes == len(whole)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (b"<!DOCTYPE html><html><body>Sign in", "is a web page, not a model"),
        (b"\n<html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "is a Git LFS pointer"),
        (b'{"error":"Repository not found"}', "is a server's error message"),
        (b"PK\x03\x04" + b"x" * 60, "is a zip archive"),
        (b"tjgg" + b"\1" * 60, "GGML format of 2023"),
        (struct.pack("<Q", 800) + b'{"__metadata__":{}', "is a safetensors file"),
        (b"\0" * 64, "begins with zeros"),
        (b"hello, this is a text file", "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1, which llama.cpp reads no more"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "GGUF version 9; this llama.cpp reads 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "is a big-endian GGUF"),
        (b"GGUF", "damaged or cut off inside its head (4 bytes)"),
        (b"", "is empty"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_named(start: bytes, says: str, tmp_path: Path) -> None:
    examined = examine_model(place(tmp_path, start))
    assert says in sentences(examined)
    assert all(fault.cure for fault in examined.faults)
    assert not examined.is_sound


def test_every_cut_is_found(whole: bytes, tmp_path: Path) -> None:
    for share in (0.999, 0.7, 0.3, 0.05, 0.001):
        examined = examine_model(place(tmp_path, whole[: int(len(whole) * share)]))
        assert not examined.is_sound, share
    cut = examine_model(place(tmp_path, whole[: len(whole) // 2]))
    assert "early" in sentences(cut)
    assert "tensors are cut off or missing" in sentences(cut)


def test_swapped_offsets_are_found(whole: bytes, tmp_path: Path) -> None:
    data = bytearray(whole)
    one, two = (offset_field(whole, tmp_path, i) for i in (3, 4))
    data[one : one + 8], data[two : two + 8] = data[two : two + 8], data[one : one + 8]
    examined = examine_model(place(tmp_path, bytes(data)))
    tensors = read_file(tmp_path / "probe.gguf").tensors
    says = (
        f"tensor {tensors[3].name} has offset {tensors[4].offset} where {tensors[3].offset} must be"
    )
    assert says in sentences(examined)


def test_numbers_that_are_none_are_found(whole: bytes, tmp_path: Path) -> None:
    head = read_file(place(tmp_path, whole))
    start = -(-head.head_bytes // 32) * 32
    norm = next(tensor for tensor in head.tensors if tensor.name == "blk.1.attn_norm.weight")
    data = bytearray(whole)
    data[start + norm.offset + 8 : start + norm.offset + 12] = struct.pack("<f", float("nan"))
    examined = examine_model(place(tmp_path, bytes(data)))
    assert "tensor blk.1.attn_norm.weight holds numbers that are not finite" in sentences(examined)


def test_a_file_with_holes_is_found(tmp_path: Path) -> None:
    """What is left of a download that reserved its room first."""
    examined = examine_model(write_shape("deepseek-v2-lite-q3_k_m", tmp_path))
    assert "nothing but zeros: a download with holes" in sentences(examined)
    assert not examined.is_sound


def test_more_than_the_model_is_odd_and_no_more(whole: bytes, tmp_path: Path) -> None:
    examined = examine_model(place(tmp_path, whole + b"x" * 200_000))
    assert "after its last tensor" in sentences(examined)
    assert examined.is_sound


def test_a_wrong_sum_is_found(whole: bytes, tmp_path: Path) -> None:
    path = place(tmp_path, whole)
    assert "has the SHA-256" in sentences(examine_model(path, ("0" * 64,)))
    assert "has 1 parts, and 2 sums are given" in sentences(
        examine_model(path, ("0" * 64, "1" * 64))
    )


def test_a_missing_part_is_named(whole: bytes, tmp_path: Path) -> None:
    first = place(tmp_path, whole, "m-00001-of-00003.gguf")
    place(tmp_path, whole, "m-00003-of-00003.gguf")
    assert "1 of its 3 parts are not there: m-00002-of-00003.gguf" in sentences(
        examine_model(first)
    )
    last = examine_model(tmp_path / "m-00003-of-00003.gguf")
    assert "is not the first part of its model; name m-00001-of-00003.gguf" in sentences(last)


def folder(path: Path) -> Path:
    (path / "x.gguf").write_bytes(b"GGUF")
    return path


def unfinished(path: Path) -> Path:
    (path / "m.gguf.part").write_bytes(b"GGUF")
    return path / "m.gguf"


def misspelt(path: Path) -> Path:
    (path / "Qwen3-14B-Q4_K_M.gguf").write_bytes(b"GGUF")
    return path / "Qwen3-14B-Q4KM.gguf"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (folder, "is a folder; name a file in it: x.gguf"),
        (unfinished, "m.gguf.part is an unfinished download"),
        (misspelt, 'did you mean "Qwen3-14B-Q4_K_M.gguf"?'),
        (lambda path: path / "none" / "m.gguf", "does not exist, nor does its folder"),
        (lambda path: path / "m.gguf", "that folder has no .gguf file"),
    ],
)  # fmt: skip
def test_a_wrong_place_is_named(make: Damage, says: str, tmp_path: Path) -> None:
    assert says in sentences(examine_model(make(tmp_path)))


def test_a_file_that_may_not_be_read(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root everything may be read, so the refusal itself is played."""
    path = place(tmp_path, whole)

    def refuse(self: Path, *_args: object, **_more: object) -> object:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    assert "may not be read by" in sentences(examine_model(path))
    assert os.access(path, os.R_OK)


def pairs(*items: tuple[str, str]) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    data = b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in items)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(items)) + data


@pytest.mark.parametrize(
    ("meta", "says", "is_sound"),
    [
        ([("general.architecture", "llama")], "has no chat template", True),
        ([("general.architecture", "clip")], "is the picture part (mmproj) of a model", False),
        ([("general.architecture", "bert")], "is an embedding model; it writes no text", False),
        ([("general.architecture", "llama"), ("general.type", "adapter")], "is an adapter (LoRA)", False),
        ([("general.name", "x")], "does not name its architecture", False),
    ],
)  # fmt: skip
def test_what_it_says_of_itself(
    meta: list[tuple[str, str]], says: str, is_sound: bool, tmp_path: Path
) -> None:
    examined = examine_model(place(tmp_path, pairs(*meta)))
    assert says in sentences(examined)
    assert examined.is_sound is is_sound

"""The reader of GGUF heads: what it says of whole files, and that no damaged file gets more than one sentence."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from gguf.constants import GGML_QUANT_SIZES

from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.devices import ram
from engine.vram.gguf import TENSOR_TYPES, Items, layer_counts, read_file, read_model, shards
from engine.vram.glance import glance
from engine.vram.ledger import model_of
from engine.vram.modelcheck import examine_model
from engine.vram.shapes import read_shape
from tests.support.shapefiles import write_shape
from tests.support.tinymodels import write_model


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(pairs: list[bytes], tensors: list[bytes], data: bytes = b"") -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def test_sizes_of_types_are_those_of_ggml() -> None:
    ours = {kind: (n, size) for kind, (_, n, size) in TENSOR_TYPES.items()}
    assert ours == {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}


def test_a_whole_model_is_read(tmp_path: Path) -> None:
    head = read_model(write_model("granitehybrid", tmp_path))
    assert head.architecture == "granitehybrid"
    assert head.missing_bytes == 0
    assert head.number("block_count") == 4
    assert head.numbers("attention.head_count_kv", 4) == (0, 2, 0, 2)
    assert head.numbers("attention.head_count", 3) == (4, 4, 4)
    assert head.number("nothing", 7) == 7
    tokens = head.meta["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Items)
    assert tokens.n_items > 100
    assert tokens.values == ()
    assert 0 < head.weight_bytes < head.file_bytes


def test_a_head_alone_can_be_planned_and_says_what_is_missing(tmp_path: Path) -> None:
    head = read_model(write_shape("qwen3-14b-q4_k_m", tmp_path, sparse=False))
    assert head.missing_bytes > 8 * 2**30
    assert head.weight_bytes == pytest.approx(9.0e9, rel=0.01)


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    meta = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    count = [text("split.count") + struct.pack("<IH", 2, 2)]
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes(gguf([*meta, *count], [tensor("a", (8,))], b"\0" * 32))
    with pytest.raises(EngineConfigError, match="one of 2 parts and 1 are in"):
        read_model(first)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf(count, [tensor("b", (16,))], b"\0" * 64))
    head = read_model(first)
    assert [t.name for t in head.tensors] == ["a", "b"]
    assert head.weight_bytes == 96
    assert head.architecture == "llama"


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ([tensor("w", (32,), kind=77)], "unknown tensor type 77"),
        ([tensor("w", (33,), kind=2)], "rows of 33"),
        ([tensor("w", (1, 1, 1, 1, 1))], "damaged"),
        ([], "holds no tensors"),
    ],
)
def test_tensors_that_cannot_be(tmp_path: Path, tensors: list[bytes], sentence: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([number("llama.block_count", 1)], tensors))
    with pytest.raises(EngineConfigError, match=sentence):
        read_model(path)


def test_every_cut_and_many_flips_end_in_one_sentence(tmp_path: Path) -> None:
    nested = text("n") + struct.pack("<IIQIQ", 9, 9, 1, 4, 2) + b"\1" * 8
    floats = text("f") + struct.pack("<If", 6, float("nan"))
    whole = gguf(
        [number("llama.block_count", 3), nested, floats], [tensor("w", (4, 4))], b"\0" * 64
    )
    end = read_whole(tmp_path, whole)
    path = tmp_path / "m.gguf"
    for n in range(end):
        path.write_bytes(whole[:n])
        with pytest.raises(EngineConfigError, match=r"not a GGUF file|damaged or cut off"):
            read_file(path)
        assert layer_counts(path)[0] in (0, 3)
    rng = random.Random(5)
    n_refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice(
                (0, 1, 127, 128, 255, rng.randrange(256))
            )
        path.write_bytes(damaged)
        try:
            read_model(path).number("block_count")
        except EngineConfigError:
            n_refused += 1
    assert n_refused > 100


@pytest.mark.parametrize(
    ("key", "value"),
    [("block_count", 2**63), ("block_count", 513), ("block_count", -1), ("context_length", -5),
     ("attention.head_count", -4), ("attention.head_count_kv", -1), ("embedding_length", 2**40)],
)  # fmt: skip
def test_a_size_that_cannot_be_ends_in_one_sentence(tmp_path: Path, key: str, value: int) -> None:
    architecture = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    kind = "<Iq" if value < 0 else "<IQ"
    odd = text(f"llama.{key}") + struct.pack(kind, 11 if value < 0 else 10, value)
    others = [number(f"llama.{name}", 2) for name in ("block_count", "embedding_length")]
    path = tmp_path / "m.gguf"
    pairs = [architecture, odd, *(o for o in others if not o.startswith(text(f"llama.{key}")))]
    path.write_bytes(gguf(pairs, [tensor("blk.0.w", (8,))], b"\0" * 32))
    with pytest.raises(EngineConfigError, match=f"m.gguf is damaged: it says .*{value}"):
        read_shape(read_model(path))
    faults = examine_model(path).faults
    assert [f.what for f in faults if f.is_fatal and str(value) in f.what]
    assert str(value) in glance(path, EngineConfig(name="m"), ram(2**34), None).verdict


def test_names_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    key = number("llama.block_count", 1)
    many = struct.pack("<QI", 0, 0) + b"\0"  # a key without a name, as in a hole of a file
    refused: tuple[tuple[list[bytes], bytes], ...] = (
        ([key], tensor("blk." + "9" * 5000 + ".w", (8,))),
        ([key, key], tensor("w", (8,))),
        ([many, many], tensor("w", (8,))),
        ([key], tensor("w", (2**40, 2**40))),
    )
    for pairs, one in refused:
        path.write_bytes(gguf(pairs, [one], b"\0" * 32))
        with pytest.raises(EngineConfigError, match="damaged"):
            read_model(path)
    path.write_bytes(gguf([key], [tensor("blk.99999999.w\n\x1b[31m", (8,))], b"\0" * 32))
    head = read_model(path)
    assert head.tensors[0].name == "blk.99999999.w\ufffd\ufffd[31m"
    assert model_of(head, read_shape(head)).n_layer == 0


def test_parts_are_those_of_the_same_model(tmp_path: Path) -> None:
    """Not those of one whose name goes on, and whatever letters the name has."""
    for stem in ("m[1]", "m[1]-chat"):
        for i in (1, 2):
            (tmp_path / f"{stem}-0000{i}-of-00002.gguf").write_bytes(b"GGUF")
    found = shards(tmp_path / "m[1]-00001-of-00002.gguf")
    assert [part.name for part in found] == [
        "m[1]-00001-of-00002.gguf",
        "m[1]-00002-of-00002.gguf",
    ]


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe would wait for its writer for ever."""
    pipe, link = tmp_path / "p.gguf", tmp_path / "l.gguf"
    os.mkfifo(pipe)
    link.symlink_to("gone.gguf")
    with pytest.raises(EngineConfigError, match="is no file"):
        read_model(pipe)
    for path, what in ((pipe, "is no file"), (link, "is a link to gone.gguf")):
        assert examine_model(path).faults[0].what.startswith(what)
        with pytest.raises(EngineConfigError, match=what):
            find_model("m", str(path))


def test_a_version_that_llama_does_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + b"\0" * 99)
    with pytest.raises(EngineConfigError, match="is of GGUF version 1"):
        read_file(path)


def read_whole(folder: Path, data: bytes) -> int:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return read_file(path).head_bytes

"""The identity of a model file, and the sentences for files that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from engine.backends.modelfile import explain_context_failure, explain_load_failure, find_model
from engine.errors import EngineConfigError
from engine.vram.fingerprint import fingerprint
from engine.vram.gguf import shards


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(
    *, name: str = "tiny", tokens: int = 3, offset: int = 0, data: bytes = b"\0" * 64
) -> bytes:
    """A minimal GGUF: a string, a number, an array of strings, a nested array, one tensor."""
    pairs = [
        text("general.name") + struct.pack("<I", 8) + text(name),
        text("llama.context_length") + struct.pack("<II", 4, 2048),
        text("tokens") + struct.pack("<IIQ", 9, 8, tokens) + text("ab") * tokens,
        text("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 0, 2) + b"\1\2",
    ]
    tensor = text("w") + struct.pack("<IQQIQ", 2, 4, 4, 0, offset)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor + data


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_same_head_same_fingerprint_whatever_the_name(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.gguf", gguf()), write(tmp_path / "b.gguf", gguf())
    assert fingerprint(a) == fingerprint(b)
    assert len(fingerprint(a)) == 32


@pytest.mark.parametrize(
    "other", [gguf(name="other"), gguf(tokens=4), gguf(offset=1), gguf(data=b"\0" * 65)]
)
def test_any_difference_changes_it(tmp_path: Path, other: bytes) -> None:
    a, b = write(tmp_path / "a.gguf", gguf()), write(tmp_path / "b.gguf", other)
    assert fingerprint(a) != fingerprint(b)


def test_all_shards_of_a_split_model_count(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf", gguf())
    write(tmp_path / "m-00002-of-00002.gguf", gguf())
    write(tmp_path / "other-00002-of-00002.gguf", gguf())
    assert [p.name for p in shards(first)] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    before = fingerprint(first)
    write(tmp_path / "m-00002-of-00002.gguf", gguf(name="changed"))
    assert fingerprint(first) != before


@pytest.mark.parametrize("data", [b"", b"GG", b"PK\3\4 a zip file", b"<html>not found</html>"])
def test_something_else_is_not_a_gguf(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "m.gguf", data)
    with pytest.raises(EngineConfigError, match="is not a GGUF file"):
        fingerprint(path)


@pytest.mark.parametrize("keep", [4, 10, 24, 60, 120, -64])
def test_a_file_that_ends_early_is_cut_off(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "m.gguf", gguf()[:keep])
    with pytest.raises(EngineConfigError, match="damaged or cut off"):
        fingerprint(path)


def test_absurd_lengths_do_not_hang_or_crash(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + struct.pack("<Q", 2**63)
    path = write(tmp_path / "m.gguf", head + b"\0" * 100)
    with pytest.raises(EngineConfigError, match="damaged or cut off"):
        fingerprint(path)


def test_a_missing_file_names_its_nearest_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "Qwen3-8B-Q4_K_M.gguf", gguf())
    write(tmp_path / "gemma.gguf", gguf())
    with pytest.raises(EngineConfigError, match=r'did you mean "Qwen3-8B-Q4_K_M\.gguf"'):
        find_model("main", str(tmp_path / "Qwen3-8B-Q4KM.gguf"))


def test_what_else_may_be_wrong_with_a_path(tmp_path: Path) -> None:
    with pytest.raises(EngineConfigError, match=r"there is no \.gguf file"):
        find_model("main", str(tmp_path / "x.gguf"))
    with pytest.raises(EngineConfigError, match="nor does the folder"):
        find_model("main", str(tmp_path / "nowhere" / "x.gguf"))
    write(tmp_path / "m.gguf", gguf())
    with pytest.raises(EngineConfigError, match=r"is a folder; .* it holds m\.gguf"):
        find_model("main", str(tmp_path))
    assert find_model("main", str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"


def test_the_demo_model_is_found_without_importing_its_package() -> None:
    assert find_model("main", "demo").suffix == ".gguf"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("llama_model_load: error loading model: unknown model architecture: 'zebra'", "'zebra'"),
        (
            "tensor 'x' data is not within the file bounds, model is corrupted or incomplete",
            "cut off",
        ),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: failed to allocate 9 MiB", "does not fit"),
        ("error loading model: missing tensor 'y'", "missing tensor 'y'"),
        ("", "could not be loaded"),
    ],
)
def test_load_failures_become_one_sentence(line: str, sentence: str) -> None:
    message = explain_load_failure(Path("m.gguf"), ["loading …", line])
    assert sentence in message
    assert "\n" not in message


def test_context_failures_become_one_sentence() -> None:
    assert "does not fit" in explain_context_failure(["failed to allocate buffer for kv cache"])
    assert "V cache quantization requires" in explain_context_failure(
        ["llama_init: V cache quantization requires flash_attn"]
    )

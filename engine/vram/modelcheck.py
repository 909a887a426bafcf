"""What is wrong with a model file: from a missing part to a byte that cannot be. Reads heads and samples, loads nothing."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.backends.modelfile import DEMO, find_model
from engine.errors import EngineConfigError
from engine.vram.gguf import FileHead, ModelHead, read_file, shards
from engine.vram.gguf import Value as MetaValue
from engine.vram.shapes import read_shape
from engine.vram.tensorcheck import AGAIN, Fault, tensor_faults

_PARTIAL: Final = (".part", ".partial", ".incomplete", ".crdownload", ".aria2", ".download", ".tmp")
_VERSIONS: Final = (2, 3)  # of GGUF, that llama.cpp reads
_PART_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# How a file begins → (what it is, what to do).
_DISGUISES: Final = tuple(
    (re.compile(start, re.IGNORECASE | re.DOTALL), what, cure)
    for start, what, cure in (
        (rb"\s*<(!doctype|html|\?xml)", "is a web page, not a model: the server answered the download with a page",
         "download it by the file's own link (on Hugging Face …/resolve/main/…)"),
        (rb"version https://git-lfs", "is a Git LFS pointer, not the model itself", "run `git lfs pull` in its folder"),
        (rb'\s*\{"(error|message|detail)', "is a server's error message, not a model", AGAIN),
        (rb"PK\x03\x04", "is a zip archive (perhaps PyTorch weights)", "unpack it, or take the model's GGUF"),
        (rb"(lmgg|fmgg|tjgg|ggml|ggmf|ggjt)", "is in the GGML format of 2023, which llama.cpp reads no more",
         "take the model's GGUF"),
        (rb"........\{", "is a safetensors file, which llama.cpp does not read", "take the model's GGUF, or convert it"),
        (rb"\x00{16}", "begins with zeros: its download did not get so far", AGAIN),
    )
)  # fmt: skip
# Architectures whose output is no text.
_NO_WRITERS: Final = {"clip": "the picture part (mmproj) of a model"} | dict.fromkeys(
    ("bert", "nomic-bert", "jina-bert-v2", "jina-bert-v3", "t5encoder", "modern-bert"),
    "an embedding model",
)


@dataclass(frozen=True, slots=True)
class Examination:
    """`heads` are those of the parts that could be read, `faults` in the order in which they should be mended."""

    heads: tuple[tuple[Path, FileHead], ...]
    faults: tuple[Fault, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found that keeps it from loading."""
        return not any(fault.is_fatal for fault in self.faults)

    @property
    def meta(self) -> dict[str, MetaValue]:
        """The model's metadata: those of its first part."""
        return self.heads[0][1].meta if self.heads else {}

    @property
    def file_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(head.file_bytes for _, head in self.heads)


def locate(name: str, path: str) -> Path:
    """The file that `models.<name>.path` names, whether it is there or not. Raises EngineConfigError for a demo model that is
    not installed."""
    return find_model(name, path) if path == DEMO else Path(path).expanduser()


def examine_model(path: Path, sha256: tuple[str, ...] = ()) -> Examination:
    """Everything that can be seen without loading it. `sha256`: the published sums of its parts; comparing them reads the
    files whole (about 1 s per GB), anything else some megabytes at most. Raises nothing."""
    if fault := _place_fault(path):
        return Examination((), (fault,))
    faults = list(_part_faults(path))
    heads = []
    for part in shards(path):
        try:
            head = _read(part)
        except _Unreadable as unreadable:
            faults.append(unreadable.fault)
            continue
        heads.append((part, head))
        faults += tensor_faults(part, head)
    if heads:
        faults += _meta_faults(path, heads[0][1].meta)
    if heads and not any(fault.is_fatal for fault in faults):
        faults += _size_faults(path, heads[0][1].meta)
    if sha256 and not any(fault.is_fatal for fault in faults):
        faults += _sum_faults(path, sha256)
    return Examination(tuple(heads), tuple(faults))


class _Unreadable(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault


# The place.


def _place_fault(path: Path) -> Fault | None:
    try:
        if path.is_dir():
            inside = sorted(p.name for p in path.glob("*.gguf"))
            cure = f"name a file in it: {', '.join(inside[:3])}" if inside else "name a .gguf file"
            return Fault(path, "is a folder", cure)
        if not path.exists():
            return _missing(path)
        if not path.is_file():  # reading a pipe would wait for ever
            return Fault(path, "is no file", "name a .gguf file")
        with path.open("rb") as file:
            return None if file.read(1) else Fault(path, "is empty", AGAIN)
    except PermissionError:
        return Fault(
            path, f"may not be read by {_user()}", f"chmod a+r {path}, and a+x its folders"
        )
    except OSError as error:
        return Fault(path, f"cannot be read ({error.strerror})", "check the disk and its mount")


def _user() -> str:
    return os.environ.get("USER") or f"user {os.getuid()}"


def _missing(path: Path) -> Fault:
    if not path.parent.is_dir():
        return Fault(path, "does not exist, nor does its folder", "correct the path")
    if path.is_symlink():
        what = f"is a link to {path.readlink()}, which does not exist"
        return Fault(path, what, "correct the link, or download the model again")
    begun = [
        p.name for p in path.parent.iterdir() if p.name.startswith(path.name) or path.stem in p.name
    ]
    for name in sorted(begun):
        if name.endswith(_PARTIAL):
            return Fault(
                path,
                f"does not exist; {name} is an unfinished download",
                "let it finish, or begin it again",
            )
    names = [p.name for p in path.parent.glob("*.gguf")]
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.4)
    if close:
        return Fault(path, "does not exist", f'did you mean "{close[0]}"?')
    found = (
        f"; that folder has {len(names)} .gguf files"
        if names
        else "; that folder has no .gguf file"
    )
    return Fault(path, f"does not exist{found}", "correct the path, or download the model")


def _part_faults(path: Path) -> Iterator[Fault]:
    match = _PART_NAME.search(path.name)
    if match is None:
        return
    stem, n_parts = path.name[: match.start()], int(match.group(2))
    names = [f"{stem}-{i:05d}-of-{n_parts:05d}.gguf" for i in range(1, n_parts + 1)]
    if path.name != names[0]:
        yield Fault(path, "is not the first part of its model", f"name {names[0]}")
    lost = [name for name in names if not (path.parent / name).is_file()]
    if lost:
        what = f"{len(lost)} of its {n_parts} parts are not there: {', '.join(lost[:3])}"
        yield Fault(path, what, f"download them into {path.parent}")


# The head.


def _read(path: Path) -> FileHead:
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise _Unreadable(
            Fault(path, f"cannot be read ({error.strerror})", "check its rights")
        ) from error
    if fault := _start_fault(path, start):
        raise _Unreadable(fault)
    try:
        return read_file(path)
    except EngineConfigError:
        what = f"is damaged or cut off inside its head ({path.stat().st_size} bytes)"
        raise _Unreadable(Fault(path, what, AGAIN)) from None


def _start_fault(path: Path, start: bytes) -> Fault | None:
    if not start.startswith(b"GGUF"):
        for pattern, what, cure in _DISGUISES:
            if pattern.match(start):
                return Fault(path, what, cure)
        return Fault(path, "is not a GGUF file (it does not begin with GGUF)", "name a .gguf model")
    version = int.from_bytes(start[4:8], "little")
    if version in _VERSIONS or len(start) < 8:
        return None
    if int.from_bytes(start[4:8], "big") in _VERSIONS:
        return Fault(
            path, "is a big-endian GGUF, made for another kind of machine", "take the usual file"
        )
    if version == 1:
        return Fault(
            path, "is of GGUF version 1, which llama.cpp reads no more", "take a newer file"
        )
    return Fault(
        path,
        f"is of GGUF version {version}; this llama.cpp reads 2 and 3",
        f"{AGAIN}, or update Hearth",
    )


def _meta_faults(path: Path, meta: dict[str, MetaValue]) -> Iterator[Fault]:
    architecture = meta.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        yield Fault(
            path, "does not name its architecture", "take a model that llama.cpp's tools made"
        )
        return
    if meta.get("general.type") == "adapter":
        yield Fault(path, "is an adapter (LoRA), not a model", "merge it into its model")
        return
    if architecture in _NO_WRITERS:
        yield Fault(
            path, f"is {_NO_WRITERS[architecture]}; it writes no text", "name the language model"
        )
        return
    template = meta.get("tokenizer.chat_template")
    if not isinstance(template, str) or not template.strip():
        yield Fault(
            path, "has no chat template, as base models have none; it will go on writing instead of answering",
            "take the variant for chats (Instruct, Chat, -it)", is_fatal=False,
        )  # fmt: skip


def _size_faults(path: Path, meta: dict[str, MetaValue]) -> Iterator[Fault]:
    """Sizes that cannot be, by which nothing can be planned."""
    try:
        read_shape(ModelHead(path, meta, (), 0, 0))
    except EngineConfigError as error:
        yield Fault(path, str(error).removeprefix(f"{path} ").partition(";")[0], AGAIN)


# The sums.


def _sum_faults(path: Path, sha256: tuple[str, ...]) -> Iterator[Fault]:
    parts = shards(path)
    if len(sha256) != len(parts):
        what = f"has {len(parts)} parts, and {len(sha256)} sums are given"
        yield Fault(path, what, "give one SHA-256 for each part, in order")
    for part, wanted in zip(parts, sha256, strict=False):
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted.lower():
            what = f"has the SHA-256 {found[:12]}…, and {wanted[:12].lower()}… was given"
            yield Fault(part, what, f"{AGAIN}, or correct the sum")

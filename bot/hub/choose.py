"""Which files of a repository are meant by a file name or a quantization. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from bot.errors import HubError
from bot.hub.types import RemoteFile, RemoteModel

_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
# Companions of a model that are no models: image projectors, importance matrices.
_COMPANION = re.compile(r"(^|[-_.])(mmproj|imatrix)([-_.]|$)", re.IGNORECASE)
_BETWEEN = re.compile(r"[^A-Za-z0-9_]+")
_SHOWN = 12


def models_of(files: Iterable[RemoteFile]) -> list[RemoteModel]:
    """The GGUF models of a repository, split ones put together, by name."""
    found: dict[str, list[RemoteFile]] = {}
    for file in files:
        # A name that moves a terminal's cursor is neither shown nor written.
        if file.path.lower().endswith(".gguf") and file.path.isprintable():
            found.setdefault(_PART.sub("", file.path[: -len(".gguf")]), []).append(file)
    return [
        RemoteModel(stem.rsplit("/", 1)[-1], tuple(sorted(parts, key=lambda part: part.path)))
        for stem, parts in sorted(found.items())
    ]


def choose(files: Iterable[RemoteFile], wanted: str, repo: str) -> RemoteModel:
    """The model that `wanted` names: a file's path or name, a quantization ("Q4_K_M"), or "" for the only one.

    Any part of a split model means all of it. Raises HubError, which names what there is.
    """
    models = models_of(files)
    plain = [model for model in models if not _COMPANION.search(model.name)]
    if not models:
        raise HubError(
            f"{repo} holds no .gguf file; look for a repository whose name ends in -GGUF, "
            "or convert the model with llama.cpp's own tools (docs/models.md)"
        )
    found = _named(models, wanted) or _quantized(plain, wanted) if wanted else plain
    if len(found) == 1:
        return _whole(found[0], repo)
    if found:
        raise HubError(
            f"{repo} holds {len(found)} models{f' for {wanted}' if wanted else ''}; name one: {_list(found)}"
        )
    raise HubError(f"{repo} holds no {wanted}{_near(plain, wanted)}; there is {_list(models)}")


def _named(models: list[RemoteModel], wanted: str) -> list[RemoteModel]:
    name = wanted.removesuffix(".gguf")
    return [
        model
        for model in models
        if any(name in {_stem(p.path), _stem(p.name), model.name} for p in model.parts)
    ]


def _stem(path: str) -> str:
    return path.rsplit(".", 1)[0]


def _quantized(models: list[RemoteModel], wanted: str) -> list[RemoteModel]:
    """Models with the word in their name; Q4_K does not mean Q4_K_M."""
    word = wanted.lower()
    return [model for model in models if word in _BETWEEN.split(model.name.lower())]


def _whole(model: RemoteModel, repo: str) -> RemoteModel:
    """Raises HubError where a part is not there."""
    match = _PART.search(_stem(model.parts[0].path))
    expected = int(match[2]) if match else 1
    if len(model.parts) != expected:
        raise HubError(
            f"{repo} holds {len(model.parts)} of {expected} parts of {model.name}: it is not whole there"
        )
    return model


def _near(models: list[RemoteModel], wanted: str) -> str:
    names = {model.name.lower(): model.name for model in models}
    words = {word: word.upper() for name in names for word in _BETWEEN.split(name) if word}
    known = names | words
    close = difflib.get_close_matches(
        wanted.lower().removesuffix(".gguf"), list(known), n=1, cutoff=0.6
    )
    return f' (did you mean "{known[close[0]]}"?)' if close else ""


def _list(models: list[RemoteModel]) -> str:
    shown = [f"{model.name} ({model.n_bytes / 2**30:.1f} GiB)" for model in models[:_SHOWN]]
    more = len(models) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")

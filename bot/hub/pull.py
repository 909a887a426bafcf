"""Pulls a model into a folder: looks it up, checks the room on the disk, fetches every part, notes the checksums."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from bot.errors import HubError
from bot.hub.choose import choose
from bot.hub.download import Download, fetched_bytes, sha256_of
from bot.hub.huggingface import HuggingFace
from bot.hub.modelscope import ModelScope
from bot.hub.types import Access, Hub, Pulled, RemoteFile, RemoteModel, Watcher

HUBS: Final[Mapping[str, Hub]] = {"huggingface": HuggingFace(), "modelscope": ModelScope()}
ENDPOINTS: Final = {"huggingface": "https://huggingface.co", "modelscope": "https://modelscope.cn"}
_TOKENS: Final = {"huggingface": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}
# What stays free on the disk: a full one would stop the database as well.
_SPARE: Final = 256 * 2**20
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_NAME = re.compile(r"[^\x00-\x1f/\\]+\.gguf", re.IGNORECASE)


def access(hub: str, endpoint: str, repo: str, revision: str) -> Access:
    """How a repository is reached. A hub's token from the environment goes to that hub alone; `HEARTH_HUB_TOKEN` to any.

    Raises HubError for a hub, a repository or an address that is none.
    """
    if hub not in HUBS:
        raise HubError(f"--from {hub}: there is {' and '.join(HUBS)}")
    at = (endpoint or _from_environment(hub) or ENDPOINTS[hub]).rstrip("/")
    parts = _http_url(at)
    token = os.environ.get("HEARTH_HUB_TOKEN", "")
    if not token and at == ENDPOINTS[hub]:
        token = os.environ.get(_TOKENS[hub], "")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        token = ""  # everybody on the way could read it
    if not _REPO.fullmatch(repo):
        raise HubError(f"{repo} is no repository: write OWNER/NAME")
    return Access(hub, at, repo, revision, token.strip())


def _http_url(text: str) -> SplitResult:
    """Raises HubError for what is none."""
    try:
        parts = urlsplit(text)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # "http://[::1", a port that is no number
        pass
    raise HubError(f"{text} is not an http(s) URL, for example https://hf-mirror.com")


def _from_environment(hub: str) -> str:
    return os.environ.get("HF_ENDPOINT", "") if hub == "huggingface" else ""


def pull(
    where: Access,
    wanted: str,
    folder: Path,
    watcher: Watcher,
    pause: Callable[[float], None] = time.sleep,
) -> Pulled:
    """Fetch what `wanted` names (see `choose`). What is there already is checked, not fetched. Raises HubError."""
    try:
        return _pull(where, wanted, folder, watcher, pause)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise HubError(f"{error.filename or folder} cannot be used: {reason}") from error


def _pull(
    where: Access, wanted: str, folder: Path, watcher: Watcher, pause: Callable[[float], None]
) -> Pulled:
    hub = HUBS[where.hub]
    model = choose(hub.files(where), wanted, where.repo)
    for part in model.parts:
        if not _NAME.fullmatch(part.name) or part.name.startswith("."):
            raise HubError(f"{where.repo} names a file {part.name!r}, which is not written here")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HubError(f"{folder} cannot be made: {error.strerror}") from error
    missing = [part for part in model.parts if not _is_there(part, folder, watcher)]
    _check_room(missing, folder)
    for part in missing:
        found = Download(where, hub.headers(where), part, watcher, pause).run(folder)
        _note_checksum(folder / part.name, found, watcher)
        if not part.sha256:
            watcher.note(f"the hub names no checksum of {part.name}: only its size was checked")
    return Pulled(_first(model, folder), model.n_bytes, was_there=not missing)


def _first(model: RemoteModel, folder: Path) -> Path:
    return folder / model.parts[0].name


def _is_there(part: RemoteFile, folder: Path, watcher: Watcher) -> bool:
    """Whether it lies there, whole and right. Raises HubError for another file of that name, which is never touched."""
    path = folder / part.name
    if not path.exists():
        return False
    if path.stat().st_size == part.n_bytes:
        if not part.sha256:
            return True
        watcher.begin(part.name, part.n_bytes, fetching=False)
        found = sha256_of(path, watcher)
        if found == part.sha256:
            _note_checksum(path, found, watcher)
            return True
    raise HubError(
        f"{path} is another file than {part.path} of the hub (damaged, or another version); move it away or choose --to FOLDER"
    )


def _check_room(missing: list[RemoteFile], folder: Path) -> None:
    needed = sum(part.n_bytes - fetched_bytes(part, folder) for part in missing)
    free = shutil.disk_usage(folder).free
    if missing and needed + _SPARE > free:
        raise HubError(
            f"{folder} has {free / 2**30:.1f} GiB free and {(needed + _SPARE) / 2**30:.1f} GiB are needed; "
            "make room or choose --to FOLDER"
        )


def _note_checksum(path: Path, sha256: str, watcher: Watcher) -> None:
    """Beside the file, as sha256sum writes and reads it; without it the model is as good."""
    note, text = path.with_name(f"{path.name}.sha256"), f"{sha256}  {path.name}\n"
    try:
        if not note.is_file() or note.read_text(encoding="utf-8", errors="replace") != text:
            note.write_text(text, encoding="utf-8")
    except OSError as error:
        watcher.note(f"{note} cannot be written ({error.strerror}): the checksum is not kept")

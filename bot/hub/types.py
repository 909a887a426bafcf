"""What the parts of this room tell each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_SHA256 = re.compile(r"(sha256:)?([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `sha256` is "" where the hub names none (files that are not in LFS)."""

    path: str
    n_bytes: int
    sha256: str
    url: str

    @property
    def name(self) -> str:
        """The name without the repository's folders."""
        return self.path.rsplit("/", 1)[-1]


def remote_file(path: str, n_bytes: int, checksum: str, url: str) -> RemoteFile:
    """A file as a hub tells of it. Raises ValueError for a size or a checksum that cannot be."""
    match = _SHA256.fullmatch(checksum.strip().lower())
    if n_bytes < 0 or (checksum and match is None):
        raise ValueError(f"{n_bytes} bytes, checksum {checksum!r}")
    return RemoteFile(path, n_bytes, match[2] if match else "", url)


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of a repository: one file, or all parts of a split one in their order."""

    name: str
    parts: tuple[RemoteFile, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.n_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that lies in a folder now. `path` is its (first) file, what `models.*.path` must name."""

    path: Path
    n_bytes: int
    was_there: bool


@dataclass(frozen=True, slots=True)
class Access:
    """A repository of a hub as it is reached. `token` is for `endpoint` alone and never shown."""

    hub: str
    endpoint: str
    repo: str
    revision: str
    token: str = field(default="", repr=False)


class Hub(Protocol):
    """A kind of hub."""

    def files(self, access: Access) -> list[RemoteFile]:
        """All files of a repository. Raises HubError."""
        ...

    def headers(self, access: Access) -> Mapping[str, str]:
        """What requests for its files carry."""
        ...


class Watcher(Protocol):
    """Is told how a download goes."""

    def begin(self, name: str, n_bytes: int, *, fetching: bool) -> None:
        """A file is read (`fetching`: from the hub, else from the disk, to check it)."""
        ...

    def advance(self, n_bytes: int) -> None:
        """So many more bytes are here; fewer than none where the hub began anew."""
        ...

    def note(self, text: str) -> None:
        """One sentence on something that went otherwise than planned."""
        ...

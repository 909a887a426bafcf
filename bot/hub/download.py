"""Brings one file here: goes on where an earlier try ended, checks the SHA-256 while it comes, puts the name last.

A file that is not whole lies beside its place as `NAME.<checksum>.part`, so that bytes of another version are never
appended to. What the hub sends is believed only where it says which bytes it sends (RFC 9110 §14.4).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import OfflineModeIsEnabled

from bot.errors import HubError
from bot.hub.refusals import gated, missing, offline, status, unreachable
from bot.hub.types import Access, RemoteFile, Watcher

_CHUNK: Final = 2**20
_TIMEOUT: Final = httpx2.Timeout(30.0)
_TRIES: Final = 6  # without a single new byte
_LONGEST_PAUSE_S: Final = 30.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Lost(Exception):
    """The connection ended or the hub is busy: the rest may be asked for after `after_s` seconds."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


def partial_path(file: RemoteFile, folder: Path) -> Path:
    """Where the bytes of a file lie while it is not whole."""
    return folder / f"{file.name}.{file.sha256[:12] or 'unchecked'}.part"


def fetched_bytes(file: RemoteFile, folder: Path) -> int:
    """How many bytes of it an earlier try left that can be used."""
    part = partial_path(file, folder)
    return part.stat().st_size if file.sha256 and part.is_file() else 0


def sha256_of(path: Path, watcher: Watcher) -> str:
    """The checksum of a file on the disk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            watcher.advance(len(chunk))
    return digest.hexdigest()


class Download:
    """One file on its way. Owned by the thread that calls `run`."""

    def __init__(
        self,
        access: Access,
        headers: Mapping[str, str],
        file: RemoteFile,
        watcher: Watcher,
        pause: Callable[[float], None],
    ) -> None:
        self._access = access
        # Ranges count the bytes as they are stored, which no other encoding would give.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._file = file
        self._watcher = watcher
        self._pause = pause
        self._digest = hashlib.sha256()
        self._have = 0

    def run(self, folder: Path) -> str:
        """Fetch what is missing, check, and give the file its name. Returns its SHA-256. Raises HubError."""
        part = partial_path(self._file, folder)
        with _locked(part) as out:
            self._watcher.begin(self._file.name, self._file.n_bytes, fetching=True)
            self._take_over(out)
            self._fetch(out)
            found = self._digest.hexdigest()
            if self._file.sha256 and found != self._file.sha256:
                part.unlink()
                raise HubError(
                    f"{self._file.name} came with the SHA-256 {found[:12]}… and should have {self._file.sha256[:12]}…: "
                    "it was removed; run the same command again, or choose another mirror with --endpoint"
                )
            os.fsync(out.fileno())
            part.rename(folder / self._file.name)
        return found

    def _take_over(self, out: BinaryIO) -> None:
        """Count what an earlier try left; without a checksum nobody could tell that it belongs to this version."""
        if not self._file.sha256:
            out.truncate(0)
        out.seek(0)
        while chunk := out.read(_CHUNK):
            self._add(chunk)
        if self._have > self._file.n_bytes:
            self._begin_anew(out)

    def _fetch(self, out: BinaryIO) -> None:
        tries = furthest = 0
        while self._have < self._file.n_bytes:
            furthest = max(furthest, self._have)
            try:
                self._stream(out)
            except _Lost as lost:
                # A hub that sends no parts begins anew each time: as far as before is no progress.
                tries = 1 if self._have > furthest else tries + 1
                if tries >= _TRIES:
                    raise HubError(
                        f"the connection to {self._access.endpoint} was lost again and again ({lost}); "
                        f"{self._have / 2**30:.2f} of {self._file.n_bytes / 2**30:.2f} GiB of {self._file.name} are kept: "
                        "run the same command to go on"
                    ) from lost
                self._watcher.note(f"connection lost ({lost}); going on at byte {self._have}")
                self._pause(min(_LONGEST_PAUSE_S, max(lost.after_s, 2.0 ** (tries - 1))))
            finally:
                out.flush()

    def _stream(self, out: BinaryIO) -> None:
        """One request for the rest. Raises _Lost where another may bring more, HubError where none will."""
        headers = dict(self._headers)
        if self._have:
            headers["Range"] = f"bytes={self._have}-"
        try:
            with get_session().stream(
                "GET", self._file.url, headers=headers, timeout=_TIMEOUT
            ) as answer:
                self._position(answer, out)
                for chunk in answer.iter_bytes():
                    self._write(chunk, out)
        except OfflineModeIsEnabled as error:
            raise offline() from error
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.TooManyRedirects) as error:
            raise unreachable(self._access, error) from error
        except httpx2.HTTPError as error:
            raise _Lost(str(error) or type(error).__name__) from error
        if self._have < self._file.n_bytes:
            raise _Lost("the answer ended early")

    def _position(self, answer: httpx2.Response, out: BinaryIO) -> None:
        """Make sure that the next byte that comes is the next one that is missing."""
        if answer.status_code == 200:
            if self._have:
                self._watcher.note("the hub does not send parts of a file: beginning anew")
                self._begin_anew(out)
            return
        if answer.status_code == 206:
            match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if match and int(match[1]) == self._have and match[3] in {"*", str(self._file.n_bytes)}:
                return
            raise HubError(
                f"{self._access.endpoint} sent other bytes of {self._file.name} than were asked for; choose another mirror"
            )
        self._refuse(answer, out)

    def _refuse(self, answer: httpx2.Response, out: BinaryIO) -> None:
        code = answer.status_code
        if code == 416:
            self._begin_anew(out)
            raise _Lost("the hub has no such part of the file")
        if code in _AGAIN:
            after = answer.headers.get("Retry-After", "")
            raise _Lost(f"status {code}", float(after) if after.isdecimal() else 0.0)
        if code in {401, 403}:
            raise gated(self._access)
        if code == 404:
            if answer.headers.get("X-Error-Code") == "RepoNotFound":
                raise missing(self._access)
            raise HubError(f"{self._file.path} is no longer in {self._access.repo}")
        raise status(self._access, code)

    def _write(self, chunk: bytes, out: BinaryIO) -> None:
        if self._have + len(chunk) > self._file.n_bytes:
            raise HubError(
                f"{self._access.endpoint} sent more bytes of {self._file.name} than it has; choose another mirror"
            )
        try:
            out.write(chunk)
        except OSError as error:
            raise HubError(f"{self._file.name} cannot be written: {error.strerror}") from error
        self._add(chunk)

    def _add(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self._have += len(chunk)
        self._watcher.advance(len(chunk))

    def _begin_anew(self, out: BinaryIO) -> None:
        self._watcher.advance(-self._have)
        self._have = 0
        self._digest = hashlib.sha256()
        out.seek(0)
        out.truncate(0)


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The partial file, for this process alone. Raises HubError."""
    try:
        with part.open("a+b") as out:
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise HubError(f"{part} is being fetched by another process") from error
            yield out
    except OSError as error:
        raise HubError(f"{part} cannot be written: {error.strerror}") from error

"""ModelScope, by the two https calls of its API that its own client uses for files. That client would be a second stack
for the same bytes, and its downloads could not be resumed and checked by the same code as all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import OfflineModeIsEnabled

from bot.errors import HubError
from bot.hub.refusals import gated, missing, offline, status, unreachable
from bot.hub.types import Access, RemoteFile, remote_file

_TIMEOUT = httpx2.Timeout(30.0)


class ModelScope:
    """`GET /api/v1/models/{repo}/repo/files` lists, `…/repo?FilePath=` gives a file (with ranges)."""

    def files(self, access: Access) -> list[RemoteFile]:
        """All files of a repository. Raises HubError."""
        query = urlencode({"Revision": _revision(access), "Recursive": "True"})
        try:
            answer = get_session().get(
                f"{_base(access)}/files?{query}", headers=self.headers(access), timeout=_TIMEOUT
            )
        except OfflineModeIsEnabled as error:
            raise offline() from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise unreachable(access, error) from error
        if answer.status_code == 404:
            raise missing(access)
        if answer.status_code in {401, 403}:
            raise gated(access)
        if answer.status_code != 200:
            raise status(access, answer.status_code)
        return _files(access, answer)

    def headers(self, access: Access) -> Mapping[str, str]:
        """The token as this API wants it: its file calls look at the cookie."""
        if not access.token:
            return {}
        return {
            "Authorization": f"Bearer {access.token}",
            "Cookie": f"m_session_id={access.token}",
        }


def _base(access: Access) -> str:
    return f"{access.endpoint}/api/v1/models/{quote(access.repo)}/repo"


def _revision(access: Access) -> str:
    return access.revision or "master"


def _files(access: Access, answer: httpx2.Response) -> list[RemoteFile]:
    try:
        entries = answer.json()["Data"]["Files"]
        return [_file(access, entry) for entry in entries if entry.get("Type") != "tree"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubError(
            f"{access.endpoint} did not answer as ModelScope does; a mirror of Hugging Face needs --from huggingface"
        ) from error


def _file(access: Access, entry: dict[str, Any]) -> RemoteFile:
    path = str(entry["Path"])
    query = urlencode({"Revision": _revision(access), "FilePath": path})
    checksum = str(entry.get("Sha256") or "")
    return remote_file(path, int(entry["Size"]), checksum, f"{_base(access)}?{query}")

"""Hugging Face and everything that speaks its API (hf-mirror.com, a company's own mirror), through `huggingface_hub`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx2
from huggingface_hub import get_session, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from bot.errors import HubError
from bot.hub.refusals import gated, missing, offline, status, unreachable
from bot.hub.types import Access, RemoteFile, remote_file

_TIMEOUT = httpx2.Timeout(30.0)
_MOST_PAGES = 1000  # of some hundred files each


class HuggingFace:
    """Lists by the API's tree, whose entries carry the SHA-256 of LFS files. Asked page by page and once each: the
    library's own listing tries for half a minute before it says that nobody is there."""

    def files(self, access: Access) -> list[RemoteFile]:
        """All files of a repository. Raises HubError."""
        try:
            return [_file(access, e) for e in self._entries(access) if e["type"] == "file"]
        except OfflineModeIsEnabled as error:
            raise offline() from error
        except RevisionNotFoundError as error:
            raise HubError(f"{access.repo} has no revision {access.revision}") from error
        except GatedRepoError as error:
            raise gated(access) from error
        except RepositoryNotFoundError as error:
            raise missing(access) from error
        except HfHubHTTPError as error:
            code = error.response.status_code
            raise missing(access) if code == 404 else status(access, code) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise unreachable(access, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise HubError(f"{access.endpoint} did not answer as Hugging Face does") from error

    def _entries(self, access: Access) -> Iterator[dict[str, Any]]:
        revision = quote(access.revision or "main", safe="")
        url = f"{access.endpoint}/api/models/{access.repo}/tree/{revision}?recursive=true"
        for _ in range(_MOST_PAGES):
            answer = get_session().get(url, headers=self.headers(access), timeout=_TIMEOUT)
            hf_raise_for_status(answer)
            yield from answer.json()
            following = answer.links.get("next", {}).get("url", "")
            # Of this hub, whatever the link names: a mirror may pass on that of the hub behind it.
            _, _, page = following.partition("/api/")
            if not page:
                return
            url = f"{access.endpoint}/api/{page}"
        raise ValueError("pages without an end")

    def headers(self, access: Access) -> Mapping[str, str]:
        """The token, which is not carried over to another host when the hub redirects there."""
        return {"Authorization": f"Bearer {access.token}"} if access.token else {}


def _file(access: Access, entry: dict[str, Any]) -> RemoteFile:
    revision, path = quote(access.revision or "main", safe=""), str(entry["path"])
    url = f"{access.endpoint}/{access.repo}/resolve/{revision}/{quote(path)}"
    lfs = entry.get("lfs") or {"size": entry["size"], "oid": ""}
    return remote_file(path, int(lfs["size"]), str(lfs["oid"]), url)

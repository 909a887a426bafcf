"""Hugging Face and ModelScope played on loopback, strict: what a real hub would refuse is refused and noted in `faults`.

The hub answers downloads with a redirect to a second server (the CDN), which wants the signature of that very redirect
and no credentials. Trouble is ordered by `trouble`: one entry is used up by each request for bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

TOKEN = "hf_only-for-tests"
_RANGE = re.compile(r"bytes=(\d+)-")
_PAGE = 2


@dataclass
class Trouble:
    """What one request for bytes meets: cut after so many bytes, a status, other bytes, or a range that is ignored."""

    cut_after: int = -1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    garbled: bool = False
    whole: bool = False
    shifted: bool = False


@dataclass
class Hub:
    """One hub with its repositories: `repos["owner/name"]["path"]` are bytes."""

    endpoint: str = ""
    cdn: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    trouble: deque[Trouble] = field(default_factory=deque)
    faults: list[str] = field(default_factory=list)
    ranges: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    # The checksum that the API tells of a path, where it is not the true one.
    told: dict[str, str] = field(default_factory=dict)

    def fault(self, text: str) -> web.Response:
        """Refuse and remember."""
        self.faults.append(text)
        return web.Response(status=400, text=text)

    def sha256(self, repo: str, path: str) -> str:
        """What the API tells."""
        return self.told.get(path) or hashlib.sha256(self.repos[repo][path]).hexdigest()


def _authorized(hub: Hub, request: web.Request) -> bool:
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    hub.tokens.append(token)
    return token == TOKEN


def _refusal(status: int, code: str) -> web.Response:
    return web.Response(status=status, headers={"X-Error-Code": code, "X-Error-Message": code})


class _HuggingFace:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def tree(self, request: web.Request) -> web.Response:
        hub, repo = self.hub, f"{request.match_info['owner']}/{request.match_info['name']}"
        _authorized(hub, request)
        if repo not in hub.repos:
            return _refusal(401 if "Authorization" not in request.headers else 404, "RepoNotFound")
        if request.match_info["revision"] != "main":
            return _refusal(404, "RevisionNotFound")
        if request.query.get("recursive", "").lower() not in {"true", "1"}:
            return hub.fault("the tree was not asked for with its folders")
        paths = sorted(hub.repos[repo])
        at = int(request.query.get("cursor", "0"))
        entries = [self._entry(repo, path) for path in paths[at : at + _PAGE]]
        headers = {}
        if at + _PAGE < len(paths):
            # As a mirror does that passes on the real hub's.
            query = request.url.update_query(cursor=at + _PAGE).raw_path_qs
            following = f"https://huggingface.co{query}"
            headers["Link"] = f'<{following}>; rel="next"'
        return web.json_response(entries, headers=headers)

    def _entry(self, repo: str, path: str) -> dict[str, object]:
        data = self.hub.repos[repo][path]
        entry: dict[str, object] = {
            "type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest(),
        }  # fmt: skip
        if path.endswith(".gguf"):
            sha = self.hub.sha256(repo, path)
            entry["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 134}
        return entry

    async def resolve(self, request: web.Request) -> web.Response:
        hub, repo = self.hub, f"{request.match_info['owner']}/{request.match_info['name']}"
        path = request.match_info["path"]
        may = _authorized(hub, request)
        if repo in hub.gated and not may:
            return _refusal(403 if "Authorization" in request.headers else 401, "GatedRepo")
        if path not in hub.repos.get(repo, {}):
            return _refusal(404, "EntryNotFound")
        return _redirect(hub, repo, path)


class _ModelScope:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def files(self, request: web.Request) -> web.Response:
        hub, repo = self.hub, f"{request.match_info['owner']}/{request.match_info['name']}"
        if repo not in hub.repos:
            return web.json_response({"Code": 10010205001, "Message": "not found"}, status=404)
        if request.query.get("Revision") != "master" or request.query.get("Recursive") != "True":
            return hub.fault(f"ModelScope was asked with {request.query_string}")
        rows: list[dict[str, object]] = [{"Type": "tree", "Path": "folder", "Size": 0}]
        for path, data in hub.repos[repo].items():
            rows.append({"Type": "blob", "Path": path, "Size": len(data), "Sha256": hub.sha256(repo, path)})  # fmt: skip
        return web.json_response({"Code": 200, "Data": {"Files": rows}, "Success": True})

    async def file(self, request: web.Request) -> web.Response:
        hub, repo = self.hub, f"{request.match_info['owner']}/{request.match_info['name']}"
        cookie = request.cookies.get("m_session_id", "")
        hub.tokens.append(cookie)
        if repo in hub.gated and cookie != TOKEN:
            return web.json_response({"Code": 10010205002}, status=403)
        if request.query.get("FilePath", "") not in hub.repos.get(repo, {}):
            return web.json_response({"Code": 10010205003}, status=404)
        return _redirect(hub, repo, request.query["FilePath"])


def _redirect(hub: Hub, repo: str, path: str) -> web.Response:
    signature = hashlib.sha256(f"{repo}|{path}".encode()).hexdigest()
    where = f"{hub.cdn}/blob/{repo}?file={path}&Signature={signature}"
    return web.Response(
        status=302, headers={"Location": where, "X-Linked-ETag": f'"{hub.sha256(repo, path)}"'}
    )


async def _blob(request: web.Request) -> web.StreamResponse:
    hub: Hub = request.app[_HUB]
    repo, path = request.match_info["repo"], request.query.get("file", "")
    signature = hashlib.sha256(f"{repo}|{path}".encode()).hexdigest()
    if request.query.get("Signature") != signature:
        return hub.fault("the CDN was asked without the signature")
    if {"Authorization", "Cookie"} & set(request.headers):
        return hub.fault("the hub's credentials were sent to the CDN")
    if request.headers.get("Accept-Encoding") != "identity":
        return hub.fault("the CDN was not asked for the bytes as they are stored")
    return await _send(hub, request, hub.repos[repo][path])


async def _send(hub: Hub, request: web.Request, data: bytes) -> web.StreamResponse:
    trouble = hub.trouble.popleft() if hub.trouble else Trouble()
    asked = request.headers.get("Range")
    match = _RANGE.fullmatch(asked or "")
    if asked and not match:
        return hub.fault(f"Range: {asked}")
    start = int(match[1]) if match else 0
    hub.ranges.append(start)
    if trouble.status:
        return web.Response(status=trouble.status, headers=trouble.headers)
    if match and start >= len(data):
        return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
    if trouble.whole:
        start, match = 0, None
    body = bytes(b ^ 1 for b in data[start:]) if trouble.garbled else data[start:]
    answer = web.StreamResponse(status=206 if match else 200)
    if match:
        told = start - 1 if trouble.shifted else start
        answer.headers["Content-Range"] = f"bytes {told}-{len(data) - 1}/{len(data)}"
    answer.content_length = len(body)
    await answer.prepare(request)
    if trouble.cut_after < 0:
        await answer.write(body)
        await answer.write_eof()
        return answer
    await answer.write(body[: trouble.cut_after])
    assert request.transport is not None
    request.transport.close()
    return answer


_HUB = web.AppKey("hub", Hub)


@asynccontextmanager
async def running_hub() -> AsyncIterator[Hub]:
    """A hub on loopback; at the end nothing may have been refused as malformed."""
    hub = Hub()
    huggingface, modelscope = _HuggingFace(hub), _ModelScope(hub)
    front, cdn = web.Application(), web.Application()
    cdn[_HUB] = hub
    cdn.router.add_get("/blob/{repo:.+}", _blob)
    front.router.add_get("/api/models/{owner}/{name}/tree/{revision}", huggingface.tree)
    front.router.add_get("/{owner}/{name}/resolve/main/{path:.+}", huggingface.resolve)
    front.router.add_get("/api/v1/models/{owner}/{name}/repo/files", modelscope.files)
    front.router.add_get("/api/v1/models/{owner}/{name}/repo", modelscope.file)
    runners = [web.AppRunner(app, access_log=None, shutdown_timeout=1) for app in (front, cdn)]
    addresses = []
    for runner in runners:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        addresses.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
    hub.endpoint, hub.cdn = addresses
    try:
        yield hub
        assert hub.faults == []
    finally:
        for runner in runners:
            await runner.cleanup()

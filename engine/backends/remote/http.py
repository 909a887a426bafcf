"""HTTP to one OpenAI-compatible server: one shared session, the key, the probe, and a reply as a stream of chunks.

Owns the aiohttp session. Must not know queues or events. The key goes out in one header and nowhere else; hosts are
named without user info.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import aiohttp

from engine.backends.remote.protocol import (
    Chunk,
    Dialect,
    RemoteFailure,
    failure_of,
    read_chunk,
    refused_field,
    request_body,
)
from engine.backends.remote.sse import SseError, SseParser, json_objects
from engine.errors import EngineConfigError
from engine.types import FailureCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.config import OpenAISettings
    from engine.types import EngineRequest

_CONNECT_S: Final = 10.0
_QUESTION_S: Final = 5.0
# How long to wait for the end of the stream behind [DONE], so that the connection can be used again.
_AFTER_DONE_S: Final = 0.3
_MAX_ANSWER_BYTES: Final = 8 * 2**20
_MAX_ERROR_BYTES: Final = 64 * 1024
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class RemoteServer:
    """One server. Owner: an `OpenAIEngine`, inside its event loop; `open` before use, `close` at the end."""

    def __init__(self, settings: OpenAISettings) -> None:
        self._settings = settings
        self._base = settings.base_url.rstrip("/")
        self._root = self._base.removesuffix("/v1")
        self._left_out: set[str] = set()
        self._session: aiohttp.ClientSession | None = None
        self.dialect = Dialect.PLAIN

    @property
    def host(self) -> str:
        """Host and port, for messages."""
        return urlsplit(self._base).netloc.rpartition("@")[2] or "the server"

    def check(self) -> None:
        """Raise EngineConfigError for settings that cannot work."""
        where = f"models.{self._settings.name}"
        parts = urlsplit(self._base)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise EngineConfigError(
                f"{where}.base_url must be an http:// or https:// address that ends with /v1"
            )
        if parts.username is not None or parts.password is not None:
            raise EngineConfigError(f"{where}.base_url holds a user name; put the key into api_key")
        if not self._settings.model:
            raise EngineConfigError(
                f"{where}.model is empty; name the model as the server knows it"
            )
        for key in ("n_ctx", "n_parallel"):
            if getattr(self._settings, key) < 1:
                raise EngineConfigError(f"{where}.{key} must be at least 1")
        if not self._settings.api_key.isprintable() or not self._settings.api_key.isascii():
            raise EngineConfigError(
                f"{where}.api_key holds characters that no HTTP header can carry"
            )

    def open(self) -> None:
        """Create the session; calling it again changes nothing."""
        if self._session is not None:
            return
        key = self._settings.api_key
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(limit=self._settings.n_parallel + 8),
            # A proxy for the outside world must not swallow calls to this machine.
            trust_env=urlsplit(self._base).hostname not in _LOOPBACK,
        )

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def models(self) -> list[dict[str, Any]]:
        """What `/models` lists; [] when the server has no such list. Raises RemoteFailure when it is not usable now."""
        status, answer = await self._question("GET", f"{self._base}/models", None)
        if status in {401, 403, 429} or status >= 500:
            raise failure_of(status, {}, answer, self.host)
        listed = answer.get("data") if isinstance(answer, dict) else None
        return (
            [entry for entry in listed if isinstance(entry, dict)]
            if isinstance(listed, list)
            else []
        )

    async def get(self, path: str) -> dict[str, Any] | None:
        """A JSON object from beside /v1, or None."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The JSON object that answers `body` at a path beside /v1, or None."""
        return await self._ask("POST", path, body)

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        try:
            status, answer = await self._question(method, self._root + path, body)
        except RemoteFailure:
            return None
        return answer if status == 200 and isinstance(answer, dict) else None

    async def _question(
        self, method: str, url: str, body: dict[str, Any] | None
    ) -> tuple[int, Any]:
        try:
            async with (
                asyncio.timeout(_QUESTION_S + _CONNECT_S),
                self._open_session().request(
                    method, url, data=_dump(body), headers=_JSON, allow_redirects=False
                ) as response,
            ):
                text = await _read_some(response, _MAX_ANSWER_BYTES)
                return response.status, _parse(text)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from None

    async def chat(self, request: EngineRequest, take: Callable[[Chunk], bool]) -> None:
        """Hand a reply to `take`, chunk by chunk; the first (empty) one says that the server has accepted. Returns at the
        end of the stream, or soon after `take` has said False (enough) or the server [DONE]; cancelling closes the connection, which ends the reply there.

        Raises RemoteFailure. Silence longer than `timeout_s` is a failure; comments that only keep the line open are silence.
        """
        loop = asyncio.get_running_loop()
        done = False

        def on_chunk(chunk: Chunk) -> None:
            nonlocal done
            if done:
                return  # whatever else comes, the time for it runs
            done = not take(chunk) or chunk.done
            silence.reschedule(loop.time() + (_AFTER_DONE_S if done else self._settings.timeout_s))

        try:
            async with asyncio.timeout(self._settings.timeout_s) as silence:
                response = await self._post_chat(request)
                try:
                    on_chunk(Chunk())
                    await self._read_reply(response, on_chunk)
                finally:
                    response.close()
        except TimeoutError:
            if not done:
                raise self._broken(f"sent nothing for {self._settings.timeout_s:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            if not done:
                raise self._unreachable(error) from None
        except SseError as error:
            raise self._broken(f"sent {error}") from None

    async def _post_chat(self, request: EngineRequest) -> aiohttp.ClientResponse:
        """A 200 answer, without the fields that this server has refused (it is told from the error which)."""
        while True:
            body = request_body(self._settings.model, request, self.dialect, self._left_out)
            response = await self._open_session().post(
                f"{self._base}/chat/completions",
                data=_dump(body),
                headers=_JSON,
                allow_redirects=False,
            )
            if response.status == 200:
                return response
            async with response:
                error = await _read_some(response, _MAX_ERROR_BYTES)
                field = refused_field(response.status, error, body)
                if field is None:
                    raise failure_of(response.status, response.headers, _parse(error), self.host)
                self._left_out.add(field)

    async def _read_reply(
        self, response: aiohttp.ClientResponse, on_chunk: Callable[[Chunk], None]
    ) -> None:
        if response.content_type == "application/json":  # a server or proxy that does not stream
            answer = _parse(await _read_some(response, _MAX_ANSWER_BYTES))
            on_chunk(read_chunk(answer if isinstance(answer, dict) else {}, self.host))
            return
        parser = SseParser()
        async for data in response.content.iter_any():
            self._take_events(parser.feed(data), on_chunk)
        self._take_events(parser.end(), on_chunk)

    def _take_events(self, events: list[str], on_chunk: Callable[[Chunk], None]) -> None:
        for event in events:
            for piece in json_objects(event):
                on_chunk(read_chunk(piece, self.host))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RemoteFailure(FailureCode.ENGINE_DIED, "the engine is closed", retryable=True)
        return self._session

    def _unreachable(self, error: Exception) -> RemoteFailure:
        # The error's own words may hold the whole URL: its kind is enough.
        return self._broken(f"cannot be reached or broke off ({type(error).__name__})")

    def _broken(self, how: str) -> RemoteFailure:
        return RemoteFailure(
            FailureCode.UPSTREAM, f"{self.host} {how}", retryable=True, retry_after_s=2.0
        )


_JSON: Final = {"Content-Type": "application/json"}


def _dump(body: dict[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _read_some(response: aiohttp.ClientResponse, limit: int) -> str:
    """The body's text, cut at `limit` bytes."""
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) >= limit:
            response.close()
            break
    return data[:limit].decode("utf-8", "replace")

"""lark-oapi's long-connection client, made fit for supervision. The only importer of `lark_oapi`; import it in a thread of its
own, since that takes seconds.

Kept of the library: its frames, the reassembly of fragments, control frames and the configuration in them. Replaced, because
1.7.5 has these faults (feishu.md §6): the module-wide event loop, the endpoint request without a time-out, the lock that stays
held when it is connected already, handlers that run one after another, reconnects after up to two minutes, and no way to stop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
import websockets
from lark_oapi.ws import client as ws
from lark_oapi.ws.enum import FrameType, MessageType
from lark_oapi.ws.pb.pbbp2_pb2 import Frame

Take = Callable[[bytes], Awaitable[dict[str, Any] | None]]
_ENDPOINT_S = 10.0
_CLOSE_S = 2.0


class SupervisedClient(ws.Client):  # type: ignore[misc]  # the package has no types
    """One connection: `connect` once, then `receiving` ends when it does."""

    def __init__(self, *args: Any, take: Take, on_sign: Callable[[], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._take = take
        self._on_sign = on_sign
        self._handling: set[asyncio.Task[None]] = set()
        self.receiving: asyncio.Task[None]
        self._conn: Any = None
        # A proxy between two programs on one machine is never meant.
        self._direct = urlsplit(self._domain).hostname in {"127.0.0.1", "localhost", "::1"}

    async def connect(self) -> None:
        """Ask for an address and open the socket. Raises what the library, requests or websockets raise."""
        url = await asyncio.to_thread(self._get_conn_url)
        query = parse_qs(urlsplit(url).query)
        self._service_id = query["service_id"][0]
        try:
            self._conn = await websockets.connect(
                url,
                proxy=None if self._direct else True,
                ping_interval=None,
                close_timeout=_CLOSE_S,
            )
        except websockets.exceptions.InvalidHandshake as error:
            ws._parse_ws_conn_exception(error)
        self.receiving = asyncio.create_task(self._receive(), name="feishu-long-receive")

    async def ping(self) -> None:
        """Feishu answers with a control frame."""
        await self._write_message(ws._new_ping_frame(int(self._service_id)).SerializeToString())

    async def disconnect(self) -> None:
        """End the socket and whatever is being handled."""
        tasks = [*self._handling]
        if hasattr(self, "receiving"):
            tasks.append(self.receiving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._conn is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await self._conn.close()
            self._conn = None

    def _get_conn_url(self) -> str:
        """As the library does it, with a time-out. Runs in a thread."""
        with requests.Session() as session:
            session.trust_env = not self._direct
            response = session.post(
                self._domain + ws.GEN_ENDPOINT_URI,
                headers={"locale": "zh"},
                json={"AppID": self._app_id, "AppSecret": self._app_secret},
                timeout=_ENDPOINT_S,
            )
        if response.status_code != 200:
            raise ws.ServerException(response.status_code, "system busy")
        answer = response.json()
        if answer.get("code") != ws.OK:
            kind = (
                ws.ServerException if answer.get("code") == ws.SYSTEM_BUSY else ws.ClientException
            )
            raise kind(answer.get("code"), str(answer.get("msg", "")))
        return str(answer["data"]["URL"])

    async def _receive(self) -> None:
        while True:
            message = await self._conn.recv()
            self._on_sign()
            task = asyncio.create_task(self._handle_message(message))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    async def _handle_data_frame(self, frame: Any) -> None:
        """Join fragments, hand the event over, answer with what became of it."""
        headers = {header.key: header.value for header in frame.headers}
        payload: bytes | None = frame.payload
        if int(headers.get("sum", "1")) > 1:
            payload = self._combine(
                headers["message_id"], int(headers["sum"]), int(headers["seq"]), payload
            )
        if payload is None or headers.get("type") != MessageType.EVENT.value:
            return
        answer: dict[str, Any] = {"code": 200}
        try:
            if reply := await self._take(payload):
                answer["data"] = base64.b64encode(json.dumps(reply).encode()).decode()
        except Exception:  # noqa: BLE001 - not stored, or not in time: Feishu is to deliver it again
            answer = {"code": 500}
        frame.payload = json.dumps(answer).encode()
        await self._write_message(frame.SerializeToString())


def open_client(
    api_base: str, app_id: str, app_secret: str, *, take: Take, on_sign: Callable[[], None]
) -> SupervisedClient:
    """A client that is not connected yet. The library's log, which shows payloads and addresses, is silenced."""
    client = SupervisedClient(app_id, app_secret, domain=api_base, take=take, on_sign=on_sign)
    lark_log = logging.getLogger("Lark")
    lark_log.setLevel(logging.CRITICAL + 1)
    return client


__all__ = ["Frame", "FrameType", "SupervisedClient", "open_client"]

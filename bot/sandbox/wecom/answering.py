"""How frames are answered: faults, the collision of two frames of one req_id, the ack, the record (wecom.md §3.1, §3.4).

Owns the tasks that answer; each frame has one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bot.sandbox.records import Call
from bot.sandbox.wecom import errors
from bot.sandbox.wecom.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.faults import Fault, Faults
    from bot.sandbox.records import Records
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.connection import Connection, Frame
    from bot.sandbox.wecom.judge import Judge

Json = dict[str, Any]
_API = {
    "aibot_subscribe": "ws.subscribe",
    "ping": "ws.ping",
    "aibot_respond_msg": "ws.respond",
    "aibot_respond_welcome_msg": "ws.welcome",
    "aibot_respond_update_msg": "ws.update",
    "aibot_send_msg": "ws.send",
    "aibot_upload_media_init": "ws.upload_init",
    "aibot_upload_media_chunk": "ws.upload_chunk",
    "aibot_upload_media_finish": "ws.upload_finish",
}
_HIDDEN = frozenset({"secret", "base64_data"})

# The extra fields of the ack, or None for no ack at all.
Handle = Callable[["Connection", "Frame"], Json | None]
OnAcked = Callable[["Connection", "Frame"], Awaitable[None]]


class Answering:
    """Answers frames through `handle`; `on_acked` runs when a good ack is out."""

    def __init__(
        self,
        config: WeComConfig,
        records: Records,
        faults: Faults,
        judge: Judge,
        handle: Handle,
        on_acked: OnAcked,
    ) -> None:
        self._config = config
        self._records = records
        self._faults = faults
        self._judge = judge
        self._handle = handle
        self._on_acked = on_acked
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End what is still being answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(self, connection: Connection, frame: Frame) -> None:
        """Answer a frame that was just read."""
        # Whether an earlier frame is still under way is known only now, before its answer runs.
        clash = frame.req_id in connection.under_way
        connection.under_way.append(frame.req_id)
        task = asyncio.create_task(
            self._answer(connection, frame, clash=clash), name=f"answer {frame.cmd}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, connection: Connection, frame: Frame, *, clash: bool) -> None:
        begin = time.perf_counter()
        api = _API.get(frame.cmd, "ws.unknown")
        fault = None if self._faults.is_down() else self._faults.take(api)
        wait_s = self._config.ack_delay_s + self._faults.extra_latency_s() + (fault.latency_s if fault else 0.0)  # fmt: skip
        drop = fault.drop if fault is not None else ""
        try:
            if drop != "after":
                await asyncio.sleep(wait_s)
            if drop == "before" or self._faults.is_down():
                self._record(api, frame, None, "before", begin)
                connection.abort()
                return
            ack = self._ack(connection, frame, fault, clash=clash)
            self._record(api, frame, ack, drop, begin)
            if drop == "after":
                await asyncio.sleep(wait_s)
                connection.abort()
                return
        finally:
            connection.under_way.remove(frame.req_id)
        if ack is not None and await connection.send(ack) and ack["errcode"] == 0:
            await self._on_acked(connection, frame)

    def _ack(
        self, connection: Connection, frame: Frame, fault: Fault | None, *, clash: bool
    ) -> Json | None:
        ack: Json = {"headers": {"req_id": frame.req_id}, "errcode": 0, "errmsg": "ok"}
        try:
            self._refuse(frame, fault, clash=clash)
            extra = self._handle(connection, frame)
        except ApiError as error:
            return ack | {"errcode": error.code, "errmsg": error.msg}
        return None if extra is None else ack | extra

    def _refuse(self, frame: Frame, fault: Fault | None, *, clash: bool) -> None:
        if fault is not None and fault.answers:
            limited = fault.reset_s is not None
            raise ApiError(errors.TOO_OFTEN if limited else int(fault.code), fault.msg)
        if clash:
            self._judge.note("frames_not_serial", f"{frame.cmd} {frame.req_id}")
            raise ApiError(errors.CONFLICT)

    def _record(self, api: str, frame: Frame, ack: Json | None, dropped: str, begin: float) -> None:
        body = {key: value for key, value in frame.body.items() if key not in _HIDDEN}
        self._records.add_call(
            Call(
                id=self._records.next_id(), at=self._config.clock(), api=api, method="WS", path=frame.cmd,
                status=0 if dropped else 200, code=int((ack or {}).get("errcode", 0)),
                ms=(time.perf_counter() - begin) * 1000, request=body, response=ack or {},
                target={"req_id": frame.req_id}, dropped=dropped,
            )
        )  # fmt: skip

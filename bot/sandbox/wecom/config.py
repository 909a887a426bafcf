"""What a WeCom sandbox is set up with: mode, credentials, limits, the clock. Frozen; the figures come from wecom.md."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bot.sandbox.clock import Clock

Mode = Literal["callback", "websocket", "app"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates and sizes. `None` switches a rate off. Sizes are UTF-8 bytes, times seconds (wecom.md §2–§4).

    `stream_life_s` counts from the person's message (callback) or the first frame (WebSocket). `push_markdown_bytes` is
    what aibot_send_msg takes: 20480 by the docs, 4096 in a field report; the smaller one is the harder case.
    `in_flight_per_user` is the number of open exchanges of one person with an AI bot. `count_refreshes` makes every
    stream frame count against the conversation's rate; the docs are silent.
    """

    stream_bytes: int = 20_480
    markdown_bytes: int = 20_480
    push_markdown_bytes: int = 4096
    app_text_bytes: int = 2048
    app_markdown_bytes: int = 2048
    feedback_id_bytes: int = 256
    images: int = 10
    image_bytes: int = 10 * 1024 * 1024
    stream_life_s: float = 360.0
    response_url_s: float = 3600.0
    event_s: float = 5.0
    reply_window_s: float = 86_400.0
    media_url_s: float = 300.0
    media_id_s: float = 3 * 86_400.0
    response_code_s: float = 72 * 3600.0
    recall_s: float = 86_400.0
    in_flight_per_user: int | None = 3
    per_chat_per_minute: int | None = 30
    per_chat_per_hour: int | None = 1000
    count_refreshes: bool = False
    per_member_per_minute: int | None = 30
    per_member_per_hour: int | None = 1000
    per_api_per_minute: int | None = 10_000
    concurrent_calls: int | None = None
    tokens_per_minute: int | None = 20
    subscribes_per_minute: int | None = 10
    chunk_bytes: int = 512 * 1024
    chunks: int = 100
    upload_s: float = 1800.0
    uploads_per_minute: int | None = 30
    uploads_per_hour: int | None = 1000

    def without_rates(self) -> Limits:
        """The same sizes with no rate limits, for load tests."""
        return replace(
            self, in_flight_per_user=None, per_chat_per_minute=None, per_chat_per_hour=None,
            per_member_per_minute=None, per_member_per_hour=None, per_api_per_minute=None, concurrent_calls=None,
            tokens_per_minute=None, subscribes_per_minute=None, uploads_per_minute=None, uploads_per_hour=None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeComConfig:
    """One AI bot (by callback or by WebSocket, never both) or one self-built app.

    `receive_trailer` is what stands behind the clear text of an AI bot's callbacks: empty by the docs, not so in one
    deployment. `redelivery_s` are the waits before the second and third attempt. `retry_status`: an answer other than
    200 is tried again as a time-out is (unconfirmed on the real platform; True is the harder case). `poll_interval_s` is
    not documented. `kicked` is what the older of two connections meets: closed, or half alive (pings acked, sends
    refused). `late_frames`: a frame after the stream's life is refused, or acked and ignored. `drop_equal_final`: a final
    frame that changes nothing gets no ack. `ack_delay_s` is how long a frame is under way, which is what makes two
    frames of one req_id collide. `silence_s` closes a connection that sends nothing; `ping_gap_s` is frowned on.
    `offline`: what becomes of a message while no connection is live. `trusted_ips` None trusts every caller.
    `agent_closed`: the app is disabled; `visible_parties` are the departments that see it.
    """

    mode: Mode = "callback"
    corp_id: str = "ww0123456789abcdef"
    corp_secret: str = "sandbox-corp-secret"  # noqa: S105  the double's own, never a real one
    agent_id: int = 1_000_003
    agent_closed: bool = False
    visible_parties: tuple[int, ...] = (1,)
    bot_id: str = "aib-sandbox-0000000001"
    bot_secret: str = "sandbox-bot-secret"  # noqa: S105  see above
    token: str = "sandboxToken"  # noqa: S105  see above
    encoding_aes_key: str = "c2FuZGJveC1rZXktZm9yLXdlY29tLTMyLWJ5dGVzISE"
    receive_trailer: str = ""
    bot_name: str = "Hearth"
    limits: Limits = Limits()
    clock: Clock = time.time
    strict: bool = True
    deadline_s: float = 5.0
    url_check_s: float = 1.0
    redelivery_s: tuple[float, ...] = (1.0, 1.0)
    retry_status: bool = True
    poll_interval_s: float = 1.0
    latency_s: float = 0.0
    token_ttl_s: float = 7200.0
    trusted_ips: tuple[str, ...] | None = None
    ack_delay_s: float = 0.002
    silence_s: float = 100.0
    ping_gap_s: float = 45.0
    pong: Literal["plain", "cmd"] = "plain"
    kicked: Literal["close", "zombie"] = "close"
    late_frames: Literal["error", "silent"] = "error"
    drop_equal_final: bool = False
    offline: Literal["queue", "lose"] = "queue"
    allowed_mentions: frozenset[str] = frozenset()
    keep_calls: int = 100_000
    page: bool = False
    page_hosts: tuple[str, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def receive_id(self) -> str:
        """What the callbacks carry behind their text: the corp for an app, nothing (or the odd trailer) for an AI bot."""
        return self.corp_id if self.mode == "app" else self.receive_trailer

    @property
    def effective_limits(self) -> Limits:
        """The limits in force."""
        return self.limits if self.strict else self.limits.without_rates()

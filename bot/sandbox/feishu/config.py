"""What a sandbox is set up with: credentials, limits, the clock. Frozen; the figures come from feishu.md."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bot.sandbox.clock import Clock


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates and sizes (feishu.md §4.2–4.5, §5.2). `None` switches a rate or the month's quota off."""

    per_api_per_minute: int | None = 1000
    per_api_per_second: int | None = 50
    per_chat_per_second: int | None = 5
    per_card_per_second: int | None = 10
    patches_per_second: int | None = 5
    monthly_calls: int | None = None
    edits: int = 20
    text_bytes: int = 150 * 1024
    card_bytes: int = 30 * 1024
    elements: int = 200
    tables_per_card: int = 3
    tables_per_markdown: int = 4
    content_chars: int = 100_000
    streaming_s: float = 600.0
    card_life_s: float = 14 * 86_400.0
    uuid_life_s: float = 3600.0
    recall_s: float = 86_400.0

    def without_rates(self) -> Limits:
        """The same sizes with no rate limits, for load tests."""
        return replace(
            self,
            per_api_per_minute=None,
            per_api_per_second=None,
            per_chat_per_second=None,
            per_card_per_second=None,
            patches_per_second=None,
        )


# What an app that was set up by docs/feishu.md has.
ALL_SCOPES = frozenset(
    {
        "im:message.p2p_msg:readonly",
        "im:message.group_at_msg:readonly",
        "im:message:send_as_bot",
        "im:message:update",
        "im:message.reactions:write_only",
        "im:message:readonly",
        "im:chat.members:bot_access",
        "cardkit:card:write",
    }
)


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """One app of one tenant.

    `strict = False` lets unknown card fields pass and enforces no rates. `redelivery_s` is the ladder of waits after a
    failed push. `group_messages` is the scope: only messages that @ the bot, or all of a group's. `late_updates` is what
    a text update after the 10 minutes does (an error by the docs, "silent" in one field report).
    `retry_fresh_timestamp` is unconfirmed on the real platform; False is the harder case. `allowed_mentions` are ids the
    bot may mention on purpose. `scopes` the tenant granted, `asked_scopes` wait for that. `activate_status` is the app's
    state in the tenant (2 = in use). `trusted_ips` None trusts every caller. `notes` is shown by the page.
    """

    app_id: str = "cli_sandbox000000001"
    app_secret: str = "sandbox-secret"  # noqa: S105  the double's own, never a real one
    encrypt_key: str = "sandbox-encrypt-key"
    verification_token: str = "sandbox-verification-token"  # noqa: S105  see above
    latency_s: float = 0.0
    token_ttl_s: float = 7200.0
    redelivery_s: tuple[float, ...] = (15.0, 300.0, 3600.0, 21_600.0)
    deadline_s: float = 3.0
    strict: bool = True
    limits: Limits = Limits()
    clock: Clock = time.time
    bot_name: str = "Hearth"
    tenant_key: str = "sandboxtenant0001"
    group_messages: Literal["mentioned", "all"] = "mentioned"
    late_updates: Literal["error", "silent"] = "error"
    streaming_timeout_code: int = 200850
    retry_fresh_timestamp: bool = False
    allowed_mentions: frozenset[str] = frozenset()
    scopes: frozenset[str] = ALL_SCOPES
    asked_scopes: frozenset[str] = frozenset()
    activate_status: int = 2
    trusted_ips: tuple[str, ...] | None = None
    keep_calls: int = 100_000
    page: bool = False
    page_hosts: tuple[str, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

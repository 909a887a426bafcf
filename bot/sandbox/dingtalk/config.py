"""What a DingTalk sandbox is set up with: credentials, templates, limits, the clock. Frozen; the figures come from dingtalk.md."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bot.sandbox.clock import Clock

Sizes = Literal["field", "documented"]
DEFAULT_TEMPLATE = "00000000-5a4d-4b0e-9d00-000000000001.schema"
ALL_SCOPES = frozenset({"qyapi_robot_sendmsg", "Card.Instance.Write", "Card.Streaming.Write"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates, sizes and lifetimes. `None` switches a rate, a quota or a size off.

    `per_api_per_second` counts per API over all chats of the app. `session_per_minute` is the custom robot's rate,
    assumed for sessions (§4.1). `blank_chars` is the length from which a card shows nothing (§5.2, one team's
    experience). `frame_bytes` and `value_bytes` are what the docs say in the mode "documented"; `field_frame_bytes` is
    a guess above everything that projects were seen to send.
    """

    per_api_per_second: int | None = 20
    per_api_per_minute: int | None = None
    ip_calls: int | None = 10_000
    ip_period_s: float = 20.0
    ip_block_s: float = 300.0
    monthly_calls: int | None = None
    monthly_messages: int | None = None
    session_per_minute: int | None = 20
    session_bytes: int = 20_000
    session_life_s: float = 5400.0
    msg_param_bytes: int = 15_000
    people_per_send: int = 20
    recall_s: float = 86_400.0
    key_bytes: int = 100
    value_bytes: int = 1024
    frame_bytes: int = 1024
    total_bytes: int = 3 * 1024
    field_frame_bytes: int = 20_000
    blank_chars: int = 3000
    file_url_s: float = 600.0
    ticket_life_s: float = 90.0

    def without_rates(self) -> Limits:
        """The same sizes with no rates, for load tests."""
        return replace(
            self,
            per_api_per_second=None,
            per_api_per_minute=None,
            ip_calls=None,
            session_per_minute=None,
        )


@dataclass(frozen=True, slots=True)
class CardButton:
    """A button of a template. `{name}` in the values of `params` is filled from the card's variable of that name.

    `shown_if` names a variable that must be "true" for the button to be there; `hidden_if` one that must not be.
    """

    action_id: str
    text: str
    params: Mapping[str, str] = field(default_factory=dict)
    shown_if: str = ""
    hidden_if: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """A card template of the org (§5.4). `key` is the variable with streaming switched on.

    `kind`: a "markdown" variable takes only whole texts (isFull), a "text" variable also appended ones. `failed_state`:
    the template has the state 失败. `flow_status`: it shows its state by the variable of that name, which the app sets.
    `shown` are further variables that people read, above (before `key`) and below. `buttons_key` names a variable that
    holds a JSON list of buttons, or an object with `msgButtons`.
    """

    id: str = DEFAULT_TEMPLATE
    key: str = "content"
    kind: Literal["markdown", "text"] = "markdown"
    published: bool = True
    failed_state: bool = True
    flow_status: bool = False
    shown_above: tuple[str, ...] = ()
    shown_below: tuple[str, ...] = ()
    buttons: tuple[CardButton, ...] = ()
    buttons_key: str = "buttons"


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """One internal app of one org, with its robot.

    `sizes` is what the card APIs refuse: what the docs say (1 KB), or what projects meet (long cards go blank). Where the
    reference is not settled there is a switch and the default is the harder case: `bad_token_status` (400 or 401),
    `reused_track` (a second card with the same outTrackId is an error, or has no effect), `empty_frame` (streaming ""),
    `retry_fresh_timestamp`, `stream_deaf` (what is pushed while nobody is connected is lost, or tried again on the
    ladder), `evict_older` (a newer connection ends the older one), `pushes_count` (pushes use up the message pool),
    `one_to_one_needs_robot_code`, `chatty` (frames with topics that no document names). `redelivery_s` is the ladder of
    waits after a push that was not acknowledged. `allowed_mentions` are staffIds the bot may mention on purpose,
    besides the person who asked. `scopes` are the app's permissions. `trusted_ips` None trusts every caller.
    `stream_enabled` False: the robot's receiving mode is HTTP, or the app was not published.
    """

    client_id: str = "dingsandbox00000001"
    client_secret: str = "sandbox-app-secret"  # noqa: S105  the double's own, never a real one
    corp_id: str = "dingcorpsandbox0001"
    robot_code: str = ""
    scopes: frozenset[str] = ALL_SCOPES
    trusted_ips: tuple[str, ...] | None = None
    stream_enabled: bool = True
    templates: tuple[Template, ...] = (Template(),)
    sizes: Sizes = "field"
    strict: bool = True
    limits: Limits = Limits()
    clock: Clock = time.time
    latency_s: float = 0.0
    token_ttl_s: float = 7200.0
    redelivery_s: tuple[float, ...] = (16.0, 60.0)
    http_ack_s: float = 2.5
    stream_ack_s: float = 3.0
    click_ack_s: float = 2.0
    ping_s: float = 30.0
    disconnect_grace_s: float = 10.0
    bad_token_status: Literal[400, 401] = 400
    reused_track: Literal["error", "silent"] = "error"
    empty_frame: Literal["ok", "error"] = "error"
    retry_fresh_timestamp: bool = False
    stream_deaf: Literal["retry", "lost"] = "retry"
    evict_older: bool = False
    pushes_count: bool = True
    one_to_one_needs_robot_code: bool = True
    chatty: bool = False
    unsafe_words: frozenset[str] = frozenset()
    allowed_mentions: frozenset[str] = frozenset()
    bot_name: str = "Hearth"
    keep_calls: int = 100_000
    page: bool = False
    page_hosts: tuple[str, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def robot(self) -> str:
        """The robotCode: the clientId of an internal app unless said otherwise."""
        return self.robot_code or self.client_id

"""What all replies of one DingTalk app share: the API, the pace, who is growing, and whether answers may grow at all."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from bot.config import DingTalkBotConfig
from bot.domain.pacing import Load, interval_s
from bot.platforms.dingtalk.api import DingTalkApi

log = structlog.get_logger()

# A permission or template that is missing is looked for again; a platform in trouble is left alone for half an hour (§5.5).
REFUSED_S = 600.0
TROUBLE_S = 1800.0
# Updates a second of all growing replies together: under the app's limiter, with room for new cards and final texts.
_UPDATES_PER_S = 6.0


class ReplyDesk:
    """Owned by the adapter. Replies are only remembered while somebody holds them."""

    def __init__(
        self,
        api: DingTalkApi,
        config: DingTalkBotConfig,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.api = api
        self.config = config
        self.now = now
        self._clock = clock
        self._growing: weakref.WeakSet[object] = weakref.WeakSet()
        self._refused_until = 0.0
        self._refused_why = ""

    @property
    def route_key(self) -> str:
        """What names our callback address to DingTalk (§5.8)."""
        return f"hearth-{hashlib.sha256(self.config.client_id.encode()).hexdigest()[:16]}"

    @property
    def callback(self) -> Mapping[str, str]:
        """How the clicks on a card reach us; empty where they cannot."""
        if self.config.mode == "stream":
            return {"callbackType": "STREAM"}
        if self.config.card_callback_url:
            return {"callbackType": "HTTP", "callbackRouteKey": self.route_key}
        return {}

    # -- growing -----------------------------------------------------------------------------------------------------
    def growing(self, reply: object, growing: bool) -> None:
        """A reply began or ended being updated."""
        if growing:
            self._growing.add(reply)
        else:
            self._growing.discard(reply)

    @property
    def n_growing(self) -> int:
        """How many replies are being updated now."""
        return len(self._growing)

    def why_whole(self) -> str:
        """Why answers come whole instead of growing; "" when they may grow."""
        if not self.config.card_template:
            return "no card_template is configured"
        if self._clock() < self._refused_until:
            return self._refused_why
        budget = self.api.client.budget
        if budget.calls_left() <= 1.0 - self.config.stream_until:
            return f"{self.config.stream_until:.0%} of the month's calls are used ({budget.told()})"
        return ""

    def refuse_cards(self, why: str, for_s: float) -> None:
        """Cards do not work now: say it once, try again later."""
        if self._clock() >= self._refused_until:
            log.warning("dingtalk_cards_refused", app_id=self.config.client_id, reason=why)
        self._refused_until = self._clock() + for_s
        self._refused_why = why

    def interval_s(self) -> float:
        """Seconds between two updates of one card, right now."""
        client = self.api.client
        load = Load(
            pressure=client.pressure.factor(self._clock()),
            calls_left=client.budget.calls_left(),
            month_left=client.budget.month_left(),
        )
        fair = max(self.config.update_interval_s, self.n_growing / _UPDATES_PER_S)
        return interval_s(fair, load)

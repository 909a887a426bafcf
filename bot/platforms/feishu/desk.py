"""What all replies of one Feishu app share: the API, the pace, who is growing, and whether CardKit is allowed."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from bot.config import FeishuBotConfig
from bot.domain.pacing import Load, interval_s
from bot.errors import PlatformError
from bot.platforms.feishu.api import FeishuApi

log = structlog.get_logger()

_PATCH_INTERVAL_S = 1.5
_CARDS_REFUSED_S = 600.0
# Of the month's calls: kept for endings, three of which close a card.
_FOR_ENDINGS = 0.02


class ReplyDesk:
    """Owned by the adapter. Replies are only remembered while somebody holds them."""

    def __init__(
        self,
        api: FeishuApi,
        config: FeishuBotConfig,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.api = api
        self.config = config
        self.now = now
        self._clock = clock
        self._growing: weakref.WeakSet[object] = weakref.WeakSet()
        self._cards_refused_until = 0.0

    def growing(self, reply: object, growing: bool) -> None:
        """A reply began or ended being edited."""
        if growing:
            self._growing.add(reply)
        else:
            self._growing.discard(reply)

    @property
    def n_growing(self) -> int:
        """How many replies are being edited now."""
        return len(self._growing)

    @property
    def cards_allowed(self) -> bool:
        """Whether CardKit is worth trying."""
        return self._clock() >= self._cards_refused_until

    @property
    def cards(self) -> str:
        """How answers are shown, for /readyz."""
        if not self.cards_allowed:
            return "refused"
        return "spared" if self.sparing else "streaming"

    @property
    def sparing(self) -> bool:
        """Hardly any calls are left this month: answers come whole, and cards that grow are only closed."""
        return self.api.client.budget.calls_left() <= _FOR_ENDINGS

    def refuse_cards(self, error: PlatformError) -> None:
        """CardKit needs a scope that the app lacks: say it once, try again in ten minutes."""
        if self.cards_allowed:
            log.warning(
                "feishu_cardkit_refused",
                app_id=self.config.app_id,
                code=error.code,
                mend="grant the scope cardkit:card:write in the console and publish a version",
            )
        self._cards_refused_until = self._clock() + _CARDS_REFUSED_S

    def interval_s(self, kind: str) -> float:
        """Seconds between two edits now (feishu.md §4.5: limits are shared by all replies of the app)."""
        client = self.api.client
        load = Load(
            active_replies=self.n_growing,
            pressure=client.pressure.factor(self._clock()),
            calls_left=client.budget.calls_left(),
            month_left=client.budget.month_left(),
        )
        wanted = interval_s(self.config.update_interval_s, load)
        return max(wanted, _PATCH_INTERVAL_S) if kind == "patch" else wanted

"""Where one turn stands among the others: whose it is, how early it is served, how much longer it may wait."""

from __future__ import annotations

from dataclasses import dataclass

from bot.domain.types import Turn
from bot.service.context import Context
from bot.service.ledger import ReplyLedger
from engine.types import Priority


@dataclass(frozen=True, slots=True)
class Standing:
    """One turn's; used by its generation, for the bot's line and for the engine's alike."""

    context: Context
    turn: Turn
    bot_name: str
    ledger: ReplyLedger

    @property
    def owner(self) -> str:
        """Whose turns it takes (fairness goes by people, over all their chats)."""
        return f"{self.turn.session.app_id}:{self.turn.asker.user_id}"

    @property
    def priority(self) -> int:
        """As configured; but what people already see growing goes on before anything new begins."""
        if self.ledger.n_ids:
            return Priority.ADMIN
        return self.context.settings.priority(self.bot_name, self.turn.asker.user_id)

    @property
    def waited_s(self) -> float:
        """Since the question was asked; the time while Hearth was not running does not count."""
        clock = self.context.clock
        asked_s = (clock.now() - self.turn.created_at).total_seconds()
        return max(0.0, min(asked_s, clock.monotonic() - self.context.started_s))

    @property
    def patience_s(self) -> float | None:
        """How much longer the answer may take to begin; None = for ever, as with one that has begun."""
        max_wait_s = self.context.settings.chat.max_wait_s
        if not max_wait_s or self.ledger.n_ids:
            return None
        return max(0.001, max_wait_s - self.waited_s)

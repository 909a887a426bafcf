"""The gate: decides for each message whether it makes work, one polite notice, or nothing at all."""

from __future__ import annotations

from enum import StrEnum

from bot.domain.access import OncePer, RateLimiter, Role
from bot.service.clock import Clock
from bot.service.settings import Settings

STRANGER_WINDOW_S = 24 * 3600.0
RATE_WINDOW_S = 60.0


class Verdict(StrEnum):
    """What the gate says."""

    PASS = "pass"  # noqa: S105 - not a password
    SILENCE = "silence"  # no work, no answer, no platform call
    NOTICE_STRANGER = "notice_stranger"
    NOTICE_RATE = "notice_rate"
    DROP_RATE = "drop_rate"  # too fast and already told so: stored as seen, not answered


class Gate:
    """Owns the rate buckets and who was told what; used by the inbox alone."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._rate = RateLimiter(clock.monotonic)
        self._told_stranger = OncePer(clock.monotonic, STRANGER_WINDOW_S)
        self._told_rate = OncePer(clock.monotonic, RATE_WINDOW_S)

    def role(self, bot_name: str, user_id: str) -> Role:
        """The role of a person at a bot."""
        return self._settings.access.role(bot_name, user_id)

    def is_admin(self, bot_name: str, user_id: str) -> bool:
        """Admins may press everybody's buttons and are under no rate."""
        return self.role(bot_name, user_id) is Role.ADMIN

    def check(self, bot_name: str, user_id: str, *, counts: bool) -> Verdict:
        """Let a message in or not. `counts`: it uses up the person's rate (`/stop` does not)."""
        person = f"{bot_name}:{user_id}"
        match self.role(bot_name, user_id):
            case Role.DENIED:
                return Verdict.SILENCE
            case Role.STRANGER:
                first = self._told_stranger.first(person)
                return Verdict.NOTICE_STRANGER if first else Verdict.SILENCE
            case Role.ADMIN:
                return Verdict.PASS
            case Role.MEMBER:
                per_minute = self._settings.config.access.per_user_per_minute
                if not counts or self._rate.take(person, per_minute):
                    return Verdict.PASS
                first = self._told_rate.first(person)
                return Verdict.NOTICE_RATE if first else Verdict.DROP_RATE

    def undo(
        self, bot_name: str, user_id: str, verdict: Verdict, *, unstored: bool = False
    ) -> None:
        """The message had been seen before, or was not stored and will come again: what the verdict used up is given back."""
        person = f"{bot_name}:{user_id}"
        match verdict:
            case Verdict.PASS:
                self._rate.give_back(person)
            case Verdict.NOTICE_RATE:
                self._told_rate.forget(person)
            case Verdict.NOTICE_STRANGER if unstored:
                self._told_stranger.forget(person)
            case Verdict.NOTICE_STRANGER | Verdict.SILENCE | Verdict.DROP_RATE:
                pass

"""Who may talk to the bot and how often. Pure: the clock is handed in; the state lives in two small classes.

People are written "<bot name>:<user id>"; `*` stands for every bot or every user (config `[access]`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a person may do. DENIED people get silence, STRANGERS (not in a non-empty allow list) one polite notice."""

    ADMIN = "admin"
    MEMBER = "member"
    STRANGER = "stranger"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class AccessList:
    """The `[access]` lists. An admin is never refused; a denied person is refused even when allowed."""

    admins: frozenset[tuple[str, str]]
    allow: frozenset[tuple[str, str]]
    deny: frozenset[tuple[str, str]]
    tiers: tuple[frozenset[tuple[str, str]], ...] = ()

    @classmethod
    def parse(
        cls,
        *,
        admins: Iterable[str],
        allow: Iterable[str],
        deny: Iterable[str],
        tiers: Iterable[Iterable[str]] = (),
    ) -> AccessList:
        """From the config's strings (their form was checked when it was read)."""
        ranked = tuple(_people(tier) for tier in tiers)
        return cls(_people(admins), _people(allow), _people(deny), ranked)

    def role(self, bot_name: str, user_id: str) -> Role:
        """The role of a person at a bot."""
        names = _names(bot_name, user_id)
        if names & self.admins:
            return Role.ADMIN
        if names & self.deny:
            return Role.DENIED
        if self.allow and not names & self.allow:
            return Role.STRANGER
        return Role.MEMBER

    def tier(self, bot_name: str, user_id: str) -> int | None:
        """The first tier that names a person, 0 = served first; None when none does."""
        names = _names(bot_name, user_id)
        return next((n for n, people in enumerate(self.tiers) if names & people), None)


def _names(bot_name: str, user_id: str) -> set[tuple[str, str]]:
    return {(b, u) for b in (bot_name, "*") for u in (user_id, "*")}


def _people(entries: Iterable[str]) -> frozenset[tuple[str, str]]:
    return frozenset((bot, user) for bot, _, user in (entry.partition(":") for entry in entries))


class RateLimiter:
    """Token buckets: `per_minute` at once, refilled evenly. Owned by the inbox; one event loop.

    Buckets that are full again are forgotten, so memory is bounded by the people active within one minute.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, person: str, per_minute: int) -> bool:
        """Take one token; False when there is none. 0 per minute means no limit."""
        if per_minute <= 0:
            return True
        now = self._monotonic()
        self._forget_idle(now)
        tokens, then = self._buckets.pop(person, (float(per_minute), now))
        tokens = min(float(per_minute), tokens + (now - then) * per_minute / 60)
        granted = tokens >= 1
        self._buckets[person] = (tokens - 1 if granted else tokens, now)
        return granted

    def give_back(self, person: str) -> None:
        """Return a token that paid for nothing (the event was a duplicate)."""
        if person in self._buckets:
            tokens, then = self._buckets[person]
            self._buckets[person] = (tokens + 1, then)

    def __len__(self) -> int:
        return len(self._buckets)

    def _forget_idle(self, now: float) -> None:
        while self._buckets:
            person, (_, then) = next(iter(self._buckets.items()))
            if now - then < 60:
                return
            del self._buckets[person]


class OncePer:
    """Says yes once per key and window, so that a refused person costs at most one notice. Owned by the inbox."""

    def __init__(self, monotonic: Callable[[], float], window_s: float) -> None:
        self._monotonic = monotonic
        self._window_s = window_s
        self._said: OrderedDict[str, float] = OrderedDict()

    def first(self, key: str) -> bool:
        """True when this key was not seen within the window."""
        now = self._monotonic()
        while self._said and now - next(iter(self._said.values())) >= self._window_s:
            self._said.popitem(last=False)
        if key in self._said:
            return False
        self._said[key] = now
        return True

    def forget(self, key: str) -> None:
        """Take a yes back (nothing was said after all)."""
        self._said.pop(key, None)

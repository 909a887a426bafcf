"""What `/status` tells admins of the bots: since when long connections stand, or do not and why; and the month's calls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from bot.domain.catalogue import Language, say
from bot.platforms.base import PlatformAdapter
from bot.service.leading import Leading
from bot.service.settings import Settings


def connection_lines(settings: Settings, leading: Leading) -> list[str]:
    """A line per bot with a long connection; times by the clock of `chat.timezone`."""
    return [line for bot, facts in leading.connections() if (line := _line(settings, bot, facts))]


def budget_lines(language: Language, adapters: Mapping[str, PlatformAdapter]) -> list[str]:
    """A line per bot whose calls are counted against a month's."""
    lines = []
    for bot, adapter in adapters.items():
        facts = adapter.health()
        calls, cards = facts.get("calls_this_month", ""), facts.get("cards", "")
        if " of " in calls:
            why = "" if cards in {"", "streaming"} else f" ({cards})"
            lines.append(say(language, "status.calls", bot=bot, calls=calls, why=why))
    return lines


def _line(settings: Settings, bot: str, facts: Mapping[str, str]) -> str:
    def told(key: str, since: str, **words: str) -> str:
        at = datetime.fromisoformat(since).astimezone(settings.zone)
        return say(settings.language, key, bot=bot, since=f"{at:%m-%d %H:%M}", **words)

    if since := facts.get("connected_since"):
        return told("status.connected", since)
    if since := facts.get("waiting_since"):
        return told("status.connected_elsewhere", since, holder=facts["connected_process"])
    if since := facts.get("deaf_since"):
        return told("status.deaf", since, reason=facts.get("reason", ""))
    return ""

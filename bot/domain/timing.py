"""When people say something is due: "10m", "18:30", "明天 9:00", "daily 09:00". Pure; times go in local and come out in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_AHEAD = timedelta(days=366)

_UNITS = {
    "m": 60, "min": 60, "分钟": 60, "分": 60, "h": 3600, "小时": 3600, "d": 86400, "天": 86400,
}  # fmt: skip
_SPAN = re.compile(
    r"(\d{1,5})\s*(min|m|分钟|分|h|小时|d|天)(?:后|以后|之后)?(?=\s|$)", re.IGNORECASE
)
_CLOCK = r"(\d{1,2})[:：](\d{2})(?=\s|$)"
_AT = re.compile(_CLOCK)
_DAY_AT = re.compile(rf"(今天|明天|后天|today|tomorrow)\s*{_CLOCK}", re.IGNORECASE)
_DATE_AT = re.compile(rf"(\d{{4}})-(\d{{1,2}})-(\d{{1,2}})[\sT]+{_CLOCK}")
_AHEAD = {"今天": 0, "today": 0, "明天": 1, "tomorrow": 1, "后天": 2}

_DAILY = re.compile(rf"(?:daily|每天)\s*{_CLOCK}", re.IGNORECASE)
_WEEKLY = re.compile(
    rf"(?:weekly\s+(mon|tue|wed|thu|fri|sat|sun)|每?(?:周|星期)([一二三四五六日天]))\s*{_CLOCK}",
    re.IGNORECASE,
)
_HAN_DAYS = {"一": 0, "二": 1, "三": 2, "四": 3, "五": 4, "六": 5, "日": 6, "天": 6}


@dataclass(frozen=True, slots=True)
class When:
    """A time found at the start of a text (in UTC), and the text behind it."""

    due_at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Again and again: every day, or every week on one day (0 = Monday), at a time of the local clock."""

    hour: int
    minute: int
    weekday: int | None = None

    def __str__(self) -> str:
        clock = f"{self.hour:02d}:{self.minute:02d}"
        return f"daily {clock}" if self.weekday is None else f"weekly {DAYS[self.weekday]} {clock}"

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime:
        """The first time after a moment. An hour that the clock skips in spring comes when it has moved on."""
        day = moment.astimezone(zone).date()
        while True:
            if self.weekday is None or day.weekday() == self.weekday:
                at = _utc(day, time(self.hour, self.minute), zone)
                if at > moment:
                    return at
            day += timedelta(days=1)


def parse_when(text: str, now: datetime) -> When | None:
    """What a text begins with, for somebody whose clock shows `now` (with its zone). None when that is no time.

    A time of day that has passed means tomorrow's; a date may lie in the past.
    """
    text = text.strip()
    zone = now.tzinfo or UTC
    try:
        return _span(text, now) or _dated(text, zone) or _at(text, now, zone)
    except (ValueError, OverflowError):
        # 25:00, the 31st of June; the year 1, where the zone is ahead
        return None


def parse_rule(text: str) -> tuple[Rule, str] | None:
    """The rule that a text begins with and the text behind it; None when it is none."""
    text = text.strip()
    if found := _DAILY.match(text):
        rule = _rule(found[1], found[2], None)
    elif found := _WEEKLY.match(text):
        weekday = DAYS.index(found[1].lower()) if found[1] else _HAN_DAYS[found[2]]
        rule = _rule(found[3], found[4], weekday)
    else:
        return None
    return (rule, text[found.end() :].strip()) if rule is not None else None


def _rule(hour: str, minute: str, weekday: int | None) -> Rule | None:
    if int(hour) > 23 or int(minute) > 59:
        return None
    return Rule(int(hour), int(minute), weekday)


def _span(text: str, now: datetime) -> When | None:
    found = _SPAN.match(text)
    if found is None:
        return None
    seconds = int(found[1]) * _UNITS[found[2].lower()]
    return When(now.astimezone(UTC) + timedelta(seconds=seconds), text[found.end() :].strip())


def _dated(text: str, zone: tzinfo) -> When | None:
    found = _DATE_AT.match(text)
    if found is None:
        return None
    year, month, day, hour, minute = map(int, found.groups())
    at = _utc(date(year, month, day), time(hour, minute), zone)
    return When(at, text[found.end() :].strip())


def _at(text: str, now: datetime, zone: tzinfo) -> When | None:
    found = _DAY_AT.match(text)
    if found is not None:
        day = now.date() + timedelta(days=_AHEAD[found[1].lower()])
        at = _utc(day, time(int(found[2]), int(found[3])), zone)
        return When(at, text[found.end() :].strip())
    found = _AT.match(text)
    if found is None:
        return None
    clock = time(int(found[1]), int(found[2]))
    at = _utc(now.date(), clock, zone)
    if at <= now:
        at = _utc(now.date() + timedelta(days=1), clock, zone)
    return When(at, text[found.end() :].strip())


def _utc(day: date, clock: time, zone: tzinfo) -> datetime:
    return datetime.combine(day, clock, zone).astimezone(UTC)

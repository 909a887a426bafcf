"""When something is due, in people's words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.timing import Rule, parse_rule, parse_when

SHANGHAI = ZoneInfo("Asia/Shanghai")
# A Sunday.
NOW = datetime(2026, 11, 29, 20, 15, tzinfo=SHANGHAI)


def local(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=SHANGHAI)


@pytest.mark.parametrize(
    ("text", "due", "rest"),
    [
        ("10m drink water", NOW + timedelta(minutes=10), "drink water"),
        ("2h 开会", NOW + timedelta(hours=2), "开会"),
        ("10分钟后 喝水", NOW + timedelta(minutes=10), "喝水"),
        ("1d x", NOW + timedelta(days=1), "x"),
        ("23:30 睡觉", local(2026, 11, 29, 23, 30), "睡觉"),
        ("18:30 x", local(2026, 11, 30, 18, 30), "x"),
        ("18：30 x", local(2026, 11, 30, 18, 30), "x"),
        ("明天 9:00 交报告\n第二行", local(2026, 11, 30, 9, 0), "交报告\n第二行"),
        ("tomorrow 9:00 x", local(2026, 11, 30, 9, 0), "x"),
        ("后天9:00 x", local(2026, 12, 1, 9, 0), "x"),
        ("2026-12-01 09:00 x", local(2026, 12, 1, 9, 0), "x"),
        ("今天 9:00 x", local(2026, 11, 29, 9, 0), "x"),  # past: the caller says so
        ("10m", NOW + timedelta(minutes=10), ""),
    ],
)
def test_times(text, due, rest):
    when = parse_when(text, NOW)
    assert when is not None
    assert (when.due_at, when.text) == (due, rest)
    assert when.due_at.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon x",
        "25:00 x",
        "9:60 x",
        "2026-02-31 09:00 x",
        "10mm x",
        "m x",
        "18:301 x",
        "0001-01-01 00:00 x",
    ],
)
def test_what_is_no_time(text):
    assert parse_when(text, NOW) is None


@pytest.mark.parametrize(
    ("text", "rule", "rest"),
    [
        ("daily 09:00 news?", "daily 09:00", "news?"),
        ("每天 9:00 有什么新闻", "daily 09:00", "有什么新闻"),
        ("weekly mon 9:05 x", "weekly mon 09:05", "x"),
        ("每周日 21:00 x", "weekly sun 21:00", "x"),
    ],
)
def test_rules(text, rule, rest):
    parsed = parse_rule(text)
    assert parsed is not None
    assert (str(parsed[0]), parsed[1]) == (rule, rest)
    assert parse_rule(str(parsed[0])) == (parsed[0], "")


@pytest.mark.parametrize("text", ["", "daily", "daily 24:00 x", "weekly 9:00 x", "hourly 1:00"])
def test_what_is_no_rule(text):
    assert parse_rule(text) is None


def test_the_next_time_of_a_rule():
    assert Rule(20, 15).next_after(NOW, SHANGHAI) == local(2026, 11, 30, 20, 15)
    assert Rule(20, 16).next_after(NOW, SHANGHAI) == local(2026, 11, 29, 20, 16)
    assert Rule(9, 0, 0).next_after(NOW, SHANGHAI) == local(2026, 11, 30, 9, 0)
    assert Rule(9, 0, 6).next_after(NOW, SHANGHAI) == local(2026, 12, 6, 9, 0)


@given(
    st.integers(0, 23),
    st.integers(0, 59),
    st.one_of(st.none(), st.integers(0, 6)),
    st.integers(0, 365 * 24 * 60).map(
        lambda n: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n)
    ),
    st.sampled_from(["Asia/Shanghai", "Europe/Berlin", "America/New_York"]),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_every_next_time_is_later_and_within_a_week_and_a_day(hour, minute, weekday, now, zone):
    """Also over the hours that clocks skip or repeat."""
    at = Rule(hour, minute, weekday).next_after(now, ZoneInfo(zone))
    assert now < at <= now + timedelta(days=8)

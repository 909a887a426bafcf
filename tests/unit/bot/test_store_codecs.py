"""What goes into a column comes out of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from bot.domain.types import Attachment, ReplyTarget
from bot.store.inbox import dedupe_hash
from bot.store.place import parse_place
from bot.store.sessions import key_hash
from bot.store.tables import from_micros, pack_ids, storable, to_micros, unpack_ids
from bot.store.turnrows import read_attachments, read_target, write_attachments, write_target
from tests.store_drafts import session_key

_settled = settings(derandomize=True, deadline=None, max_examples=100)
_moments = st.datetimes(timezones=st.just(UTC))
_texts = st.text(st.characters(exclude_categories=[]))


@_settled
@given(_moments)
def test_moments_round_trip_exactly(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment
    elsewhere = moment.astimezone(timezone(timedelta(hours=8)))
    assert to_micros(elsewhere) == to_micros(moment)
    assert from_micros(to_micros(elsewhere)).tzinfo is UTC


@_settled
@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_round_trip_in_four_bytes_each(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert len(packed) == 4 * len(ids)
    assert unpack_ids(packed) == tuple(ids)


def test_token_ids_lie_little_endian() -> None:
    assert pack_ids([1, 262_143]) == b"\x01\x00\x00\x00\xff\xff\x03\x00"


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_no_token_id_is_cut_silently(wrong: int) -> None:
    with pytest.raises(OverflowError):
        pack_ids([wrong])


@_settled
@given(_texts)
def test_storable_text_keeps_its_length_and_every_good_character(text: str) -> None:
    stored = storable(text)
    assert len(stored) == len(text)
    stored.encode("utf-8")
    assert "\x00" not in stored
    assert all(a == b or b == "\ufffd" for a, b in zip(text, stored, strict=True))
    assert storable(stored) == stored


@_settled
@given(_texts, st.dictionaries(_texts, _texts), st.none() | _moments)
def test_targets_round_trip(text: str, opaque: dict[str, str], expires_at: datetime | None) -> None:
    target = ReplyTarget(text, "chat", text, opaque, expires_at)
    written = write_target(target)
    assert read_target(written) == target
    assert storable(written) == written


@_settled
@given(st.lists(st.builds(Attachment, _texts, _texts, _texts)))
def test_attachments_round_trip(attachments: list[Attachment]) -> None:
    written = write_attachments(attachments)
    assert read_attachments(written) == tuple(attachments)
    assert storable(written) == written


def test_hashes_do_not_mix_their_parts() -> None:
    assert dedupe_hash("ab", "c") != dedupe_hash("a", "bc")
    assert dedupe_hash('a","b', "c") != dedupe_hash("a", 'b","c')
    assert key_hash(session_key("a\ud800")) != key_hash(session_key("a"))


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("sqlite:////var/lib/hearth.db", "/var/lib/hearth.db"),
        ("sqlite+aiosqlite:////var/lib/hearth.db", "/var/lib/hearth.db"),
        ("sqlite:////home/李 四/50%25 off/hearth.db", "/home/李 四/50%25 off/hearth.db"),
        ("postgresql://u:geheim@h:5433/d", "postgresql+asyncpg://u:***@h:5433/d"),
        ("postgresql+asyncpg://u@h/d?sslmode=require", "postgresql+asyncpg://u@h/d?ssl=require"),
    ],
)
def test_places_are_named_without_secrets(url: str, label: str) -> None:
    place = parse_place(url)
    assert place.label == label
    assert place.is_sqlite is label.startswith("/")

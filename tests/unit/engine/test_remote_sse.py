"""Server-sent events as model servers send them, cut anywhere."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.remote.sse import MAX_EVENT_BYTES, SseError, SseParser, json_objects


def parse(*pieces: bytes) -> list[str]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.end()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_every_line_end(end: bytes) -> None:
    stream = end.join([b"data: one", b"", b": keep-alive", b"data: two", b"data: three", b"", b""])
    assert parse(stream) == ["one", "two\nthree"]


def test_comments_names_ids_and_empty_events_say_nothing() -> None:
    stream = b": ping\n\nevent: x\nid: 1\nretry: 5\n\n\n\ndata:no space\n\ndata:  two spaces\n\n"
    assert parse(stream) == ["no space", " two spaces"]


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse(b"\xef\xbb", b"\xbfdata: x\n\n") == ["x"]


def test_the_last_event_may_lack_its_blank_line() -> None:
    assert parse(b"data: x") == ["x"]
    assert parse(b"data: x\n") == ["x"]
    assert parse(b"") == []


def test_line_separators_of_unicode_do_not_end_a_line() -> None:
    text = "a\u2028b\u0085c"
    assert parse(f"data: {text}\n\n".encode()) == [text]


def test_an_event_without_end_is_refused() -> None:
    parser = SseParser()
    with pytest.raises(SseError, match="more than"):
        parser.feed(b"data: " + b"x" * MAX_EVENT_BYTES)


def test_endless_data_lines_of_one_event_are_refused() -> None:
    parser = SseParser()
    line = b"data: " + b"x" * 65536 + b"\n"
    for _ in range(MAX_EVENT_BYTES // 65536 - 1):
        assert parser.feed(line) == []
    with pytest.raises(SseError, match="more than"):
        parser.feed(line * 2)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_any_cutting_gives_the_same_objects(
    texts: list[str], end: str, data: st.DataObject
) -> None:
    objects = [{"text": text} for text in texts]
    stream = "".join(
        f"data: {json.dumps(o, ensure_ascii=False)}{end}{end}" for o in objects
    ).encode("utf-8", "replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    seen = [o for event in parse(*pieces) for o in json_objects(event)]
    assert [o["text"] for o in seen] == [text.encode("utf-8", "replace").decode() for text in texts]


def test_forgotten_blank_lines_between_events_are_mended() -> None:
    (event,) = parse(b'data: {"a": 1}\ndata: {"b": 2}\ndata: [DONE]\n\n')
    assert json_objects(event) == [{"a": 1}, {"b": 2}, {"done": True}]


def test_one_object_over_several_data_lines_is_one() -> None:
    (event,) = parse(b'data: {"a":\ndata: 1}\n\n')
    assert json_objects(event) == [{"a": 1}]


@pytest.mark.parametrize("data", ["{", "[1]", "null", "hello", "<html>\n</html>"])
def test_what_is_no_object_is_refused(data: str) -> None:
    with pytest.raises(SseError):
        json_objects(data)


def test_an_error_field_of_old_llama_server_counts_as_data() -> None:
    (event,) = parse(b'error: {"code": 500}\n\n')
    assert json_objects(event) == [{"code": 500}]

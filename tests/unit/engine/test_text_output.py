"""Detokenizing, stop strings, thinking: the result never depends on how the bytes were cut into tokens."""

import codecs

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.text.detok import StopMatcher, Utf8Stream
from engine.text.output import ReplyText
from engine.text.thinking import (
    MAX_LEADING_CHARS,
    ThinkingSplitter,
    opens_thinking,
    strip_thinking,
)

FIXED = settings(derandomize=True, max_examples=200, deadline=None)
cut_sizes = st.lists(st.integers(0, 5), max_size=60)


def cut(data, sizes):
    """`data` in pieces of the given sizes; what is left over comes last."""
    pieces, position = [], 0
    for size in sizes:
        pieces.append(data[position : position + size])
        position += size
    return [*pieces, data[position:]]


# -- bytes to text


@FIXED
@given(data=st.binary(max_size=40) | st.text(max_size=20).map(str.encode), sizes=cut_sizes)
def test_utf8_is_the_same_however_it_is_cut(data, sizes):
    stream = Utf8Stream()
    text = "".join(map(stream.push, cut(data, sizes)))
    whole = codecs.getincrementaldecoder("utf-8")(errors="replace")
    assert text == whole.decode(data)
    unfinished = whole.getstate()[0]
    assert data.endswith(unfinished)
    assert stream.pending == bool(unfinished)


@FIXED
@given(text=st.text(st.sampled_from("a你🎉👨\u200d👩é\n"), max_size=12))
def test_a_character_comes_out_whole_and_at_once(text):
    stream = Utf8Stream()
    for char in text:
        *first, last = [stream.push(bytes([byte])) for byte in char.encode()]
        assert first == [""] * len(first)
        assert last == char
        assert not stream.pending


def test_broken_bytes_become_one_replacement_and_do_not_stall():
    stream = Utf8Stream()
    assert stream.push(b"\xe4\xbd") == ""
    assert stream.pending
    assert stream.push(b"ok") == "\ufffdok"
    assert stream.push(b"\xff") == "\ufffd"
    assert stream.push(b"\xf0\x9f") == ""
    stream.finish()
    assert stream.push(b"next") == "next", "the unfinished character is forgotten"


# -- stop strings


def reference_stop(text, stops):
    """Character by character: the first stop string that is complete ends it, the longest of those complete together."""
    stops = [stop for stop in stops if stop]
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


letters = st.text(st.sampled_from("ab<\n"), max_size=24)
stop_lists = st.lists(st.text(st.sampled_from("ab<\n"), max_size=4), max_size=4)


@FIXED
@given(text=letters, stops=stop_lists, sizes=cut_sizes)
@example(text="xabcd", stops=["abcd", "bc"], sizes=[4, 1])
@example(text="aab", stops=["ab"], sizes=[1, 1, 1])
def test_stop_strings_match_the_reference_however_text_is_cut(text, stops, sizes):
    matcher = StopMatcher(stops)
    shown = "".join(map(matcher.push, cut(text, sizes))) + matcher.finish()
    assert (shown, matcher.stopped) == reference_stop(text, stops)


@FIXED
@given(text=letters, stops=stop_lists)
def test_only_a_beginning_of_a_stop_string_is_held_back(text, stops):
    matcher = StopMatcher(stops)
    shown = ""
    for position, char in enumerate(text):
        shown += matcher.push(char)
        if matcher.stopped:
            break
        held = text[len(shown) : position + 1]
        assert shown + held == text[: position + 1]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


# -- thinking


def split(text, sizes=(), *, thinking_open=False):
    splitter = ThinkingSplitter(thinking_open)
    pieces = [splitter.push(piece) for piece in cut(text, sizes)] + [splitter.finish()]
    thinking, answer = ("".join(column) for column in zip(*pieces, strict=True))
    return thinking, answer, splitter


@pytest.mark.parametrize(
    ("text", "thinking_open", "thinking", "answer"),
    [
        ("hello", False, "", "hello"),
        ("<think>\nhm\n</think>\n\nhello", False, "hm\n", "hello"),
        (" \n<think>hm</think>hello", False, "hm", "hello"),
        ("abc</think>xyz", True, "abc", "xyz"),  # reports.md F2
        ("<think>abc</think>xyz", True, "abc", "xyz"),
        ("\n<think>\n<think>abc</think>xyz", True, "abc", "xyz"),
        ("</think>\n\nxyz", True, "", "xyz"),
        ("</think>\n\nxyz", False, "", "xyz"),
        ("<think>\n\n</think>\n\nxyz", False, "", "xyz"),
        ("abc</think>xyz", False, "", "abc</think>xyz"),  # shown already: stays
        (
            "The `<think>` tag ends with `</think>`.",
            False,
            "",
            "The `<think>` tag ends with `</think>`.",
        ),
        ("`<think>` is a tag", False, "", "`<think>` is a tag"),
        ("```\n<think>a</think>\n```", False, "", "```\n<think>a</think>\n```"),
        ("<think>a</think>b<think>c</think>d", False, "a", "b<think>c</think>d"),
        ("<think>a</think>\n<think>c</think>d", False, "a", "<think>c</think>d"),
        ("<think>never ends", False, "never ends", ""),
        ("never ends </thi", True, "never ends </thi", ""),
        ("<thi", False, "", "<thi"),
        ("<thin air>", False, "", "<thin air>"),
        ("  indented", False, "", "  indented"),
        ("  \n", False, "", "  \n"),
        ("", True, "", ""),
        ("<think>a < b </b></think>c", False, "a < b </b>", "c"),
        (
            " " * (MAX_LEADING_CHARS + 1) + "<think>x",
            False,
            "",
            " " * (MAX_LEADING_CHARS + 1) + "<think>x",
        ),
    ],
)
def test_thinking_cases_whole_and_character_by_character(text, thinking_open, thinking, answer):
    for sizes in ((), [1] * len(text), [2] * len(text), [3] * len(text), [7] * len(text)):
        assert split(text, sizes, thinking_open=thinking_open)[:2] == (thinking, answer)


tagged = st.lists(
    st.sampled_from(["<think>", "</think>", "<th", "</thi", "nk>", "a", " ", "\n", "<", "`", "好"]),
    max_size=12,
).map("".join)


@FIXED
@given(text=tagged, sizes=cut_sizes, thinking_open=st.booleans())
def test_thinking_is_the_same_however_it_is_cut_and_answer_at_is_true(text, sizes, thinking_open):
    whole = split(text, thinking_open=thinking_open)
    in_pieces = split(text, sizes, thinking_open=thinking_open)
    assert in_pieces[:2] == whole[:2]
    _, answer, splitter = in_pieces
    if answer:
        assert text[splitter.answer_at :] == answer


@FIXED
@given(text=tagged)
def test_thoughts_come_once(text):  # reports.md F4
    thinking, answer, _ = split("<think>thought" + text + "</think>reply")
    assert (thinking + answer).count("thought") == 1


def test_stripping_a_finished_reply():
    assert strip_thinking("<think>a</think>\n\nb") == "b"
    assert strip_thinking("\n<think>a</think>b") == "b"
    assert strip_thinking("<think>open") == "<think>open"
    assert strip_thinking("about `<think>a</think>`") == "about `<think>a</think>`"


def test_prompts_that_end_inside_a_block():
    assert opens_thinking("<|im_start|>assistant\n<think>\n")
    assert not opens_thinking("<think>\n\n</think>\n\n")
    assert not opens_thinking("<|im_start|>assistant\n")


# -- a whole reply


def play(tokens, *, stop=(), thinking_open=False):
    """Push the byte strings as ids until stopped; returns (answer, thinking, reply, ids pushed)."""
    reply = ReplyText(tokens.__getitem__, stop, thinking_open)
    pieces = []
    n_pushed = 0
    for token_id in range(len(tokens)):
        pieces.append(reply.push(token_id))
        n_pushed += 1
        if pieces[-1].stopped:
            break
    pieces.append(reply.finish())
    answer = "".join(piece.text for piece in pieces)
    thinking = "".join(piece.thinking for piece in pieces)
    return answer, thinking, reply, n_pushed


def bounds(tokens, **options):
    answer, thinking, reply, _ = play(tokens, **options)
    return answer, thinking, reply.answer_start, reply.n_answer


@pytest.mark.parametrize(
    ("tokens", "options", "expected"),
    [
        # plain
        ([b"Hi", b" there"], {}, ("Hi there", "", 0, 2)),
        ([], {}, ("", "", 0, 0)),
        # an id without bytes at the end is no answer, in the middle it is
        ([b"Hi", b""], {}, ("Hi", "", 0, 1)),
        ([b"Hi", b"", b" you", b"", b""], {}, ("Hi you", "", 0, 3)),
        ([b"", b"Hi"], {}, ("Hi", "", 0, 2)),
        # the tag and the white space behind it are no answer
        ([b"<think>", b"a", b"</think>", b"\n\n", b"b", b"c"], {}, ("bc", "a", 4, 2)),
        ([b"a", b"</think>", b"\n", b"b"], {"thinking_open": True}, ("b", "a", 3, 1)),
        ([b"<think>", b"a", b"</think>", b"", b"\n", b"", b"b"], {}, ("b", "a", 6, 1)),
        # an id with the end of the tag and answer text is answer
        ([b"<think>", b"a</thi", b"nk>\nb", b"c"], {}, ("bc", "a", 2, 2)),
        # thinking that never ends: all ids are thinking
        ([b"<think>", b"a", b"b"], {}, ("", "ab", 3, 0)),
        ([b"<think>", b"a", b"</think>", b"\n"], {}, ("", "a", 4, 0)),
        # ids that only form the stop string are no answer
        ([b"Hi", b"\n", b"User", b":"], {"stop": ["\nUser:"]}, ("Hi", "", 0, 1)),
        # an id with answer text and the start of the stop string is answer
        ([b"Hi", b"!\n", b"User", b":x"], {"stop": ["\nUser:"]}, ("Hi!", "", 0, 2)),
        # a beginning of a stop string that never came is answer
        ([b"Hi", b"\n", b"User"], {"stop": ["\nUser:"]}, ("Hi\nUser", "", 0, 3)),
        # a stop at once
        ([b"STOP"], {"stop": ["STOP"]}, ("", "", 0, 0)),
        ([b"<think>", b"a", b"</think>", b"STOP"], {"stop": ["STOP"]}, ("", "a", 3, 0)),
        # stop strings are for the answer, not for thoughts
        (
            [b"a", b"\n\n", b"</think>", b"b", b"\n\n", b"c"],
            {"stop": ["\n\n"], "thinking_open": True},
            ("b", "a\n\n", 3, 1),
        ),
        # characters spread over ids
        (["好".encode()[:1], "好".encode()[1:2], "好".encode()[2:]], {}, ("好", "", 0, 3)),
        (
            [b"</think>", "好".encode()[:2], "好".encode()[2:]],
            {"thinking_open": True},
            ("好", "", 1, 2),
        ),
        ([b"a", "好".encode()[:2], b"", "好".encode()[2:], b""], {}, ("a好", "", 0, 4)),
        ([b"a", b"\xe5\xa5"], {}, ("a", "", 0, 1)),
        ([b"a", b"\xe5\xa5", b""], {}, ("a", "", 0, 1)),
        (
            [b"a", "。\n".encode()[:2], "。\n".encode()[2:], b"x"],
            {"stop": ["\n"]},
            ("a。", "", 0, 3),
        ),
    ],
)
def test_which_ids_are_the_answer(tokens, options, expected):
    assert bounds(tokens, **options) == expected


@FIXED
@given(
    text=tagged,
    sizes=cut_sizes,
    stops=st.lists(st.sampled_from(["a", "\n", "<th", "好", "nk>a"]), max_size=2),
    thinking_open=st.booleans(),
)
def test_the_answer_ids_are_the_smallest_run_that_holds_the_answer(
    text, sizes, stops, thinking_open
):
    tokens = cut(text.encode(), sizes)
    answer, thinking, reply, n_pushed = play(tokens, stop=stops, thinking_open=thinking_open)
    whole_thinking, whole_answer, _ = split(text, thinking_open=thinking_open)
    expected_answer, stopped = reference_stop(whole_answer, stops)
    assert answer == expected_answer
    assert reply.stopped == stopped
    if not stopped:
        assert thinking == whole_thinking
    start, n_answer = reply.answer_start, reply.n_answer
    assert 0 <= start <= start + n_answer <= n_pushed
    run = tokens[start : start + n_answer]
    assert answer.encode() in b"".join(run)
    if answer and start:
        assert answer.encode() not in b"".join(run[1:])
    if answer:
        assert run[-1] != b""
    else:
        assert n_answer == 0


def test_after_the_stop_nothing_comes_and_nothing_counts():
    reply = ReplyText({0: b"a", 1: b"|", 2: b"b"}.__getitem__, ["|"], thinking_open=False)
    assert [reply.push(i).text for i in (0, 1, 2, 2)] == ["a", "", "", ""]
    assert reply.stopped
    assert reply.push(2).stopped
    assert reply.finish().text == ""
    assert (reply.answer_start, reply.n_answer) == (0, 1)


def test_finishing_twice_gives_nothing_twice():
    reply = ReplyText({0: b"a<"}.__getitem__, ["<b"], thinking_open=False)
    assert reply.push(0).text == "a"
    assert reply.finish().text == "<"
    assert reply.finish().text == ""
    assert reply.n_answer == 1

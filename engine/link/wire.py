"""The frames between the bot and its engine child: length-prefixed msgpack of tagged structs.

Owns the two unions (`Command` down, `Report` up), their encoding, and `FrameBuffer`, which turns any cut-up byte stream
back into payloads. Must not do I/O: both ends use the same pure code, with asyncio above and with threads below.

A frame is a 4-byte big-endian length and that many bytes of msgpack. The first frame each way carries `WIRE_VERSION`,
because an upgrade on disk under a running bot starts a child of the newer code.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from engine.config import EngineConfig
from engine.types import (
    ChatMessage,
    Delta,
    EngineRequest,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    ModelInfo,
    Progress,
    Queued,
    Rendered,
    Started,
)

WIRE_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 16 * 2**20
_LENGTH: Final = struct.Struct(">I")


class WireError(Exception):
    """The byte stream is not ours, or a frame exceeds `MAX_FRAME_BYTES`; the connection is of no further use."""


class _Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all frames that are not engine events."""


class Hello(_Frame, frozen=True, tag="hello"):
    """First frame down: what to load."""

    version: int
    config: EngineConfig


class Submit(_Frame, frozen=True, tag="submit"):
    """Start a request; its events come up until one terminal event."""

    request: EngineRequest


class Cancel(_Frame, frozen=True, tag="cancel"):
    """End a request early."""

    request_id: str


class Warm(_Frame, frozen=True, tag="warm"):
    """Prefill a conversation in the background."""

    cache_key: str
    scope: str
    tokens: tuple[int, ...]


class Forget(_Frame, frozen=True, tag="forget"):
    """Drop every copy of a conversation's KV; answered by `Forgotten`."""

    cache_key: str


class KeepInRam(_Frame, frozen=True, tag="keep_in_ram"):
    """Idle conversations may have so many bytes of RAM from now on; what is more goes, and is given back to the system."""

    n_bytes: int


class AskStats(_Frame, frozen=True, tag="ask_stats"):
    """Answered by `StatsAnswer` between two steps."""

    seq: int


class AskCount(_Frame, frozen=True, tag="ask_count"):
    """Answered by `CountAnswer` or `Refusal` from the text thread."""

    seq: int
    text: str


class AskRender(_Frame, frozen=True, tag="ask_render"):
    """Answered by `RenderAnswer` or `Refusal` from the text thread."""

    seq: int
    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool


class Shutdown(_Frame, frozen=True, tag="shutdown"):
    """Close the backend and exit."""


class Ready(_Frame, frozen=True, tag="ready"):
    """The model is loaded."""

    version: int
    info: ModelInfo


class LoadFailed(_Frame, frozen=True, tag="load_failed"):
    """An `EngineConfigError` at load; the child exits behind it. `message` is its sentence."""

    message: str


class Forgotten(_Frame, frozen=True, tag="forgotten"):
    """`Forget` was carried out."""

    cache_key: str


class StatsAnswer(_Frame, frozen=True, tag="stats_answer"):
    """Counters of this child only; the parent adds what it knows."""

    seq: int
    stats: EngineStats


class CountAnswer(_Frame, frozen=True, tag="count_answer"):
    """Tokens of the text."""

    seq: int
    n_tokens: int


class RenderAnswer(_Frame, frozen=True, tag="render_answer"):
    """The conversation as tokens."""

    seq: int
    rendered: Rendered


class Refusal(_Frame, frozen=True, tag="refusal"):
    """A question that has no answer; `message` is one sentence for an admin."""

    seq: int
    message: str


class Beat(_Frame, frozen=True, tag="beat"):
    """Sign of life of the decode loop: at the start and end of a busy stretch and twice a second within.

    A beat with `working` true that no other follows means that a step hangs (the parent's `StallWatch`).
    """

    working: bool
    n_steps: int
    longest_step_s: float


Event = Queued | Progress | Started | Delta | Finished | Failed
Command = (
    Hello | Submit | Cancel | Warm | Forget | KeepInRam | AskStats | AskCount | AskRender | Shutdown
)
# What is always answered, with an event or an answer of its own.
Question = Submit | AskStats | AskCount | AskRender
Report = (
    Ready
    | LoadFailed
    | Forgotten
    | StatsAnswer
    | CountAnswer
    | RenderAnswer
    | Refusal
    | Beat
    | Queued
    | Progress
    | Started
    | Delta
    | Finished
    | Failed
)


class _Version(msgspec.Struct):
    version: int


class _RequestId(msgspec.Struct):
    id: str


class _Asker(msgspec.Struct):
    """What is needed of any command to refuse it."""

    type: str
    request: _RequestId | None = None
    seq: int | None = None


_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
_asker_decoder: msgspec.msgpack.Decoder[_Asker] = msgspec.msgpack.Decoder(_Asker)
_version_decoder: msgspec.msgpack.Decoder[_Version] = msgspec.msgpack.Decoder(_Version)


def encode(frame: Command | Report) -> bytes:
    """One frame, length included. Raises WireError when it is too big or holds what msgpack cannot carry."""
    try:
        payload = _encoder.encode(frame)
    except (OverflowError, UnicodeEncodeError) as error:
        raise WireError(
            f"a {type(frame).__name__} frame holds a number or text that cannot be sent"
        ) from error
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(
            f"a {type(frame).__name__} frame of {len(payload)} bytes exceeds {MAX_FRAME_BYTES}"
        )
    return _LENGTH.pack(len(payload)) + payload


def decode_command(payload: bytes) -> Command:
    """A frame that came down. Raises WireError."""
    try:
        return _command_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"an unreadable command of {len(payload)} bytes") from error


def refusal_of(payload: bytes) -> Report | None:
    """The answer to an unreadable command that somebody waits for: a field of a wrong type must not cost everybody the
    child. None when it cannot be told who that is.
    """
    try:
        asked = _asker_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    message = f"a {asked.type} command has a field of a wrong type"
    if asked.request is not None:
        return Failed(
            request_id=asked.request.id,
            code=FailureCode.BAD_REQUEST,
            retryable=False,
            message=message,
        )
    return None if asked.seq is None else Refusal(seq=asked.seq, message=message)


def decode_report(payload: bytes) -> Report:
    """A frame that came up. Raises WireError."""
    try:
        return _report_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"an unreadable report of {len(payload)} bytes") from error


def peek_version(payload: bytes) -> int:
    """The version in a hello of any version, however its other fields have changed. Raises WireError."""
    try:
        return _version_decoder.decode(payload).version
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError("the first frame has no version") from error


class FrameBuffer:
    """Bytes in, payloads out, wherever the stream was cut. Owner: the one reader of a connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """All payloads completed by `data`. Raises WireError for a length above `MAX_FRAME_BYTES`, before any is read."""
        self._buffer += data
        payloads: list[bytes] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a frame announces {length} bytes; {MAX_FRAME_BYTES} is the limit")
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return payloads

    @property
    def n_pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)


def clean_text(text: str) -> str:
    """Text without lone surrogates (JSON from outside may smuggle them in; UTF-8 cannot carry them)."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")

"""The frame of Feishu's long connection (feishu.md §6): a protobuf message, read and written by hand so that the sandbox needs
no SDK. Pure.

Fields: 1 SeqID, 2 LogID, 3 service, 4 method (0 control, 1 data), 5 headers (1 key, 2 value), 6 payload_encoding,
7 payload_type, 8 payload, 9 LogIDNew. Numbers are varints; texts, bytes and headers are length-delimited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

CONTROL, DATA = 0, 1
_NUMBERS = {1: "seq_id", 2: "log_id", 3: "service", 4: "method"}


class BadFrame(ValueError):
    """Bytes that are no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. Header names may not repeat here; Feishu's do not."""

    method: int
    headers: dict[str, str] = field(default_factory=dict)
    payload: bytes = b""
    seq_id: int = 0
    log_id: int = 0
    service: int = 0

    def encode(self) -> bytes:
        """The frame as bytes; the four numbers are required fields, so they are always written."""
        out = bytearray()
        for number, name in _NUMBERS.items():
            out += _varint(number << 3) + _varint(getattr(self, name))
        for key, value in self.headers.items():
            out += _chunk(5, _chunk(1, key.encode()) + _chunk(2, value.encode()))
        if self.payload:
            out += _chunk(8, self.payload)
        return bytes(out)


def decode(data: bytes) -> Frame:
    """Read a frame. Raises BadFrame."""
    numbers = dict.fromkeys(_NUMBERS.values(), 0)
    headers: dict[str, str] = {}
    payload = b""
    for number, value in _fields(data):
        if isinstance(value, int):
            if number in _NUMBERS:
                numbers[_NUMBERS[number]] = value
        elif number == 5:
            pair = dict(_fields(value))
            headers[_text(pair.get(1, b""))] = _text(pair.get(2, b""))
        elif number == 8:
            payload = value
    return Frame(headers=headers, payload=payload, **numbers)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield number, value
        elif kind == 2:
            length, at = _read_varint(data, at)
            if at + length > len(data):
                raise BadFrame("a field is longer than the frame")
            yield number, data[at : at + length]
            at += length
        else:
            raise BadFrame(f"wire type {kind}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise BadFrame("a number does not end")


def _chunk(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _text(value: int | bytes) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise BadFrame("a header is not text") from None

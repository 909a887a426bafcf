"""Server-sent events as model servers really send them: bytes in, data out. Pure.

Owns line and event cutting (WHATWG HTML §9.2.6: LF, CR LF and CR end a line, a blank line ends an event, ":" begins a
comment). More tolerant than that text in one point, because some servers forget the blank line between two events: see
`json_objects`. Must not know what the data means.
"""

from __future__ import annotations

import json
from typing import Any, Final

MAX_EVENT_BYTES: Final = 4 * 2**20
_BOM: Final = b"\xef\xbb\xbf"
DONE: Final = "[DONE]"


class SseError(Exception):
    """The stream is not usable: an event without end, or data that is not JSON."""


class SseParser:
    """One response's events. Owner: the task that reads the response. Lines are cut in bytes, so no character is split."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[str] = []
        self._n_data_bytes = 0
        self._at_start = True
        self._skip_lf = False

    def feed(self, data: bytes) -> list[str]:
        """The data of every event that `data` completes. Raises SseError for an event above `MAX_EVENT_BYTES`."""
        self._rest += data
        if self._at_start and len(self._rest) >= len(_BOM):
            self._at_start = False
            if self._rest.startswith(_BOM):
                del self._rest[: len(_BOM)]
        events: list[str] = []
        while (line := self._next_line()) is not None:
            self._take(line, events)
        if len(self._rest) + self._n_data_bytes > MAX_EVENT_BYTES:
            raise SseError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def end(self) -> list[str]:
        """What the end of the stream completes: a last event without its blank line is taken as it is."""
        events: list[str] = []
        if self._rest:
            self._take(bytes(self._rest), events)
            self._rest.clear()
        self._take(b"", events)
        return events

    def _next_line(self) -> bytes | None:
        if self._skip_lf and self._rest:
            self._skip_lf = False
            if self._rest[0] == 0x0A:
                del self._rest[:1]
        ends = [at for at in (self._rest.find(b"\n"), self._rest.find(b"\r")) if at >= 0]
        if not ends:
            return None
        end = min(ends)
        # The LF of a CR LF may only come with the next bytes; the line is complete without it.
        self._skip_lf = self._rest[end] == 0x0D
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def _take(self, line: bytes, events: list[str]) -> None:
        if not line:
            if self._data:
                events.append("\n".join(self._data))
                self._data.clear()
                self._n_data_bytes = 0
            return
        name, _, value = line.partition(b":")
        # Old llama-server sends an error as a field of its own name.
        if name in {b"data", b"error"}:
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
            self._n_data_bytes += len(value)


def json_objects(data: str) -> list[dict[str, Any]]:
    """The JSON objects in one event's data: normally one, several when the server forgot the blank lines between them.

    `[DONE]` gives `{"done": True}`. Raises SseError.
    """
    try:
        return [_object(data)]
    except SseError:
        if "\n" not in data:
            raise
    return [_object(line) for line in data.split("\n") if line.strip()]


def _object(text: str) -> dict[str, Any]:
    if text.strip() == DONE:
        return {"done": True}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SseError("an event that is not JSON") from error
    if not isinstance(value, dict):
        raise SseError("an event that is not a JSON object")
    return value

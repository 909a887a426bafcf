"""Which request kills the child: deaths counted for those that were being computed. Pure; knows no child and no people.

A request that was in the batch of two deaths is to run alone next; when the child dies over it alone, it is poison and is not
computed again. A batch that failed counts like a death, but convicts nobody: its asker gives up by himself. Whoever finishes is
free. The next request of a talk that was poisoned runs alone from the start, since it repeats the same words.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from engine.types import (
    EngineEvent,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Started,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

DEATHS_BEFORE_ALONE: Final = 2
# Where every request kills, even alone, it is not the requests.
NAMED_IN_A_ROW: Final = 2
_MAX_REMEMBERED: Final = 1024

_Key = TypeVar("_Key", str, bytes)
_Value = TypeVar("_Value", int, None)


class Verdict(StrEnum):
    """How a request may run."""

    FREE = "free"
    ALONE = "alone"
    POISON = "poison"


@dataclass(slots=True)
class _Watched:
    """A request that the child has."""

    request: EngineRequest
    running: bool = False


class Suspects:
    """Owner: one `EngineProcess`, on its event loop. Requests are known by their wire ids here, and by lineage over retries."""

    def __init__(self, max_deaths: int) -> None:
        """`max_deaths` in a row without anybody to blame are the engine's own fault."""
        self._max_deaths = max_deaths
        self._watched: dict[str, _Watched] = {}
        self._n_deaths: OrderedDict[str, int] = OrderedDict()
        self._poison: OrderedDict[str, None] = OrderedDict()
        self._talks: OrderedDict[str, None] = OrderedDict()
        self._at_death: list[EngineRequest] = []
        self._finished_since = False
        self._n_in_row = 0

    def verdict(self, request: EngineRequest) -> Verdict:
        """How a request may run now."""
        if not (self._n_deaths or self._poison or self._talks):
            return Verdict.FREE
        lineage = _lineage(request)
        if lineage in self._poison:
            return Verdict.POISON
        suspected = self._n_deaths.get(lineage, 0) >= DEATHS_BEFORE_ALONE
        return Verdict.ALONE if suspected or self.is_poisoned(request.cache_key) else Verdict.FREE

    def is_poisoned(self, cache_key: str) -> bool:
        """Whether a request of this talk was poison, and none has finished since."""
        return cache_key in self._talks

    # What happens to requests.

    def sent(self, request: EngineRequest) -> None:
        """The child gets a request."""
        self._watched[request.id] = _Watched(request)

    def left(self, request_id: str) -> None:
        """Nobody reads it any more."""
        self._watched.pop(request_id, None)

    def note(self, event: EngineEvent) -> None:
        """The child told of a request."""
        watched = self._watched.get(event.request_id)
        if watched is None:
            return
        match event:
            case Started():
                watched.running = True
            case Finished(reason=reason):
                del self._watched[event.request_id]
                if reason is not FinishReason.CANCELLED:
                    self._set_free(watched.request)
            case Failed(code=code):
                del self._watched[event.request_id]
                # All of its batch failed, and one of them may be why.
                if code is FailureCode.DECODE:
                    self._count([watched.request])
            case _:
                pass

    def _set_free(self, request: EngineRequest) -> None:
        self._finished_since = True
        if self._n_deaths or self._talks:
            self._n_deaths.pop(_lineage(request), None)
            self._talks.pop(request.cache_key, None)

    # What happens to children.

    def gone(self) -> None:
        """There is no child any more; why is not known yet."""
        self._at_death = [one.request for one in self._watched.values() if one.running]
        self._watched.clear()

    def died(self, *, blame: bool, healthy: bool) -> bool:
        """Why is known by now: `blame` those that were being computed, or nobody. True = too many deaths in a row, and it
        cannot be one of the requests. `healthy`: the child had lived long enough for what was before not to count.
        """
        running, self._at_death = self._at_death, []
        finished, self._finished_since = self._finished_since, False
        if healthy or finished:
            self._n_in_row = 0
        if not blame:
            return False
        self._n_in_row += 1
        alone = next((request for request in running if request.alone), None)
        limit = self._max_deaths + (NAMED_IN_A_ROW if alone else 0)
        if self._n_in_row >= limit:
            return True
        if alone is not None:
            self._convict(alone)
        else:
            self._count(running)
        return False

    def _convict(self, request: EngineRequest) -> None:
        lineage = _lineage(request)
        self._n_deaths.pop(lineage, None)
        remember(self._poison, lineage, None)
        if request.cache_key:
            remember(self._talks, request.cache_key, None)

    def _count(self, running: Iterable[EngineRequest]) -> None:
        for lineage in {_lineage(request) for request in running}:
            remember(self._n_deaths, lineage, self._n_deaths.get(lineage, 0) + 1)


def _lineage(request: EngineRequest) -> str:
    if request.lineage:
        return request.lineage
    return hashlib.blake2b(repr(request.prompt_tokens).encode(), digest_size=16).hexdigest()


def remember(
    known: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int = _MAX_REMEMBERED
) -> None:
    """The oldest is forgotten when there are more than `most`."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)

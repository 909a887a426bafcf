"""The parts of one reply, as all of WeCom's drivers keep them: planned, saved before each call, closed. No calls here."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from bot.domain.types import PartState, ReplyPart
from bot.platforms.base import PartLedger

_REPEAT = "-r"


def stream_key(turn_id: str, n: int) -> str:
    """A stream id of our own for a part: the same in every process."""
    return "h" + hashlib.sha256(f"{turn_id}:{n}".encode()).hexdigest()[:31]


class Part:
    """One message of an answer. One owner, the reply's driver."""

    def __init__(self, ledger: PartLedger, record: ReplyPart) -> None:
        self._ledger = ledger
        self.record = record
        # An earlier process did something for it: how much of it arrived is not known.
        self.taken_over = record.state in {PartState.ATTEMPTED, PartState.CONFIRMED, PartState.AMBIGUOUS}  # fmt: skip

    @classmethod
    def planned(cls, ledger: PartLedger, n: int, kind: str, start: int) -> Part:
        """A part that nothing was done for."""
        turn_id = ledger.turn_id
        key = stream_key(turn_id, n)
        return cls(ledger, ReplyPart(turn_id, n, kind, key, covers_from_chars=start, covers_to_chars=start))  # fmt: skip

    @property
    def n(self) -> int:
        """Its place in the answer."""
        return self.record.n

    @property
    def kind(self) -> str:
        """What kind of message."""
        return self.record.kind

    @property
    def start(self) -> int:
        """Where in the text it begins."""
        return self.record.covers_from_chars

    @property
    def closed(self) -> bool:
        """Nothing more will be sent for it."""
        return self.record.state is PartState.CLOSED

    @property
    def is_repeat(self) -> bool:
        """What it says may have arrived already, and it says so."""
        return self.record.idem_key.endswith(_REPEAT)

    def mark_repeat(self) -> None:
        """From now on it says that it may be a repeat. Saved with the next `save`."""
        if not self.is_repeat:
            self.record = replace(self.record, idem_key=self.record.idem_key + _REPEAT)

    def note(self, upto: int, rev: int) -> None:
        """This much is shown. Saved with the next `save`."""
        self.record = replace(self.record, covers_to_chars=upto, confirmed_rev=rev)

    async def save(self, **changes: Any) -> None:
        """Commit it, together with the reply's newest snapshot."""
        self.record = replace(self.record, **changes)
        await self._ledger.save(self.record)

    async def close(self, rev: int, upto: int | None = None) -> None:
        """Nothing more will be sent."""
        if not self.closed:
            await self.save(
                state=PartState.CLOSED,
                confirmed_rev=max(rev, self.record.confirmed_rev),
                covers_to_chars=self.record.covers_to_chars if upto is None else upto,
            )

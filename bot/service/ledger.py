"""The reply being written: the newest snapshot in memory and its durable copy, always committed before it is shown."""

from __future__ import annotations

from collections.abc import Sequence

from bot.domain.ports import Store
from bot.domain.types import Outcome, ReplyPart, Snapshot


class ReplyLedger:
    """Owns one reply's snapshot and parts; implements `bot.platforms.base.PartLedger`. Used by one turn's tasks.

    Parts with a negative `n` are the service's own notes (signs of life); drivers never see them.
    """

    def __init__(
        self,
        store: Store,
        turn_id: str,
        snapshot: Snapshot | None,
        parts: Sequence[ReplyPart],
        *,
        keeps_edges: bool = False,
    ) -> None:
        """`keeps_edges`: space at the start belongs to the text, since it goes on with another one."""
        self._store = store
        self._turn_id = turn_id
        self._parts = {part.n: part for part in parts if part.n >= 0}
        self._snapshot = snapshot or Snapshot(rev=0, text="")
        self._stale = False
        self._rev = self._committed_rev = self._snapshot.rev
        self._ids = list(self._snapshot.token_ids)
        self._pieces = [self._snapshot.text]
        self._n_before_restart = 0
        self._keeps_edges = keeps_edges

    @property
    def turn_id(self) -> str:
        """The turn whose reply this is."""
        return self._turn_id

    @property
    def snapshot(self) -> Snapshot:
        """The reply as it stands now."""
        if self._stale:
            text = "".join(self._pieces)
            self._pieces = [text]
            self._snapshot = Snapshot(self._rev, text, tuple(self._ids))
            self._stale = False
        return self._snapshot

    @property
    def rev(self) -> int:
        """Counts up with each change."""
        return self._rev

    @property
    def has_text(self) -> bool:
        """There is something to show."""
        pieces = self._pieces if self._stale else (self._snapshot.text,)
        return any(piece and not piece.isspace() for piece in pieces)

    @property
    def n_ids(self) -> int:
        """Token ids so far."""
        return len(self._ids)

    @property
    def final(self) -> bool:
        """Nothing will be added."""
        return self._snapshot.final

    @property
    def answer(self) -> str:
        """What was generated since the last restart, without surrounding space."""
        return self.snapshot.text[self._n_before_restart :].strip()

    def grow(self, token_ids: Sequence[int], text: str) -> None:
        """Add what the model said."""
        if not token_ids and not text:
            return
        if text and not self._keeps_edges and not any(self._pieces):
            text = text.lstrip()
        self._ids.extend(token_ids)
        self._pieces.append(text)
        self._touch()

    def restart(self, *, marker: str) -> None:
        """Start over: in place, or behind a marker where earlier text stands in messages that cannot be changed."""
        text = self.snapshot.text
        text = f"{text}\n\n{marker}\n\n" if text and marker else ""
        self._pieces = [text]
        self._n_before_restart = len(text)
        self._ids = []
        self._touch()

    def end(self, outcome: Outcome, notice: str = "", *, text: str | None = None) -> None:
        """The last change. Later ones are not allowed. A cut text keeps its last space: it may go on."""
        last = self.snapshot
        self._rev += 1
        if text is None:
            text = last.text if outcome is Outcome.LENGTH else last.text.rstrip()
        self._snapshot = Snapshot(
            self._rev,
            text,
            last.token_ids,
            outcome,
            notice,
        )

    def _touch(self) -> None:
        self._rev += 1
        self._stale = True

    # -- the durable side --------------------------------------------------------------------------------------------
    def parts(self) -> tuple[ReplyPart, ...]:
        """What was saved, in order (also by an earlier process)."""
        return tuple(self._parts[n] for n in sorted(self._parts))

    async def save(self, part: ReplyPart) -> None:
        """Commit a part together with the newest snapshot."""
        snapshot = self._to_commit()
        await self._store.save_reply(self._turn_id, snapshot, part)
        self._parts[part.n] = part
        self._committed(snapshot)

    async def commit(self) -> None:
        """Commit the newest snapshot, if the disk is behind."""
        snapshot = self._to_commit()
        if snapshot is not None:
            await self._store.save_reply(self._turn_id, snapshot, None)
            self._committed(snapshot)

    def _to_commit(self) -> Snapshot | None:
        return self.snapshot if self._rev > self._committed_rev else None

    def _committed(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self._committed_rev = max(self._committed_rev, snapshot.rev)

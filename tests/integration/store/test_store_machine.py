"""The turn state machine in random order, against a model of a few lines, on real SQLite."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)  # fmt: skip

from bot.domain.types import Lane, TurnState, WhileBusy
from bot.store import Store
from tests.store_drafts import chat, command, event, session_key

T = TypeVar("T")
# The order of things is tested here, not the disk: on a loaded machine 700 commits would wait for it.
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_USERS = st.sampled_from(["u1", "u2"])
_OWNERS = st.sampled_from(["p1", "p2"])
_BUSY = st.sampled_from(list(WhileBusy))


@dataclass
class _Expected:
    """What the model believes of one turn."""

    line: tuple[str, Lane]
    user: str
    texts: list[str]
    state: TurnState = TurnState.QUEUED
    owner: str = ""
    lease_until: datetime | None = None
    attempt: int = 0
    cancel: bool = False
    keys: list[str] = field(default_factory=list)


class TurnMachine(RuleBasedStateMachine):
    """Accept, merge, interrupt, claim, finish, release, cancel, expire, recover, renew, restart, in any order."""

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="hearth-machine-", dir=_MEMORY))
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.turns: dict[str, _Expected] = {}
        self.keys: list[str] = []
        self.session_ids: dict[bool, str] = {}
        self._reopen()

    def _reopen(self) -> None:
        self.store = Store(f"sqlite:///{self.folder}/hearth.db", clock=lambda: self.now)
        self.run_(self.store.open())

    def run_(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run_(self.store.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    def _current(self, user: str, shared: bool) -> str:
        return self.run_(self.store.session(session_key(user, shared=shared))).id

    # -- rules -------------------------------------------------------------------------------------------------------
    @rule(user=_USERS, shared=st.booleans(), busy=_BUSY)
    def ask(self, user: str, shared: bool, busy: WhileBusy) -> None:
        key, text = f"k{len(self.keys)}", f"text {len(self.keys)}"
        line = (self._current(user, shared), Lane.CHAT)
        mine = {i: t for i, t in self.turns.items() if t.line == line and t.user == user}
        joinable = [i for i, t in mine.items() if t.state is TurnState.QUEUED and t.attempt == 0]
        accepted = self.run_(
            self.store.accept(event(chat(text, user=user, shared=shared, while_busy=busy), key=key))
        )
        self.keys.append(key)
        assert not accepted.duplicate
        if busy is WhileBusy.MERGE and joinable:
            assert accepted.merged
            assert accepted.turn_id == joinable[-1]
            self.turns[accepted.turn_id].texts.append(text)
            return
        assert not accepted.merged
        assert accepted.turn_id not in self.turns
        if busy is WhileBusy.INTERRUPT:
            running = {i for i, t in mine.items() if t.state is TurnState.RUNNING}
            waiting = {i for i, t in mine.items() if t.state is TurnState.QUEUED}
            assert set(accepted.interrupted) == running | waiting
            for turn_id, turn in mine.items():
                if turn.state is TurnState.QUEUED:
                    turn.state = TurnState.CANCELLED
                turn.cancel = turn.cancel or turn_id in running
        else:
            assert accepted.interrupted == ()
        self.turns[accepted.turn_id] = _Expected(line, user, [text])

    @rule(user=_USERS, shared=st.booleans())
    def order(self, user: str, shared: bool) -> None:
        line = (self._current(user, shared), Lane.CONTROL)
        accepted = self.run_(self.store.accept(event(command("/status", user=user, shared=shared))))
        self.turns[accepted.turn_id] = _Expected(line, user, ["/status"])

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.keys))
        assert self.run_(self.store.accept(event(chat("again"), key=key))).duplicate

    @rule(owner=_OWNERS, limit=st.integers(0, 4), lease_s=st.sampled_from([10, 100]))
    def claim(self, owner: str, limit: int, lease_s: int) -> None:
        heads: dict[tuple[str, Lane], str] = {}
        for turn_id, turn in self.turns.items():
            if turn.state is TurnState.QUEUED:
                heads.setdefault(turn.line, turn_id)
        busy = {t.line for t in self.turns.values() if t.state is TurnState.RUNNING}
        order = list(self.turns)
        ready = sorted((i for line, i in heads.items() if line not in busy), key=order.index)
        claimed = self.run_(self.store.claim(owner, lease_s, limit))
        assert [t.id for t in claimed] == ready[:limit]
        for turn in claimed:
            expected = self.turns[turn.id]
            expected.state, expected.owner = TurnState.RUNNING, owner
            expected.attempt += 1
            expected.lease_until = self.now + timedelta(seconds=lease_s)
            assert turn.question == "\n".join(expected.texts)
            assert (turn.attempt, turn.cancel_requested) == (expected.attempt, expected.cancel)
            assert len(turn.message_ids) == len(expected.texts)

    @precondition(lambda self: self.turns)
    @rule(
        data=st.data(),
        owner=_OWNERS,
        state=st.sampled_from([TurnState.DONE, TurnState.FAILED, TurnState.CANCELLED]),
    )
    def finish(self, data: st.DataObject, owner: str, state: TurnState) -> None:
        turn_id, turn = data.draw(st.sampled_from(list(self.turns.items())))
        holds = turn.state is TurnState.RUNNING and turn.owner == owner
        assert self.run_(self.store.finish_turn(turn_id, owner, state)) is holds
        if holds:
            turn.state = state

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), owner=_OWNERS)
    def release(self, data: st.DataObject, owner: str) -> None:
        turn_id, turn = data.draw(st.sampled_from(list(self.turns.items())))
        self.run_(self.store.release(turn_id, owner))
        if turn.state is TurnState.RUNNING and turn.owner == owner:
            turn.state = TurnState.QUEUED

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), silent=st.booleans())
    def cancel(self, data: st.DataObject, silent: bool) -> None:
        turn_id, turn = data.draw(st.sampled_from(list(self.turns.items())))
        assert self.run_(self.store.request_cancel(turn_id, silent=silent)) is turn.state
        if turn.state is TurnState.QUEUED:
            turn.state = TurnState.CANCELLED
        elif turn.state is TurnState.RUNNING:
            turn.cancel = True

    @rule(owner=_OWNERS)
    def beat(self, owner: str) -> None:
        held = {
            i for i, t in self.turns.items() if t.state is TurnState.RUNNING and t.owner == owner
        }
        assert self.run_(self.store.heartbeat(owner, 100)) == held
        for turn_id in held:
            self.turns[turn_id].lease_until = self.now + timedelta(seconds=100)

    @rule(seconds=st.sampled_from([5, 20, 200]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(owner=_OWNERS)
    def recover(self, owner: str) -> None:
        lost = [
            t
            for t in self.turns.values()
            if t.state is TurnState.RUNNING and (t.owner != owner or t.lease_until < self.now)
        ]
        assert self.run_(self.store.recover(owner)) == len(lost)
        for turn in lost:
            turn.state = TurnState.QUEUED

    @rule(user=_USERS, shared=st.booleans(), erase=st.booleans())
    def renew(self, user: str, shared: bool, erase: bool) -> None:
        before = self._current(user, shared)
        old, new = self.run_(
            self.store.next_epoch(session_key(user, shared=shared), erase_from_prompt=erase)
        )
        assert old.id == before
        assert new.key.epoch == old.key.epoch + 1

    @rule()
    def restart(self) -> None:
        self.run_(self.store.close())
        self._reopen()

    # -- what always holds -------------------------------------------------------------------------------------------
    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "store"):
            return
        query = sa.text("SELECT id, session_id, lane, state, turn_no FROM turns ORDER BY seq")
        rows = self.run_(self.store._db.read(lambda c: c.execute(query).all()))
        assert [(r.id, TurnState(r.state)) for r in rows] == [
            (i, t.state) for i, t in self.turns.items()
        ]
        running = [(r.session_id, r.lane) for r in rows if r.state == "running"]
        assert len(running) == len(set(running)), "two RUNNING in one line"
        numbers: dict[str, list[int]] = {}
        for row in rows:
            numbers.setdefault(row.session_id, []).append(row.turn_no)
        assert all(line == list(range(1, len(line) + 1)) for line in numbers.values())


def _sized(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=35,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def test_turns_in_random_order() -> None:
    run_state_machine_as_test(TurnMachine, settings=_sized(10))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_turns_in_random_order_for_long() -> None:
    run_state_machine_as_test(TurnMachine, settings=_sized(300))

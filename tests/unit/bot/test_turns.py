"""The turn's state machine and what a claimed turn still needs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bot.domain.turns import (
    Work,
    is_terminal,
    may_control,
    may_replace_text,
    state_of,
    work_of,
)
from bot.domain.types import (
    Lane,
    Outcome,
    ReplyPart,
    ReplyTarget,
    Sender,
    SessionKey,
    Snapshot,
    Turn,
    TurnKind,
    TurnState,
)

TURN = Turn(
    id="t",
    session_id="s",
    session=SessionKey("a", "c", None, "u"),
    kind=TurnKind.CHAT,
    lane=Lane.CHAT,
    state=TurnState.RUNNING,
    attempt=1,
    asker=Sender("u"),
    question="q",
    target=ReplyTarget("a", "c", "m"),
    message_ids=("m",),
    created_at=datetime.now(UTC),
)


def test_nothing_follows_an_end():
    assert {state for state in TurnState if not is_terminal(state)} == {
        TurnState.QUEUED,
        TurnState.RUNNING,
    }


def test_every_final_outcome_has_a_terminal_state():
    for outcome in Outcome:
        if outcome is Outcome.GROWING:
            with pytest.raises(KeyError):
                state_of(outcome)
        else:
            assert is_terminal(state_of(outcome))


@pytest.mark.parametrize(
    ("changes", "snapshot", "expected"),
    [
        ({}, None, Work.GENERATE),
        ({}, Snapshot(3, "half"), Work.GENERATE),
        ({}, Snapshot(3, "all", outcome=Outcome.COMPLETE), Work.DELIVER),
        ({"cancel_requested": True}, None, Work.CANCEL),
        ({"cancel_requested": True}, Snapshot(3, "half"), Work.CANCEL),
        ({"cancel_requested": True}, Snapshot(3, "x", outcome=Outcome.COMPLETE), Work.DELIVER),
        ({"kind": TurnKind.COMMAND}, None, Work.EXECUTE),
        ({"kind": TurnKind.NOTICE}, Snapshot(1, "hi", outcome=Outcome.COMPLETE), Work.DELIVER),
    ],
)
def test_work(changes, snapshot, expected):
    assert work_of(replace(TURN, **changes), snapshot) is expected


def test_only_the_asker_or_an_admin_is_in_control():
    assert may_control(TURN, "u", is_admin=False)
    assert not may_control(TURN, "v", is_admin=False)
    assert may_control(TURN, "v", is_admin=True)


def test_text_may_start_over_only_in_one_message():
    one = ReplyPart("t", 0, "card", "k")
    assert may_replace_text(())
    assert may_replace_text((one,))
    assert not may_replace_text((one, replace(one, n=1, covers_from_chars=100)))

"""Who is to blame for a death: two in company, one alone, and the state when it can be nobody."""

from __future__ import annotations

from typing import Any

from engine.link.suspects import Suspects, Verdict
from engine.types import (
    Delta,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Queued,
    Started,
    Usage,
)

FREE, ALONE, POISON = Verdict.FREE, Verdict.ALONE, Verdict.POISON


class Kit:
    """One engine's life as its owner tells it: everything is sent as the verdict says."""

    def __init__(self) -> None:
        self.suspects = Suspects(max_deaths=3)
        self._n = 0

    def ask(self, lineage: str, *, runs: bool = True, **fields: Any) -> str:
        """Send one; returns its wire id."""
        self._n += 1
        wire_id = f"{lineage}#{self._n}"
        request = EngineRequest(id=wire_id, lineage=lineage, cache_key=f"talk {lineage}", **fields)
        verdict = self.suspects.verdict(request)
        assert verdict is not POISON
        self.suspects.sent(
            EngineRequest(
                id=wire_id, lineage=lineage, cache_key=f"talk {lineage}", alone=verdict is ALONE, **fields
            )
        )  # fmt: skip
        self.suspects.note(Queued(request_id=wire_id, place=1))
        if runs:
            self.suspects.note(Started(request_id=wire_id, cached_tokens=0))
            self.suspects.note(Delta(request_id=wire_id, token_ids=(1,)))
        return wire_id

    def finish(self, wire_id: str, reason: FinishReason = FinishReason.STOP) -> None:
        self.suspects.note(Finished(request_id=wire_id, reason=reason, usage=Usage()))

    def die(self, *, blame: bool = True, healthy: bool = False) -> bool:
        self.suspects.gone()
        return self.suspects.died(blame=blame, healthy=healthy)

    def verdict(self, lineage: str, **fields: Any) -> Verdict:
        return self.suspects.verdict(EngineRequest(id="x", lineage=lineage, **fields))


def test_two_deaths_then_alone_then_poison_and_the_others_go_on() -> None:
    kit = Kit()
    for _ in range(2):
        kit.ask("bad")
        kit.ask("good")
        kit.ask("waiting", runs=False)
        assert not kit.die()
    assert [kit.verdict(name) for name in ("bad", "good", "waiting", "new")] == [
        ALONE, ALONE, FREE, FREE,
    ]  # fmt: skip
    kit.finish(kit.ask("good"))
    assert kit.verdict("good") is FREE
    kit.ask("bad")
    assert not kit.die()
    assert kit.verdict("bad") is POISON
    assert kit.verdict("good") is FREE


def test_failed_batches_separate_those_that_were_in_them_and_convict_nobody() -> None:
    kit = Kit()
    for _ in range(2):
        assert kit.verdict("bad") is kit.verdict("good") is FREE
        for wire_id in (kit.ask("bad"), kit.ask("good")):
            kit.suspects.note(failure(wire_id, FailureCode.DECODE))
    assert kit.verdict("bad") is kit.verdict("good") is ALONE
    kit.finish(kit.ask("good"))
    for _ in range(3):
        kit.suspects.note(failure(kit.ask("bad"), FailureCode.DECODE))
    assert (kit.verdict("good"), kit.verdict("bad")) == (FREE, ALONE)
    for _ in range(3):
        kit.suspects.note(failure(kit.ask("busy", runs=False), FailureCode.BUSY))
    assert kit.verdict("busy") is FREE


def failure(wire_id: str, code: FailureCode) -> Failed:
    return Failed(request_id=wire_id, code=code, retryable=True)


def test_one_death_names_nobody() -> None:
    kit = Kit()
    kit.ask("a")
    assert not kit.die()
    assert kit.verdict("a") is FREE


def test_who_finished_before_the_death_was_not_there() -> None:
    kit = Kit()
    for _ in range(2):
        ended = kit.ask("ended")
        failed = kit.ask("failed")
        left = kit.ask("left")
        kit.ask("bad")
        kit.finish(ended)
        kit.suspects.note(Failed(request_id=failed, code=FailureCode.DEADLINE, retryable=False))
        kit.suspects.left(left)
        kit.die()
    assert kit.verdict("bad") is ALONE
    assert [kit.verdict(name) for name in ("ended", "failed", "left")] == [FREE] * 3


def test_a_stopped_reply_proves_nothing() -> None:
    kit = Kit()
    for _ in range(2):
        kit.ask("bad")
        kit.die()
    kit.finish(kit.ask("bad"), FinishReason.CANCELLED)
    assert kit.verdict("bad") is ALONE


def test_what_is_nobodys_fault_is_not_counted() -> None:
    kit = Kit()
    for _ in range(9):
        kit.ask("a")
        assert not kit.die(blame=False)
    assert kit.verdict("a") is FREE


def test_the_next_question_of_a_poisoned_talk_runs_alone_from_the_start() -> None:
    kit = Kit()
    for _ in range(3):
        kit.ask("bad")
        kit.die()
    talk = {"cache_key": "talk bad"}
    assert kit.verdict("retry", **talk) is ALONE
    assert kit.suspects.is_poisoned("talk bad")
    request = EngineRequest(id="r#9", lineage="retry", alone=True, **talk)  # type: ignore[arg-type]  # one string
    kit.suspects.sent(request)
    kit.suspects.note(Started(request_id="r#9", cached_tokens=0))
    kit.finish("r#9")
    assert kit.verdict("another", **talk) is FREE
    assert kit.verdict("bad") is POISON


def test_without_a_lineage_the_same_words_are_the_same_request() -> None:
    kit = Kit()
    for _ in range(2):
        kit.ask("", prompt_tokens=(1, 2))
        kit.die()
    assert kit.verdict("", prompt_tokens=(1, 2)) is ALONE
    assert kit.verdict("", prompt_tokens=(1, 3)) is FREE


def test_three_deaths_with_nobody_there_are_the_engines_own() -> None:
    kit = Kit()
    assert [kit.die() for _ in range(4)] == [False, False, True, True]


def test_a_finished_reply_or_a_healthy_life_in_between_starts_the_count_anew() -> None:
    kit = Kit()
    assert [kit.die() for _ in range(2)] == [False, False]
    kit.finish(kit.ask("a"))
    assert [kit.die() for _ in range(2)] == [False, False]
    assert not kit.die(healthy=True)
    assert [kit.die() for _ in range(2)] == [False, True]


def test_where_everybody_kills_nobody_is_blamed_for_ever() -> None:
    """A broken build: the third that dies alone in a row says so."""
    kit = Kit()
    for _ in range(2):
        for name in "abc":
            kit.ask(name)
        assert not kit.die()
    kit.ask("a")
    assert not kit.die()
    kit.ask("b")
    assert not kit.die()
    kit.ask("c")
    assert kit.die()
    assert [kit.verdict(name) for name in "abc"] == [POISON, POISON, ALONE]
    kit.ask("new")
    assert kit.die(), "and it stays so until somebody was answered"


def test_what_is_remembered_is_bounded() -> None:
    kit = Kit()
    for n in range(2000):
        kit.ask(f"{n}")
        kit.die(healthy=True)
    assert len(kit.suspects._n_deaths) <= 1024

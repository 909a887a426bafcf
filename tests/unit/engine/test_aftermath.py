"""What follows a death: every way is bounded."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.link.aftermath import Aftermath, Life, Next
from engine.link.obituary import Cause, Death, Part, Shortage
from engine.link.stepback import Ladder
from engine.link.watch import Supervision
from engine.types import EngineState

RULES = Supervision()
LOADING = Life(None, when="at 12:00")
CRASH = Death(Cause.SEGFAULT, "crashed")
SHORT = Death(Cause.MEMORY, "no memory", Shortage())
FAULT = Death(Cause.SETTINGS, "no such file", is_load_fault=True)


class Kit:
    def __init__(self, **fields: object) -> None:
        self.ladder = Ladder(EngineConfig(name="m", **fields))  # type: ignore[arg-type]  # its own fields
        self.aftermath = Aftermath(RULES, self.ladder)

    def of(self, death: Death, life: Life) -> Next:
        return self.aftermath.of(death, life)


def test_an_ordinary_death_waits_longer_each_time() -> None:
    kit = Kit()
    follow = [kit.of(CRASH, Life(1.0)) for _ in range(4)]
    assert [one.wait_s for one in follow] == [0.2, 0.4, 0.8, 1.6]
    assert {one.state for one in follow} == {EngineState.RESTARTING}
    assert follow[0].detail == "crashed; it is started again"


def test_a_shortage_goes_down_to_the_end_and_then_says_so() -> None:
    kit = Kit(n_ctx=1024)
    states = []
    for _ in range(30):
        follow = kit.of(SHORT, LOADING)
        states.append(follow.state)
        if follow.state is EngineState.FAILED:
            break
        assert follow.wait_s == RULES.backoff_first_s
        assert "smaller" in follow.detail
    assert len(states) == 8, (
        "three steps of n_ubatch, two of n_parallel, two of the KV type, the end"
    )
    assert follow.wait_s == RULES.config_retry_s
    assert follow.detail.startswith(
        "no memory; nothing is left to make smaller (n_ubatch 512 → 64,"
    )


def test_weights_that_do_not_fit_are_told_in_their_own_words() -> None:
    follow = Kit().of(
        Death(Cause.MEMORY, "choose a smaller model", Shortage(Part.WEIGHTS)), LOADING
    )
    assert (follow.state, follow.detail) == (EngineState.FAILED, "choose a smaller model")


def test_a_fault_in_the_settings_waits_for_somebody_to_mend_it() -> None:
    follow = Kit().of(FAULT, LOADING)
    assert (follow.state, follow.detail, follow.wait_s) == (
        EngineState.FAILED, "no such file", RULES.config_retry_s,
    )  # fmt: skip


def test_a_step_that_the_model_cannot_have_is_replaced_by_another() -> None:
    kit = Kit(n_parallel=1, n_ubatch=64, n_ctx=2048)
    kit.of(SHORT, LOADING)
    assert kit.ladder.config.cache_type_k == "q8_0"
    follow = kit.of(FAULT, LOADING)
    assert follow.state is EngineState.RESTARTING
    assert (kit.ladder.config.cache_type_k, kit.ladder.config.n_ctx) == ("f16", 1024)


def test_three_loads_that_die_are_enough() -> None:
    kit = Kit()
    states = [kit.of(CRASH, LOADING).state for _ in range(3)]
    assert states == [EngineState.RESTARTING, EngineState.RESTARTING, EngineState.FAILED]
    assert kit.of(CRASH, Life(1.0)).state is EngineState.RESTARTING, "it was loaded in between"


def test_deaths_without_anybody_to_blame_are_a_clear_state() -> None:
    follow = Kit().of(CRASH, Life(1.0, unblamed=True))
    assert follow.state is EngineState.FAILED
    assert follow.detail == "the engine dies again and again, whatever it computes: crashed"


def test_a_build_for_another_cpu_is_told_at_once_unless_it_worked_for_long() -> None:
    ill = Death(Cause.OTHER_CPU, "made for another CPU")
    assert Kit().of(ill, LOADING).state is EngineState.FAILED
    assert Kit().of(ill, Life(3.0)).state is EngineState.FAILED
    assert Kit().of(ill, Life(9000.0)).state is EngineState.RESTARTING

"""When a decode step counts as hung, and how long restarts wait."""

from __future__ import annotations

from engine.link.watch import Backoff, StallWatch, Supervision

RULES = Supervision()


def loaded_watch() -> StallWatch:
    watch = StallWatch(RULES, 0.0)
    watch.loaded(0.0)
    return watch


def looked_at(watch: StallWatch, start: float, end: float) -> bool:
    """Ask every second, as the supervisor does."""
    now = start
    while now < end:
        if watch.stalled(now):
            return True
        now += RULES.watch_every_s
    return watch.stalled(end)


def test_a_model_that_never_comes_is_given_up_after_half_an_hour() -> None:
    watch = StallWatch(RULES, 0.0)
    assert not looked_at(watch, 0.0, 1800.0)
    assert looked_at(watch, 1800.0, 1802.0)
    assert watch.what == "loading the model"


def test_a_loaded_child_that_was_slow_to_load_is_left_in_peace() -> None:
    watch = StallWatch(RULES, 0.0)
    watch.loaded(1799.0)
    assert not looked_at(watch, 1799.0, 9000.0)


def test_an_idle_child_may_be_silent_for_ever() -> None:
    watch = loaded_watch()
    watch.beat(1.0, working=False, n_steps=50, longest_step_s=0.1)
    assert not looked_at(watch, 1.0, 4000.0)


def test_an_idle_child_that_leaves_a_question_unanswered_hangs() -> None:
    watch = loaded_watch()
    watch.beat(1.0, working=False, n_steps=50, longest_step_s=0.1)
    assert not looked_at(watch, 1.0, 4000.0)
    asked_at = 4000.0
    seen = [watch.stalled(asked_at + second, asked_at) for second in range(1, 34)]
    assert seen == [second > 31 for second in range(1, 34)]
    assert watch.what == "the idle loop"
    assert not watch.stalled(asked_at + 34.0), "it has answered"


def test_a_question_asked_before_our_own_sleep_counts_from_the_awakening() -> None:
    watch = loaded_watch()
    watch.beat(1.0, working=False, n_steps=50, longest_step_s=0.1)
    assert not watch.stalled(2.0, 1.5)
    assert not watch.stalled(3600.0, 1.5), "the answer may lie unread"
    assert not watch.stalled(3601.0, 1.5)


def test_a_hung_step_is_seen_after_ten_times_the_longest_plus_thirty() -> None:
    watch = loaded_watch()
    watch.beat(0.0, working=True, n_steps=50, longest_step_s=2.0)
    assert watch.allowance_s == 50.0
    assert not looked_at(watch, 0.0, 50.0)
    assert looked_at(watch, 50.0, 52.0)


def test_beats_keep_it_alive() -> None:
    watch = loaded_watch()
    for now in range(0, 300, 20):
        watch.beat(float(now), working=True, n_steps=now + 1, longest_step_s=0.1)
        assert not looked_at(watch, float(now), now + 20.0)


def test_the_first_step_may_page_weights_in() -> None:
    watch = loaded_watch()
    watch.beat(0.0, working=True, n_steps=0, longest_step_s=0.0)
    assert not looked_at(watch, 0.0, 119.0)
    assert looked_at(watch, 119.0, 122.0)


def test_our_own_sleep_is_not_the_childs_fault() -> None:
    watch = loaded_watch()
    watch.beat(0.0, working=True, n_steps=9, longest_step_s=0.1)
    assert not watch.stalled(1.0)
    assert not watch.stalled(3600.0), "the machine slept for an hour; the beats lie unread"
    assert not looked_at(watch, 3600.0, 3630.0)
    assert looked_at(watch, 3630.0, 3633.0)


def test_restarts_wait_longer_and_longer_up_to_the_limit() -> None:
    backoff = Backoff(RULES)
    waits = [backoff.next_wait_s(0.0) for _ in range(12)]
    assert waits[:4] == [0.2, 0.4, 0.8, 1.6]
    assert waits == sorted(waits)
    assert waits[-1] == 30.0


def test_a_minute_of_health_forgives() -> None:
    backoff = Backoff(RULES)
    for _ in range(10):
        backoff.next_wait_s(59.0)
    assert backoff.next_wait_s(59.0) == 30.0
    assert backoff.next_wait_s(60.0) == 0.2
    assert backoff.next_wait_s(1.0) == 0.4


def test_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(RULES)
    assert {backoff.next_wait_s(0.0) for _ in range(5000)} >= {30.0}

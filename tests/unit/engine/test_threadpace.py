"""Threads given up to others and taken back, on invented windows; and the kernel's figure, which must be told here."""

import hashlib
import itertools
import os
import threading
import time

import pytest

from engine.backends.threadpace import CoreWaits, ThreadPace, waits_are_told

WINDOW_S = ThreadPace.WINDOW_S


def window(pace: ThreadPace, crowd: float, now_s: float, n_tokens: int = 1) -> int:
    """One window in which `crowd` threads on average had no core. Returns the threads it had."""
    n_threads = pace.threads_for(n_tokens, now_s)
    while not pace.window_is_over(WINDOW_S / 4):
        assert pace.threads_for(n_tokens, now_s) == n_threads, "within a window it stays"
    pace.judge(crowd * WINDOW_S, now_s)
    return n_threads


def test_a_machine_of_its_own_keeps_all_threads():
    pace = ThreadPace(8)
    assert [window(pace, 0.2, now) for now in range(50)] == [8] * 50


def test_a_busy_neighbour_gets_its_core_after_one_window():
    pace = ThreadPace(2)
    assert [window(pace, 0.88, 0.1 * i) for i in range(3)] == [2, 1, 1], "one is the least"


@pytest.mark.parametrize(("crowd", "left"), [(0.4, 7), (0.9, 7), (1.6, 6), (3.4, 5), (40.0, 1)])
def test_as_many_go_as_had_no_core(crowd, left):
    pace = ThreadPace(8)
    window(pace, crowd, 0.0)
    assert pace.threads_for(1, 0.1) == left


def test_what_was_given_up_is_tried_again_and_kept_where_it_finds_a_core():
    pace = ThreadPace(4)
    assert window(pace, 2.0, 0.0) == 4
    assert window(pace, 0.0, 0.5) == 2, "not at once"
    assert window(pace, 0.0, 1.1) == 3
    assert window(pace, 0.0, 1.2) == 4, "a trial that went well is followed by the next"
    assert window(pace, 0.0, 1.3) == 4, "never more than configured"


def test_a_prompt_is_no_trial():
    pace = ThreadPace(2)
    window(pace, 0.9, 0.0)
    assert [window(pace, 0.0, now, n_tokens=77) for now in (5.0, 6.0)] == [1, 1]
    assert window(pace, 0.0, 7.0) == 2
    assert window(pace, 0.0, 8.0, n_tokens=77) == 2


def test_trials_in_vain_become_rare_but_never_end():
    pace, now_s, trials = ThreadPace(2), 0.0, []
    window(pace, 0.9, now_s)
    while now_s < 120:
        now_s += WINDOW_S
        is_trial = pace.threads_for(1, now_s) == 2
        window(pace, 0.9 if is_trial else 0.0, now_s)
        if is_trial:
            trials.append(now_s)
    gaps = [b - a for a, b in itertools.pairwise(trials)]
    assert gaps[0] <= 3
    assert [round(gap) for gap in gaps] == sorted(round(gap) for gap in gaps)
    assert gaps[-1] <= ThreadPace.LAST_RETRY_S + 1


def test_after_a_trial_that_went_well_the_next_crowd_is_retried_soon():
    pace, now_s = ThreadPace(2), 0.0
    window(pace, 0.9, now_s)
    for _ in range(6):
        now_s += 100
        assert window(pace, 0.9, now_s) == 2
    assert window(pace, 0.0, now_s + 100) == 2, "the crowd has gone"
    assert window(pace, 0.9, now_s + 102) == 2, "and is back"
    assert window(pace, 0.0, now_s + 102.5) == 1
    assert window(pace, 0.0, now_s + 103.5) == 2


def test_one_thread_is_never_given_up_and_nothing_is_tried_with_it():
    pace = ThreadPace(1)
    assert [window(pace, 0.9, now) for now in range(20)] == [1] * 20


def test_a_clock_that_jumps_and_a_negative_wait_do_no_harm():
    pace = ThreadPace(2)
    window(pace, 0.9, 1e9)
    assert window(pace, -5.0, 0.0) == 1
    assert window(pace, 0.0, 2e9) == 2


@pytest.mark.skipif(not waits_are_told(), reason="this kernel keeps no /proc/self/schedstat")
def test_threads_that_share_a_core_are_seen_to_wait():
    data = bytes(2**20)
    over = threading.Event()

    def work() -> None:  # hashing lets go of the GIL: these threads want a core each
        while not over.is_set():
            hashlib.sha256(data)

    threads = [threading.Thread(target=work) for _ in range(3 * (os.cpu_count() or 1))]
    waits = CoreWaits()
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    waited_s = waits.since_last_s()
    over.set()
    for thread in threads:
        thread.join()
    assert waited_s > 0.1
    assert waits.since_last_s() >= 0.0, "threads that ended took their share along"

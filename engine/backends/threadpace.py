"""How many threads a decode uses while other programs want the same cores.

A decode meets at some 900 barriers, so that one thread without a core makes all of them wait. With two threads on two cores
beside one busy process (demo model, q8_0; ms per token of one reply / per step of eight): 78 / 206, and with one thread alone
13 / 70; with the machine to itself 7.7 / 38. So threads are given up while somebody else uses their core, and taken back when
it is free again.

What is measured is how long our threads were ready to run and had no core (`/proc/PID/task/TID/schedstat`, second
number; Linux, Documentation/scheduler/sched-stats.rst). Waiting for a GPU or for each other does not count there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

_TASKS: Final = Path("/proc/self/task")


class ThreadPace:
    """Decides the number of threads from measured windows. No clock, no I/O: the caller measures."""

    # Decoding time of a window: long against a time slice (3 ms), short for whoever waits.
    WINDOW_S: Final = 0.2
    # Waiting for a core, in threads: above this somebody else uses one. The bot's own work gives 0.02 to 0.2, one busy process
    # 0.45 to 0.9.
    CROWDED: Final = 0.35
    # Pauses before a given-up thread is tried again, doubled while in vain.
    FIRST_RETRY_S: Final = 1.0
    LAST_RETRY_S: Final = 16.0
    # It is tried with batches up to this size: a trial in vain must not cost somebody a long prompt at half the speed.
    TRIAL_TOKENS: Final = 16

    def __init__(self, n_max: int) -> None:
        """`n_max`: the threads that are configured, at least 1."""
        self._n_max = max(1, n_max)
        self._n_threads = self._n_max
        self._decoded_s = 0.0
        self._retry_s = self.FIRST_RETRY_S
        self._retry_at_s = 0.0
        self._trying = False

    def threads_for(self, n_tokens: int, now_s: float) -> int:
        """How many threads the next decode, of so many tokens, gets. `now_s`: any clock that runs on, in seconds."""
        if n_tokens > self.TRIAL_TOKENS:
            return self._n_threads
        if self._n_threads < self._n_max and now_s >= self._retry_at_s:
            self._trying = True
        return self._n_threads + self._trying

    def window_is_over(self, decode_s: float) -> bool:
        """Count a decode; True when it is time for `judge`."""
        self._decoded_s += decode_s
        return self._decoded_s >= self.WINDOW_S

    def judge(self, waited_s: float, now_s: float) -> None:
        """Choose the number for the next window. `waited_s`: thread-seconds without a core since the last call."""
        crowd, self._decoded_s = max(0.0, waited_s) / max(self._decoded_s, 1e-9), 0.0
        was_trial, self._trying = self._trying, False
        if crowd <= self.CROWDED:
            self._n_threads += was_trial
            return
        if was_trial:
            self._retry_s = min(2 * self._retry_s, self.LAST_RETRY_S)
        elif self._n_threads > 1:
            self._retry_s = self.FIRST_RETRY_S
            self._n_threads = max(1, self._n_threads - max(1, round(crowd)))
        self._retry_at_s = now_s + self._retry_s


class CoreWaits:
    """How long the threads of this process have waited for a core since the last question."""

    def __init__(self) -> None:
        self._before_s = _waited_s()

    def since_last_s(self) -> float:
        """Thread-seconds; never negative (a thread that has ended takes its share along)."""
        before_s, self._before_s = self._before_s, _waited_s()
        return max(0.0, self._before_s - before_s)


def waits_are_told() -> bool:
    """Whether this kernel keeps the figure: without it `ThreadPace` has nothing to go by."""
    try:
        return int((_TASKS.parent / "schedstat").read_text().split()[0]) > 0
    except (OSError, ValueError, IndexError):
        return False


def _waited_s() -> float:
    """Seconds that all living threads of this process have waited for a core; 0.0 where the kernel does not tell."""
    waited_ns = 0
    for task in _TASKS.glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            waited_ns += int(task.read_bytes().split()[1])
    return waited_ns / 1e9

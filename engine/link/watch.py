"""Two small judgements about a child process, without clocks or processes of their own.

`StallWatch` says whether a child hangs, `Backoff` how long to wait before the next start.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a child is watched and restarted; seconds unless named otherwise.

    A step may take `stall_factor` × the longest one seen + `stall_s`; before any step was measured `first_step_s`, since
    the first one may page weights in from a slow disk. Loading may take `load_s`, enough for 100 GB from a hard disk; whoever
    dies `max_load_deaths` times in a row while loading does so because of the model or the machine, and counts as a fault in
    the settings. So do `max_deaths` in a row that no request can be blamed for. After a fault in the settings or the model
    file the start is repeated every `config_retry_s` (a file may still be on its way), never in a quick loop.
    An engine that had to become smaller because memory ran out tries its full size again after `full_size_retry_s` without
    a request. An RPC worker that is away is asked again after `worker_retry_s`. A restart for the sake of others waits until
    nobody has asked for `quiet_s`, for `patience_s` at most; who is being answered then is continued behind it.
    """

    backoff_first_s: float = 0.2
    backoff_max_s: float = 30.0
    healthy_after_s: float = 60.0
    config_retry_s: float = 60.0
    close_grace_s: float = 5.0
    stall_factor: float = 10.0
    stall_s: float = 30.0
    first_step_s: float = 120.0
    load_s: float = 1800.0
    max_load_deaths: int = 3
    max_deaths: int = 3
    full_size_retry_s: float = 3600.0
    worker_retry_s: float = 60.0
    quiet_s: float = 10.0
    patience_s: float = 60.0
    watch_every_s: float = 1.0
    answer_s: float = 30.0
    stats_s: float = 0.5


class StallWatch:
    """Whether one child is stuck: while it loads, in its decode loop by its beats, or idle by what it leaves unanswered.

    Owner: the child's supervisor; times are monotonic.
    """

    def __init__(self, rules: Supervision, now: float) -> None:
        self._rules = rules
        self._loading = True
        self._working = False
        self._longest_step_s = 0.0
        self._n_steps = 0
        self._last_sign = now
        self._last_look = now

    def loaded(self, now: float) -> None:
        """The model is there."""
        self._loading = False
        self._last_sign = now

    @property
    def what(self) -> str:
        """What it is that hangs, for an admin."""
        if self._loading:
            return "loading the model"
        return "a decode step" if self._working else "the idle loop"

    def beat(self, now: float, *, working: bool, n_steps: int, longest_step_s: float) -> None:
        """The child's loop showed that it moves."""
        self._working = working
        self._n_steps = n_steps
        self._longest_step_s = longest_step_s
        self._last_sign = now

    @property
    def allowance_s(self) -> float:
        """How long the loop may be silent while it works."""
        if self._loading:
            return self._rules.load_s
        if not self._n_steps:
            return max(self._rules.first_step_s, self._rules.stall_s)
        return self._rules.stall_factor * self._longest_step_s + self._rules.stall_s

    def stalled(self, now: float, probed_since: float | None = None) -> bool:
        """Whether the child is stuck; to be asked every `watch_every_s`. `probed_since`: when its loop was asked for a sign
        of life, behind which nothing has come at all.

        A question that comes late proves that *we* slept (a blocked event loop, a suspended machine) and that beats may
        lie unread: then the silence counts from now.
        """
        late = now - self._last_look > 3 * self._rules.watch_every_s
        self._last_look = now
        if late:
            self._last_sign = now
        silent_since = self._last_sign
        if not (self._working or self._loading):
            # It may be silent for ever, as long as nobody asks.
            if probed_since is None:
                return False
            silent_since = max(silent_since, probed_since)
        return now - silent_since > self.allowance_s


class Backoff:
    """Doubling waits between restarts. Owner: the supervisor task."""

    def __init__(self, rules: Supervision) -> None:
        self._rules = rules
        self._n_failures = 0

    def next_wait_s(self, healthy_s: float) -> float:
        """The wait after a life that was ready for `healthy_s`; a long enough one forgives all before it."""
        if healthy_s >= self._rules.healthy_after_s:
            self._n_failures = 0
        wait_s = min(self._rules.backoff_max_s, self._rules.backoff_first_s * 2.0**self._n_failures)
        self._n_failures = min(self._n_failures + 1, 30)
        return wait_s

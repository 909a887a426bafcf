"""Every platform in every mode: what a person sees of an answer, on good days and bad ones, under the platform's limits.

The trials are `tests/support/platformkit.py`; a fixed sample of them runs in `make test`.
"""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from tests.prove.suite import Figures, Suite
from tests.support import platformkit as kit

TRIALS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "one question": kit.one_question,
    "10 chats at once": kit.ten_at_once,
    "20 % of calls fail": kit.failing_calls,
    "socket cut": kit.cut_socket,
    "delivered 3 times": kit.three_times,
}
COLUMNS = ("answers", "messages per answer", "text", "updates", "calls", "refused", "first text s")


async def run_trial(mode: str, trial: str) -> Figures:
    """One trial in a folder of its own, without a word in the log: a thousand lines would only slow it down."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder:
        return await TRIALS[trial](Path(folder), mode)


def summary(done: dict[str, Figures]) -> str:
    """Two sentences."""
    back = [float(f["back s"]) for f in done.values() if "back s" in f]
    return (
        "In every mode a question has one visible answer with the model's text, whatever fails; where a platform cannot tell "
        "whether a lost call was done, a second copy says that it may be a repeat. "
        f"Cut connections were back after {max(back, default=0.0):.1f} s at most. `updates`: how often the text on the screen "
        "changed, per answer. `first text s`: from writing the question to the first words, median / latest. `calls` and "
        "`refused`: what Hearth asked of the platform, and how much of that failed."
    )


def build() -> Suite:
    """The suite: a long connection is only cut where there is one."""
    items = {
        f"{mode} · {trial}": functools.partial(run_trial, mode, trial)
        for mode, how in kit.MODES.items()
        for trial in TRIALS
        if trial != "socket cut" or how.cut is not None
    }
    return Suite(
        "platforms",
        "Platform × mode: one answer, on good days and bad ones",
        items,
        summary,
        COLUMNS,
    )

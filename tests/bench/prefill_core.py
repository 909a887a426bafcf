"""`prefill_gap` by processor time, for machines that are busy: core and model in one process, on one thread.

    .venv/bin/python -m tests.bench.prefill_core [--model demo] [--tokens 3000] [--talkers 1,4]

The core's own clock is the thread's CPU clock, so that other work on the machine neither lengthens a step nor misleads the
pace. `after`: the same replies alone again, which are longer now and share the cache with the prompt, so that each of their
steps takes more than before; it is what the last gaps must be measured by. Prints one JSON line: gaps in ms and times in s of
processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from itertools import pairwise
from typing import Any

os.environ.setdefault("GGML_NO_BACKTRACE", "1")

from engine.backends.llamacpp import LlamaBackend
from engine.config import EngineConfig
from engine.core.core import Core
from engine.types import Delta, EngineEvent, EngineRequest, Finished, Sampling

SETTLING_STEPS, CALM_STEPS = 40, 120
QUESTION = (
    "<|im_start|>user\nTell me a long story about ship {}.<|im_end|>\n<|im_start|>assistant\n"
)
clock = time.thread_time


class Heard:
    """What a core says, and when."""

    def __init__(self) -> None:
        self.events: list[tuple[float, EngineEvent]] = []

    def __call__(self, event: EngineEvent) -> None:
        self.events.append((clock(), event))

    def gaps(self, since: float, until: float) -> list[float]:
        """Seconds between the tokens of every talker's reply, sorted."""
        times: dict[str, list[float]] = {}
        for at, event in self.events:
            if isinstance(event, Delta) and since <= at <= until:
                times.setdefault(event.request_id, []).append(at)
        times.pop("long", None)
        return sorted(later - earlier for one in times.values() for earlier, later in pairwise(one))

    def has_ended(self, request_id: str) -> bool:
        """Whether a request has its end."""
        return any(isinstance(e, Finished) and e.request_id == request_id for _, e in self.events)


def measure(backend: LlamaBackend, config: EngineConfig, n_talkers: int, n_tokens: int) -> Any:
    """One prompt beside so many replies, or alone."""
    heard = Heard()
    core = Core(backend, config, heard, clock)
    for i in range(n_talkers):
        ids = backend.tokenize(QUESTION.format(i), add_special=False, parse_special=True)
        core.submit(_request(f"talker{i}", ids, 2000, seed=i))
    for _ in range(SETTLING_STEPS):
        core.step()
    calm_from = clock()
    for _ in range(CALM_STEPS):
        core.step()
    rng = random.Random(n_talkers)
    asked = clock()
    core.submit(_request("long", [rng.randrange(1000, 40_000) for _ in range(n_tokens)], 1))
    while not heard.has_ended("long"):
        core.step()
    ended = clock()
    if not n_talkers:
        core.close()
        return round(ended - asked, 2)
    for _ in range(CALM_STEPS):
        core.step()
    after = heard.gaps(ended, clock())
    core.close()
    before, during = heard.gaps(calm_from, asked), heard.gaps(asked, ended)
    last = heard.gaps(ended - (ended - asked) / 10, ended)
    return {
        "before_ms": _spread(before),
        "during_ms": _spread(during),
        "last_tenth_ms": _spread(last),
        "after_ms": _spread(after),
        "last_by_after_p50": round(_at(last, 0.5) / _at(after, 0.5), 2),
        "last_by_after_p95": round(_at(last, 0.95) / _at(after, 0.95), 2),
        "ratio_p50": round(_at(during, 0.5) / _at(before, 0.5), 2),
        "ratio_p95": round(_at(during, 0.95) / _at(before, 0.95), 2),
        "prompt_s": round(ended - asked, 2),
        "reply_tokens": len(during),
    }


def _request(name: str, ids: list[int], n: int, seed: int = 0) -> EngineRequest:
    sampling = Sampling(temperature=0.8, seed=seed)
    return EngineRequest(
        id=name, owner=name, prompt_tokens=tuple(ids), max_new_tokens=n, sampling=sampling
    )


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _spread(values: list[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return {name: round(1000 * _at(values, share), 1) for name, share in shares.items()}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--talkers", default="1,4")
    args = parser.parse_args()
    config = EngineConfig(
        name="bench",
        path=args.model,
        n_ctx=4096,
        n_parallel=8,
        n_threads=1,
        cache_type_k="q8_0",
        cache_type_v="q8_0",
        speculation=False,
    )
    backend = LlamaBackend(config)
    # An end of a reply would leave a row of the batch empty.
    backend.is_eog = lambda token_id: False  # type: ignore[method-assign]
    figures: dict[str, Any] = {"prompt_tokens": args.tokens}
    for n in (int(part) for part in args.talkers.split(",")):
        figures[f"talkers@{n}"] = measure(backend, config, n, args.tokens)
        backend.clear()
    backend.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

"""What guessed tokens bring on the demo model where replies repeat earlier text, and what they cost where they do not.

    .venv/bin/python -m tests.bench.speculation [--threads 1] [--rounds 2] [--tokens 120] [--kv q8_0]

One core, greedy replies; guesses are on and off in turn, so that other work on the machine meets both. Only generation is
timed: from the first token of the last reply to the end. `gain` is tokens per second on over off, `cpu_gain` the same by
processor time; with one thread the core learns from processor time, too, so that other work changes neither.
The tokens must be the same; `tossups` counts replies that part where two tokens were as good as equal: the size of a batch
moves the logits a little, with guesses or without (`tests.support.tossups`). The demo model is too weak for some of these tasks:
`accepted` of `tokens` says how much of a reply really was a repetition. In `mixed` one reply repeats and three tell
stories: its gain is that of the first, and `others` what the stories have left of their speed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field

os.environ.setdefault("GGML_NO_BACKTRACE", "1")

from engine.backends.llamacpp import LlamaBackend
from engine.config import EngineConfig
from engine.core.core import Core
from engine.types import Delta, EngineEvent, EngineRequest, Finished, Sampling
from tests.support.tossups import parting_of

HARBOUR = (
    "The harbour office opens at seven in the morning and closes at four in the afternoon. Ships that arrive later must wait "
    "outside the breakwater until the next day, unless harbour master number {i} has agreed otherwise in writing. Fishing "
    "boats under ten metres pay no fee. The crane may be used by anybody who has shown the certificate at the office."
)
CODE = """def total_{i}(items):
    result = 0
    for item in items:
        if item.price < 0:
            raise ValueError("negative price")
        result += item.price * item.count
    return result
"""
SCENARIOS = {
    "quote": f"Repeat this paragraph word for word:\n\n{HARBOUR}",
    "code_edit": f"Add a comment to the first line of this function and show the whole function:\n\n```python\n{CODE}```",
    "summary": f"Summarize this text in two sentences:\n\n{HARBOUR}",
    "story": "Tell me a long story about ship number {i}.",
    "letter": "Write a letter to landlord number {i} about the broken heating.",
}


def prompt_of(name: str, i: int) -> str:
    """The text of a scenario; `repetition` is one that even a weak model has to go on with."""
    if name == "repetition":
        text = HARBOUR.format(i=i)
        return f"{text}\n\n{text}\n\n{text[:60]}"
    question = SCENARIOS[name].format(i=i)
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Run:
    """What one round gave: token ids per reply, and what it took."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    n_timed: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    n_guessed: int = 0
    n_accepted: int = 0
    n_steps: int = 0


class Bench:
    """Owner of the backend and of the one core that all rounds use."""

    def __init__(self, threads: int, kv: str, n_tokens: int) -> None:
        config = EngineConfig(
            name="bench",
            n_ctx=1024,
            n_parallel=4,
            n_threads=threads,
            cache_type_k=kv,
            cache_type_v=kv,
        )
        self.backend = LlamaBackend(config)
        self._events: list[EngineEvent] = []
        clock = time.process_time if threads == 1 else time.monotonic
        self._core = Core(self.backend, config, self._events.append, clock)
        self._n_tokens = n_tokens

    def run(self, names: list[str], *, guess: bool) -> Run:
        """All replies at once, to their end."""
        self._core._planner._drafter._enabled = guess
        self._events.clear()
        for i, name in enumerate(names):
            ids = self.backend.tokenize(prompt_of(name, i), add_special=False, parse_special=True)
            self._core.submit(
                EngineRequest(
                    id=f"{i}",
                    prompt_tokens=tuple(ids),
                    max_new_tokens=self._n_tokens,
                    sampling=Sampling(temperature=0.0),
                )
            )
        run = Run(ids={f"{i}": [] for i in range(len(names))})
        while not all(run.ids.values()):
            self._step(run)
        before, n_before = self._core.stats(), sum(map(len, run.ids.values()))
        begun, cpu_begun = time.perf_counter(), time.process_time()
        while self._core.has_work:
            self._step(run)
            for name in run.ids.keys() - run.ended_s.keys():
                if any(isinstance(e, Finished) and e.request_id == name for e in self._events):
                    run.ended_s[name] = time.perf_counter() - begun
        run.wall_s, run.cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
        after = self._core.stats()
        run.n_timed = sum(map(len, run.ids.values())) - n_before
        run.n_guessed = after.drafted_tokens_total - before.drafted_tokens_total
        run.n_accepted = after.accepted_tokens_total - before.accepted_tokens_total
        run.n_steps = after.steps_total - before.steps_total
        return run

    def _step(self, run: Run) -> None:
        n_known = len(self._events)
        self._core.step()
        for event in self._events[n_known:]:
            if isinstance(event, Delta):
                run.ids[event.request_id] += event.token_ids


def check(bench: Bench, prompt: str, plain: list[int], guessed: list[int]) -> bool:
    """Whether two replies part, which they only may at a toss-up. Raises RuntimeError otherwise."""
    ids = bench.backend.tokenize(prompt, add_special=False, parse_special=True)
    parting = parting_of(bench.backend, ids, plain, guessed)
    if parting is not None and not parting.is_tossup:
        raise RuntimeError(f"{parting}: {prompt}")
    return parting is not None


def compare(bench: Bench, names: list[str], n_rounds: int) -> dict[str, object]:
    """Rounds with and without guesses in turn. Raises RuntimeError when the tokens differ."""
    pairs = []
    n_tossups = 0
    for _ in range(n_rounds):
        plain, guessed = bench.run(names, guess=False), bench.run(names, guess=True)
        for i, name in enumerate(names):
            n_tossups += check(bench, prompt_of(name, i), plain.ids[f"{i}"], guessed.ids[f"{i}"])
        pairs.append((plain, guessed))
    wall_gains = [p.wall_s / g.wall_s * g.n_timed / p.n_timed for p, g in pairs]
    cpu_gains = [p.cpu_s / g.cpu_s * g.n_timed / p.n_timed for p, g in pairs]
    guessed = pairs[-1][1]
    figures: dict[str, object] = {
        "gain": round(statistics.median(wall_gains), 2),
        "cpu_gain": round(statistics.median(cpu_gains), 2),
        "tok_s": round(statistics.median(g.n_timed / g.wall_s for _, g in pairs), 1),
        "tokens": guessed.n_timed,
        "tossups": n_tossups,
        "steps": guessed.n_steps,
        "guessed": guessed.n_guessed,
        "accepted": guessed.n_accepted,
    }
    if len(set(names)) > 1:
        speeds = {
            name: statistics.median(p.ended_s[name] / g.ended_s[name] for p, g in pairs)
            for name in guessed.ids
        }
        figures["gain"] = round(speeds["0"], 2)
        figures["others"] = round(min(speeds[name] for name in speeds if name != "0"), 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="guessed tokens: gain and cost")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--kv", default="q8_0")
    args = parser.parse_args()
    bench = Bench(args.threads, args.kv, args.tokens)
    results: dict[str, object] = {}
    for name in ("repetition", *SCENARIOS):
        for n_replies in (1, 4):
            results[f"{name} x{n_replies}"] = compare(bench, [name] * n_replies, args.rounds)
            sys.stderr.write(f"{name} x{n_replies} {json.dumps(results[f'{name} x{n_replies}'])}\n")
    results["mixed"] = compare(bench, ["repetition", "story", "story", "story"], args.rounds)
    sys.stderr.write(f"mixed {json.dumps(results['mixed'])}\n")
    results |= {
        "threads": args.threads,
        "rounds": args.rounds,
        "load": round(os.getloadavg()[0], 1),
    }
    sys.stdout.write(json.dumps(results) + "\n")
    bench.backend.close()


if __name__ == "__main__":
    main()

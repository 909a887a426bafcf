"""A core on a backend, driven by hand: a clock that stands still, every event kept, every promise checked on the way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.backends.base import Backend, BatchPart, DecodeFailed, DecodeStatus
from engine.backends.fake import FakeBackend
from engine.config import EngineConfig
from engine.core.core import Core
from engine.kv.opening import open_tiers
from engine.types import (
    Delta,
    EngineEvent,
    EngineRequest,
    Failed,
    Finished,
    Queued,
    Sampling,
    Started,
)

GREEDY = Sampling(temperature=0.0)


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class WatchedFake(FakeBackend):
    """The scripted backend, which also remembers its batches and can be told to fail."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.batches: list[list[BatchPart]] = []
        self.failures: list[Exception | DecodeStatus] = []
        self.samplers: list[Any] = []

    def decode(self, parts: Sequence[BatchPart]) -> DecodeStatus:
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, DecodeStatus):
                return failure
            if isinstance(failure, DecodeFailed):
                for part in parts:  # like the real one: part of the batch stays behind
                    self.cache.append(part.seq_id, part.tokens[: len(part.tokens) // 2])
            raise failure
        status = super().decode(parts)
        if status is DecodeStatus.DONE:
            self.batches.append([replace(part, tokens=list(part.tokens)) for part in parts])
        return status

    def new_sampler(self, sampling: Sampling, accepted: Sequence[int]) -> Any:
        sampler = super().new_sampler(sampling, accepted)
        self.samplers.append(sampler)
        return sampler


class CoreKit:
    """Owner of one core under test."""

    def __init__(self, backend: Backend, config: EngineConfig) -> None:
        self.backend = backend
        self.config = config
        self.clock = Clock()
        self.events: list[EngineEvent] = []
        self.tiers = open_tiers(config, backend)
        self.core = Core(backend, config, self.events.append, self.clock, tiers=self.tiers)

    def request(self, request_id: str, question: str = "hi", **fields: Any) -> EngineRequest:
        """A request with a system prompt that is marked as shared."""
        system = f"<|im_start|>system\n{fields.pop('system', 'You are terse.')}<|im_end|>\n"
        history = fields.pop("history", "")
        text = f"{system}{history}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        defaults: dict[str, Any] = {
            "id": request_id,
            "prompt_tokens": tuple(self.ids(text)),
            "sampling": GREEDY,
            "n_shared_prefix": len(self.ids(system)),
        }
        return EngineRequest(**(defaults | fields))

    def ids(self, text: str) -> list[int]:
        return self.backend.tokenize(text, add_special=False, parse_special=True)

    def ask(self, request_id: str, question: str = "hi", **fields: Any) -> EngineRequest:
        request = self.request(request_id, question, **fields)
        self.core.submit(request)
        return request

    def step(self, n_steps: int = 1) -> bool:
        """Whether the last step did anything."""
        busy = False
        for _ in range(n_steps):
            before = len(self.events)
            busy = self.core.step()
            self.check_step(self.events[before:])
        return busy

    def run(self, max_steps: int = 5000) -> None:
        """Step until nothing is left to do; a step that waits for the disk's thread lets it run, as the worker does."""
        for _ in range(max_steps):
            if not self.core.has_work:
                break
            if not self.step():
                time.sleep(0.004)
        assert not self.core.has_work, "the core never came to an end"
        self.check_end()

    # What must hold at any time.

    def check_step(self, events: list[EngineEvent]) -> None:
        deltas = Counter(event.request_id for event in events if isinstance(event, Delta))
        assert all(n == 1 for n in deltas.values()), f"more than one delta in a step: {deltas}"
        if isinstance(self.backend, FakeBackend):
            self.check_cache(self.backend)

    def check_cache(self, backend: FakeBackend) -> None:
        """What the pool believes is what the cache holds, sequence by sequence and cell by cell."""
        assert self.core.stats().kv_cells_used == backend.cache.n_used
        for seq in self.core._pool._seqs:
            assert backend.cache.tokens(seq.id) == seq.tokens
        for job in self.core._running.values():
            assert job.seq is not None
            assert job.seq.tokens == job.tokens[: job.n_computed]

    def check_end(self) -> None:
        """Exactly one terminal event per request, and nothing behind it."""
        over: set[str] = set()
        for event in self.events:
            assert event.request_id not in over, f"{event} came after the end"
            if isinstance(event, Finished | Failed):
                over.add(event.request_id)
        assert over == {event.request_id for event in self.events}
        if isinstance(self.backend, WatchedFake):
            assert all(sampler.closed for sampler in self.backend.samplers)

    # What came out.

    def of(self, request_id: str) -> list[EngineEvent]:
        return [event for event in self.events if event.request_id == request_id]

    def text(self, request_id: str) -> str:
        return "".join(event.text for event in self.of(request_id) if isinstance(event, Delta))

    def thinking(self, request_id: str) -> str:
        return "".join(event.thinking for event in self.of(request_id) if isinstance(event, Delta))

    def token_ids(self, request_id: str) -> tuple[int, ...]:
        deltas = [event for event in self.of(request_id) if isinstance(event, Delta)]
        return tuple(token for delta in deltas for token in delta.token_ids)

    def end(self, request_id: str) -> Finished | Failed:
        ends = [e for e in self.of(request_id) if isinstance(e, Finished | Failed)]
        assert len(ends) == 1, f"{request_id} has {len(ends)} terminal events"
        return ends[0]

    def finished(self, request_id: str) -> Finished:
        end = self.end(request_id)
        assert isinstance(end, Finished), end
        return end

    def failed(self, request_id: str) -> Failed:
        end = self.end(request_id)
        assert isinstance(end, Failed), end
        return end

    def cached(self, request_id: str) -> int:
        return next(e.cached_tokens for e in self.of(request_id) if isinstance(e, Started))

    def places(self, request_id: str) -> list[int]:
        return [event.place for event in self.of(request_id) if isinstance(event, Queued)]

    @property
    def start_order(self) -> list[str]:
        return [event.request_id for event in self.events if isinstance(event, Started)]

    @property
    def n_prompt_decoded(self) -> int:
        return self.core.stats().decoded_prompt_tokens_total


def fake_kit(script: dict[str, str] | None = None, **fields: Any) -> CoreKit:
    """A core on the scripted backend; the reply is short unless the script says otherwise."""
    settings: dict[str, Any] = {
        "name": "test",
        "backend": "fake",
        "n_ctx": 512,
        "n_parallel": 4,
        # A token per step, which most tests count by; what guesses change is in test_core_drafts.py.
        "speculation": False,
        "fake": {"reply": "Hello, 世界 🙂!"} | (script or {}),
    }
    config = EngineConfig(**(settings | fields))
    return CoreKit(WatchedFake(config), config)


def assert_same_reply(a: CoreKit, b: CoreKit, request_id: str) -> None:
    """What a request got is the same in both, however it was cut into deltas."""
    assert a.token_ids(request_id) == b.token_ids(request_id)
    assert (a.text(request_id), a.thinking(request_id)) == (
        b.text(request_id),
        b.thinking(request_id),
    )
    ends = a.finished(request_id), b.finished(request_id)
    assert ends[0].reason == ends[1].reason
    assert (ends[0].answer_start, ends[0].n_answer) == (ends[1].answer_start, ends[1].n_answer)
    assert ends[0].usage.n_generated == ends[1].usage.n_generated

"""One engine at work for the benchmark: what is asked, and how an answer is timed. Owns the questions and the samples.

Used by `engine.bench.run` only.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from engine.bench.counters import Counters, CounterSource
from engine.bench.figures import Samples, What, of_turn, of_wave
from engine.errors import EngineConfigError, EngineError
from engine.face import Engine
from engine.types import (
    ChatMessage,
    Delta,
    EngineRequest,
    Failed,
    Finished,
    Priority,
    Role,
    Sampling,
    Usage,
)

_SYSTEM = (
    "You are a helpful assistant in the group chat of a small company. Answer plainly, stay on the subject and never invent "
    "names. When you are unsure, say so. Keep the tone friendly and the sentences short."
)
_SUBJECTS = (
    "a bakery that opens at four in the morning",
    "the last ferry of the day",
    "a school in the mountains",
    "an orchard after a storm",
    "the night shift of a print shop",
    "a radio station on an island",
    "a bridge that is being painted",
    "a tailor who moves to the city",
)
_GREEDY = Sampling(temperature=0.0)
_SCOPE = "bench"


class BenchFailed(EngineError):
    """An engine did not answer, so there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How much is measured. Empty `concurrency` leaves the waves out, `turns = 0` the conversations."""

    concurrency: tuple[int, ...] = (1, 4, 8)
    conversations: int = 4
    turns: int = 4
    max_new_tokens: int = 96
    rounds: int = 2

    def __post_init__(self) -> None:
        """Raises EngineConfigError for a plan that measures nothing."""
        sizes = (*self.concurrency, self.conversations, self.max_new_tokens, self.rounds)
        if min(sizes) < 1 or self.turns < 0 or not (self.concurrency or self.turns):
            raise EngineConfigError(
                "the benchmark needs at least one round, one token and one wave or turn"
            )

    @property
    def steps_per_engine(self) -> int:
        """Units of progress for one engine, warm-up included."""
        return 1 + self.rounds * (len(self.concurrency) + (1 if self.turns else 0))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One reply, timed from the moment it was asked for."""

    first_s: float
    n_tokens: int
    usage: Usage
    text: str
    answer_ids: tuple[int, ...]


class Probe:
    """One engine at work; owned by one run."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        counters: CounterSource,
        plan: BenchPlan,
        samples: Samples,
    ) -> None:
        self.name = name
        self._engine = engine
        self._counters = counters
        self._plan = plan
        self._samples = samples
        self._salt = 0

    async def warm_up(self) -> None:
        """One short reply: the first one pays for pages and kernels that no later one does."""
        await self._ask([_user(self._question())], key="", max_new_tokens=8)

    async def wave(self, n_people: int) -> None:
        """So many people ask at the same moment."""
        prompts = [[_SYSTEM_MESSAGE, _user(self._question())] for _ in range(n_people)]
        before = await self._counters.read()
        begun = time.perf_counter()
        outcomes = await _all([self._ask(prompt, key="") for prompt in prompts])
        took_s = time.perf_counter() - begun
        added = (await self._counters.read()).since(before)
        n_tokens = sum(outcome.n_tokens for outcome in outcomes)
        self._note(
            {
                "tokens_per_s": n_tokens / took_s,
                "guessed_share": _percent(added.guessed_share),
                "first_token_s": statistics.median(outcome.first_s for outcome in outcomes),
                "prompt_tokens_computed": _computed(outcomes),
                "prompt_tokens_decoded": _each(added.decoded_prompt_tokens, n_people),
                "python_share": _percent(added.python_share),
            },
            lambda kind: of_wave(n_people, kind),
        )

    async def talk(self) -> None:
        """Several conversations in rotation, so that each one's KV state has to outlive the others' turns."""
        run_id = uuid.uuid4().hex[:8]
        keys = [f"bench-{run_id}-{i}" for i in range(self._plan.conversations)]
        histories: dict[str, list[ChatMessage]] = {key: [_SYSTEM_MESSAGE] for key in keys}
        try:
            for turn in range(1, self._plan.turns + 1):
                before = await self._counters.read()
                outcomes = [await self._turn(key, histories[key]) for key in keys]
                added = (await self._counters.read()).since(before)
                self._note_turn(turn, outcomes, added)
        finally:
            for key in keys:
                await self._engine.forget(key)

    async def _turn(self, key: str, history: list[ChatMessage]) -> _Outcome:
        history.append(_user(self._question()))
        outcome = await self._ask(history, key=key)
        history.append(
            ChatMessage(role=Role.ASSISTANT, content=outcome.text, token_ids=outcome.answer_ids)
        )
        return outcome

    def _note_turn(self, turn: int, outcomes: Sequence[_Outcome], added: Counters) -> None:
        sent = [o.usage.n_prompt for o in outcomes if o.usage.n_prompt]
        n = len(outcomes)
        self._note(
            {
                "first_token_s": statistics.median(o.first_s for o in outcomes),
                "prompt_tokens": statistics.mean(sent) if sent else None,
                "prompt_tokens_computed": _computed(outcomes),
                "prompt_tokens_decoded": _each(added.decoded_prompt_tokens, n),
                "tokens_restored": _each(added.restored_tokens, n),
                "bytes_written": _each(added.saved_bytes, n),
            },
            lambda kind: of_turn(turn, kind),
        )

    def _note(self, values: Mapping[str, float | None], what_of: Callable[[str], What]) -> None:
        for kind, value in values.items():
            self._samples.add(what_of(kind), self.name, value)

    async def _ask(
        self, messages: Sequence[ChatMessage], *, key: str, max_new_tokens: int = 0
    ) -> _Outcome:
        begun = time.perf_counter()
        rendered = await self._engine.render(messages)
        if not rendered.exact:
            begun = (
                time.perf_counter()
            )  # a server makes the prompt itself; ours was only an estimate
        request = EngineRequest(
            id=f"bench-{uuid.uuid4().hex}",
            prompt_tokens=rendered.token_ids,
            messages=tuple(messages),
            max_new_tokens=max_new_tokens or self._plan.max_new_tokens,
            sampling=_GREEDY,
            cache_key=key,
            owner=uuid.uuid4().hex,  # everybody is somebody else: fairness between people is no brake here
            scope=_SCOPE,
            priority=Priority.PERSON,
            thinking_open=rendered.thinking_open,
            n_shared_prefix=rendered.starts[1] if rendered.exact and len(messages) > 1 else 0,
        )
        return await self._timed(request, begun)

    async def _timed(self, request: EngineRequest, begun: float) -> _Outcome:
        first_s, n_deltas = 0.0, 0
        texts: list[str] = []
        ids: list[int] = []
        async for event in self._engine.submit(request):
            if isinstance(event, Delta):
                if (event.text or event.thinking) and not first_s:
                    first_s = time.perf_counter() - begun
                n_deltas += 1
                texts.append(event.text)
                ids += event.token_ids
            elif isinstance(event, Failed):
                raise BenchFailed(f"{self.name} failed ({event.code}): {event.message}")
            elif isinstance(event, Finished):
                answer = ids[event.answer_start : event.answer_start + event.n_answer]
                return _Outcome(
                    first_s=first_s or time.perf_counter() - begun,
                    # A server that does not count its tokens sends about one delta per token.
                    n_tokens=event.usage.n_generated or len(ids) or n_deltas,
                    usage=event.usage,
                    text="".join(texts),
                    answer_ids=tuple(answer),
                )
        raise BenchFailed(f"{self.name} ended a reply without saying why")

    def _question(self) -> str:
        """A fresh question: its beginning differs from every other one's."""
        self._salt += 1
        subject = _SUBJECTS[self._salt % len(_SUBJECTS)]
        return (
            f"Note {uuid.uuid4().hex[:6]}. Write a long story about {subject}. Describe the place, the weather, two people "
            "and what they want from each other, and do not stop early."
        )


async def _all(asks: Sequence[Coroutine[object, object, _Outcome]]) -> list[_Outcome]:
    """Run them together; the first failure ends all and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask) for ask in asks]
    except* EngineError as failures:
        first = failures.exceptions[0]
        raise BenchFailed(str(first)) from first
    return [task.result() for task in tasks]


def _computed(outcomes: Sequence[_Outcome]) -> float | None:
    """Prompt tokens per reply that were not cached, by the usage figures; None when there are none."""
    told = [o.usage.n_prompt - o.usage.n_cached for o in outcomes if o.usage.n_prompt]
    return statistics.mean(told) if told else None


def _each(total: float | None, n: int) -> float | None:
    return None if total is None else total / n


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _user(text: str) -> ChatMessage:
    return ChatMessage(role=Role.USER, content=text)


_SYSTEM_MESSAGE = ChatMessage(role=Role.SYSTEM, content=_SYSTEM)

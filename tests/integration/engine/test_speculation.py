"""Guessed tokens on real llama.cpp: the same tokens as without, whatever the memory is, and wrong guesses leave no trace.

The kit's clock stands still: every guess looks free, and as many as possible are computed. The size of a batch moves logits,
with guesses or without: in the demo model by up to 1.5, so its replies may part at a toss-up (`tests.support.tossups`); in
random models with plain attention, f32 weights and f32 keys and values by 0.00001, so their tokens must be equal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.backends.base import MemoryKind
from engine.backends.llamacpp import LlamaBackend
from engine.config import EngineConfig
from engine.types import EngineStats, Sampling
from tests.support.corekit import GREEDY, CoreKit
from tests.support.forcing import (
    EPSILON,
    Forcing,
    Logits,
    Text,
    difference,
    n_wrong_choices,
    open_backend,
)
from tests.support.memoryways import plain
from tests.support.tinymodels import MODELS, write_model
from tests.support.tossups import parting_of

CONFIG = EngineConfig(name="t", n_ctx=512, n_parallel=4, n_batch=128, n_threads=1)
HARBOUR = (
    "The harbour office opens at seven in the morning and closes at four in the afternoon. Ships that arrive later must wait "
    "outside the breakwater until the next day."
)
QUESTIONS = [
    f"Repeat this text word for word: {HARBOUR}",
    f"What does this say about ships? {HARBOUR}",
    "Say yes ten times: yes, yes, yes,",
    "What do cats eat?",
]


@pytest.fixture(scope="module")
def loaded() -> Iterator[LlamaBackend]:
    backend = LlamaBackend(CONFIG)
    yield backend
    backend.close()


def without_guesses(config: EngineConfig) -> EngineConfig:
    """The same model and settings else."""
    return msgspec.structs.replace(config, speculation=False)


def replies(
    backend: LlamaBackend,
    config: EngineConfig,
    questions: list[str],
    sampling: Sampling = GREEDY,
    n_tokens: int = 60,
) -> tuple[list[tuple[int, ...]], EngineStats]:
    """Token ids of all replies, which run at once, and what it took."""
    kit = CoreKit(backend, config)
    for i, question in enumerate(questions):
        kit.ask(f"r{i}", question, sampling=sampling, max_new_tokens=n_tokens)
    kit.run()
    return [kit.token_ids(f"r{i}") for i in range(len(questions))], kit.core.stats()


@pytest.mark.model
@pytest.mark.parametrize("n_replies", [1, 4])
def test_replies_are_the_same_and_come_in_fewer_steps(loaded: LlamaBackend, n_replies: int) -> None:
    asked = QUESTIONS[:n_replies]
    told, before = replies(loaded, without_guesses(CONFIG), asked)
    ids, stats = replies(loaded, CONFIG, asked)
    assert stats.accepted_tokens_total > 20
    if n_replies == 1:
        assert stats.steps_total < before.steps_total * 0.7
    kit = CoreKit(loaded, CONFIG)
    for question, one, other in zip(asked, told, ids, strict=True):
        parting = parting_of(loaded, kit.request("x", question).prompt_tokens, one, other)
        assert parting is None or parting.is_tossup, parting


PLAIN = [name for name, model in MODELS.items() if model.memory is MemoryKind.ATTENTION]
SAMPLINGS = {
    "greedy": GREEDY,
    "seed 5": Sampling(temperature=0.5, top_k=3, seed=5),
    "seed 6": Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=6),
    "penalties": Sampling(temperature=0.8, seed=7, repeat_penalty=1.05, frequency_penalty=0.1),
}


def random_model(name: str, folder: Path) -> EngineConfig:
    path = str(write_model(name, folder))
    return EngineConfig(
        name="t",
        path=path,
        n_ctx=512,
        n_parallel=3,
        n_batch=128,
        n_threads=1,
        cache_type_k="f32",
        cache_type_v="f32",
        flash_attention="off",
    )


RANDOM_QUESTIONS = ["ab ab ab ab ab ab", "cd ef " * 20, "the same, the same, the same, the"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_seed_gives_the_same_reply(name: str, tmp_path: Path) -> None:
    config = random_model(name, tmp_path)
    backend = LlamaBackend(config)
    plain_config = without_guesses(config)
    n_drafted = n_accepted = n_compared = 0
    try:
        for label, sampling in SAMPLINGS.items():
            told, _ = replies(backend, plain_config, RANDOM_QUESTIONS, sampling, 120)
            ids, stats = replies(backend, config, RANDOM_QUESTIONS, sampling, 120)
            n_drafted += stats.drafted_tokens_total
            n_accepted += stats.accepted_tokens_total
            for question, one, other in zip(RANDOM_QUESTIONS, told, ids, strict=True):
                # Chance may fall between two tokens so closely that 0.00001 decides: then company decides it, too.
                [alone], _ = replies(backend, plain_config, [question], sampling, 120)
                if alone == one:
                    n_compared += 1
                    assert other == one, label
    finally:
        backend.close()
    assert n_compared >= 10
    assert n_drafted > n_accepted > 10


@pytest.mark.parametrize("name", [name for name in MODELS if name not in PLAIN])
def test_other_kinds_of_memory(name: str, tmp_path: Path) -> None:
    """What a window no longer shows may be overwritten at any time; still nothing is lost. A state is never put at risk."""
    config = random_model(name, tmp_path)
    backend = LlamaBackend(config)
    try:
        _, before = replies(backend, without_guesses(config), RANDOM_QUESTIONS, n_tokens=120)
        _, stats = replies(backend, config, RANDOM_QUESTIONS, n_tokens=120)
    finally:
        backend.close()
    assert stats.decoded_prompt_tokens_total == before.decoded_prompt_tokens_total
    sliding = MODELS[name].memory is MemoryKind.SLIDING
    if not sliding:
        assert stats.drafted_tokens_total == 0
    elif MODELS[name].n_swa > 32:
        # Of a shorter window nothing may be put at risk, once a reply is longer than it.
        assert stats.drafted_tokens_total > 10


@pytest.mark.parametrize(
    ("name", "cache_type"),
    [
        pytest.param("demo", "q8_0", marks=pytest.mark.model),
        *((name, "f16") for name in (*PLAIN, "gemma3", "gemma3-w32")),
        ("llama", "q8_0"),
        ("gemma3", "q4_0"),
    ],
)
def test_wrong_guesses_leave_no_trace_in_the_logits(
    name: str, cache_type: str, tmp_path: Path
) -> None:
    """Teacher-forced: steps of several right and some wrong tokens, the wrong ones cut off, beside mere other chunk sizes."""
    backend = open_backend(name if name == "demo" else write_model(name, tmp_path), cache_type)
    try:
        forcing, text = Forcing(backend), Text.of(backend, 220)
        reference = plain(forcing, text)
        noise = max(
            difference(reference, plain(forcing, text, *sizes)) for sizes in ((31, 8), (7, 2))
        )
        backend.clear()
        forcing.feed(0, text.prompt)
        rng = random.Random(7)
        rows: list[Logits] = []
        while len(rows) < len(text.followed):
            right = text.followed[len(rows) : len(rows) + rng.randrange(1, 5)]
            wrong = text.junk[: rng.randrange(8)]
            forcing.decode(True, (0, [*right, *wrong]))
            rows += [forcing.logits(i) for i in range(len(right))]
            backend.seq_rm(0, len(text.prompt) + len(rows))
            assert forcing.intact(0, len(text.prompt) + len(rows))
        logits = np.stack(rows)
    finally:
        backend.close()
    assert difference(reference, logits) <= 2 * noise + EPSILON
    assert n_wrong_choices(reference, logits, noise + EPSILON / 2) == 0

"""Every kind of memory: what is shared, cut, saved and restored gives the logits of a fresh computation.

Tiny random models stand for the kinds (tests/support/tinymodels.py); `make prove ARGS=kinds` has more texts and cache types,
and real models.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from engine.backends.base import MemoryKind
from engine.backends.llamacpp import LlamaBackend
from engine.kv.pool import SequencePool
from tests.support.forcing import EPSILON, Forcing, Logits, Text, difference, open_backend
from tests.support.memoryways import Figures, measure, plain
from tests.support.tinymodels import MODELS, write_model

RECURRENT = [name for name, model in MODELS.items() if model.memory is MemoryKind.RECURRENT]
WITH_CELLS = [name for name in MODELS if name != "mamba2"]  # the rest has nothing to quantize
MATRIX = [
    *((name, "f16") for name in MODELS),
    *((name, "q8_0") for name in WITH_CELLS),
    *((name, "q4_0") for name in ("llama", "gemma3", "deepseek2", "qwen35")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    for name in MODELS:
        write_model(name, folder)
    return folder


@pytest.fixture(scope="module")
def figures_of(folder: Path) -> object:
    @cache
    def figures_of(name: str, cache_type: str) -> Figures:
        backend = open_backend(folder / f"{name}.gguf", cache_type)
        try:
            return measure(backend)
        finally:
            backend.close()

    return figures_of


@pytest.fixture
def figures(figures_of: object, request: pytest.FixtureRequest) -> Figures:
    """Measured once per model and cache type."""
    return figures_of(*request.param)  # type: ignore[operator,no-any-return]


@pytest.fixture
def backend(folder: Path, request: pytest.FixtureRequest) -> Iterator[LlamaBackend]:
    backend = open_backend(folder / f"{request.param}.gguf")
    yield backend
    backend.close()


every = pytest.mark.parametrize("figures", MATRIX, indirect=True, ids="-".join)
every_model = pytest.mark.parametrize("backend", list(MODELS), indirect=True)


@pytest.mark.parametrize("name", list(MODELS))
def test_the_backend_knows_the_kind(folder: Path, name: str) -> None:
    path = folder / f"{name}.gguf"
    assert path.stat().st_size < 10_000_000
    backend = open_backend(path)
    try:
        assert (backend.memory, backend.n_swa) == (MODELS[name].memory, MODELS[name].n_swa)
        assert MODELS[name].architecture in backend.info().description
    finally:
        backend.close()


@every
def test_a_wrong_memory_would_be_seen(figures: Figures, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["figures"][0]
    assert figures.wrong_cells > 3 * figures.allowed
    if name in RECURRENT:
        assert figures.wrong_state > 3 * figures.allowed


@every
def test_batched_equals_single(figures: Figures) -> None:
    assert figures.batched <= figures.allowed


@every
def test_no_decided_choice_changes(figures: Figures) -> None:
    assert figures.n_wrong_choices == 0


@every
def test_a_cut_is_exact_or_noticed(figures: Figures, request: pytest.FixtureRequest) -> None:
    can_cut = request.node.callspec.params["figures"][0] not in RECURRENT
    assert (figures.cut is not None) == can_cut
    assert figures.cut is None or figures.cut <= figures.allowed


@every
def test_a_copy_goes_its_own_way(figures: Figures) -> None:
    assert figures.copied is not None
    assert figures.copied <= figures.allowed


@every
def test_what_is_restored_is_what_was_saved(figures: Figures) -> None:
    assert figures.restored == 0.0
    assert figures.checkpoint == 0.0
    assert figures.fragmented <= figures.allowed


@every
def test_what_is_restored_can_be_cut(figures: Figures, request: pytest.FixtureRequest) -> None:
    can_cut = request.node.callspec.params["figures"][0] not in RECURRENT
    assert (figures.restored_cut is not None) == can_cut
    assert figures.restored_cut is None or figures.restored_cut <= figures.allowed


def allowed(forcing: Forcing, text: Text, reference: Logits) -> float:
    return 2 * difference(reference, plain(forcing, text, 31, 8)) + EPSILON


@every_model
def test_the_pool_reuses_what_the_kind_allows_and_never_a_wrong_state(
    backend: LlamaBackend,
) -> None:
    forcing, text = Forcing(backend), Text.of(backend, 200)
    reference = plain(forcing, text)
    bound = allowed(forcing, text, reference)
    pool = SequencePool(backend)
    known = []
    for tokens in ([*text.prompt[:150], *text.junk], text.prompt):
        seq = pool.take("scope", "key", tokens, 300)
        assert seq is not None
        known.append(len(seq.tokens))
        forcing.feed(seq.id, tokens[known[-1] :])
        pool.extend(seq, tokens[known[-1] :])
        pool.release(seq, keep=True)
    assert known == [0, 0 if backend.memory is MemoryKind.RECURRENT else 150]
    again = pool.take("scope", "key", [*text.prompt, *text.followed], 300)
    assert again is not None
    assert again.tokens == text.prompt  # going on is possible for every kind
    assert difference(reference, forcing.follow(again.id, text.followed)) <= bound


@every_model
def test_a_part_of_a_block_serves(backend: LlamaBackend) -> None:
    """The tokens agree up to the middle of a stored block: its first cells come back, the rest is computed."""
    forcing, text = Forcing(backend), Text.of(backend, 120)
    reference = plain(forcing, text)
    bound = allowed(forcing, text, reference)
    backend.clear()
    forcing.feed(0, text.prompt[:100])
    state = backend.save_state(0)
    forcing.feed(0, text.junk)
    blocks = [backend.save_cells(0, i, i + 30) for i in (0, 30, 60, 90)]
    for i, block in enumerate(blocks):
        assert backend.load_cells(1, 30 * i, min(30 * i + 30, 100), block)
    assert backend.load_state(1, state)
    assert forcing.length(1) == 100
    forcing.feed(1, text.prompt[100:])
    assert difference(reference, forcing.follow(1, text.followed)) <= bound


@pytest.mark.parametrize("backend", list(WITH_CELLS), indirect=True)
def test_bytes_that_do_not_fit_change_nothing(backend: LlamaBackend, folder: Path) -> None:
    forcing, text = Forcing(backend), Text.of(backend, 100)
    reference = plain(forcing, text)
    backend.clear()
    forcing.feed(0, text.prompt)
    cells, state = bytes(backend.save_cells(0, 0, 30)), bytes(backend.save_state(0))
    foreign = open_backend(folder / ("qwen3moe.gguf" if backend.n_swa else "gemma3.gguf"))
    try:
        other = Forcing(foreign)
        other.feed(0, text.prompt)
        wrong = [bytes(foreign.save_cells(0, 0, 30)), cells[:-100], cells[: len(cells) // 2], b""]
    finally:
        foreign.close()
    for data in wrong:
        assert not backend.load_cells(1, 0, 30, data)
        assert backend.seq_pos_max(1) == -1
    if state:
        assert not backend.load_state(1, state[:-100])
    assert difference(reference, forcing.follow(0, text.followed)) == 0.0


@pytest.mark.parametrize("backend", ["llama", "gemma3", "qwen35", "lfm2-w128"], indirect=True)
def test_without_room_nothing_is_loaded(backend: LlamaBackend) -> None:
    forcing, text = Forcing(backend), Text.of(backend, 100)
    reference = plain(forcing, text)
    backend.clear()
    forcing.feed(0, text.prompt)
    cells, state = bytes(backend.save_cells(0, 0, 100)), bytes(backend.save_state(0))
    backend.seq_rm(0, 0)
    forcing.feed(2, text.junk * 24)
    forcing.feed(2, text.junk[:24])
    n_free = backend.n_cells - forcing.length(2)
    assert 0 < n_free < 100
    assert not backend.load_cells(0, 0, 100, cells)
    assert backend.seq_pos_max(0) == -1
    forcing.feed(3, text.junk[:n_free])  # what was not loaded took no cell
    for seq_id in (2, 3):
        backend.seq_rm(seq_id, 0)
    assert backend.load_cells(0, 0, 100, cells)
    assert backend.load_state(0, state)
    assert difference(reference, forcing.follow(0, text.followed)) == 0.0


@pytest.mark.parametrize("backend", ["gemma3"], indirect=True)
def test_a_gap_behind_the_window_is_noticed(backend: LlamaBackend) -> None:
    """Between two times of saving, another prompt overwrites what the window no longer shows."""
    forcing, text = Forcing(backend), Text.of(backend, 400)
    reference = plain(forcing, text)
    bound = allowed(forcing, text, reference)
    backend.clear()
    forcing.feed(1, text.junk)
    forcing.feed(0, text.prompt[:128])
    saved = [(i, i + 64, bytes(backend.save_cells(0, i, i + 64))) for i in (0, 64)]
    forcing.feed(0, text.prompt[128:])
    backend.seq_rm(1, 0)
    forcing.feed(2, text.prompt[:220])
    assert 128 < backend.seq_pos_min(0) < 400 - backend.n_swa, "nothing was overwritten"
    saved += [(i, i + 68, bytes(backend.save_cells(0, i, i + 68))) for i in range(128, 400, 68)]
    wrong = []
    for length in (400, 360, 200, 100):
        backend.clear()
        assert all(backend.load_cells(0, *block) for block in saved)
        backend.seq_rm(0, length)
        was_intact = forcing.intact(0, length)
        forcing.feed(0, text.prompt[length:])
        delta = difference(reference, forcing.follow(0, text.followed))
        assert was_intact == (length >= 360)
        assert not was_intact or delta <= bound
        wrong.append(delta > 3 * bound)
    assert any(wrong), "the gap made no difference: this test proves nothing"

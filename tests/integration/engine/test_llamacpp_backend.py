"""The llama.cpp backend with the demo model: text, limits, samplers, settings, and what a wrong file says."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp as llama
import pytest
import structlog

from engine.backends.base import BatchPart, DecodeStatus, MemoryKind, make_backend
from engine.backends.llamacpp import LlamaBackend
from engine.backends.llamasampler import LlamaSampler
from engine.backends.longruns import MAX_RUN_CHARS
from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.types import Sampling
from engine.vram.settings import n_sequences, usable_cores

pytestmark = pytest.mark.model

PROMPT = "<|im_start|>user\nCount from one to ten.<|im_end|>\n<|im_start|>assistant\n"
GREEDY = Sampling(temperature=0.0)


def config(**fields: object) -> EngineConfig:
    # One thread: with the machine's other work on the same cores, two would spend their time waiting for each other.
    settings = {
        "name": "t",
        "n_ctx": 256,
        "kv_cells": 256,
        "n_parallel": 2,
        "n_batch": 128,
        "n_threads": 1,
    } | fields
    return EngineConfig(**settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def loaded() -> Iterator[LlamaBackend]:
    backend = LlamaBackend(config())
    yield backend
    backend.close()


@pytest.fixture
def backend(loaded: LlamaBackend) -> LlamaBackend:
    loaded.clear()
    return loaded


def ids_of(backend: LlamaBackend, text: str = PROMPT) -> list[int]:
    return backend.tokenize(text, add_special=False, parse_special=True)


def generate(
    backend: LlamaBackend, sampling: Sampling, n: int, accepted: Sequence[int] = (), seq_id: int = 0
) -> list[int]:
    backend.seq_rm(seq_id, 0)
    prompt = [*ids_of(backend), *accepted]
    sampler = backend.new_sampler(sampling, accepted)
    out: list[int] = []
    backend.decode([BatchPart(seq_id, 0, prompt, n_outputs=1)])
    while len(out) < n:
        out.append(backend.sample(0, sampler))
        at = len(prompt) + len(out) - 1
        backend.decode([BatchPart(seq_id, at, out[-1:], n_outputs=1)])
    sampler.close()
    sampler.close()
    return out


def test_what_is_loaded(backend: LlamaBackend) -> None:
    info = backend.info()
    assert info.n_ctx_tokens == 256
    assert info.kv_cells == backend.n_cells == 256
    assert info.n_vocab == backend.n_vocab == 49152
    assert len(info.fingerprint) == 32
    assert "llama" in info.description
    assert backend.memory is MemoryKind.ATTENTION
    assert (backend.bos_text, backend.eos_text) == ("<|im_start|>", "<|im_end|>")
    assert "<|im_start|>" in backend.chat_template()
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(backend.special_texts())
    assert backend.n_seq_max == n_sequences(config()) == 10


@pytest.mark.parametrize(
    "text", ["Hello, world", "你好，世界", "🚀👍🏽", "tab\tline\nend", "", "\ud800"]
)
def test_tokens_give_back_the_bytes(backend: LlamaBackend, text: str) -> None:
    ids = backend.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(map(backend.token_bytes, ids)) == text.encode(errors="replace")


def test_control_texts_are_control_only_when_asked(backend: LlamaBackend) -> None:
    as_control = backend.tokenize("<|im_end|>", add_special=False, parse_special=True)
    as_text = backend.tokenize("<|im_end|>", add_special=False, parse_special=False)
    assert len(as_control) == 1
    assert backend.is_eog(as_control[0])
    assert backend.token_bytes(as_control[0]) == b""
    assert len(as_text) > 1
    assert not any(map(backend.is_eog, as_text))


def test_tokenizing_goes_on_while_decode_runs(backend: LlamaBackend) -> None:
    text = "A sentence with 汉字 in it. " * 40
    expected = backend.tokenize(text, add_special=False, parse_special=True)
    results: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: results.extend(
            backend.tokenize(text, add_special=False, parse_special=True) for _ in range(20)
        )
    )
    thread.start()
    alone = generate(backend, GREEDY, 6)
    thread.join()
    assert results == [expected] * 20
    assert alone == generate(backend, GREEDY, 6)


def test_greedy_is_deterministic_and_seeds_reproduce(backend: LlamaBackend) -> None:
    assert generate(backend, GREEDY, 6) == generate(backend, GREEDY, 6)
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    first = generate(backend, Sampling(seed=1, **hot), 8)
    assert first == generate(backend, Sampling(seed=1, **hot), 8)
    assert first != generate(backend, Sampling(seed=2, **hot), 8)


def test_no_text_overflows_the_stack_of_a_tokenizer(
    backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another `tokenizer.ggml.pre` (deepseek-v3, gpt-4o, tekken, …) 30,000 equal letters end the process."""
    given: list[str] = []
    tokenize = backend._tokenize

    def watched(text: str, **options: bool) -> list[int]:
        given.append(text)
        return tokenize(text, **options)

    monkeypatch.setattr(backend, "_tokenize", watched)
    text = f"<|im_start|>user\n{'a' * 30_000} {'汉' * 9000}<|im_end|>"
    ids = backend.tokenize(text, add_special=False, parse_special=True)
    assert "".join(given) == text
    assert max(map(len, given)) <= 2 * MAX_RUN_CHARS
    visible = b"".join(map(backend.token_bytes, ids)).decode()
    assert visible == text.replace("<|im_start|>", "").replace("<|im_end|>", "")


@pytest.mark.parametrize("only_the_best", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}])
def test_where_only_the_best_is_left_it_is_chosen_at_any_temperature(
    backend: LlamaBackend, only_the_best: dict[str, Any]
) -> None:
    sampling = Sampling(**{"temperature": 5.0, "top_k": 0, "min_p": 0.0} | only_the_best)
    assert generate(backend, sampling, 6) == generate(backend, GREEDY, 6)


def test_penalties_see_accepted_ids(backend: LlamaBackend) -> None:
    first = generate(backend, GREEDY, 1)[0]
    # The same place in the text, but the sampler has seen the favourite before: it must choose another.
    strong = Sampling(temperature=0.0, presence_penalty=100.0)
    sampler = backend.new_sampler(strong, [first])
    backend.seq_rm(0, 0)
    backend.decode([BatchPart(0, 0, ids_of(backend), n_outputs=1)])
    assert backend.sample(0, sampler) != first
    sampler.close()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=0.0, repeat_penalty=1.05),
        Sampling(temperature=0.0, repeat_penalty=1.5, repeat_last_n=6, presence_penalty=0.7),
        Sampling(temperature=0.0, repeat_penalty=1.2, frequency_penalty=0.6),
        Sampling(temperature=0.0, repeat_penalty=0.9, presence_penalty=-0.5),
        Sampling(seed=5, repeat_penalty=1.1),
        Sampling(seed=7, top_k=5, frequency_penalty=0.5, presence_penalty=-0.5),
        Sampling(seed=9, top_k=100, min_p=0.0, top_p=1.0, temperature=1.5, repeat_penalty=0.9),
        Sampling(seed=1, top_k=40, temperature=1.0),
    ],
)
def test_the_short_list_chooses_what_the_whole_list_would(
    backend: LlamaBackend, sampling: Sampling
) -> None:
    short, whole = backend.new_sampler(sampling, [5, 9]), backend.new_sampler(sampling, [5, 9])
    assert isinstance(whole, LlamaSampler)
    backend.seq_rm(0, 0)
    tokens, start = ids_of(backend), 0
    for _ in range(24):
        backend.decode([BatchPart(0, start, tokens, n_outputs=1)])
        start += len(tokens)
        token = backend.sample(0, short)
        assert token == llama.llama_sampler_sample(whole.chain, backend._context, -1)
        tokens = [token]
    short.close()
    whole.close()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=float("nan")),
        Sampling(temperature=-1.0),
        Sampling(temperature=float("inf")),
        Sampling(top_k=-5, top_p=7.0, min_p=-1.0, seed=1),
        Sampling(
            repeat_penalty=0.0, repeat_last_n=2**31 - 1, frequency_penalty=float("nan"), seed=-1
        ),
        Sampling(presence_penalty=float("inf"), repeat_last_n=-1, seed=2**40),
    ],
)
def test_values_outside_a_domain_disable_instead_of_killing(
    backend: LlamaBackend, sampling: Sampling
) -> None:
    assert len(generate(backend, sampling, 2)) == 2


def test_limits_are_checked_before_llama_cpp_would_abort(backend: LlamaBackend) -> None:
    too_big = [BatchPart(0, 0, [5] * (backend.n_batch + 1), n_outputs=0)]
    too_many = [BatchPart(0, 0, [5] * 11, n_outputs=backend.n_outputs_max + 1)]
    too_long = [BatchPart(0, 0, [5], n_outputs=2)]
    no_such = [BatchPart(backend.n_seq_max, 0, [5], n_outputs=0)]
    for parts in (too_big, too_many, too_long, no_such, []):
        with pytest.raises(ValueError, match=r"batch|sequence id"):
            backend.decode(parts)
    with pytest.raises(ValueError, match="out of range"):
        backend.seq_rm(99, 0)
    backend.decode([BatchPart(0, 0, [5, 6], n_outputs=0)])
    with pytest.raises(ValueError, match="not empty"):
        backend.seq_cp(1, 0, 1)
    with pytest.raises(ValueError, match="closed"):
        backend.sample(0, _closed(backend))


def _closed(backend: LlamaBackend) -> object:
    sampler = backend.new_sampler(GREEDY, ())
    sampler.close()
    return sampler


def test_positions_after_cut_and_copy(backend: LlamaBackend) -> None:
    backend.decode([BatchPart(0, 0, [5, 6, 7, 8], n_outputs=0)])
    backend.seq_cp(0, 1, 3)
    assert (backend.seq_pos_min(1), backend.seq_pos_max(1)) == (0, 2)
    backend.seq_rm(0, 2)
    assert backend.seq_pos_max(0) == 1
    assert backend.seq_pos_max(1) == 2
    backend.seq_rm(0, 0)
    assert (backend.seq_pos_min(0), backend.seq_pos_max(0)) == (-1, -1)


def test_a_full_cache_is_no_slot_and_leaves_it_as_it_was(backend: LlamaBackend) -> None:
    for seq_id in range(2):
        assert backend.decode([BatchPart(seq_id, 0, [5] * 120, n_outputs=0)]) is DecodeStatus.DONE
    assert backend.decode([BatchPart(4, 0, [5] * 20, n_outputs=0)]) is DecodeStatus.NO_SLOT
    assert backend.seq_pos_max(4) == -1
    assert backend.decode([BatchPart(4, 0, [5] * 10, n_outputs=0)]) is DecodeStatus.DONE


def test_a_quantized_cache_turns_flash_attention_on(backend: LlamaBackend) -> None:
    quantized = make_backend(config(cache_type_k="q8_0", cache_type_v="q8_0", n_parallel=1))
    try:
        assert isinstance(quantized, LlamaBackend)
        text = b"".join(map(quantized.token_bytes, generate(quantized, GREEDY, 5)))
        assert text.strip()
        assert quantized.info().fingerprint == backend.info().fingerprint, "ids mean the same"
        assert quantized.state_format() != backend.state_format(), "saved bytes do not"
    finally:
        quantized.close()
        quantized.close()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"cache_type_k": "q9"}, 'cache_type_k: "q9" is unknown'),
        ({"flash_attention": "maybe"}, "must be auto, on or off"),
        ({"flash_attention": "off", "cache_type_v": "q8_0"}, "needs flash attention"),
        ({"path": "/nowhere/model.gguf"}, "does not exist"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(
    fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(EngineConfigError, match=sentence):
        make_backend(config(**fields))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    whole = find_model("t", "demo").read_bytes()
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<html>not found</html>")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(whole.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0zebra", 1))
    for path, sentence in [
        (page, "is not a GGUF file"),
        (cut, "damaged or cut off"),
        (strange, "architecture 'zebra'"),
    ]:
        with pytest.raises(EngineConfigError, match=sentence) as caught:
            make_backend(config(path=str(path)))
        assert "\n" not in str(caught.value)


def test_threads_are_cores() -> None:
    assert 1 <= usable_cores() <= 4096


def test_a_resumed_reply_goes_on_with_the_chance_of_its_seed(backend: LlamaBackend) -> None:
    for sampling in (
        Sampling(temperature=1.2, seed=7),
        Sampling(temperature=0.6, seed=2**40, repeat_penalty=1.3),
    ):
        whole = generate(backend, sampling, 12)
        for n_given in (1, 5):
            rest = generate(backend, sampling, 12 - n_given, whole[:n_given])
            assert whole[:n_given] + rest == whole


def test_a_cache_beyond_the_memory_is_refused_before_it_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.backends.llamacpp.available_bytes", lambda: 2**20)
    with pytest.raises(EngineConfigError, match=r"models\.t: the KV cache needs 0\.0 GiB"):
        make_backend(config())


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
def test_the_size_of_a_cache_is_known_beforehand(
    loaded: LlamaBackend, cache_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "engine.backends.llamacpp.check_memory", lambda _, n_bytes, __: asked.append(n_bytes)
    )
    other = LlamaBackend(config(cache_type_k=cache_type, cache_type_v=cache_type))
    lines = [line for line in other._native_log.lines if "llama_kv_cache: size =" in line]
    other.close()
    assert asked[0] / 2**20 == pytest.approx(float(lines[0].split()[3]), abs=0.01)


def test_the_window_warning_of_a_shared_cache_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with structlog.testing.capture_logs() as logs:
        other = LlamaBackend(config(n_ctx=8192, kv_cells=8192 + 256))
        kept = list(other._native_log.lines)
        other.close()
    assert any("n_ctx_train" in line for line in kept), (
        "llama.cpp no longer says it: drop the filter"
    )
    assert not [log for log in logs if "n_ctx_train" in str(log.get("line"))]


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    whole = find_model("t", "demo").read_bytes()
    path = tmp_path / "mute.gguf"
    # Kept in order: of equal length, so that no offset moves.
    path.write_bytes(whole.replace(b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0none", 1))
    with pytest.raises(EngineConfigError, match="has no tokenizer"):
        make_backend(config(path=str(path)))

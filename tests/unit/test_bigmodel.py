"""The writer of full-size random models: its blocks are valid numbers of the right size, its vocabulary is whole."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from engine.config import EngineConfig
from engine.vram.devices import GIB
from engine.vram.gguf import TensorInfo, read_model
from engine.vram.planning import Wishes, make_plan
from tests.bench.bench16b import N_PEOPLE, bounds, read_bandwidth
from tests.support import shapefiles
from tests.support.bigmodel import Pages, vocabulary, write_big
from tests.support.forcing import Forcing, open_backend
from tests.support.shapefiles import MODELS, Published


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q6_K, Kind.Q5_0, Kind.Q8_0])
def test_random_blocks_are_weights(kind: Kind) -> None:
    tensor = TensorInfo("t", (1024, 96), int(kind), 0)
    file = io.BytesIO()
    Pages(1).write(tensor, 3, file)
    data = file.getvalue()
    assert len(data) == tensor.n_bytes
    weights = dequantize(np.frombuffer(data, dtype=np.uint8).reshape(96, -1), kind)
    assert np.isfinite(weights).all()
    spread = 1024**-0.5
    assert abs(float(weights.mean())) < 0.07 * spread  # q5_0 has one step more below 0 than above
    assert 0.8 * spread < float(weights.std()) < 1.25 * spread


def test_a_tensor_longer_than_a_page_goes_on_at_its_beginning() -> None:
    pages, tensor = Pages(1), TensorInfo("t", (32, 300_000), int(Kind.Q8_0), 0)
    file = io.BytesIO()
    pages.write(tensor, 1, file)
    assert len(file.getvalue()) == tensor.n_bytes


@pytest.mark.parametrize("n_tokens", [400, 102400])
def test_every_rule_of_the_vocabulary_makes_a_token(n_tokens: int) -> None:
    words = vocabulary(n_tokens)
    tokens = words["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == n_tokens
    known = set(tokens[:256])
    for merge in words["tokenizer.ggml.merges"]:
        left, right = merge.split(" ")
        assert {left, right} <= known
        known.add(left + right)
    assert known | {tokens[-1], tokens[-2], tokens[-3]} == set(tokens)


def test_llama_cpp_loads_one_and_its_logits_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = shapefiles._sizes(
        2, 256, 512, (4, 2), context_length=2048, vocab_size=2000, expert_count=8, expert_used_count=2,
        expert_feed_forward_length=96, attention__key_length=64, attention__value_length=64, rope__dimension_count=64,
    )  # fmt: skip

    def tensors() -> shapefiles.Tensors:
        yield "token_embd.weight", (256, 2000)
        yield "output_norm.weight", (256,)
        yield "output.weight", (256, 2000)
        for i in range(2):
            yield from shapefiles._attention(f"blk.{i}.", 256, 4, 2, 64)
            yield from shapefiles._experts(f"blk.{i}.", 256, 96, 8)

    monkeypatch.setitem(MODELS, "small", Published("qwen3moe", "Q4_K_M", 2, sizes, tensors))
    path = write_big(tmp_path, "small", 2000)
    assert read_model(path).missing_bytes == 0
    assert path.stat().st_size >= read_model(path).weight_bytes
    backend = open_backend(path)
    try:
        ids = backend.tokenize("the quick brown fox", add_special=False, parse_special=False)
        assert max(ids) >= 256, "no word is longer than a byte"
        logits = Forcing(backend).follow(0, ids)
        assert 0.1 < float(logits.std()) < 100
    finally:
        backend.close()


def test_the_bound_counts_experts_once_for_all_who_read_them(tmp_path: Path) -> None:
    path = shapefiles.write_shape("deepseek-v2-lite-q4_k_m", tmp_path, sparse=False)
    plan = make_plan(EngineConfig(name="m", path=str(path)), Wishes(ram=64 * GIB, ask_llama=False))
    limits = bounds(plan.model, plan.ledger, 20e9)
    assert limits[1] == pytest.approx(20e9 / plan.ledger.ram.read_bytes)
    assert limits[1] < limits[N_PEOPLE] < N_PEOPLE * limits[1]


def test_the_bandwidth_of_this_machine_is_believable() -> None:
    assert 1e9 < read_bandwidth(0.05, 2**25) < 2e12

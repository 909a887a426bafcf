"""The parts of tiny random models: one GGUF being written, and the layers that several architectures share.

The weights are seeded and scaled so that the logits spread by several units, attention looks at few tokens and recurrent
states fade slowly: a wrong or missing piece of memory is seen in the logits. Control tokens are never the best choice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGUFWriter

from tests.support.tinyvocab import CONTROL_TOKENS, vocabulary

N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM = 128, 4, 2, 32
N_FF, N_FF_EXPERT, N_EXPERT, N_EXPERT_USED = 192, 64, 8, 4
N_KV_LORA = 64
N_CTX_TRAIN: Final = 4096
_Weights = np.ndarray[Any, np.dtype[Any]]


class ModelFile:
    """One GGUF being written. Shapes are in ggml's order: the length of a row first."""

    def __init__(self, path: Path, architecture: str, seed: int) -> None:
        self._writer = GGUFWriter(path, architecture)
        self._random = np.random.default_rng(seed)
        self._architecture = architecture
        self.meta({"general.name": "tiny", "general.file_type": 0})

    def meta(self, pairs: dict[str, Any]) -> None:
        """Metadata; a key that begins with a dot is the architecture's own."""
        add: dict[type, Callable[[str, Any], None]] = {
            bool: self._writer.add_bool,
            int: self._writer.add_uint32,
            float: self._writer.add_float32,
            str: self._writer.add_string,
            list: self._writer.add_array,
        }
        for key, value in pairs.items():
            add[type(value)](self._architecture + key if key[0] == "." else key, value)

    def put(self, name: str, values: _Weights) -> None:
        """A tensor with given values."""
        self._writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """Rows that turn an input of length √shape[0] into values of standard deviation `gain`."""
        self.put(name, self._random.normal(0.0, gain / shape[0] ** 0.5, shape[::-1]))

    def scale(self, name: str, *shape: int, around: float = 1.0) -> None:
        """The weights of a norm."""
        self.put(name, self._random.normal(around, 0.1, shape[::-1]))

    def between(self, low: float, high: float, *shape: int) -> _Weights:
        """Evenly distributed values."""
        return self._random.uniform(low, high, shape[::-1])

    def ends(self, norm: str = "output_norm.weight", embedding_size: float = 1.0) -> None:
        """Vocabulary, embedding, last norm and output."""
        words = vocabulary()
        self.meta(words)
        n_vocab = len(words["tokenizer.ggml.tokens"])
        embedding = self._random.normal(0.0, embedding_size, (n_vocab, N_EMBD))
        self.put("token_embd.weight", embedding)
        self.scale(norm, N_EMBD)
        output = self._random.normal(0.0, 3.0 / N_EMBD**0.5, (n_vocab, N_EMBD))
        output[-len(CONTROL_TOKENS) :] = 0.0
        self.put("output.weight", output)

    def close(self) -> None:
        """Write everything."""
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()


def sizes(n_layer: int, **more: Any) -> dict[str, Any]:
    """The metadata that every architecture has; in the names of `more`, __ stands for a dot."""
    return {
        ".context_length": N_CTX_TRAIN,
        ".embedding_length": N_EMBD,
        ".block_count": n_layer,
        ".feed_forward_length": N_FF,
        ".attention.head_count": N_HEAD,
        ".attention.head_count_kv": N_HEAD_KV,
        ".attention.key_length": HEAD_DIM,
        ".attention.value_length": HEAD_DIM,
        ".attention.layer_norm_rms_epsilon": 1e-6,
        ".rope.dimension_count": HEAD_DIM,
    } | {f".{key.replace('__', '.')}": value for key, value in more.items()}


def attention(file: ModelFile, i: int, *, head_norms: bool = False, gated: bool = False) -> None:
    """Grouped-query attention; with `gated`, the queries carry a gate of the same size."""
    n_q, n_kv = N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM
    # Scores of standard deviation 2.5: some tokens matter, the rest do not.
    sharp = 1.0 if head_norms else 1.6
    file.matrix(f"blk.{i}.attn_q.weight", N_EMBD, n_q * (2 if gated else 1), gain=sharp)
    file.matrix(f"blk.{i}.attn_k.weight", N_EMBD, n_kv, gain=sharp)
    file.matrix(f"blk.{i}.attn_v.weight", N_EMBD, n_kv)
    file.matrix(f"blk.{i}.attn_output.weight", n_q, N_EMBD, gain=2.0)
    if head_norms:
        file.scale(f"blk.{i}.attn_q_norm.weight", HEAD_DIM, around=1.6)
        file.scale(f"blk.{i}.attn_k_norm.weight", HEAD_DIM, around=1.6)


def feed_forward(file: ModelFile, i: int, suffix: str = "", n_ff: int = N_FF) -> None:
    """A gated feed-forward layer."""
    file.matrix(f"blk.{i}.ffn_gate{suffix}.weight", N_EMBD, n_ff)
    file.matrix(f"blk.{i}.ffn_up{suffix}.weight", N_EMBD, n_ff)
    file.matrix(f"blk.{i}.ffn_down{suffix}.weight", n_ff, N_EMBD)


def experts(file: ModelFile, i: int) -> None:
    """A router and its experts; the last one chosen has little weight, so that a tie among experts matters little."""
    file.matrix(f"blk.{i}.ffn_gate_inp.weight", N_EMBD, N_EXPERT, gain=3.0)
    file.matrix(f"blk.{i}.ffn_gate_exps.weight", N_EMBD, N_FF_EXPERT, N_EXPERT)
    file.matrix(f"blk.{i}.ffn_up_exps.weight", N_EMBD, N_FF_EXPERT, N_EXPERT)
    file.matrix(f"blk.{i}.ffn_down_exps.weight", N_FF_EXPERT, N_EMBD, N_EXPERT)


EXPERT_SIZES: Final = {
    "expert_count": N_EXPERT,
    "expert_used_count": N_EXPERT_USED,
    "expert_feed_forward_length": N_FF_EXPERT,
}


def norms(file: ModelFile, i: int, *names: str) -> None:
    """The weights of a layer's norms."""
    for name in names:
        file.scale(f"blk.{i}.{name}.weight", N_EMBD)

"""Tiny models with random weights, one for each way in which llama.cpp remembers a text. Written with the `gguf` package.

Names of tensors and metadata are those that llama.cpp of the pinned commit asks for (src/models/*.cpp). `tinyparts` has
the parts that several architectures share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.backends.base import MemoryKind
from tests.support.tinyparts import (
    EXPERT_SIZES,
    HEAD_DIM,
    N_EMBD,
    N_FF,
    N_FF_EXPERT,
    N_HEAD,
    N_HEAD_KV,
    N_KV_LORA,
    ModelFile,
    attention,
    experts,
    feed_forward,
    norms,
    sizes,
)


def _llama(file: ModelFile) -> None:
    file.meta(sizes(3))
    file.ends()
    for i in range(3):
        norms(file, i, "attn_norm", "ffn_norm")
        attention(file, i)
        feed_forward(file, i)


def _gemma3(n_swa: int) -> Callable[[ModelFile], None]:
    def write(file: ModelFile) -> None:
        """Three layers with a window, then one without."""
        file.meta(sizes(4, attention__sliding_window=n_swa))
        file.meta({".attention.sliding_window_pattern": 4})
        file.ends(embedding_size=N_EMBD**-0.5)  # gemma multiplies by √n_embd
        for i in range(4):
            norms(file, i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
            attention(file, i, head_norms=True)
            feed_forward(file, i)

    return write


def _deepseek2(file: ModelFile) -> None:
    """Latent attention: one row of 64 + 32 values per token serves all heads as key and value."""
    file.meta(
        sizes(3, attention__q_lora_rank=64, attention__kv_lora_rank=N_KV_LORA, **EXPERT_SIZES)
        | {
            ".attention.head_count_kv": 1,
            ".attention.key_length": N_KV_LORA + HEAD_DIM,
            ".attention.value_length": N_KV_LORA,
            ".attention.key_length_mla": 2 * HEAD_DIM,
            ".attention.value_length_mla": HEAD_DIM,
            ".leading_dense_block_count": 1,
            ".expert_shared_count": 1,
            ".expert_weights_scale": 1.0,
        }
    )
    file.ends()
    for i in range(3):
        norms(file, i, "attn_norm", "ffn_norm")
        file.scale(f"blk.{i}.attn_q_a_norm.weight", 64)
        file.scale(f"blk.{i}.attn_kv_a_norm.weight", N_KV_LORA)
        file.matrix(f"blk.{i}.attn_q_a.weight", N_EMBD, 64)
        file.matrix(f"blk.{i}.attn_q_b.weight", 64, N_HEAD * 2 * HEAD_DIM, gain=1.6)
        file.matrix(f"blk.{i}.attn_kv_a_mqa.weight", N_EMBD, N_KV_LORA + HEAD_DIM, gain=1.6)
        file.matrix(f"blk.{i}.attn_k_b.weight", HEAD_DIM, N_KV_LORA, N_HEAD)
        file.matrix(f"blk.{i}.attn_v_b.weight", N_KV_LORA, HEAD_DIM, N_HEAD)
        file.matrix(f"blk.{i}.attn_output.weight", N_HEAD * HEAD_DIM, N_EMBD, gain=2.0)
        if i == 0:
            feed_forward(file, i)
        else:
            experts(file, i)
            feed_forward(file, i, "_shexp", N_FF_EXPERT)


def _qwen3moe(file: ModelFile) -> None:
    file.meta(sizes(3, **EXPERT_SIZES))
    file.ends()
    for i in range(3):
        norms(file, i, "attn_norm", "ffn_norm")
        attention(file, i, head_norms=True)
        experts(file, i)


def _delta_net(file: ModelFile, i: int) -> None:
    """Gated delta net: 4 value heads, 2 key heads, a state of 32 × 32 each."""
    n_values, n_mixed = 4 * 32, 2 * 2 * 32 + 4 * 32
    file.matrix(f"blk.{i}.attn_qkv.weight", N_EMBD, n_mixed)
    file.matrix(f"blk.{i}.attn_gate.weight", N_EMBD, n_values)
    file.matrix(f"blk.{i}.ssm_conv1d.weight", 4, n_mixed, gain=2.0)
    file.put(f"blk.{i}.ssm_dt.bias", file.between(-5.0, -2.0, 4))
    file.put(f"blk.{i}.ssm_a", -file.between(0.5, 1.5, 4))
    file.matrix(f"blk.{i}.ssm_beta.weight", N_EMBD, 4)
    file.matrix(f"blk.{i}.ssm_alpha.weight", N_EMBD, 4, gain=0.5)
    file.scale(f"blk.{i}.ssm_norm.weight", 32)
    file.matrix(f"blk.{i}.ssm_out.weight", n_values, N_EMBD, gain=2.0)


def _qwen35(*, has_experts: bool) -> Callable[[ModelFile], None]:
    def write(file: ModelFile) -> None:
        """Recurrent, recurrent, recurrent, attention."""
        file.meta(sizes(4, **(EXPERT_SIZES if has_experts else {})))
        file.meta(
            {
                ".rope.dimension_sections": [6, 6, 4, 0],
                ".full_attention_interval": 4,
                ".ssm.conv_kernel": 4,
                ".ssm.inner_size": 128,
                ".ssm.state_size": 32,
                ".ssm.time_step_rank": 4,
                ".ssm.group_count": 2,
            }
        )
        file.ends()
        for i in range(4):
            norms(file, i, "attn_norm", "post_attention_norm")
            if i == 3:
                attention(file, i, head_norms=True, gated=True)
            else:
                _delta_net(file, i)
            if has_experts:
                experts(file, i)
                feed_forward(file, i, "_shexp", N_FF)
                file.matrix(f"blk.{i}.ffn_gate_inp_shexp.weight", N_EMBD)
            else:
                feed_forward(file, i)

    return write


def _lfm2(n_swa: int) -> Callable[[ModelFile], None]:
    def write(file: ModelFile) -> None:
        """Short convolutions over three tokens, and attention in every second layer; 0 = without a window."""
        kv_heads = [0, N_HEAD_KV, 0, N_HEAD_KV]
        file.meta(sizes(4, shortconv__l_cache=3) | {".attention.head_count_kv": kv_heads})
        if n_swa:
            file.meta({".attention.sliding_window": n_swa})
        file.ends("token_embd_norm.weight")
        for i, n_head_kv in enumerate(kv_heads):
            norms(file, i, "attn_norm", "ffn_norm")
            if n_head_kv:
                attention(file, i, head_norms=True)
            else:
                file.matrix(f"blk.{i}.shortconv.conv.weight", 3, N_EMBD)
                file.matrix(f"blk.{i}.shortconv.in_proj.weight", N_EMBD, 3 * N_EMBD)
                file.matrix(f"blk.{i}.shortconv.out_proj.weight", N_EMBD, N_EMBD)
            feed_forward(file, i)

    return write


_MAMBA_INNER, _MAMBA_STATE, _MAMBA_HEADS = 2 * N_EMBD, 32, 8
_MAMBA_SIZES: Final = {
    ".ssm.conv_kernel": 4,
    ".ssm.inner_size": _MAMBA_INNER,
    ".ssm.state_size": _MAMBA_STATE,
    ".ssm.time_step_rank": _MAMBA_HEADS,
    ".ssm.group_count": 1,
}


def _mamba(file: ModelFile, i: int) -> None:
    """Mamba-2 with 8 heads of 32."""
    n_mixed = _MAMBA_INNER + 2 * _MAMBA_STATE
    file.matrix(f"blk.{i}.ssm_in.weight", N_EMBD, _MAMBA_INNER + n_mixed + _MAMBA_HEADS)
    file.matrix(f"blk.{i}.ssm_conv1d.weight", 4, n_mixed)
    file.put(f"blk.{i}.ssm_conv1d.bias", file.between(-0.1, 0.1, n_mixed))
    file.put(f"blk.{i}.ssm_dt.bias", file.between(-7.0, -3.0, _MAMBA_HEADS))
    file.put(f"blk.{i}.ssm_a", -file.between(0.5, 1.5, 1, _MAMBA_HEADS))
    file.put(f"blk.{i}.ssm_d", file.between(0.5, 1.5, 1, _MAMBA_HEADS))
    file.scale(f"blk.{i}.ssm_norm.weight", _MAMBA_INNER, 1)
    file.matrix(f"blk.{i}.ssm_out.weight", _MAMBA_INNER, N_EMBD)


def _mamba2(file: ModelFile) -> None:
    """Nothing but recurrent layers."""
    file.meta(sizes(3) | _MAMBA_SIZES)
    file.ends()
    for i in range(3):
        norms(file, i, "attn_norm")
        _mamba(file, i)


def _granite_hybrid(file: ModelFile) -> None:
    """Mamba-2, and attention in every second layer."""
    kv_heads = [0, N_HEAD_KV, 0, N_HEAD_KV]
    file.meta(sizes(4) | _MAMBA_SIZES | {".attention.head_count_kv": kv_heads})
    file.ends()
    for i, n_head_kv in enumerate(kv_heads):
        norms(file, i, "attn_norm", "ffn_norm")
        if n_head_kv:
            attention(file, i)
        else:
            _mamba(file, i)
        feed_forward(file, i)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """What can be written, and what the backend must make of it."""

    architecture: str
    memory: MemoryKind
    n_swa: int
    write: Callable[[ModelFile], None]


MODELS: Final = {
    "llama": TinyModel("llama", MemoryKind.ATTENTION, 0, _llama),
    "gemma3": TinyModel("gemma3", MemoryKind.SLIDING, 128, _gemma3(128)),
    "gemma3-w32": TinyModel("gemma3", MemoryKind.SLIDING, 32, _gemma3(32)),
    "deepseek2": TinyModel("deepseek2", MemoryKind.ATTENTION, 0, _deepseek2),
    "qwen3moe": TinyModel("qwen3moe", MemoryKind.ATTENTION, 0, _qwen3moe),
    "qwen35": TinyModel("qwen35", MemoryKind.RECURRENT, 0, _qwen35(has_experts=False)),
    "qwen35moe": TinyModel("qwen35moe", MemoryKind.RECURRENT, 0, _qwen35(has_experts=True)),
    "lfm2": TinyModel("lfm2", MemoryKind.RECURRENT, 0, _lfm2(0)),
    "lfm2-w128": TinyModel("lfm2", MemoryKind.RECURRENT, 128, _lfm2(128)),
    "granitehybrid": TinyModel("granitehybrid", MemoryKind.RECURRENT, 0, _granite_hybrid),
    "mamba2": TinyModel("mamba2", MemoryKind.RECURRENT, 0, _mamba2),
}


def write_model(name: str, folder: Path, seed: int = 1) -> Path:
    """Write one of `MODELS`; a file of some megabytes."""
    model = MODELS[name]
    path = folder / f"{name}.gguf"
    file = ModelFile(path, model.architecture, seed)
    model.write(file)
    file.close()
    return path

"""Header-only GGUFs in the shapes of published models: what the planner sees of them, without downloading gigabytes.

`python -m tests.support.shapefiles FOLDER [NAME …]` writes them. The data is a hole in the file (a sparse file of the
real size), so that llama.cpp's dry run takes them as well. Tensor types follow llama.cpp's own mixtures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as T

Tensors = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Published:
    """A published model: its metadata (a key that begins with a dot is the architecture's own) and its tensors."""

    architecture: str
    quant: str
    n_layer: int
    meta: dict[str, Any]
    tensors: Callable[[], Tensors]


def _more_bits(i: int, n: int) -> bool:
    """llama.cpp's choice of the layers whose attn_v and ffn_down get more bits (llama-quant.cpp)."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _type(name: str, shape: tuple[int, ...], quant: str, n_layer: int) -> T:
    if len(shape) == 1 or "gate_inp" in name:
        return T.F32
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    base = T.Q3_K if quant.startswith("Q3") else T.Q4_K
    kind = base
    if name == "output.weight":
        kind = T.Q6_K
    elif name == "token_embd.weight":
        kind = base if quant != "tied" else T.Q6_K
    elif "attn_v." in name or "attn_v_b" in name or "ffn_down" in name:
        if quant == "Q4_K_M":
            kind = T.Q6_K if _more_bits(layer, n_layer) else base
        elif quant == "Q3_K_M":
            kind = T.Q5_K if layer < n_layer // 16 else T.Q4_K
    elif quant == "Q3_K_M" and "attn_output" in name:
        kind = T.Q4_K
    if shape[0] % 256:  # rows that do not fill a block of 256
        kind = {T.Q3_K: T.IQ4_NL, T.Q4_K: T.Q5_0, T.Q5_K: T.Q5_1, T.Q6_K: T.Q8_0}[kind]
    return kind


def _deepseek_v2_lite(*, latent: bool) -> Callable[[], Tensors]:
    def tensors() -> Tensors:
        yield "token_embd.weight", (2048, 102400)
        yield "output_norm.weight", (2048,)
        yield "output.weight", (2048, 102400)
        for i in range(27):
            b = f"blk.{i}."
            yield b + "attn_norm.weight", (2048,)
            yield b + "ffn_norm.weight", (2048,)
            yield b + "attn_kv_a_norm.weight", (512,)
            yield b + "attn_q.weight", (2048, 16 * 192)
            yield b + "attn_kv_a_mqa.weight", (2048, 576)
            if latent:
                yield b + "attn_k_b.weight", (128, 512, 16)
                yield b + "attn_v_b.weight", (512, 128, 16)
            else:
                yield b + "attn_kv_b.weight", (512, 16 * 256)
            yield b + "attn_output.weight", (2048, 2048)
            if i == 0:
                yield from _dense(b, 2048, 10944)
                continue
            yield from _experts(b, 2048, 1408, 64)
            yield from _dense(b, 2048, 2816, "_shexp")

    return tensors


def _dense(b: str, n_embd: int, n_ff: int, suffix: str = "") -> Tensors:
    yield b + f"ffn_gate{suffix}.weight", (n_embd, n_ff)
    yield b + f"ffn_up{suffix}.weight", (n_embd, n_ff)
    yield b + f"ffn_down{suffix}.weight", (n_ff, n_embd)


def _experts(b: str, n_embd: int, n_ff: int, n_expert: int) -> Tensors:
    yield b + "ffn_gate_inp.weight", (n_embd, n_expert)
    yield b + "ffn_gate_exps.weight", (n_embd, n_ff, n_expert)
    yield b + "ffn_up_exps.weight", (n_embd, n_ff, n_expert)
    yield b + "ffn_down_exps.weight", (n_ff, n_embd, n_expert)


def _attention(b: str, n_embd: int, n_head: int, n_kv: int, head: int) -> Tensors:
    yield b + "attn_norm.weight", (n_embd,)
    yield b + "ffn_norm.weight", (n_embd,)
    yield b + "attn_q.weight", (n_embd, n_head * head)
    yield b + "attn_k.weight", (n_embd, n_kv * head)
    yield b + "attn_v.weight", (n_embd, n_kv * head)
    yield b + "attn_output.weight", (n_head * head, n_embd)
    yield b + "attn_q_norm.weight", (head,)
    yield b + "attn_k_norm.weight", (head,)


def _qwen3moe() -> Tensors:
    yield "token_embd.weight", (2048, 151936)
    yield "output_norm.weight", (2048,)
    yield "output.weight", (2048, 151936)
    for i in range(48):
        yield from _attention(f"blk.{i}.", 2048, 32, 4, 128)
        yield from _experts(f"blk.{i}.", 2048, 768, 128)


def _qwen3_14b() -> Tensors:
    yield "token_embd.weight", (5120, 151936)
    yield "output_norm.weight", (5120,)
    yield "output.weight", (5120, 151936)
    for i in range(40):
        yield from _attention(f"blk.{i}.", 5120, 40, 8, 128)
        yield from _dense(f"blk.{i}.", 5120, 17408)


def _gemma3_27b() -> Tensors:
    yield "token_embd.weight", (5376, 262144)
    yield "output_norm.weight", (5376,)
    for i in range(62):
        b = f"blk.{i}."
        yield from _attention(b, 5376, 32, 16, 128)
        yield b + "post_attention_norm.weight", (5376,)
        yield b + "post_ffw_norm.weight", (5376,)
        yield from _dense(b, 5376, 21504)


def _sizes(
    n_layer: int, n_embd: int, n_ff: int, heads: tuple[int, int], **more: Any
) -> dict[str, Any]:
    return {
        ".block_count": n_layer,
        ".embedding_length": n_embd,
        ".feed_forward_length": n_ff,
        ".attention.head_count": heads[0],
        ".attention.head_count_kv": heads[1],
        ".attention.layer_norm_rms_epsilon": 1e-6,
    } | {f".{key.replace('__', '.')}": value for key, value in more.items()}


_DEEPSEEK: Final = {
    "leading_dense_block_count": 1,
    "expert_count": 64,
    "expert_used_count": 6,
    "expert_shared_count": 2,
    "expert_feed_forward_length": 1408,
    "expert_weights_scale": 1.0,
    "attention__kv_lora_rank": 512,
    "rope__dimension_count": 64,
    "context_length": 163840,
    "vocab_size": 102400,
}
_LATENT: Final = {
    "attention__key_length": 576,
    "attention__value_length": 512,
    "attention__key_length_mla": 192,
    "attention__value_length_mla": 128,
}


def _deepseek(quant: str, *, latent: bool = True) -> Published:
    lengths = _LATENT if latent else {"attention__key_length": 192, "attention__value_length": 128}
    meta = _sizes(27, 2048, 10944, (16, 1 if latent else 16), **_DEEPSEEK, **lengths)
    return Published("deepseek2", quant, 27, meta, _deepseek_v2_lite(latent=latent))


_HEAD_128: Final = {
    "attention__key_length": 128,
    "attention__value_length": 128,
    "rope__dimension_count": 128,
}

MODELS: Final = {
    "deepseek-v2-lite-q4_k_m": _deepseek("Q4_K_M"),
    "deepseek-v2-lite-q3_k_m": _deepseek("Q3_K_M"),
    "deepseek-v2-lite-old-q4_k_m": _deepseek("Q4_K_M", latent=False),
    "qwen3-30b-a3b-q4_k_m": Published(
        "qwen3moe", "Q4_K_M", 48,
        _sizes(
            48, 2048, 6144, (32, 4), expert_count=128, expert_used_count=8, expert_feed_forward_length=768,
            context_length=40960, vocab_size=151936, **_HEAD_128,
        ),
        _qwen3moe,
    ),
    "qwen3-14b-q4_k_m": Published(
        "qwen3", "Q4_K_M", 40,
        _sizes(40, 5120, 17408, (40, 8), context_length=40960, vocab_size=151936, **_HEAD_128), _qwen3_14b,
    ),
    "gemma3-27b-q3_k_s": Published(
        "gemma3", "Q3_K_S", 62,
        _sizes(
            62, 5376, 21504, (32, 16), attention__sliding_window=1024, context_length=131072, vocab_size=262144,
            **_HEAD_128,
        ),
        _gemma3_27b,
    ),
}  # fmt: skip


def write_shape(
    name: str, folder: Path, *, sparse: bool = True, vocabulary: dict[str, Any] | None = None
) -> Path:
    """Write one of `MODELS`. `sparse`: with a hole of the real size behind the head; otherwise the head alone.

    `vocabulary`: the `tokenizer.*` metadata; without them it has no tokenizer, as planning needs none.
    """
    model = MODELS[name]
    path = folder / f"{name}.gguf"
    writer = GGUFWriter(path, model.architecture)
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    words = vocabulary or {"tokenizer.ggml.model": "none"}
    for key, value in ({"general.name": name} | words | model.meta).items():
        add[type(value)](model.architecture + key if key[0] == "." else key, value)
    end = 0
    quant = "Q3_K_S" if model.quant == "Q3_K_S" else model.quant
    for tensor, shape in model.tensors():
        kind = _type(tensor, shape, quant, model.n_layer)
        if model.architecture == "gemma3" and tensor == "token_embd.weight":
            kind = T.Q6_K  # serves as the output as well
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(shape, dtype=np.int64)) // per_block * block_bytes
        # The writer takes rows of bytes for quantized types.
        rows = (*shape[:0:-1], shape[0] // per_block * block_bytes)
        writer.add_tensor_info(
            tensor, rows if kind != T.F32 else shape[::-1], np.dtype(np.uint8 if kind != T.F32 else np.float32),
            n_bytes, kind,
        )  # fmt: skip
        end += -(-n_bytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    if sparse:
        head = path.stat().st_size
        os.truncate(path, -(-head // 32) * 32 + end)
    return path


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for wanted in sys.argv[2:] or MODELS:
        print(write_shape(wanted, target))  # noqa: T201

"""What a model's architecture needs per token and per layer, read from its own metadata. Pure.

The rules are those of the pinned llama.cpp (llama-hparams.cpp and the models' own files). Contexts are opened with a
full-size cache for sliding windows (llama.cpp's default, and the only one that can be cut), so that a window changes the
number of masks and what a token reads, but not the size of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from engine.errors import EngineConfigError
from engine.vram.gguf import MAX_LAYERS, TENSOR_TYPES, Items, ModelHead
from engine.vram.settings import CACHE_TYPES

_RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
# Hybrids whose recurrent layers are those without KV heads …
_BY_HEADS: Final = frozenset(
    {"jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "kimi-linear"}
)  # fmt: skip
# … those of every layer but each fourth (or as the file says) …
_BY_INTERVAL: Final = frozenset({"qwen3next", "qwen35", "qwen35moe", "minimax-01"})
# … and those where every layer is both.
_BOTH: Final = frozenset({"falcon-h1"})
# Architectures that keep more per token than keys and values; the dry run knows what.
_UNKNOWN: Final = frozenset(
    {"deepseek32", "glm-dsa", "glm5-next", "deepseek4", "minimax-m3", "hy-v4", "dots3note", "qwen4exp",
     "bailingmoe3", "kimi-k3", "dflash"}
)  # fmt: skip
# One layer in so many sees everything; 0 = all have a window. Files may say otherwise (sliding_window_pattern).
_WINDOW_PATTERN: Final = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2, "olmo2": 4, "exaone4": 4, "lfm2": 0,
    "lfm2moe": 0, "phi3": 0, "smallthinker": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer. Counts of values: `k` and `v` per token in the cache, `r` and `s` per sequence in the recurrent state."""

    k: int = 0
    v: int = 0
    r: int = 0
    s: int = 0
    has_window: bool = False


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. `is_exact` is False where the cache holds more than this module knows of."""

    architecture: str
    layers: tuple[LayerShape, ...]
    n_embd: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    kv_lora: int
    is_mla: bool
    rope: int
    n_expert: int
    n_expert_used: int
    n_ff_expert: int
    is_gated: bool
    ssm_inner: int
    ssm_mixed: int
    is_delta_net: bool
    is_exact: bool
    n_swa: int = 0

    @cached_property
    def n_masks(self) -> int:
        """Attention masks: one for layers that see everything, one for those with a window."""
        return len({layer.has_window for layer in self.layers if layer.k})

    def cell_bytes(self, type_k: int, type_v: int, *, pads_v: bool = False) -> list[int]:
        """Bytes per token in the cache, by layer. `pads_v`: without flash attention every V is as wide as the widest."""
        widest = max((layer.v for layer in self.layers), default=0)
        return [
            row_bytes(type_k, layer.k)
            + row_bytes(type_v, widest if pads_v and layer.v else layer.v)
            for layer in self.layers
        ]

    def seen(self, layer: int, depth: int) -> int:
        """How many of `depth` earlier tokens a layer looks at."""
        return min(depth, self.n_swa) if self.layers[layer].has_window else depth

    def state_bytes(self) -> list[int]:
        """Bytes per sequence of recurrent state, by layer: 32-bit numbers."""
        return [4 * (layer.r + layer.s) for layer in self.layers]


def row_bytes(ggml_type: int, n_values: int) -> int:
    """Bytes of so many values; a started block counts whole."""
    _, per_block, block_bytes = TENSOR_TYPES[ggml_type]
    return -(-n_values // per_block) * block_bytes


def fills_blocks(cache_type: str, n_values: int) -> bool:
    """Whether heads of so many values fill the blocks of a cache type: llama.cpp refuses it otherwise."""
    return cache_type not in CACHE_TYPES or n_values % TENSOR_TYPES[CACHE_TYPES[cache_type]][1] == 0


def read_shape(head: ModelHead) -> Shape:
    """The shape of a model from its head. Raises EngineConfigError for sizes that cannot be."""
    n_all = head.number("block_count")
    if n_all > MAX_LAYERS:
        raise EngineConfigError(
            f"{head.path} is damaged: it says that it has {n_all} layers; download the model file again"
        )
    n_layer = max(0, n_all - head.number("nextn_predict_layers"))
    n_embd = head.number("embedding_length")
    heads = head.numbers("attention.head_count", n_layer)
    kv_heads = _kv_heads(head, heads, n_layer)
    widest = max(heads, default=0)
    even = n_embd // widest if widest else 0
    head_k = head.number("attention.key_length", even)
    head_v = head.number("attention.value_length", even)
    is_mla = bool(
        head.number("attention.key_length_mla") and head.number("attention.value_length_mla")
    )
    shared = head.numbers("feed_forward_length", n_layer)
    return Shape(
        architecture=head.architecture,
        layers=_layers(head, n_layer, kv_heads, (head_k, head_v), is_mla=is_mla),
        n_embd=n_embd,
        n_ff=max(shared, default=0),
        n_vocab=_n_vocab(head),
        n_ctx_train=head.number("context_length"),
        n_head=widest,
        n_head_kv=max(kv_heads, default=0),
        head_k=head_k,
        head_v=head_v,
        kv_lora=head.number("attention.kv_lora_rank"),
        is_mla=is_mla,
        rope=head.number("rope.dimension_count"),
        n_expert=head.number("expert_count"),
        n_expert_used=head.number("expert_used_count"),
        n_ff_expert=head.number("expert_feed_forward_length"),
        is_gated=head.architecture in _BY_INTERVAL,
        ssm_inner=head.number("ssm.inner_size"),
        ssm_mixed=head.number("ssm.inner_size")
        + 2 * head.number("ssm.group_count") * head.number("ssm.state_size"),
        is_delta_net=head.architecture in _BY_INTERVAL,
        is_exact=head.architecture not in _UNKNOWN,
        n_swa=head.number("attention.sliding_window"),
    )


def _kv_heads(head: ModelHead, heads: tuple[int, ...], n_layer: int) -> tuple[int, ...]:
    if f"{head.architecture}.attention.head_count_kv" in head.meta:
        return head.numbers("attention.head_count_kv", n_layer)
    return heads


def _n_vocab(head: ModelHead) -> int:
    tokens = head.meta.get("tokenizer.ggml.tokens")
    return tokens.n_items if isinstance(tokens, Items) else head.number("vocab_size")


def _layers(
    head: ModelHead,
    n_layer: int,
    kv_heads: tuple[int, ...],
    lengths: tuple[int, int],
    *,
    is_mla: bool,
) -> tuple[LayerShape, ...]:
    recurrent, attends = _kinds(head, n_layer, kv_heads)
    windows = _windows(head, n_layer)
    swa_lengths = (
        head.number("attention.key_length_swa", lengths[0]),
        head.number("attention.value_length_swa", lengths[1]),
    )
    n_r, n_s = _state_values(head)
    made = []
    for i in range(n_layer):
        k, v = swa_lengths if windows[i] else lengths
        made.append(
            LayerShape(
                k=k * kv_heads[i] if attends[i] else 0,
                v=v * kv_heads[i] if attends[i] and not is_mla else 0,
                r=n_r if recurrent[i] else 0,
                s=n_s if recurrent[i] else 0,
                has_window=windows[i],
            )
        )
    return tuple(made)


def _kinds(
    head: ModelHead, n_layer: int, kv_heads: tuple[int, ...]
) -> tuple[list[bool], list[bool]]:
    """Which layers have a recurrent state, and which have keys and values."""
    name = head.architecture
    if name in _RECURRENT:
        return [True] * n_layer, [False] * n_layer
    if name in _BOTH:
        return [True] * n_layer, [True] * n_layer
    if name in _BY_HEADS:
        recurrent = [n == 0 for n in kv_heads]
        if name.startswith("nemotron_h"):  # layers that only feed forward have neither
            n_ff = head.numbers("feed_forward_length", n_layer)
            recurrent = [r and f == 0 for r, f in zip(recurrent, n_ff, strict=True)]
        return recurrent, [n > 0 for n in kv_heads]
    if name in _BY_INTERVAL:
        marks = head.meta.get(f"{name}.attention.recurrent_layers")
        if isinstance(marks, Items):
            recurrent = [bool(mark) for mark in marks.values[:n_layer]]
        else:
            step = head.number("full_attention_interval", 4) or 4
            recurrent = [(i + 1) % step != 0 for i in range(n_layer)]
        return recurrent, [not r for r in recurrent]
    n_own = _layers_with_own_cache(head, n_layer)
    return [False] * n_layer, [i < n_own for i in range(n_layer)]


def _layers_with_own_cache(head: ModelHead, n_layer: int) -> int:
    """The last layers of some models read the cache of earlier ones."""
    if head.architecture == "gemma3n":
        return min(n_layer, 20)
    return n_layer - min(n_layer, head.number("attention.shared_kv_layers"))


def _windows(head: ModelHead, n_layer: int) -> list[bool]:
    if not head.number("attention.sliding_window"):
        return [False] * n_layer
    key = f"{head.architecture}.attention.sliding_window_pattern"
    marks = head.meta.get(key)
    if isinstance(marks, Items) and len(marks.values) >= n_layer:
        return [bool(mark) for mark in marks.values[:n_layer]]
    pattern = _WINDOW_PATTERN.get(head.architecture, 2)
    if isinstance(marks, int):
        pattern = marks
    if head.architecture not in _WINDOW_PATTERN and not isinstance(marks, int):
        return [False] * n_layer  # most files name a window that llama.cpp does not use
    return [pattern == 0 or i % pattern < pattern - 1 for i in range(n_layer)]


def _state_values(head: ModelHead) -> tuple[int, int]:
    """Values per sequence and recurrent layer: of the convolution, and of the state."""
    n_embd = head.number("embedding_length")
    if wkv := head.number("wkv.head_size"):
        return head.number("token_shift_count", 2) * n_embd, n_embd * wkv
    if short := head.number("shortconv.l_cache"):
        return n_embd * (short - 1), 0
    kernel = head.number("ssm.conv_kernel")
    if kda := head.number("kda.head_dim"):
        n_head = max(head.numbers("attention.head_count", 1), default=0)
        return 3 * (kernel - 1 if kernel else 3) * n_head * kda, kda * kda * n_head
    inner, state = head.number("ssm.inner_size"), head.number("ssm.state_size")
    mixed = inner + 2 * head.number("ssm.group_count") * state
    return max(0, kernel - 1) * mixed, state * inner

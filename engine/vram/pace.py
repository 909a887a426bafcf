"""How long a token takes everybody, roughly: to choose between layers in RAM and the KV cache in RAM. Pure.

Bandwidth alone (`Ledger.bound`) says too little there: for several replies at once a CPU computes longer than it reads, and its
attention is slower than its memory by far. `make prove ARGS=tune` judges what is chosen by it.
"""

from __future__ import annotations

import math
from typing import Final

from engine.vram.ledger import Ledger, Model, is_cache_on_card, kv_reads

# Few talks fill a very long window.
_MOST_FILLED: Final = 8192
# Operations of a CPU in the time of reading one byte: a core of 2.6 GHz did 38 GFLOP/s in products (Q4_1) and 8 in attention
# (q8_0 cache); eight of 4.4 GHz share two channels of DDR5 (76.8 GB/s).
_PRODUCT_OPS: Final = 7.0
_ATTENTION_OPS: Final = 1.6
# Attention is computed for the tokens of a question as well as for those of its answer; about as many.
_TOKENS: Final = 2


def filled(window: int) -> int:
    """Tokens in a conversation when somebody asks: half of a window, as summaries empty it again and again; or 8192."""
    return min(window // 2, _MOST_FILLED)


def seconds_per_token(model: Model, ledger: Ledger, n_parallel: int) -> float:
    """Seconds per token of a reply while `n_parallel` go on, the attention of as many prompt tokens counted in. Infinite where
    a bandwidth is not known."""
    ram, seconds = ledger.ram, 0.0
    if any(not account.device.bandwidth for account in ledger.devices):
        return math.inf
    settings, placement, has_card = ledger.settings, ledger.placement, ledger.card is not None
    depth = filled(settings.window)
    on_card, in_ram = kv_reads(model, settings, placement, depth, has_card=has_card)
    for account in ledger.devices:
        kv = n_parallel * _TOKENS * (in_ram if account is ram else on_card)
        seconds += (account.read_bytes + kv) / account.device.bandwidth
    products = 2 * _values_per_byte(model) * ram.read_bytes * n_parallel / _PRODUCT_OPS
    attention = n_parallel * _TOKENS * _attention_ops(model, ledger) / _ATTENTION_OPS
    kv = n_parallel * _TOKENS * in_ram
    late = max(0.0, products - ram.read_bytes) + max(0.0, attention - kv)
    return seconds + late / ram.device.bandwidth


def _values_per_byte(model: Model) -> float:
    """Weights per byte: 2 for a mixture of 4 bits."""
    n_values = sum(math.prod(tensor.shape) for tensor in model.head.tensors)
    return n_values / model.head.weight_bytes


def _attention_ops(model: Model, ledger: Ledger) -> float:
    """Operations of the CPU's part of attention for one token."""
    shape, settings, depth = model.shape, ledger.settings, filled(ledger.settings.window)
    n_scores = 0
    for i, layer in enumerate(shape.layers):
        on_card = ledger.card and is_cache_on_card(model, settings, ledger.placement, i)
        if layer.k and not on_card:
            n_scores += depth if settings.flash_attention == "off" else shape.seen(i, depth)
    return 2 * n_scores * shape.n_head * (shape.head_k + shape.head_v)

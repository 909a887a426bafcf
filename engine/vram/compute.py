"""An estimate of llama.cpp's compute buffer: the work space of one step at the largest batch. Pure.

The buffer is as large as the fullest moment of the step. The moments are counted here in 32-bit numbers per token, from
the order in which llama.cpp's graphs hold their tensors; where its allocator leaves a hole that a later, larger tensor
cannot use, the hole counts. The dry run (`engine.vram.probe`) is exact; this is for devices that are not at hand.
"""

from __future__ import annotations

from engine.vram.settings import ContextSettings
from engine.vram.shapes import Shape

_INPUTS = 6  # token id, position, two 64-bit cell numbers


def batch_tokens(settings: ContextSettings) -> int:
    """Tokens of the largest step: llama.cpp rounds up to a whole number per sequence."""
    n_tokens = min(settings.n_cells, settings.n_ubatch)
    return -(-n_tokens // settings.n_seq_max) * settings.n_seq_max


def mask_bytes(shape: Shape, settings: ContextSettings) -> int:
    """The attention masks: a number per token and cell, half as wide with flash attention."""
    width = 4 if settings.flash_attention == "off" else 2
    return shape.n_masks * settings.n_cells * batch_tokens(settings) * width


def output_bytes(shape: Shape, settings: ContextSettings) -> int:
    """The output buffer in RAM: logits of every sequence."""
    return 4 * shape.n_vocab * settings.n_outputs_max


def compute_bytes(shape: Shape, settings: ContextSettings) -> int:
    """The compute buffer of a device that holds the whole model."""
    n_tokens = batch_tokens(settings)
    masks = mask_bytes(shape, settings)
    per_token = max(_feed_forward(shape), _experts(shape))
    layers = 4 * n_tokens * (per_token + _INPUTS)
    attention = 4 * n_tokens * (_attention(shape, settings) + _INPUTS)
    attention += _scores(shape, settings, n_tokens)
    states = 4 * _recurrent(shape, n_tokens, settings.n_seq_max)
    outputs = 4 * min(n_tokens, settings.n_outputs_max) * (shape.n_vocab + 2 * shape.n_embd)
    return max(masks + max(layers, attention, states), outputs)


def host_compute_bytes(shape: Shape, settings: ContextSettings, *, has_experts: bool) -> int:
    """What the CPU side needs when all layers are on the card: the inputs, the batch's embeddings, and room for the routed
    experts where these are in RAM (`has_experts`)."""
    per_token = 2 * shape.n_embd
    if has_experts:
        per_token = max(per_token, _experts(shape))
    return mask_bytes(shape, settings) + 4 * batch_tokens(settings) * (per_token + _INPUTS)


def crossing_bytes(shape: Shape, settings: ContextSettings) -> int:
    """Where the KV cache stays in RAM: queries and results of attention on their way between the card and the CPU."""
    per_token = 2 * _queries(shape) + (shape.n_head * shape.rope if shape.is_mla else 0)
    return 4 * batch_tokens(settings) * per_token


def _queries(shape: Shape) -> int:
    return shape.n_head * (shape.head_k if not shape.is_mla else shape.head_v)


def _feed_forward(shape: Shape) -> int:
    """Gate, up and their product, beside the residual, its norm and the layer's input."""
    n_ff, n_q = shape.n_ff, _queries(shape)
    # The queries' place is too small for a wide layer, and stays empty beside it.
    hole = n_q if n_ff >= 2 * shape.n_embd and not shape.is_mla else 0
    gate = 2 * n_q if shape.is_gated and not shape.n_expert else 0
    return 3 * n_ff + 3 * shape.n_embd + hole + gate


def _experts(shape: Shape) -> int:
    if not shape.n_expert:
        return 0
    n_inner = shape.n_expert_used * shape.n_ff_expert
    n_outer = shape.n_expert_used * shape.n_embd
    if 2 * n_inner < n_outer:  # the experts' outputs do not fit where gate and up were
        return 3 * n_inner + n_outer + 5 * shape.n_embd
    return 2 * n_outer + 2 * shape.n_embd


def _attention(shape: Shape, settings: ContextSettings) -> int:
    if shape.is_mla:
        n_latent = shape.n_head * shape.kv_lora
        n_joined = shape.n_head * (shape.kv_lora + shape.rope)
        n_q = shape.n_head * (shape.head_k - shape.kv_lora + shape.rope)
        hole = n_q if n_q < n_latent else 0
        return n_joined + 4 * n_latent + shape.kv_lora + hole
    if settings.flash_attention != "off":
        return 3 * shape.n_embd + 2 * _queries(shape)
    return 3 * shape.n_embd + 2 * _queries(shape) + 2 * shape.n_head_kv * shape.head_k


def _scores(shape: Shape, settings: ContextSettings, n_tokens: int) -> int:
    """Without flash attention: the score of every token, cell and head."""
    if settings.flash_attention != "off" or not shape.n_masks:
        return 0
    return 4 * settings.n_cells * n_tokens * shape.n_head


def _recurrent(shape: Shape, n_tokens: int, n_seq: int) -> int:
    """The states of all sequences on their way through a layer, and the mixed inputs of the batch."""
    r = max((layer.r for layer in shape.layers), default=0)
    s = max((layer.s for layer in shape.layers), default=0)
    if not s:
        return 0
    mixed, inner, n_embd = shape.ssm_mixed, shape.ssm_inner, shape.n_embd
    if shape.is_delta_net:
        held = n_tokens * (2 * mixed + inner + n_embd) + n_seq * (3 * s + 2 * r)
        # Where the batch and the states are of like size they leave holes: 0 to 16 % were seen, by no simple rule.
        return held * 108 // 100 if n_tokens >= 16 * n_seq else held
    projected = inner + mixed
    return n_tokens * (projected + 3 * mixed + inner + n_embd) + n_seq * (s + 2 * r)

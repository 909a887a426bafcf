"""Sampler chains of llama.cpp: from our `Sampling` to the chain, and back to where a resumed reply was.

Import after `engine.backends.llamacpp`, which prepares the environment that llama.cpp is loaded into.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

import llama_cpp as llama

from engine.types import Sampling

# Below this, dividing by the temperature leaves the range of a float.
_MIN_TEMPERATURE: Final = 1e-4


class LlamaSampler:
    """A sampler chain; owned by the job that asked for it."""

    def __init__(self, chain: Any) -> None:
        self.chain = chain

    def close(self) -> None:
        """Free the chain; may be called twice."""
        if self.chain is not None:
            llama.llama_sampler_free(self.chain)
            self.chain = None


def build_sampler(
    sampling: Sampling, accepted: Sequence[int], *, n_vocab: int, n_last_max: int
) -> LlamaSampler:
    """A chain that has seen `accepted` (ids of this reply that were generated before an interruption)."""
    params = llama.llama_sampler_chain_default_params()
    params.no_perf = True
    sampler = LlamaSampler(llama.llama_sampler_chain_init(params))
    for link in _links(sampling, n_vocab, n_last_max):
        llama.llama_sampler_chain_add(sampler.chain, link)
    for token in accepted:
        llama.llama_sampler_accept(sampler.chain, token)
    if sampling.seed is not None:
        _draw(sampler.chain, len(accepted))
    return sampler


def _links(sampling: Sampling, n_vocab: int, n_last_max: int) -> list[Any]:
    """Penalties, then the cuts from coarse to fine, then temperature and chance. Values outside a domain disable."""
    links = []
    repeat = sampling.repeat_penalty if _within(sampling.repeat_penalty, 0.0, 100.0) else 1.0
    frequency = sampling.frequency_penalty if isfinite(sampling.frequency_penalty) else 0.0
    presence = sampling.presence_penalty if isfinite(sampling.presence_penalty) else 0.0
    n_last = max(0, min(sampling.repeat_last_n, n_last_max))
    if n_last and (repeat != 1.0 or frequency or presence):
        links.append(
            llama.llama_sampler_init_penalties(n_vocab, n_last, repeat, frequency, presence)
        )
    if not _within(sampling.temperature, _MIN_TEMPERATURE, 100.0):
        return [*links, llama.llama_sampler_init_greedy()]
    if 0 < sampling.top_k < n_vocab:
        links.append(llama.llama_sampler_init_top_k(sampling.top_k))
    if _within(sampling.top_p, 0.0, 1.0):
        links.append(llama.llama_sampler_init_top_p(sampling.top_p, 1))
    if _within(sampling.min_p, 0.0, 1.0):
        links.append(llama.llama_sampler_init_min_p(sampling.min_p, 1))
    if sampling.temperature != 1.0:
        links.append(llama.llama_sampler_init_temp(sampling.temperature))
    seed = secrets.randbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF
    links.append(llama.llama_sampler_init_dist(seed))
    return links


def _draw(chain: Any, n_times: int) -> None:
    """Let chance go on by `n_times` tokens, so that a resumed reply continues the stream of its seed.

    The last link (dist) draws exactly once per token, also of a single candidate (llama-sampler.cpp, llama_sampler_dist_apply).
    """
    last = llama.llama_sampler_chain_get(chain, llama.llama_sampler_chain_n(chain) - 1)
    one = (llama.llama_token_data * 1)()
    candidates = llama.llama_token_data_array(data=one, size=1, selected=-1, sorted=False)
    for _ in range(n_times):
        llama.llama_sampler_apply(last, ctypes.byref(candidates))


def _within(value: float, low: float, high: float) -> bool:
    """Strictly inside; False for NaN."""
    return low < value < high

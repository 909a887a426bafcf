"""Sampler chains of llama.cpp: from our `Sampling` to the chain, and back to where a resumed reply was.

Import after `engine.backends.llamacpp`, which prepares the environment that llama.cpp is loaded into.
"""

from __future__ import annotations

import ctypes
import secrets
from collections import deque
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

import llama_cpp as llama
import numpy as np

from engine.backends.greedy import Greedy
from engine.backends.shortlist import Row, shortlist
from engine.types import Sampling

# Below this, dividing by the temperature leaves the range of a float.
_MIN_TEMPERATURE: Final = 1e-4
# A longer shortlist is no gain over the whole list.
_MAX_SHORTLIST: Final = 1024
_CANDIDATE: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class LlamaSampler:
    """A sampler chain; owned by the job that asked for it.

    `n_best`: the chain keeps only so many of the best tokens (0 = it looks at all); `n_recent`: its penalties look back so far.
    """

    def __init__(self, chain: Any, *, n_best: int, n_recent: int, accepted: Sequence[int]) -> None:
        self.chain = chain
        self._n_best = n_best if n_best + n_recent <= _MAX_SHORTLIST else 0
        # Where it is set, it is asked instead of the chain.
        self.greedy: Greedy | None = None
        self._recent: deque[int] = deque(accepted, maxlen=n_recent)
        self._make_room(256)

    def _make_room(self, n: int) -> None:
        """Room for so many candidates; the three views are of the same memory."""
        candidates = np.zeros(n, dtype=_CANDIDATE)
        self._ids, self._logits = candidates["id"], candidates["logit"]
        address = ctypes.c_void_p(candidates.ctypes.data)
        self._data = ctypes.cast(address, llama.llama_token_data_p)

    @property
    def needs_all(self) -> bool:
        """Whether `choose` cannot serve it: llama.cpp must be asked with the whole list."""
        return self._n_best == 0

    def choose(self, row: Row) -> int:
        """The next token from a row of logits; the same as the chain would choose from all of them."""
        if self.greedy is not None:
            return self.greedy.choose(row)
        ids = shortlist(row, self._n_best, self._recent)
        n = len(ids)
        if n > len(self._ids):
            self._make_room(2 * n)
        self._ids[:n], self._logits[:n] = ids, row[ids]
        list_ = llama.llama_token_data_array(self._data, n, -1, False)
        llama.llama_sampler_apply(self.chain, ctypes.byref(list_))
        token = int(list_.data[list_.selected].id)
        llama.llama_sampler_accept(self.chain, token)
        self._recent.append(token)
        return token

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
    n_recent = _n_recent(sampling, n_last_max)
    chain = llama.llama_sampler_chain_init(params)
    for link in _links(sampling, n_vocab, n_recent):
        llama.llama_sampler_chain_add(chain, link)
    for token in accepted:
        llama.llama_sampler_accept(chain, token)
    if sampling.seed is not None:
        _draw(chain, len(accepted))
    sampler = LlamaSampler(
        chain, n_best=_n_best(sampling, n_vocab), n_recent=n_recent, accepted=accepted
    )
    repeat, frequency, presence = _penalties(sampling)
    lowers = repeat >= 1.0 and presence >= 0.0 and not frequency
    if _is_greedy(sampling) and not sampler.needs_all and (lowers or not n_recent):
        sampler.greedy = Greedy(
            n_recent=n_recent, repeat=repeat, presence=presence, accepted=accepted
        )
    return sampler


def _is_greedy(sampling: Sampling) -> bool:
    """Whether the best token is all that is left to choose from."""
    if sampling.top_p == 0.0 or sampling.min_p == 1.0:
        return True
    return not _within(sampling.temperature, _MIN_TEMPERATURE, 100.0)


def _n_best(sampling: Sampling, n_vocab: int) -> int:
    if _is_greedy(sampling):
        return 1
    return sampling.top_k if 0 < sampling.top_k < n_vocab else 0


def _n_recent(sampling: Sampling, n_last_max: int) -> int:
    """How many of the last tokens are penalized; 0 = none."""
    repeat, frequency, presence = _penalties(sampling)
    if repeat == 1.0 and not frequency and not presence:
        return 0
    return max(0, min(sampling.repeat_last_n, n_last_max))


def _penalties(sampling: Sampling) -> tuple[float, float, float]:
    repeat = sampling.repeat_penalty if _within(sampling.repeat_penalty, 0.0, 100.0) else 1.0
    frequency = sampling.frequency_penalty if isfinite(sampling.frequency_penalty) else 0.0
    presence = sampling.presence_penalty if isfinite(sampling.presence_penalty) else 0.0
    return repeat, frequency, presence


def _links(sampling: Sampling, n_vocab: int, n_recent: int) -> list[Any]:
    """Penalties, then the cuts from coarse to fine, then temperature and chance. Values outside a domain disable."""
    links = []
    if n_recent:
        links.append(llama.llama_sampler_init_penalties(n_vocab, n_recent, *_penalties(sampling)))
    if _is_greedy(sampling):
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

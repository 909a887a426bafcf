"""The perplexity of a text with one kind of KV cache, in a context of its own. For a child process: nothing is kept for later.

Perplexity = exp of the mean of −log p(token | all tokens before it). What a KV cache of fewer bits costs is the difference
between two of them for the same text; models are not compared by it, as their tokens differ.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import llama_cpp as llama
import numpy as np

from engine.backends.base import BatchPart
from engine.backends.llamabatch import LlamaBatch
from engine.backends.llamaparams import context_params, model_params
from engine.backends.modelfile import find_model
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.settings import context_settings

# Every token of a batch has logits: 64 rows of a vocabulary of 262,144 are 64 MiB.
_BATCH: Final = 64
# The first tokens have little to look back at, and say little about the cache.
_SKIPPED: Final = 64


def perplexity(
    config: EngineConfig, text: str, tell: Callable[[int, int], None]
) -> tuple[float, int]:
    """The perplexity, and how many tokens count for it. `tell` hears of tokens done and in all. Raises EngineConfigError."""
    llama.llama_backend_init()
    path = find_model(config.name, config.path)
    params, _overrides = model_params(config)
    model = llama.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise EngineConfigError(f"{path} could not be loaded")
    tokens = _tokens(llama.llama_model_get_vocab(model), text)
    n_ctx_train = llama.llama_model_n_ctx_train(model)
    tokens = tokens[: n_ctx_train or len(tokens)]
    settings = replace(
        context_settings(config, n_ctx_train),
        n_ctx=len(tokens),
        n_batch=_BATCH,
        n_ubatch=_BATCH,
        n_seq_max=1,
        n_outputs_max=_BATCH,
    )
    context = llama.llama_init_from_model(model, context_params(settings))
    if not context:
        raise EngineConfigError(f"{path}: llama.cpp refused these settings of the cache")
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    batch = LlamaBatch(_BATCH)
    loss = 0.0
    for start in range(0, len(tokens), _BATCH):
        loss += _batch_loss(context, batch, tokens, start, n_vocab)
        tell(min(start + _BATCH, len(tokens)), len(tokens))
    llama.llama_free(context)
    llama.llama_model_free(model)
    n_counted = len(tokens) - 1 - _SKIPPED
    return math.exp(loss / n_counted), n_counted


def _tokens(vocab: Any, text: str) -> list[int]:
    data = text.encode()
    buffer = (llama.llama_token * (len(data) + 8))()
    n_tokens = llama.llama_tokenize(vocab, data, len(data), buffer, len(buffer), True, False)
    if n_tokens <= 2 * _SKIPPED:
        raise EngineConfigError(
            f"the model has no tokenizer for the fixed text ({n_tokens} tokens)"
        )
    found: list[int] = buffer[:n_tokens]
    return found


def _batch_loss(
    context: Any, batch: LlamaBatch, tokens: Sequence[int], start: int, n_vocab: int
) -> float:
    """Compute one batch; the sum of −log p of the tokens behind those of it that count."""
    part = tokens[start : start + _BATCH]
    status = llama.llama_decode(context, batch.fill([BatchPart(0, start, part, len(part))]))
    if status != 0:
        raise EngineConfigError(f"llama_decode returned {status} for the fixed text")
    return -sum(
        _log_p(llama.llama_get_logits_ith(context, i), n_vocab, tokens[start + i + 1])
        for i in range(len(part))
        if start + i >= _SKIPPED and start + i + 1 < len(tokens)
    )


def _log_p(logits: Any, n_vocab: int, token: int) -> float:
    """Log of the probability that the model gave to a token."""
    address = ctypes.addressof(logits.contents)
    row = np.asarray(memoryview((ctypes.c_float * n_vocab).from_address(address)), np.float64)
    highest = float(row.max())
    return float(row[token]) - highest - math.log(float(np.exp(row - highest).sum()))

"""llama.cpp through llama-cpp-python's low-level API. With its helpers `llamabatch`, `llamasampler` and `llamamemory` the only
module that imports `llama_cpp`.

Owns one model, one context, one batch, and the native log callback while it lives. Every call into the context comes from
one thread; the vocabulary may be asked from any thread (llama.cpp only reads it).

Limits that llama.cpp enforces by aborting the process are checked here before every call: tokens per batch, outputs per
batch, sequence ids, and copies into sequences that hold something. `n_outputs_max` cannot be smaller than `n_seq_max`
(llama-context.cpp, output_reserve), so it is `n_seq_max`; `n_outputs_max` of this class is what the core may use of it.
Why the cache is unified: see `engine.kv.pool`.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

# libgomp reads this once, when llama.cpp loads it. A decode has some 900 barriers. On two cores, ms per token of the demo
# model: with libgomp's own 300,000 spins 9.0 when nothing else runs and 130-230 beside one busy process; sleeping at once
# (OMP_WAIT_POLICY=passive) 13.5 and 20-40; with 1,000 spins 10.1 and 20-50.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import llama_cpp as llama
import llama_cpp._logger as llama_logger

from engine.backends.base import (
    BatchPart,
    DecodeFailed,
    DecodeStatus,
    MemoryKind,
    Sampler,
)
from engine.backends.llamabatch import LlamaBatch
from engine.backends.llamamemory import cache_bytes, on_host
from engine.backends.llamasampler import LlamaSampler, build_sampler
from engine.backends.memory import available_bytes, check_memory
from engine.backends.modelfile import explain_context_failure, explain_load_failure, find_model
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.kv.fingerprint import fingerprint
from engine.types import ModelInfo, Sampling

_log = structlog.get_logger()

CACHE_TYPES: Final = {
    "f32": llama.GGML_TYPE_F32,
    "f16": llama.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, missing in the binding
    "q8_0": llama.GGML_TYPE_Q8_0,
    "q5_1": llama.GGML_TYPE_Q5_1,
    "q5_0": llama.GGML_TYPE_Q5_0,
    "q4_1": llama.GGML_TYPE_Q4_1,
    "q4_0": llama.GGML_TYPE_Q4_0,
    "iq4_nl": llama.GGML_TYPE_IQ4_NL,
}
_UNQUANTIZED: Final = frozenset({"f32", "f16", "bf16"})
_MAX_SEQUENCES: Final = 256  # LLAMA_MAX_SEQ
_NO_SLOT: Final = 1
# ggml_log_level; a continued line has the level of the line before it.
_DEBUG, _WARN, _CONTINUED = 1, 3, 5
# The cache is shared (`kv_unified`), so llama.cpp takes all of it for one conversation's window, which is checked here.
_HARMLESS: Final = re.compile(r"n_ctx_seq \(\d+\) > n_ctx_train \(\d+\)")
# Reasoning tags that some models have as control tokens; their text must reach engine.text.
_VISIBLE_CONTROL: Final = frozenset({"<think>", "</think>"})
_HIDDEN_ATTRIBUTES: Final = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN


class _NativeLog:
    """llama.cpp's log: warnings aloud, everything with LLAMA_LOG_ALL=1, the last lines kept to explain a failure.

    The callback is process-wide in llama.cpp; the backend that lives last owns it and gives it back on close.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=200)
        self._verbose = bool(os.environ.get("LLAMA_LOG_ALL"))
        self._partial = ""
        self._level = 0
        self._callback = llama.llama_log_callback(self._receive)
        llama.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _user_data: object) -> None:
        # Progress dots come one by one without a line end.
        self._level = self._level if level == _CONTINUED else level
        if self._level == _DEBUG and not self._verbose:
            return  # hundreds of lines about every graph, which would push out the ones that explain a failure
        self._partial += text.decode("utf-8", "replace")
        *lines, self._partial = self._partial.split("\n")
        for line in filter(None, map(str.strip, lines)):
            self.lines.append(line)
            if self._level >= _WARN and not _HARMLESS.search(line):
                _log.warning("llama_cpp", line=line)
            elif self._verbose:
                _log.debug("llama_cpp", line=line)

    def close(self) -> None:
        llama.llama_log_set(llama_logger.llama_log_callback, ctypes.c_void_p(0))


class LlamaBackend:
    """The Backend protocol over one llama.cpp context."""

    def __init__(self, config: EngineConfig) -> None:
        """Load the model. Takes seconds. Raises EngineConfigError with one sentence."""
        _check_cache_types(config)
        self._config = config
        self._path = find_model(config.name, config.path)
        self._fingerprint = fingerprint(self._path, config.cache_type_k, config.cache_type_v)
        self._native_log = _NativeLog()
        self._model: Any = None
        self._context: Any = None
        try:
            self._load_model()
            self._open_context()
        except BaseException:
            self.close()
            raise
        self._batch = LlamaBatch(self.n_batch)
        self._read_vocabulary()

    def _load_model(self) -> None:
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.n_gpu_layers = self._config.n_gpu_layers
        params.load_mode = (
            llama.LLAMA_LOAD_MODE_MMAP if self._config.use_mmap else llama.LLAMA_LOAD_MODE_NONE
        )
        # A build with AMX dies of SIGILL on virtual machines that announce AMX and do not carry it; its weights live
        # in the "extra" buffer types. Builds without AMX keep them (they also hold the repacked weights).
        params.use_extra_bufts = b"AMX_INT8 = 1" not in llama.llama_print_system_info()
        self._model = llama.llama_model_load_from_file(os.fsencode(self._path), params)
        if not self._model:
            raise EngineConfigError(explain_load_failure(self._path, self._native_log.lines))
        if llama.llama_model_has_encoder(self._model) or not llama.llama_model_has_decoder(
            self._model
        ):
            raise EngineConfigError(f"{self._path} is not a chat model: it cannot continue a text")
        self._vocab: Any = llama.llama_model_get_vocab(self._model)
        if llama.llama_vocab_type(self._vocab) == llama.LLAMA_VOCAB_TYPE_NONE:
            raise EngineConfigError(
                f"{self._path} has no tokenizer; choose a model file that holds one"
            )
        self.n_vocab: int = llama.llama_vocab_n_tokens(self._vocab)
        self.n_swa: int = max(0, llama.llama_model_n_swa(self._model))
        self.memory = self._memory_kind()

    def _memory_kind(self) -> MemoryKind:
        if llama.llama_model_is_recurrent(self._model) or llama.llama_model_is_hybrid(self._model):
            return MemoryKind.RECURRENT
        return MemoryKind.SLIDING if self.n_swa else MemoryKind.ATTENTION

    def _open_context(self) -> None:
        config = self._config
        window = min(config.n_ctx, llama.llama_model_n_ctx_train(self._model) or config.n_ctx)
        params = llama.llama_context_default_params()
        params.n_ctx = config.kv_cells or config.n_parallel * window
        params.n_batch = config.n_batch
        params.n_ubatch = min(config.n_ubatch, config.n_batch)
        params.n_seq_max = n_sequences(config)
        params.n_outputs_max = params.n_seq_max
        params.n_threads = params.n_threads_batch = config.n_threads or usable_cores()
        params.type_k = CACHE_TYPES[config.cache_type_k]
        params.type_v = CACHE_TYPES[config.cache_type_v]
        params.flash_attn_type = _flash_attention(config)
        params.kv_unified = True
        params.no_perf = True
        if on_host(config.n_gpu_layers):
            n_bytes = cache_bytes(self._model, params.n_ctx, params.type_k, params.type_v)
            check_memory(f"models.{config.name}", n_bytes, available_bytes())
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise EngineConfigError(
                f"models.{config.name}: {explain_context_failure(self._native_log.lines)}"
            )
        self._kv: Any = llama.llama_get_memory(self._context)
        self.n_cells: int = llama.llama_n_ctx(self._context)
        self.n_ctx_seq: int = min(window, self.n_cells)
        self.n_seq_max: int = llama.llama_n_seq_max(self._context)
        self.n_batch: int = llama.llama_n_batch(self._context)
        self.n_outputs_max: int = min(config.n_parallel, self.n_seq_max)

    def _read_vocabulary(self) -> None:
        vocab = self._vocab
        self.add_bos = bool(llama.llama_vocab_get_add_bos(vocab))
        self.bos_text = self._text_of(llama.llama_vocab_bos(vocab))
        self.eos_text = self._text_of(llama.llama_vocab_eos(vocab))
        hidden = (
            self._text_of(token)
            for token in range(self.n_vocab)
            if llama.llama_vocab_get_attr(vocab, token) & _HIDDEN_ATTRIBUTES
        )
        self._special_texts = tuple(filter(None, hidden))

    def _text_of(self, token: int) -> str:
        if token < 0:
            return ""
        return (llama.llama_vocab_get_text(self._vocab, token) or b"").decode("utf-8", "replace")

    # Text.

    def info(self) -> ModelInfo:
        description = ctypes.create_string_buffer(256)
        llama.llama_model_desc(self._model, description, len(description))
        return ModelInfo(
            name=self._config.name,
            path=str(self._path),
            fingerprint=self._fingerprint,
            n_ctx_tokens=self.n_ctx_seq,
            n_vocab=self.n_vocab,
            n_parallel=self._config.n_parallel,
            kv_cells=self.n_cells,
            description=description.value.decode("utf-8", "replace"),
        )

    def chat_template(self) -> str:
        template = llama.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else ""

    def special_texts(self) -> tuple[str, ...]:
        return self._special_texts

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        n_max = len(data) + 4
        while True:
            buffer = (llama.llama_token * n_max)()
            n_tokens = llama.llama_tokenize(
                self._vocab, data, len(data), buffer, n_max, add_special, parse_special
            )
            if n_tokens >= 0:
                ids: list[int] = buffer[:n_tokens]
                return ids
            n_max = -n_tokens

    def token_bytes(self, token_id: int) -> bytes:
        visible = self._text_of(token_id) in _VISIBLE_CONTROL
        buffer = ctypes.create_string_buffer(64)
        n_bytes = llama.llama_token_to_piece(self._vocab, token_id, buffer, 64, 0, visible)
        if n_bytes < 0:
            buffer = ctypes.create_string_buffer(-n_bytes)
            n_bytes = llama.llama_token_to_piece(
                self._vocab, token_id, buffer, -n_bytes, 0, visible
            )
        return buffer.raw[:n_bytes]

    def is_eog(self, token_id: int) -> bool:
        return bool(llama.llama_vocab_is_eog(self._vocab, token_id))

    # The loop.

    def new_sampler(self, sampling: Sampling, accepted: Sequence[int]) -> Sampler:
        return build_sampler(sampling, accepted, n_vocab=self.n_vocab, n_last_max=self.n_ctx_seq)

    def decode(self, parts: Sequence[BatchPart]) -> DecodeStatus:
        n_tokens = sum(len(part.tokens) for part in parts)
        n_outputs = sum(part.wants_output for part in parts)
        if not 0 < n_tokens <= self.n_batch or n_outputs > self.n_outputs_max:
            raise ValueError(f"a batch of {n_tokens} tokens and {n_outputs} outputs is too big")
        if not all(0 <= part.seq_id < self.n_seq_max for part in parts):
            raise ValueError("a sequence id is out of range")
        status = llama.llama_decode(self._context, self._batch.fill(parts))
        if status == _NO_SLOT:
            return DecodeStatus.NO_SLOT
        if status != 0:
            reasons = "; ".join(list(self._native_log.lines)[-2:])
            raise DecodeFailed(f"llama_decode returned {status} ({reasons})")
        # On a GPU the call only queues the work: wait, or the step times that steer the next batch mean nothing.
        llama.llama_synchronize(self._context)
        return DecodeStatus.DONE

    def sample(self, part_index: int, sampler: Sampler) -> int:
        if not isinstance(sampler, LlamaSampler) or sampler.chain is None:
            raise ValueError("the sampler is closed or of another backend")
        row = self._batch.output_rows[part_index]
        token: int = llama.llama_sampler_sample(sampler.chain, self._context, row)
        return token

    # The cache.

    def seq_rm(self, seq_id: int, start: int) -> None:
        llama.llama_memory_seq_rm(self._kv, self._checked(seq_id), start, -1)

    def seq_cp(self, source: int, target: int, length: int) -> None:
        if self.seq_pos_max(target) >= 0:
            raise ValueError(f"sequence {target} is not empty")
        end = -1 if self.memory is MemoryKind.RECURRENT else length
        llama.llama_memory_seq_cp(self._kv, self._checked(source), target, 0, end)

    def seq_pos_min(self, seq_id: int) -> int:
        return int(llama.llama_memory_seq_pos_min(self._kv, self._checked(seq_id)))

    def seq_pos_max(self, seq_id: int) -> int:
        return int(llama.llama_memory_seq_pos_max(self._kv, self._checked(seq_id)))

    def clear(self) -> None:
        llama.llama_memory_clear(self._kv, False)

    def _checked(self, seq_id: int) -> int:
        if not 0 <= seq_id < self.n_seq_max:
            raise ValueError(f"sequence id {seq_id} is out of range")
        return seq_id

    def close(self) -> None:
        if self._context:
            llama.llama_free(self._context)
            self._context = None
        if self._model:
            llama.llama_model_free(self._model)
            self._model = None
            self._native_log.close()


def n_sequences(config: EngineConfig) -> int:
    """Sequences in the context: one per reply, and some more for conversations and prefixes that are kept."""
    n_kept = min(max(3 * config.n_parallel, 8), 16)
    return min(
        max(config.n_sequences or config.n_parallel + n_kept, config.n_parallel), _MAX_SEQUENCES
    )


def usable_cores() -> int:
    """Physical cores that this process may run on: more threads than that make llama.cpp slower."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list")
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return max(1, len(cores))


def _check_cache_types(config: EngineConfig) -> None:
    for key in ("cache_type_k", "cache_type_v"):
        value = getattr(config, key)
        if value not in CACHE_TYPES:
            raise EngineConfigError(
                f'models.{config.name}.{key}: "{value}" is unknown; use one of {", ".join(CACHE_TYPES)}'
            )
    if config.flash_attention not in ("auto", "on", "off"):
        raise EngineConfigError(
            f'models.{config.name}.flash_attention: "{config.flash_attention}" must be auto, on or off'
        )
    if config.flash_attention == "off" and config.cache_type_v not in _UNQUANTIZED:
        raise EngineConfigError(
            f'models.{config.name}: cache_type_v = "{config.cache_type_v}" needs flash attention; '
            'set flash_attention = "auto" or cache_type_v = "f16"'
        )


def _flash_attention(config: EngineConfig) -> int:
    """Auto: always with a quantized cache, which llama.cpp cannot do without; otherwise llama.cpp asks the device."""
    quantized = not {config.cache_type_k, config.cache_type_v} <= _UNQUANTIZED
    if config.flash_attention == "on" or (config.flash_attention == "auto" and quantized):
        return int(llama.LLAMA_FLASH_ATTN_TYPE_ENABLED)
    if config.flash_attention == "off":
        return int(llama.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    return int(llama.LLAMA_FLASH_ATTN_TYPE_AUTO)

"""llama.cpp through llama-cpp-python's low-level API. With its helpers (`llama*` beside it) and the child of `engine.vram.probe`
the only module that imports `llama_cpp`.

Owns one model, one context, one batch, and the native log callback while it lives. Every call into the context comes from
one thread; the vocabulary may be asked from any thread (llama.cpp only reads it).

Limits that llama.cpp enforces by aborting the process are checked here before every call: tokens per batch, outputs per
batch, sequence ids, and copies into sequences that hold something. `n_outputs_max` cannot be smaller than `n_seq_max`
(llama-context.cpp, output_reserve), so it is `n_seq_max`; what running replies leave of it costs nothing more.
Why the cache is unified: see `engine.kv.pool`.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import structlog

from engine.backends.threadpace import CoreWaits, ThreadPace, waits_are_told

# libgomp reads this once, when llama.cpp loads it: how often a thread looks before it sleeps at one of a decode's 900 barriers.
# On two cores, ms per token of one reply of the demo model: 9.2 with 1,000, 7.7 with 10,000, 8.5 with libgomp's own
# 300,000; beside one busy process 38, 87 and 175-230 - but there `ThreadPace` leaves one core to it (13). Where the kernel
# does not tell that somebody waits, the small number is the safe one.
os.environ.setdefault("GOMP_SPINCOUNT", "10000" if waits_are_told() else "1000")

import llama_cpp as llama
import llama_cpp._logger as llama_logger
import numpy as np
import numpy.typing as npt

from engine.backends.base import (
    REUSE,
    BatchPart,
    DecodeFailed,
    DecodeStatus,
    MemoryKind,
    Sampler,
)
from engine.backends.llamabatch import LlamaBatch
from engine.backends.llamamemory import cache_bytes, on_host
from engine.backends.llamaparams import context_params, flash_type, model_params
from engine.backends.llamarpc import add_worker
from engine.backends.llamasampler import LlamaSampler, build_sampler
from engine.backends.llamastate import SequenceBytes
from engine.backends.longruns import cut_long_runs
from engine.backends.memory import available_bytes, check_memory
from engine.backends.modelfile import explain_context_failure, explain_load_failure, find_model
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.rpc.client import Workers
from engine.types import ModelInfo, Sampling
from engine.vram.fingerprint import fingerprint
from engine.vram.settings import check_cache_types, context_settings, flash_attention

_log = structlog.get_logger()

_NO_SLOT: Final = 1
# ggml_log_level; a continued line has the level of the line before it.
_DEBUG, _WARN, _CONTINUED = 1, 3, 5
# The cache is shared (`kv_unified`), so llama.cpp takes all of it for one conversation's window, which is checked here; and a
# full cache for sliding windows is wanted: a smaller one cannot be cut.
_HARMLESS: Final = re.compile(r"n_ctx_seq \(\d+\) > n_ctx_train \(\d+\)|using full-size SWA cache")
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
        check_cache_types(config)
        self._config = config
        self._path = find_model(config.name, config.path)
        self._fingerprint = fingerprint(self._path)
        self._native_log = _NativeLog()
        self._model: Any = None
        self._context: Any = None
        self._workers = Workers(config.name)
        self._logits_are_known = False
        self._logits_at = 0
        self._logit_rows: npt.NDArray[np.float32] = np.zeros((0, 0), dtype=np.float32)
        try:
            self._load_model()
            self._open_context()
            self._workers.watch()
        except BaseException:
            self.close()
            raise
        self._batch = LlamaBatch(self.n_batch)
        self._read_vocabulary()
        self._warm_up()

    def _load_model(self) -> None:
        llama.llama_backend_init()
        if self._config.rpc:
            self._workers.connect(self._config.rpc, add_worker)
        params, _overrides = model_params(self._config)
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
        settings = context_settings(config, llama.llama_model_n_ctx_train(self._model))
        params = context_params(settings)
        if not config.kv_on_card or on_host(config.n_gpu_layers):
            n_bytes = cache_bytes(self._path, settings)
            check_memory(f"models.{config.name}", n_bytes, available_bytes())
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise EngineConfigError(
                f"models.{config.name}: {explain_context_failure(self._native_log.lines)}"
            )
        self._threads = ThreadPace(settings.n_threads)
        self._n_threads = settings.n_threads
        self._core_waits = CoreWaits()
        self._kv: Any = llama.llama_get_memory(self._context)
        self.n_cells: int = llama.llama_n_ctx(self._context)
        self.n_ctx_seq: int = min(settings.window, self.n_cells)
        self.n_seq_max: int = llama.llama_n_seq_max(self._context) - 1
        self._bytes = SequenceBytes(
            self._context,
            self.n_seq_max,
            has_state=self.memory is MemoryKind.RECURRENT,
            has_cells=not llama.llama_model_is_recurrent(self._model),
            has_window=self.memory is MemoryKind.SLIDING,
        )
        self.n_batch: int = llama.llama_n_batch(self._context)
        self.n_outputs_max: int = params.n_outputs_max

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
        self._splits_by_regex = llama.llama_vocab_type(vocab) == llama.LLAMA_VOCAB_TYPE_BPE

    def _warm_up(self) -> None:
        """Touch every weight once, so that the first answer does not wait for the disk (and a device that has no room for
        a decode says so now)."""
        llama.llama_set_warmup(self._context, True)
        try:
            self.decode([BatchPart(0, 0, [max(0, llama.llama_vocab_bos(self._vocab))], 0)])
        finally:
            llama.llama_set_warmup(self._context, False)
            self.clear()

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
            kv_reuse=REUSE[self.memory],
            absent_workers=dict(self._workers.absent),
            description=description.value.decode("utf-8", "replace"),
        )

    def state_format(self) -> str:
        system = llama.llama_print_system_info().decode("utf-8", "replace")
        flash = flash_type(flash_attention(self._config))
        types = f"{self._config.cache_type_k}|{self._config.cache_type_v}"
        return (
            f"{llama.__version__}|{types}|{flash}|{self.memory}|{self.n_swa}|{'REPACK' in system}"
        )

    def chat_template(self) -> str:
        template = llama.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else ""

    def special_texts(self) -> tuple[str, ...]:
        return self._special_texts

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if add_special or not self._splits_by_regex:
            return self._tokenize(text, add_special=add_special, parse_special=parse_special)
        ids: list[int] = []
        for piece in cut_long_runs(text, self._special_texts):
            ids += self._tokenize(piece, add_special=False, parse_special=parse_special)
        return ids

    def _tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
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
        n_tokens = n_outputs = 0
        for part in parts:
            if not 0 <= part.seq_id < self.n_seq_max:
                raise ValueError("a sequence id is out of range")
            if not 0 <= part.n_outputs <= len(part.tokens):
                raise ValueError("a part of the batch has more outputs than tokens")
            n_tokens += len(part.tokens)
            n_outputs += part.n_outputs
        if not 0 < n_tokens <= self.n_batch or n_outputs > self.n_outputs_max:
            raise ValueError(f"a batch of {n_tokens} tokens and {n_outputs} outputs is too big")
        self._set_threads(self._threads.threads_for(n_tokens, time.monotonic()))
        self._logits_are_known = False
        started = time.perf_counter()
        status = llama.llama_decode(self._context, self._batch.fill(parts))
        if status == _NO_SLOT:
            return DecodeStatus.NO_SLOT
        if status != 0:
            reasons = "; ".join(list(self._native_log.lines)[-2:])
            raise DecodeFailed(f"llama_decode returned {status} ({reasons})")
        # On a GPU the call only queues the work: wait, or the step times that steer the next batch mean nothing.
        llama.llama_synchronize(self._context)
        if self._threads.window_is_over(time.perf_counter() - started):
            self._threads.judge(self._core_waits.since_last_s(), time.monotonic())
        return DecodeStatus.DONE

    def _set_threads(self, n_threads: int) -> None:
        if n_threads != self._n_threads:
            self._n_threads = n_threads
            llama.llama_set_n_threads(self._context, n_threads, n_threads)

    def sample(self, part_index: int, sampler: Sampler, offset: int = 0) -> int:
        if not isinstance(sampler, LlamaSampler) or sampler.chain is None:
            raise ValueError("the sampler is closed or of another backend")
        rows = self._batch.output_rows[part_index]
        if not 0 <= offset < len(rows):
            raise ValueError(f"part {part_index} of the batch has no output {offset}")
        if sampler.needs_all:
            token: int = llama.llama_sampler_sample(sampler.chain, self._context, rows[offset])
            return token
        return sampler.choose(self._logits()[self._batch.first_outputs[part_index] + offset])

    def _logits(self) -> npt.NDArray[np.float32]:
        """Those of the last batch, a row per output in the order of the batch (llama.h, llama_get_logits).

        The buffer belongs to llama.cpp, which moves it when it grows; rows behind the last output are not to be touched.
        """
        if not self._logits_are_known:
            address = ctypes.addressof(llama.llama_get_logits(self._context).contents)
            if address != self._logits_at:
                self._logits_at = address
                floats = ctypes.c_float * (self.n_outputs_max * self.n_vocab)
                buffer: Any = floats.from_address(address)
                rows = np.frombuffer(buffer, np.float32)
                self._logit_rows = rows.reshape(self.n_outputs_max, self.n_vocab)
            self._logits_are_known = True
        return self._logit_rows

    # The cache.

    def seq_rm(self, seq_id: int, start: int) -> None:
        llama.llama_memory_seq_rm(self._kv, self._checked(seq_id), start, -1)
        if start == 0:
            self._bytes.emptied(seq_id)

    def seq_cp(self, source: int, target: int, length: int) -> None:
        if self.seq_pos_max(target) >= 0:
            raise ValueError(f"sequence {target} is not empty")
        end = -1 if self.memory is MemoryKind.RECURRENT else length
        llama.llama_memory_seq_cp(self._kv, self._checked(source), target, 0, end)
        self._bytes.shared(source, target)

    def seq_pos_min(self, seq_id: int) -> int:
        oldest = int(llama.llama_memory_seq_pos_min(self._kv, self._checked(seq_id)))
        return max(oldest, self._bytes.whole_from(seq_id)) if oldest >= 0 else oldest

    def seq_pos_max(self, seq_id: int) -> int:
        return int(llama.llama_memory_seq_pos_max(self._kv, self._checked(seq_id)))

    def clear(self) -> None:
        llama.llama_memory_clear(self._kv, False)
        self._bytes.emptied()

    def save_cells(self, seq_id: int, start: int, end: int) -> bytearray:
        return self._bytes.save_cells(self._checked(seq_id), start, end)

    def load_cells(self, seq_id: int, start: int, end: int, data: bytes | bytearray) -> bool:
        return self._bytes.load_cells(self._checked(seq_id), start, end, data)

    def save_state(self, seq_id: int) -> bytearray:
        return self._bytes.save_state(self._checked(seq_id))

    def load_state(self, seq_id: int, data: bytes | bytearray) -> bool:
        return self._bytes.load_state(self._checked(seq_id), data)

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
        self._workers.close()

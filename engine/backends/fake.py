"""A scripted backend: no model, exact bookkeeping. For tests and `--engine fake`; it ships so that both use the same one.

It owns a pretended KV cache that is stricter than a real one: a token at a wrong position, a copy into a sequence that is
not empty, an output nobody asked for or a sampler that does not fit its sequence raises FakeMisuse at once.

Settings (`EngineConfig.fake`, all strings):
    reply                  the whole reply; default: a Markdown answer about the last question, with Chinese and emoji
    thinking               text put in front of the reply as <think>…</think>
    token_delay_s          seconds per step that produces tokens (default 0)
    prefill_tokens_per_s   speed of prompts (default 0 = instant)
    crash_after_tokens     abort the process after so many tokens (default 0 = never)
    load_s                 seconds that loading takes (default 0)
    memory, n_swa          attention | sliding | recurrent, and the window (default attention, 0)

Tokens are bytes: id 0–255 is that byte, so characters outside ASCII span tokens; ids from 256 are the special tokens.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Sequence
from typing import Final

from engine.backends.base import BatchPart, DecodeStatus, MemoryKind, Sampler
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.types import ModelInfo, Sampling

SPECIALS: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>")
N_VOCAB: Final = 256 + len(SPECIALS)
IM_START, IM_END, END_OF_TEXT, THINK, END_THINK = range(256, N_VOCAB)
_SPECIAL_PATTERN = re.compile("|".join(re.escape(text) for text in SPECIALS))
_N_TRAIN: Final = 32768
_N_BATCH: Final = 512

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_KNOWN: Final = frozenset(
    {
        "reply",
        "thinking",
        "token_delay_s",
        "prefill_tokens_per_s",
        "crash_after_tokens",
        "load_s",
        "memory",
        "n_swa",
    }
)


class FakeMisuse(AssertionError):
    """The caller's bookkeeping and the cache disagree."""


class FakeSampler:
    """Counts what it has accepted; belongs to one reply."""

    def __init__(self, accepted: Sequence[int]) -> None:
        self.accepted = list(accepted)
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeCache:
    """Cells with reference counts, and per sequence the cell of each position; owned by the backend."""

    def __init__(self, n_cells: int, n_seq_max: int, n_swa: int) -> None:
        self.n_cells = n_cells
        self._n_swa = n_swa
        self._seqs: list[list[int]] = [[] for _ in range(n_seq_max)]
        self._lost = [0] * n_seq_max
        self._tokens: dict[int, int] = {}
        self._n_holders: dict[int, int] = {}
        self._n_ever = 0

    @property
    def n_used(self) -> int:
        return len(self._tokens)

    def length(self, seq_id: int) -> int:
        return len(self._seqs[seq_id])

    def first(self, seq_id: int) -> int:
        """Smallest position held: sliding windows lose what lies behind them."""
        return self._lost[seq_id]

    def tokens(self, seq_id: int) -> list[int]:
        return [self._tokens[cell] for cell in self._seqs[seq_id]]

    def append(self, seq_id: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tokens[self._n_ever] = token
            self._n_holders[self._n_ever] = 1
            self._seqs[seq_id].append(self._n_ever)
            self._n_ever += 1
        if self._n_swa:
            self._lost[seq_id] = max(self._lost[seq_id], self.length(seq_id) - self._n_swa)

    def cut(self, seq_id: int, start: int) -> None:
        for cell in self._seqs[seq_id][start:]:
            self._n_holders[cell] -= 1
            if not self._n_holders[cell]:
                del self._n_holders[cell], self._tokens[cell]
        del self._seqs[seq_id][start:]
        self._lost[seq_id] = min(self._lost[seq_id], start)

    def copy(self, source: int, target: int, length: int) -> None:
        if self._seqs[target]:
            raise FakeMisuse(f"copy into sequence {target}, which is not empty")
        if not 0 < length <= self.length(source):
            raise FakeMisuse(f"copy of {length} of {self.length(source)} tokens")
        self._seqs[target] = self._seqs[source][:length]
        self._lost[target] = self._lost[source]
        for cell in self._seqs[target]:
            self._n_holders[cell] += 1


class FakeBackend:
    """The Backend protocol, scripted. One loop thread, like the real one."""

    def __init__(self, config: EngineConfig) -> None:
        unknown = sorted(set(config.fake) - _KNOWN)
        if unknown:
            raise EngineConfigError(
                f"models.{config.name}.fake has no setting {unknown[0]!r}; it has {', '.join(sorted(_KNOWN))}"
            )
        self._config = config
        self._script = config.fake
        self.n_ctx_seq = min(config.n_ctx, _N_TRAIN)
        self.n_cells = config.kv_cells or config.n_parallel * config.n_ctx
        self.n_ctx_seq = min(self.n_ctx_seq, self.n_cells)
        self.n_seq_max = config.n_sequences or config.n_parallel + 12
        self.n_outputs_max = config.n_parallel
        self.n_batch = min(config.n_batch, _N_BATCH)
        self.n_vocab = N_VOCAB
        self.memory = self._memory_kind()
        self.n_swa = int(self._script.get("n_swa", "0"))
        self.bos_text, self.eos_text, self.add_bos = "", SPECIALS[1], False
        self.cache = FakeCache(self.n_cells, self.n_seq_max, self.n_swa)
        self._token_delay_s = self._number("token_delay_s")
        self._prefill_tokens_per_s = self._number("prefill_tokens_per_s")
        self._crash_after_tokens = int(self._number("crash_after_tokens"))
        self._n_sampled = 0
        self._outputs: dict[int, int] = {}
        self._pause = threading.Event()
        self._wait(self._number("load_s"))

    def _number(self, key: str) -> float:
        try:
            return float(self._script.get(key, "0"))
        except ValueError:
            raise EngineConfigError(
                f"models.{self._config.name}.fake.{key} must be a number, not {self._script[key]!r}"
            ) from None

    def _memory_kind(self) -> MemoryKind:
        value = self._script.get("memory", MemoryKind.ATTENTION)
        if value not in set(MemoryKind):
            raise EngineConfigError(
                f"models.{self._config.name}.fake.memory must be one of {', '.join(MemoryKind)}, not {value!r}"
            )
        return MemoryKind(value)

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._pause.wait(seconds)

    # Text.

    def info(self) -> ModelInfo:
        script = hashlib.sha256(repr(sorted(self._script.items())).encode()).hexdigest()[:16]
        return ModelInfo(
            name=self._config.name,
            path="fake",
            fingerprint=f"fake-{script}",
            n_ctx_tokens=self.n_ctx_seq,
            n_vocab=N_VOCAB,
            n_parallel=self._config.n_parallel,
            kv_cells=self.n_cells,
            description="scripted replies, no model",
        )

    def chat_template(self) -> str:
        return CHAT_TEMPLATE

    def special_texts(self) -> tuple[str, ...]:
        return SPECIALS

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        del add_special  # there is no begin token
        if not parse_special:
            return list(text.encode())
        ids: list[int] = []
        at = 0
        for match in _SPECIAL_PATTERN.finditer(text):
            ids += text[at : match.start()].encode()
            ids.append(256 + SPECIALS.index(match.group()))
            at = match.end()
        ids += text[at:].encode()
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return SPECIALS[token_id - 256].encode() if token_id in (THINK, END_THINK) else b""

    def is_eog(self, token_id: int) -> bool:
        return token_id in (IM_END, END_OF_TEXT)

    # The loop.

    def new_sampler(self, sampling: Sampling, accepted: Sequence[int]) -> Sampler:
        del sampling  # the script knows no chance
        return FakeSampler(accepted)

    def decode(self, parts: Sequence[BatchPart]) -> DecodeStatus:
        n_tokens = sum(len(part.tokens) for part in parts)
        n_outputs = sum(part.wants_output for part in parts)
        if not 0 < n_tokens <= self.n_batch or n_outputs > self.n_outputs_max:
            raise FakeMisuse(f"a batch of {n_tokens} tokens and {n_outputs} outputs")
        if len({part.seq_id for part in parts}) != len(parts):
            raise FakeMisuse("two parts of one sequence in a batch")
        for part in parts:
            self._check(part)
        if self.cache.n_used + n_tokens > self.n_cells:
            return DecodeStatus.NO_SLOT
        self._outputs = {}
        for index, part in enumerate(parts):
            self.cache.append(part.seq_id, part.tokens)
            if part.wants_output:
                self._outputs[index] = part.seq_id
        n_prefill = n_tokens - n_outputs
        if self._prefill_tokens_per_s:
            self._wait(n_prefill / self._prefill_tokens_per_s)
        self._wait(self._token_delay_s if n_outputs else 0.0)
        return DecodeStatus.DONE

    def _check(self, part: BatchPart) -> None:
        if not part.tokens:
            raise FakeMisuse("an empty part")
        if part.start != self.cache.length(part.seq_id):
            raise FakeMisuse(
                f"sequence {part.seq_id} holds {self.cache.length(part.seq_id)} tokens, the batch starts at {part.start}"
            )
        if part.start + len(part.tokens) > self.n_ctx_seq:
            raise FakeMisuse(f"sequence {part.seq_id} grows beyond its window")
        if self.n_swa and self.cache.first(part.seq_id) > max(0, part.start - self.n_swa):
            raise FakeMisuse(f"sequence {part.seq_id} was cut behind its sliding window")
        if not all(0 <= token < N_VOCAB for token in part.tokens):
            raise FakeMisuse("a token outside the vocabulary")

    def sample(self, part_index: int, sampler: Sampler) -> int:
        if part_index not in self._outputs:
            raise FakeMisuse(f"part {part_index} has no output")
        assert isinstance(sampler, FakeSampler)  # noqa: S101 - the core only passes what new_sampler made
        if sampler.closed:
            raise FakeMisuse("a closed sampler")
        held = self.cache.tokens(self._outputs.pop(part_index))
        n_accepted = len(sampler.accepted)
        if n_accepted and held[-n_accepted:] != sampler.accepted:
            raise FakeMisuse("the sampler has accepted other tokens than the sequence holds")
        reply = self.reply_to(held[: len(held) - n_accepted])
        token = reply[n_accepted] if n_accepted < len(reply) else IM_END
        sampler.accepted.append(token)
        self._n_sampled += 1
        if self._crash_after_tokens and self._n_sampled >= self._crash_after_tokens:
            os.abort()
        return token

    def reply_to(self, prompt: Sequence[int]) -> list[int]:
        """The scripted reply to a prompt, with its end token."""
        thinking = self._script.get("thinking", "")
        ids = [THINK, *thinking.encode(), END_THINK] if thinking else []
        reply = self._script.get("reply") or _default_reply(_last_question(prompt))
        return [*ids, *reply.encode(), IM_END]

    # The cache.

    def seq_rm(self, seq_id: int, start: int) -> None:
        if self.memory is MemoryKind.RECURRENT and 0 < start < self.cache.length(seq_id):
            return  # like the real one: nothing happens, and nothing is said
        self.cache.cut(seq_id, start)

    def seq_cp(self, source: int, target: int, length: int) -> None:
        if self.memory is MemoryKind.RECURRENT and length != self.cache.length(source):
            raise FakeMisuse("partial copy of a recurrent state")
        self.cache.copy(source, target, length)

    def seq_pos_min(self, seq_id: int) -> int:
        return (
            self.cache.first(seq_id) if self.cache.length(seq_id) > self.cache.first(seq_id) else -1
        )

    def seq_pos_max(self, seq_id: int) -> int:
        return self.cache.length(seq_id) - 1

    def clear(self) -> None:
        self.cache = FakeCache(self.n_cells, self.n_seq_max, self.n_swa)

    def close(self) -> None:
        self._pause.set()


def _last_question(prompt: Sequence[int]) -> str:
    """The content of the last user message, or the whole prompt when it has no such message."""
    header = [IM_START, *b"user\n"]
    ids = list(prompt)
    for at in range(len(ids) - len(header), -1, -1):
        if ids[at : at + len(header)] == header:
            ids = ids[at + len(header) :]
            break
    if IM_END in ids:
        ids = ids[: ids.index(IM_END)]
    return bytes(i for i in ids if i < 256).decode(errors="replace").strip()


def _default_reply(question: str) -> str:
    """Deterministic Markdown about the question, long enough to be seen growing."""
    topic = " ".join(question.split())[:80] or "…"
    return (
        f"## About “{topic}”\n\n"
        "This is the scripted engine: it answers everything the same way, so that the service can be tried without a model. "
        "这是脚本引擎，不会真正思考，但会一字一句地把话说完。🙂\n\n"
        "1. **First**, the question arrived whole: "
        f"it has {len(question)} characters.\n"
        "2. **Then** it was turned into tokens, one per byte, so that 汉字 and emoji such as 🚀 span several of them.\n"
        "3. **Now** the reply grows inside one message.\n\n"
        '```python\nprint("你好, world")\n```\n\n'
        "| step | 状态 |\n|---|---|\n| ask | ✅ |\n| answer | ✅ |\n\n"
        f"> {topic}\n\n完。That is all."
    )

"""A scripted backend: no model, exact bookkeeping. For tests and `--engine fake`; it ships so that both use the same one.

It owns a pretended KV cache that is stricter than a real one: a token at a wrong position, a copy into a sequence that is
not empty, an output nobody asked for, a token chosen behind a guess that was wrong or a sampler that does not fit its
sequence raises FakeMisuse at once.

Settings (`EngineConfig.fake`, all strings):
    reply                  the whole reply; default: a Markdown answer about the last question, with Chinese and emoji
    thinking               text put in front of the reply as <think>…</think>
    token_delay_s          seconds per token of a reply, however many replies go on at once (default 0); guesses cost the same
    prefill_tokens_per_s   speed of prompts (default 0 = instant)
    crash_after_tokens     abort the process after so many tokens (default 0 = never)
    load_s                 seconds that loading takes (default 0)
    memory, n_swa          attention | sliding | recurrent, and the window (default attention, 0)
    die, fits, …           how it dies: see engine/backends/fakedeath.py

Tokens are bytes: id 0–255 is that byte, so characters outside ASCII span tokens; ids from 256 are the special tokens.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.backends.base import REUSE, BatchPart, DecodeStatus, MemoryKind, Sampler
from engine.backends.fakedeath import KNOWN as DEATH_SETTINGS
from engine.backends.fakedeath import FakeDeath
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
        *DEATH_SETTINGS,
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


@dataclass(slots=True)
class _Outputs:
    """Of a part of the last batch: the position of its first output, how many there are and how many were sampled."""

    seq_id: int
    first: int
    n: int
    n_taken: int = 0


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
        self.n_outputs_max = max(self.n_seq_max, config.n_parallel)
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
        # Recurrent sequences whose cells were loaded and whose state was not yet.
        self._stateless: set[int] = set()
        self._outputs: dict[int, _Outputs] = {}
        self._pause = threading.Event()
        self._death = FakeDeath(config)
        self._death.on_load()
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
            kv_reuse=REUSE[self.memory],
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
        n_outputs = sum(part.n_outputs for part in parts)
        if not 0 < n_tokens <= self.n_batch or n_outputs > self.n_outputs_max:
            raise FakeMisuse(f"a batch of {n_tokens} tokens and {n_outputs} outputs")
        if len({part.seq_id for part in parts}) != len(parts):
            raise FakeMisuse("two parts of one sequence in a batch")
        for part in parts:
            self._check(part)
        self._death.on_decode()
        if self.cache.n_used + n_tokens > self.n_cells:
            return DecodeStatus.NO_SLOT
        self._outputs = {}
        for index, part in enumerate(parts):
            self.cache.append(part.seq_id, part.tokens)
            if part.n_outputs:
                first = part.start + len(part.tokens) - part.n_outputs
                self._outputs[index] = _Outputs(part.seq_id, first, part.n_outputs)
        n_prefill = n_tokens - n_outputs
        if self._prefill_tokens_per_s:
            self._wait(n_prefill / self._prefill_tokens_per_s)
        self._wait(self._token_delay_s * max(part.n_outputs for part in parts))
        return DecodeStatus.DONE

    def _check(self, part: BatchPart) -> None:
        if not part.tokens:
            raise FakeMisuse("an empty part")
        if not 0 <= part.n_outputs <= len(part.tokens):
            raise FakeMisuse(f"{part.n_outputs} outputs of {len(part.tokens)} tokens")
        if part.seq_id in self._stateless:
            raise FakeMisuse(f"sequence {part.seq_id} has cells and no state")
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

    def sample(self, part_index: int, sampler: Sampler, offset: int = 0) -> int:
        outputs = self._outputs.get(part_index)
        if outputs is None or offset >= outputs.n:
            raise FakeMisuse(f"part {part_index} has no output {offset}")
        if offset != outputs.n_taken:
            raise FakeMisuse(f"output {offset} after {outputs.n_taken} outputs")
        assert isinstance(sampler, FakeSampler)  # noqa: S101 - the core only passes what new_sampler made
        if sampler.closed:
            raise FakeMisuse("a closed sampler")
        outputs.n_taken += 1
        length = outputs.first + offset + 1
        held = self.cache.tokens(outputs.seq_id)[:length]
        if len(held) < length:
            raise FakeMisuse("an output of a position that has been cut")
        n_accepted = len(sampler.accepted)
        if n_accepted and held[-n_accepted:] != sampler.accepted:
            raise FakeMisuse("the sampler has accepted other tokens than the sequence holds")
        prompt = held[: len(held) - n_accepted]
        self._death.on_sample(prompt, n_accepted)
        reply = self.reply_to(prompt)
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
        self._stateless.discard(seq_id)
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

    def save_cells(self, seq_id: int, start: int, end: int) -> bytes:
        if not 0 <= start < end <= self.cache.length(seq_id):
            raise FakeMisuse(f"cells {start}-{end} of {self.cache.length(seq_id)}")
        if self.n_swa and end - start > self.n_swa:
            raise FakeMisuse("more cells at once than the sliding window has")
        held = self.cache.tokens(seq_id)
        return array("i", [start, _mark_of(held[:start]), *held[start:end]]).tobytes()

    def load_cells(self, seq_id: int, start: int, end: int, data: bytes | bytearray) -> bool:
        if len(data) % 4 or len(data) < 12:
            return False
        first, mark, *tokens = array("i", bytes(data))
        if self.cache.length(seq_id) != start or not first <= start < end <= first + len(tokens):
            raise FakeMisuse(
                f"cells {start}-{end} from bytes of {first}-{first + len(tokens)} behind {self.cache.length(seq_id)}"
            )
        if mark != _mark_of([*self.cache.tokens(seq_id), *tokens][:first]):
            raise FakeMisuse("cells that were computed behind other tokens")
        if self.cache.n_used + end - start > self.n_cells:
            return False
        self.cache.append(seq_id, tokens[start - first : end - first])
        if self.memory is MemoryKind.RECURRENT:
            self._stateless.add(seq_id)
        return True

    def save_state(self, seq_id: int) -> bytes:
        if self.memory is not MemoryKind.RECURRENT:
            return b""
        return array("i", self.cache.tokens(seq_id)).tobytes()

    def load_state(self, seq_id: int, data: bytes | bytearray) -> bool:
        if self.memory is MemoryKind.RECURRENT:
            if bytes(data) != self.save_state(seq_id):
                raise FakeMisuse("the state of other tokens than the sequence holds")
            self._stateless.discard(seq_id)
        return True

    def state_format(self) -> str:
        return "fake"

    def clear(self) -> None:
        self._stateless = set()
        self.cache = FakeCache(self.n_cells, self.n_seq_max, self.n_swa)

    def close(self) -> None:
        self._pause.set()


def _mark_of(tokens: Sequence[int]) -> int:
    """What a cell knows of the tokens before it."""
    return zlib.crc32(array("i", tokens).tobytes()) >> 1


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

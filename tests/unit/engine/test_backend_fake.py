"""The scripted backend: its text, its script, and that it catches faulty bookkeeping."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from engine.backends.base import BatchPart, DecodeStatus, make_backend
from engine.backends.fake import END_THINK, IM_END, IM_START, THINK, FakeBackend, FakeMisuse
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.types import Sampling


def fake(script: dict[str, str] | None = None, **fields: object) -> FakeBackend:
    settings = {"name": "t", "backend": "fake", "n_ctx": 128, "fake": script or {}} | fields
    return FakeBackend(EngineConfig(**settings))  # type: ignore[arg-type]


def part(seq_id: int, start: int, tokens: Sequence[int], *, output: bool = False) -> BatchPart:
    return BatchPart(seq_id, start, tokens, int(output))


def test_it_is_what_make_backend_gives() -> None:
    assert isinstance(make_backend(EngineConfig(name="t", backend="fake")), FakeBackend)
    with pytest.raises(EngineConfigError, match="does not run in the engine process"):
        make_backend(EngineConfig(name="t", backend="openai"))


@pytest.mark.parametrize("text", ["plain", "汉字 🚀 é", "<|im_start|>user\nhi<|im_end|>\n", ""])
def test_tokens_are_bytes_and_specials(text: str) -> None:
    backend = fake()
    ids = backend.tokenize(text, add_special=True, parse_special=True)
    specials = "<|im_start|>", "<|im_end|>"
    plain = text
    for special in specials:
        plain = plain.replace(special, "")
    assert b"".join(map(backend.token_bytes, ids)).decode() == plain
    assert ids.count(IM_START) == text.count("<|im_start|>")
    assert backend.tokenize(text, add_special=False, parse_special=False) == list(text.encode())


def test_only_thinking_tags_among_the_specials_are_visible() -> None:
    backend = fake()
    assert backend.token_bytes(THINK) == b"<think>"
    assert backend.token_bytes(END_THINK) == b"</think>"
    assert backend.token_bytes(IM_END) == b""
    assert backend.is_eog(IM_END)
    assert not backend.is_eog(65)


def generate(backend: FakeBackend, prompt: str, n_max: int = 2000) -> list[int]:
    ids = backend.tokenize(prompt, add_special=False, parse_special=True)
    sampler = backend.new_sampler(Sampling(), ())
    out: list[int] = []
    backend.decode([part(0, 0, ids, output=True)])
    while len(out) < n_max:
        token = backend.sample(0, sampler)
        out.append(token)
        if backend.is_eog(token):
            break
        backend.decode([part(0, len(ids) + len(out) - 1, [token], output=True)])
    return out


def test_the_default_reply_is_about_the_last_question_and_deterministic() -> None:
    prompt = (
        "<|im_start|>user\nfirst<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\n今天天气怎么样？🙂<|im_end|>\n<|im_start|>assistant\n"
    )
    first = generate(fake(n_ctx=4096), prompt)
    assert first == generate(fake(n_ctx=4096), prompt)
    text = bytes(first[:-1]).decode()
    assert "今天天气怎么样？🙂" in text
    assert "first" not in text.split("##")[1].split("\n")[0]
    assert len(text) > 400
    assert first[-1] == IM_END


def test_script_of_reply_and_thinking() -> None:
    out = generate(fake({"reply": "好", "thinking": "hm"}), "x")
    assert out == [THINK, *b"hm", END_THINK, *"好".encode(), IM_END]


def test_delays_pass_in_decode() -> None:
    backend = fake({"token_delay_s": "0.02", "prefill_tokens_per_s": "1000"})
    begun = time.monotonic()
    backend.decode([part(0, 0, [1] * 40)])
    assert time.monotonic() - begun >= 0.039
    begun = time.monotonic()
    backend.decode([part(0, 40, [1], output=True)])
    assert time.monotonic() - begun >= 0.019


def test_crash_after_tokens_aborts_the_process() -> None:
    code = (
        "from engine.backends.fake import FakeBackend\n"
        "from engine.backends.base import BatchPart\n"
        "from engine.config import EngineConfig\n"
        "from engine.types import Sampling\n"
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "b = FakeBackend(EngineConfig(name='t', fake={'crash_after_tokens': '2', 'reply': 'abc'}))\n"
        "s = b.new_sampler(Sampling(), ())\n"
        "b.decode([BatchPart(0, 0, [1], 1)]); t = b.sample(0, s)\n"
        "print('alive', flush=True)\n"
        "b.decode([BatchPart(0, 1, [t], 1)]); b.sample(0, s)\n"
        "print('not reached', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "alive\n"
    assert done.returncode == -6


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"replay": "x"}, "no setting 'replay'"),
        ({"token_delay_s": "fast"}, "must be a number"),
        ({"memory": "elephant"}, "memory must be one of"),
    ],
)
def test_a_wrong_script_is_refused(script: dict[str, str], message: str) -> None:
    with pytest.raises(EngineConfigError, match=message):
        fake(script)


def test_faulty_bookkeeping_is_caught() -> None:
    backend = fake(n_parallel=1, n_sequences=2)
    backend.decode([part(0, 0, [1, 2, 3])])
    for wrong, message in [
        ([part(0, 2, [9])], "holds 3 tokens"),
        ([part(0, 4, [9])], "holds 3 tokens"),
        ([part(1, 1, [9])], "holds 0 tokens"),
        ([part(0, 3, [])], "a batch of 0 tokens"),
        ([part(0, 3, [99999])], "outside the vocabulary"),
        ([part(0, 3, [1]), part(0, 4, [1])], "two parts"),
        ([part(i, 3 - 3 * (i > 0), [1], output=True) for i in range(3)], "3 outputs"),
        ([BatchPart(0, 3, [1, 2], 3)], "3 outputs"),
        ([BatchPart(0, 3, [1, 2], -1)], "-1 outputs"),
        ([part(0, 3, [1] * 200)], "beyond its window"),
    ]:
        with pytest.raises(FakeMisuse, match=message):
            backend.decode(wrong)
    assert backend.cache.tokens(0) == [1, 2, 3]


def test_outputs_and_samplers_must_fit() -> None:
    backend = fake()
    sampler = backend.new_sampler(Sampling(), ())
    backend.decode([part(0, 0, [1]), part(1, 0, [1], output=True)])
    with pytest.raises(FakeMisuse, match="no output"):
        backend.sample(0, sampler)
    backend.sample(1, sampler)
    with pytest.raises(FakeMisuse, match="no output 1"):
        backend.sample(1, sampler, 1)
    with pytest.raises(FakeMisuse, match="after 1 outputs"):
        backend.sample(1, sampler)
    backend.decode([part(0, 1, [7], output=True)])
    with pytest.raises(FakeMisuse, match="accepted other tokens"):
        backend.sample(0, sampler)
    backend.decode([part(0, 2, [7], output=True)])
    sampler.close()
    with pytest.raises(FakeMisuse, match="closed"):
        backend.sample(0, sampler)


def test_shared_cells_count_once_and_live_as_long_as_anyone_holds_them() -> None:
    backend = fake()
    backend.decode([part(0, 0, [1, 2, 3, 4])])
    backend.seq_cp(0, 1, 3)
    assert backend.cache.n_used == 4
    backend.seq_rm(0, 0)
    assert backend.cache.n_used == 3
    assert backend.cache.tokens(1) == [1, 2, 3]
    backend.decode([part(1, 3, [5])])
    assert (backend.seq_pos_min(1), backend.seq_pos_max(1)) == (0, 3)
    assert (backend.seq_pos_min(0), backend.seq_pos_max(0)) == (-1, -1)
    with pytest.raises(FakeMisuse, match="not empty"):
        backend.seq_cp(1, 1, 1)
    with pytest.raises(FakeMisuse, match="copy of 9"):
        backend.seq_cp(1, 0, 9)


def test_a_full_cache_has_no_slot_and_changes_nothing() -> None:
    backend = fake(kv_cells=10, n_ctx=10)
    backend.decode([part(0, 0, [1] * 8)])
    assert backend.decode([part(1, 0, [1] * 3)]) is DecodeStatus.NO_SLOT
    assert backend.cache.n_used == 8
    assert backend.decode([part(1, 0, [1] * 2)]) is DecodeStatus.DONE

"""What the core costs: generated tok/s through `Core` against a bare llama_decode loop, in one process, at 1, 4, 8 sequences.

    .venv/bin/python -m tests.bench.engine_loop [--tokens 64] [--rounds 5] [--threads 0] [--kv q8_0]

Both sides share the loaded model, context, prompts and greedy sampling, and take turns, so that other work on the machine
meets both; only generation is timed (a step is timed when every sequence is in it). `python_share` is the part of the
core's step time spent outside llama_decode; with --threads 1, `cpu_ratio` (processor time per token, bare over core) is the
figure that other work on the machine disturbs least. Prints one JSON line per width.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp as llama

from engine.backends.base import BatchPart
from engine.backends.llamacpp import LlamaBackend
from engine.config import EngineConfig
from engine.core.core import Core
from engine.types import Delta, EngineEvent, EngineRequest, Sampling

WIDTHS = (1, 4, 8)
QUESTION = "<|im_start|>user\nTell me a long story about ship number {}.<|im_end|>\n<|im_start|>assistant\n"


def prompts_of(backend: LlamaBackend, n_sequences: int) -> list[list[int]]:
    return [
        backend.tokenize(QUESTION.format(i), add_special=False, parse_special=True)
        for i in range(n_sequences)
    ]


def bare(backend: LlamaBackend, prompts: list[list[int]], n_tokens: int) -> tuple[float, float]:
    """Tokens per second and per CPU second of the C API called from a plain loop."""
    context: Any = backend._context
    n = len(prompts)
    batch = llama.llama_batch_init(n, 0, 1)
    samplers = [llama.llama_sampler_init_greedy() for _ in prompts]
    backend.clear()
    last = []
    for seq, prompt in enumerate(prompts):
        backend.decode([BatchPart(seq, 0, prompt, n_outputs=1)])
        last.append(llama.llama_sampler_sample(samplers[seq], context, len(prompt) - 1))
    begun, cpu_begun = time.perf_counter(), time.process_time()
    for step in range(n_tokens):
        batch.n_tokens = n
        for seq in range(n):
            batch.token[seq] = last[seq]
            batch.pos[seq] = len(prompts[seq]) + step
            batch.n_seq_id[seq] = 1
            batch.seq_id[seq][0] = seq
            batch.logits[seq] = 1
        if llama.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        last = [llama.llama_sampler_sample(samplers[seq], context, seq) for seq in range(n)]
    elapsed_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    for sampler in samplers:
        llama.llama_sampler_free(sampler)
    llama.llama_batch_free(batch)
    return n * n_tokens / elapsed_s, n * n_tokens / cpu_s


def through_core(
    backend: LlamaBackend, config: EngineConfig, prompts: list[list[int]], n_tokens: int
) -> tuple[float, float, float]:
    """Tokens per second and per CPU second through the core, and the share of its step time outside llama_decode."""
    deltas: list[Delta] = []

    def emit(event: EngineEvent) -> None:
        if isinstance(event, Delta):
            deltas.append(event)

    core = Core(backend, config, emit)
    for i, prompt in enumerate(prompts):
        core.submit(
            EngineRequest(
                id=f"{i}",
                prompt_tokens=tuple(prompt),
                max_new_tokens=4 * n_tokens,
                sampling=Sampling(temperature=0.0),
                cache_key=f"k{i}",
            )
        )
    while len({delta.request_id for delta in deltas}) < len(prompts):
        core.step()
    before, n_before = core.stats(), len(deltas)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    while len(deltas) - n_before < len(prompts) * n_tokens and core.has_work:
        core.step()
    elapsed_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    after, n_done = core.stats(), len(deltas) - n_before
    core.close()
    python_s = after.step_python_s - before.step_python_s
    decode_s = after.step_decode_s - before.step_decode_s
    return n_done / elapsed_s, n_done / cpu_s, python_s / (python_s + decode_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="core against bare decode loop")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--kv", default="q8_0")
    args = parser.parse_args()
    config = EngineConfig(
        name="bench",
        n_ctx=1024,
        n_parallel=max(WIDTHS),
        n_threads=args.threads,
        speculation=False,
        cache_type_k=args.kv,
        cache_type_v=args.kv,
    )
    backend = LlamaBackend(config)
    # SmolLM2 may end a story early: an end token would leave a row of the batch empty.
    backend.is_eog = lambda token_id: False  # type: ignore[method-assign]
    for width in WIDTHS:
        prompts = prompts_of(backend, width)
        rows = []
        for _ in range(args.rounds):
            plain, plain_cpu = bare(backend, prompts, args.tokens)
            core, core_cpu, share = through_core(backend, config, prompts, args.tokens)
            rows.append((plain, core, core / plain, core_cpu / plain_cpu, share))
        plain, core, ratio, cpu_ratio, share = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
        line = {
            "sequences": width,
            "bare_tok_s": round(plain, 1),
            "core_tok_s": round(core, 1),
            "ratio": round(ratio, 3),
            "cpu_ratio": round(cpu_ratio, 3),
            "python_share": round(share, 4),
            "rounds": args.rounds,
            "load": round(os.getloadavg()[0], 1),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    backend.close()


if __name__ == "__main__":
    main()

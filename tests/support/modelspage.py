"""The tables of docs/models-for-12gb.md, computed by the planner: `python -m tests.support.modelspage` rewrites them.

tests/unit/engine/test_vram_page.py fails when page and planner disagree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine.config import EngineConfig
from engine.vram.chooser import Choice, choose
from engine.vram.devices import GIB, PROFILES, Device
from engine.vram.ledger import COMPUTE, KV, LOGITS, OVERHEAD, PROCESS, RESERVE, WEIGHTS
from engine.vram.planning import load
from tests.support.shapefiles import write_shape

PAGE: Final = Path(__file__).parents[2] / "docs" / "models-for-12gb.md"
BEGIN, END = "<!-- computed: begin -->\n", "<!-- computed: end -->\n"
MODELS: Final = {
    "deepseek-v2-lite-q4_k_m": "DeepSeek-V2-Lite Q4_K_M",
    "deepseek-v2-lite-q3_k_m": "DeepSeek-V2-Lite Q3_K_M",
    "deepseek-v2-lite-old-q4_k_m": "the same Q4_K_M, file of before MLA",
    "qwen3-30b-a3b-q4_k_m": "Qwen3-30B-A3B Q4_K_M",
    "qwen3-14b-q4_k_m": "Qwen3-14B Q4_K_M (dense)",
    "gemma3-27b-q3_k_s": "Gemma-3-27B Q3_K_S (dense)",
}
CARD: Final = PROFILES["12GiB desktop"]
RAM: Final = Device("RAM", "cpu", 32 * GIB, 76.8e9, True)
PURPOSES: Final = (*WEIGHTS, KV, COMPUTE, LOGITS, OVERHEAD, PROCESS, RESERVE)
_MIB: Final = 2**20


def tables() -> str:
    """Both tables, as they stand in the page."""
    with tempfile.TemporaryDirectory() as folder:
        models = {name: load(write_shape(name, Path(folder), sparse=False)) for name in MODELS}
    lines = [
        "| model | file | read per token | KV per token | people × window | `n_gpu_layers` | `n_cpu_moe` | card | RAM | tok/s ≤ |"
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    chosen: dict[str, Choice] = {}
    for name, model in models.items():
        for n_parallel, n_ctx in ((4, 4096), (1, 4096)):
            config = EngineConfig(
                name="m",
                n_parallel=n_parallel,
                n_ctx=n_ctx,
                cache_type_k="q8_0",
                cache_type_v="q8_0",
            )
            choice = choose(model, config, RAM, CARD)
            assert isinstance(choice, Choice)
            chosen.setdefault(name, choice)
            ledger = choice.ledger
            assert ledger.card is not None
            kv = "" if choice.config.kv_on_card else ", KV in RAM"
            per_token = sum(model.shape.cell_bytes(ledger.settings.type_k, ledger.settings.type_v))
            lines.append(
                f"| {MODELS[name]} | {model.head.weight_bytes / GIB:.2f} GiB | {model.active_bytes / GIB:.2f} GiB "
                f"| {per_token / 1024:.1f} KiB | {n_parallel} × {n_ctx} | {choice.config.n_gpu_layers} of {model.n_layer + 1}{kv} "
                f"| {choice.config.n_cpu_moe or '–'} | {ledger.card.used / GIB:.2f} GiB | {ledger.ram.used / GIB:.2f} GiB "
                f"| {ledger.bound():.0f} |"
            )
    return "\n".join([*lines, "", *_ledgers(chosen)]) + "\n"


def _ledgers(chosen: dict[str, Choice]) -> Iterator[str]:
    yield "| MiB on the card + in RAM | " + " | ".join(MODELS[name] for name in chosen) + " |"
    yield "| --- |" + " ---: |" * len(chosen)
    for purpose in PURPOSES:
        row = []
        for choice in chosen.values():
            assert choice.ledger.card is not None
            sides = (choice.ledger.card.items, choice.ledger.ram.items)
            row.append(" + ".join(f"{side.get(purpose, 0) / _MIB:,.0f}" for side in sides))
        yield f"| {purpose} | " + " | ".join(row) + " |"


def page_with(text: str, computed: str) -> str:
    """The page with its tables replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{computed}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")

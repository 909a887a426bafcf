"""What a person wants to know of a model file at a glance: what it is, and whether it fits here. Reads heads only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.chooser import Choice, NothingFits, choose
from engine.vram.devices import Device
from engine.vram.gguf import TENSOR_TYPES, ModelHead, read_model, shards
from engine.vram.ledger import Model, model_of
from engine.vram.shapes import read_shape

# general.file_type → the mixture's name (llama_ftype in llama.h of the pinned commit).
_MIXTURES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Glance:
    """One model. `quantization` is the mixture's name, or the type of most bytes; `fits` is None for a file that is not
    whole; `verdict` says in a few words how it fits, or what is wrong."""

    path: Path
    n_bytes: int
    architecture: str
    quantization: str
    n_ctx_train: int
    fits: bool | None
    verdict: str


def glance(path: Path, config: EngineConfig, ram: Device, card: Device | None) -> Glance:
    """A look at a model, split or not, and at the plan for these settings. Never raises: the verdict says what is wrong."""
    try:
        head = read_model(path)
        shape = read_shape(head)
    except EngineConfigError as error:
        return Glance(path, _size(path), "", "", 0, None, str(error))
    fits, verdict = _outlook(model_of(head, shape), config, ram, card)
    return Glance(
        path, head.file_bytes, head.architecture, quantization(head), shape.n_ctx_train, fits, verdict
    )  # fmt: skip


def quantization(head: ModelHead) -> str:
    """The name of a model's mixture of types; where the file does not name it, the type that most of its bytes have."""
    named = head.meta.get("general.file_type")
    if isinstance(named, int) and named in _MIXTURES:
        return _MIXTURES[named]
    sizes: Counter[int] = Counter()
    for tensor in head.tensors:
        sizes[tensor.type] += tensor.n_bytes
    return TENSOR_TYPES[sizes.most_common(1)[0][0]][0].upper()


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in shards(path) if part.is_file())


def _outlook(
    model: Model, config: EngineConfig, ram: Device, card: Device | None
) -> tuple[bool | None, str]:
    if model.head.missing_bytes:
        return None, f"not whole: {model.head.missing_bytes / 2**30:.2f} GiB are missing"
    try:
        result = choose(model, config, ram, card)
    except EngineConfigError as error:
        return None, str(error)
    if isinstance(result, NothingFits):
        change = f"; with {result.nearest[0][0]} it would" if result.nearest else ""
        return False, f"no{change}"
    return True, _placement(model, result)


def _placement(model: Model, choice: Choice) -> str:
    if choice.ledger.card is None:
        return "yes, in RAM"
    n, n_moe = choice.ledger.placement.n_gpu_layers, choice.ledger.placement.n_cpu_moe
    if n <= model.n_layer:
        return f"yes, {n} of {model.n_layer + 1} layers on the card"
    if n_moe:
        return f"yes, the experts of {n_moe} layers in RAM"
    return "yes, all on the card"

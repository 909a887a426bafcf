"""Full-size models with random weights, in the shapes of published ones: what they take and how fast they are, without
downloading gigabytes. `python -m tests.support.bigmodel FOLDER [NAME]`.

Every block is valid: its scales are small numbers, so that weights spread as those of a model do and logits stay finite.
The random bytes of a page are used again and again, from other places, as making gigabytes of them would take minutes.
"""

from __future__ import annotations

import itertools
import string
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from engine.vram.gguf import TENSOR_TYPES, TensorInfo, read_file
from tests.support.shapefiles import write_shape
from tests.support.tinyvocab import CHAT_TEMPLATE, CONTROL_TOKENS, byte_characters

NAME: Final = "deepseek-v2-lite-q4_k_m"
N_VOCAB: Final = {NAME: 102400}
_PAGE_BLOCKS: Final = 2**17
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# Block type → where its 16-bit scales stand, and what one unit of the first makes of a random block: the standard
# deviation of a weight at scale 1 (block layouts of ggml-common.h). q4_K has a scale and a minimum: 7.5 of the one
# balance the other, as the mean of its 4-bit numbers is 7.5.
_SCALES: Final[dict[str, tuple[tuple[int, float], ...]]] = {
    "q4_K": ((0, 1.0), (2, 7.5)),
    "q6_K": ((208, 1.0),),
    "q5_0": ((0, 1.0),),
    "q8_0": ((0, 1.0),),
}
_SPREAD: Final = {"q4_K": 226.0, "q6_K": 1367.0, "q5_0": 9.2, "q8_0": 73.9}


def write_big(folder: Path, name: str = NAME, n_vocab: int = 0) -> Path:
    """Write a model of `shapefiles.MODELS` whole; some 10 GB, at the speed of the disk."""
    path = write_shape(name, folder, vocabulary=vocabulary(n_vocab or N_VOCAB[name]), sparse=True)
    fill(path)
    return path


def fill(path: Path, seed: int = 1) -> None:
    """Put random weights where the head of a file says that its tensors are."""
    head = read_file(path)
    start = -(-head.head_bytes // 32) * 32
    pages = Pages(seed)
    with path.open("r+b") as file:
        for number, tensor in enumerate(head.tensors):
            file.seek(start + tensor.offset)
            pages.write(tensor, number, file)


class Pages:
    """Random blocks of every type and size of row, made when they are first wanted."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._pages: dict[tuple[str, int], _Bytes] = {}

    def write(self, tensor: TensorInfo, number: int, file: BinaryIO) -> None:
        """The data of one tensor. Norms are about 1, all other weights turn inputs of length √n into about 1."""
        kind, _, block_bytes = TENSOR_TYPES[tensor.type]
        if kind == "f32":
            file.write(self._numbers(tensor).tobytes())
            return
        page = self._page(kind, tensor.shape[0])
        left = tensor.n_bytes
        at = (number * 7919 % (len(page) // block_bytes)) * block_bytes
        while left:
            piece = page[at : at + left]
            file.write(piece.data)
            left -= len(piece)
            at = 0

    def _numbers(self, tensor: TensorInfo) -> np.ndarray[Any, np.dtype[np.float32]]:
        around, spread = (1.0, 0.1) if len(tensor.shape) == 1 else (0.0, tensor.shape[0] ** -0.5)
        values = self._random.standard_normal(tensor.shape[::-1], dtype=np.float32)
        return values * np.float32(spread) + np.float32(around)

    def _page(self, kind: str, n_row: int) -> _Bytes:
        key = (kind, n_row)
        if key not in self._pages:
            _, _, block_bytes = next(t for t in TENSOR_TYPES.values() if t[0] == kind)
            blocks = self._random.integers(0, 256, (_PAGE_BLOCKS, block_bytes), dtype=np.uint8)
            scale = n_row**-0.5 / _SPREAD[kind]
            for at, times in _SCALES[kind]:
                half = np.array([scale * times], dtype=np.float16).view(np.uint8)
                blocks[:, at : at + 2] = half
            self._pages[key] = blocks.reshape(-1)
        return self._pages[key]


def vocabulary(n_tokens: int) -> dict[str, Any]:
    """A byte-level BPE vocabulary of a real size: all bytes, then ever longer words of small letters, with their rules."""
    characters = byte_characters()
    n_merges = n_tokens - len(characters) - len(CONTROL_TOKENS)
    merges = list(itertools.islice(_merges(characters[0x20]), n_merges))
    tokens = [*characters, *(left + right for left, right in merges), *CONTROL_TOKENS]
    normal, control = 1, 3  # llama_token_type
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "deepseek-llm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [normal] * (n_tokens - len(CONTROL_TOKENS))
        + [control] * len(CONTROL_TOKENS),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _merges(space: str) -> Iterator[tuple[str, str]]:
    """Two letters, three, four, five: enough for half a million tokens, every word with and without a space before it."""
    letters = string.ascii_lowercase
    words = [*letters, space]
    while True:
        for word in words:
            for letter in letters:
                yield word, letter
        words = [word + letter for word in words for letter in letters]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    written = write_big(target, *sys.argv[2:3])
    size = written.stat().st_size
    print(f"{written}: {size / 2**30:.2f} GiB in {time.perf_counter() - begun:.0f} s")  # noqa: T201

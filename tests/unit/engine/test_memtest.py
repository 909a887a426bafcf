"""Fill-and-check: good memory passes, every kind of bad memory is found. The real devices are in tests/integration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.vram.memtest import fill_and_check

Words = np.ndarray[Any, np.dtype[np.uint64]]


class Memory:
    """Three chunks; `fault` changes what a read brings."""

    sizes = (4096, 4096, 1024)

    def __init__(self, fault: Callable[[int, Words], None] | None = None) -> None:
        self.cells = [np.zeros(n // 8, dtype=np.uint64) for n in self.sizes]
        self.fault = fault
        self.n_written = 0

    def write(self, index: int, words: Words) -> None:
        self.n_written += words.nbytes
        self.cells[index][:] = words

    def read(self, index: int) -> Words:
        words: Words = self.cells[index].copy()
        if self.fault:
            self.fault(index, words)
        return words


def test_good_memory_passes() -> None:
    memory = Memory()
    assert fill_and_check(memory) == (0, ())
    assert memory.n_written == 2 * sum(memory.sizes)


@pytest.mark.parametrize("bit", [0, 1, 17, 63])
@pytest.mark.parametrize("stuck", [0, 1])
def test_a_stuck_bit_is_found_where_it_is(bit: int, stuck: int) -> None:
    mask = np.uint64(1 << bit)

    def fault(index: int, words: Words) -> None:
        if index == 1:
            words[7] = words[7] | mask if stuck else words[7] & ~mask

    n_bad, shown = fill_and_check(Memory(fault))
    assert n_bad == 1  # of the two passes, the one that wrote the other value
    assert shown[0].at == 4096 + 7 * 8
    assert shown[0].written ^ shown[0].read == 1 << bit


def test_an_address_that_reaches_another_is_found() -> None:
    memory = Memory()
    memory.cells[1] = memory.cells[0]  # two chunks, one memory
    n_bad, shown = fill_and_check(memory)
    assert n_bad == 2 * 512
    assert len(shown) == 8


def test_nothing_to_test_is_no_fault() -> None:
    class Nothing(Memory):
        sizes = ()

    assert fill_and_check(Nothing()) == (0, ())

"""The sequence pool on the strict scripted cache: sharing, reservations, eviction, and what each memory kind allows."""

from __future__ import annotations

import pytest

from engine.backends.base import BatchPart, DecodeStatus
from engine.backends.fake import FakeBackend
from engine.config import EngineConfig
from engine.kv.pool import Seq, SequencePool, common_length


class Bench:
    """A pool, and a way to compute tokens into its sequences."""

    def __init__(
        self, *, n_cells: int = 400, n_seq: int = 8, memory: str = "attention", n_swa: int = 0
    ) -> None:
        script = {"memory": memory, "n_swa": str(n_swa)}
        config = EngineConfig(
            name="t",
            backend="fake",
            n_ctx=n_cells,
            kv_cells=n_cells,
            n_sequences=n_seq,
            fake=script,
        )
        self.backend = FakeBackend(config)
        self.pool = SequencePool(self.backend)

    def compute(self, seq: Seq, tokens: list[int]) -> None:
        new = tokens[len(seq.tokens) :]
        part = BatchPart(seq.id, len(seq.tokens), new, n_outputs=0)
        assert self.backend.decode([part]) is DecodeStatus.DONE
        self.pool.extend(seq, new)
        self.check()

    def run(self, key: str, tokens: list[int], *, scope: str = "", reserve: int = 0) -> int:
        """Take, compute and keep. Returns how many tokens were known."""
        seq = self.take(key, tokens, scope=scope, reserve=reserve)
        n_known = len(seq.tokens)
        self.compute(seq, tokens)
        self.pool.release(seq, keep=True)
        self.check()
        return n_known

    def take(self, key: str, tokens: list[int], *, scope: str = "", reserve: int = 0) -> Seq:
        seq = self.pool.take(scope, key, tokens, reserve or len(tokens))
        assert seq is not None
        self.check()
        return seq

    def check(self) -> None:
        assert self.pool.n_cells_used == self.backend.cache.n_used


def test_common_length() -> None:
    assert common_length([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_length([1, 2], [1, 2, 3]) == 2
    assert common_length([], [1]) == 0
    assert common_length((1, 2), [1, 2]) == 2


def test_the_longest_beginning_is_found_and_the_tail_cut() -> None:
    bench = Bench()
    bench.run("k", [1, 2, 3, 4])
    assert bench.run("k", [1, 2, 9, 9, 9]) == 2
    assert bench.run("k", [1, 2, 9, 9, 9]) == 4  # one token is always left to compute


def test_keys_and_scopes_are_apart() -> None:
    bench = Bench()
    bench.run("k", [1] * 10, scope="a")
    assert bench.run("k", [1] * 10, scope="b") == 0
    assert bench.run("other", [1] * 10, scope="a") == 0
    assert bench.run("k", [1] * 10, scope="a") == 9


def test_a_prefix_is_shared_without_new_cells() -> None:
    bench = Bench()
    first = bench.take("a", [1] * 50 + [2])
    bench.compute(first, [1] * 50 + [2])
    bench.pool.publish_prefix(first, 50)
    bench.check()
    assert bench.pool.n_cells_used == 51
    second = bench.take("b", [1] * 50 + [3])
    assert second.tokens == [1] * 50
    assert bench.pool.n_cells_used == 51
    bench.pool.release(first, keep=False)
    bench.pool.release(second, keep=False)
    bench.check()
    assert (bench.pool.n_cells_used, bench.pool.n_idle) == (50, 1)


def test_nested_prefixes_are_counted_exactly() -> None:
    bench = Bench()
    a = bench.take("a", [1] * 20 + [2] * 20 + [9])
    bench.compute(a, [1] * 20 + [2] * 20 + [9])
    bench.pool.publish_prefix(a, 20)
    bench.pool.publish_prefix(a, 40)
    b = bench.take("b", [1] * 20 + [3] * 20 + [9])
    assert len(b.tokens) == 20
    bench.compute(b, [1] * 20 + [3] * 20 + [9])
    bench.pool.publish_prefix(b, 40)
    assert bench.pool.n_cells_used == 41 + 21
    c = bench.take("c", [1] * 20 + [3] * 20 + [8])
    assert len(c.tokens) == 40
    for seq in (a, b, c):
        bench.pool.cut(seq, 30)
        bench.check()
    for seq in (a, b, c):
        bench.pool.release(seq, keep=False)
        bench.check()


def test_a_prefix_is_never_seen_in_another_scope() -> None:
    bench = Bench()
    seq = bench.take("a", [1] * 51, scope="one")
    bench.compute(seq, [1] * 51)
    bench.pool.publish_prefix(seq, 50)
    assert bench.pool.has_prefix("one", [1] * 50)
    assert not bench.pool.has_prefix("two", [1] * 50)
    assert not bench.pool.has_prefix("one", [1] * 49)
    assert bench.take("b", [1] * 51, scope="two").tokens == []


def test_reservations_are_kept_and_refusals_change_nothing() -> None:
    bench = Bench(n_cells=100)
    bench.run("idle", [5] * 30)
    running = bench.take("a", [1] * 10, reserve=60)
    before = bench.pool.n_cells_used
    assert bench.pool.take("", "b", [2] * 10, 41) is None
    assert bench.pool.n_cells_used == before
    fits = bench.pool.take("", "b", [2] * 10, 40)
    assert fits is not None
    assert bench.pool.n_cells_used == 0  # the idle one had to go
    bench.compute(running, [1] * 60)
    bench.compute(fits, [2] * 40)
    assert bench.pool.n_cells_used == 100


def test_shared_cells_are_not_reserved_twice() -> None:
    bench = Bench(n_cells=100)
    a = bench.take("a", [1] * 50 + [2], reserve=60)
    bench.compute(a, [1] * 50 + [2])
    bench.pool.publish_prefix(a, 50)
    assert bench.pool.take("", "b", [3] * 51, 60) is None
    b = bench.pool.take("", "b", [1] * 50 + [3], 60)
    assert b is not None
    bench.compute(b, [1] * 50 + [3] * 10)
    bench.compute(a, [1] * 50 + [2] * 10)


def test_the_own_sequence_makes_its_own_room() -> None:
    bench = Bench(n_cells=100)
    bench.run("k", [1] * 90)
    seq = bench.take("k", [1] * 90 + [2] * 5, reserve=100)
    assert len(seq.tokens) == 90


def test_all_sequences_running_means_wait() -> None:
    bench = Bench(n_seq=2)
    assert bench.pool.take("", "a", [1, 2], 2) is not None
    assert bench.pool.take("", "b", [1, 2], 2) is not None
    assert bench.pool.take("", "c", [1, 2], 2) is None


def test_the_last_free_place_costs_the_prefix_if_nothing_else_is_idle() -> None:
    bench = Bench(n_seq=2)
    a = bench.take("a", [1] * 20)
    bench.compute(a, [1] * 20)
    bench.pool.publish_prefix(a, 10)
    b = bench.take("b", [1] * 10 + [2])
    assert b.tokens == []  # its source had to go
    bench.compute(b, [1] * 10 + [2])


def test_prefixes_cannot_crowd_out_conversations() -> None:
    bench = Bench(n_seq=8)
    for i in range(5):
        seq = bench.take(f"k{i}", [i] * 20)
        bench.compute(seq, [i] * 20)
        bench.pool.publish_prefix(seq, 10)
        bench.pool.release(seq, keep=False)
        bench.check()
    assert bench.pool.n_idle == 2
    assert bench.pool.has_prefix("", [4] * 10)


def test_eviction_takes_what_was_not_used_for_longest() -> None:
    bench = Bench()
    for name in "abc":
        bench.run(name, [ord(name)] * 10)
    bench.run("a", [97] * 10)
    assert bench.pool.evict_one()
    bench.check()
    assert bench.run("b", [98] * 10) == 0
    assert bench.run("a", [97] * 10) == 9
    while bench.pool.evict_one():
        bench.check()
    assert bench.pool.n_cells_used == 0


def test_running_sequences_are_never_evicted() -> None:
    bench = Bench()
    seq = bench.take("a", [1] * 10)
    bench.compute(seq, [1] * 10)
    assert not bench.pool.evict_one()


def test_a_second_sequence_of_a_conversation_replaces_the_first() -> None:
    bench = Bench()
    first, second = bench.take("k", [1] * 10), bench.take("k", [1] * 10)
    bench.compute(first, [1] * 10)
    bench.compute(second, [1] * 10)
    bench.pool.release(first, keep=True)
    bench.pool.release(second, keep=True)
    bench.check()
    assert bench.pool.n_idle == 1


def test_trimming_keeps_exactly_the_canonical_list() -> None:
    bench = Bench()
    bench.run("k", [1, 2, 3, 4, 5])
    assert not bench.pool.trim_idle("", "k", [1, 2, 9])
    assert bench.pool.trim_idle("", "k", [1, 2, 3])
    bench.check()
    assert bench.pool.n_cells_used == 3


@pytest.mark.parametrize("cut", [79, 60, 40, 1])
def test_a_cut_that_lost_its_window_keeps_nothing(cut: int) -> None:
    # 80 tokens with a window of 32: what a token behind the cut looks at is gone, and the cut itself does not say so.
    bench = Bench(memory="sliding", n_swa=32)
    seq = bench.take("k", [1] * 80)
    bench.compute(seq, [1] * 80)
    bench.pool.cut(seq, cut)
    bench.check()
    assert seq.tokens == []
    bench.compute(seq, [1] * 90)


def test_a_short_sequence_in_a_sliding_window_can_be_cut() -> None:
    bench = Bench(memory="sliding", n_swa=32)
    seq = bench.take("k", [1] * 30)
    bench.compute(seq, [1] * 30)
    bench.pool.cut(seq, 20)
    assert len(seq.tokens) == 20
    bench.compute(seq, [1] * 40)


def test_a_prefix_behind_the_window_is_not_published() -> None:
    bench = Bench(memory="sliding", n_swa=32)
    seq = bench.take("k", [1] * 100)
    bench.compute(seq, [1] * 100)
    bench.pool.publish_prefix(seq, 20)
    bench.check()
    assert not bench.pool.has_prefix("", [1] * 20)


def test_a_recurrent_state_is_all_or_nothing() -> None:
    bench = Bench(memory="recurrent")
    bench.run("k", [1] * 20)
    assert bench.run("k", [1] * 20 + [2] * 5) == 20
    assert bench.run("k", [1] * 20 + [3] * 5) == 0
    seq = bench.take("p", [7] * 30)
    bench.compute(seq, [7] * 30)
    bench.pool.publish_prefix(seq, 20)
    assert not bench.pool.has_prefix("", [7] * 20)
    bench.pool.publish_prefix(seq, 30)
    assert bench.take("q", [7] * 30 + [8]).tokens == [7] * 30

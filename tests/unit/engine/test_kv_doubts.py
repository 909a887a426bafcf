"""What tempts the tiers to give or to keep what they must not: prompts that change, lines with holes, hanging disks."""

from __future__ import annotations

import threading
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from engine.core import keeper
from engine.core.job import Job
from engine.core.prefixes import choose_role
from engine.kv.disk import open_disk
from engine.kv.files import BlockFiles
from engine.kv.index import Found
from engine.kv.tiers import KvTiers
from engine.types import EngineRequest, FinishReason
from tests.support.corekit import CoreKit, fake_kit

MIB = 2**20


def talk(seed: int, n_tokens: int) -> list[int]:
    return [seed * 1000 + i for i in range(n_tokens)]


def save(
    tiers: KvTiers, key: str, tokens: list[int], n_shared: int = 0, scope: str = "s"
) -> list[tuple[int, int]]:
    """Returns what was asked for."""
    spans, _ = tiers.missing(scope, key, tokens, n_shared, whole=True)
    for span in spans:
        own = tokens[span.start : span.end]
        tiers.put(span, own, array("i", own).tobytes())
    return [(span.start, span.end) for span in spans]


def spans_of(found: Found) -> list[tuple[int, int]]:
    return [(block.start, block.end) for block in found.blocks]


def tiered(script: dict[str, str] | None = None, **fields: Any) -> CoreKit:
    return fake_kit(script, **({"n_ctx": 2000, "kv_ram_bytes": 10**7} | fields))


def test_a_changed_system_prompt_of_the_same_length_makes_stored_cells_worthless() -> None:
    """They were computed behind the old one, although the tokens of the conversation itself are the same."""
    tiers = KvTiers(ram_bytes=MIB)
    save(tiers, "a", talk(7, 70) + talk(1, 100), n_shared=70)
    new = talk(8, 70) + talk(1, 100)
    assert tiers.find("s", "a", new, 70) == Found()
    save(tiers, "b", talk(8, 70) + talk(2, 100), n_shared=70)
    assert spans_of(tiers.find("s", "a", new, 70)) == [(0, 64), (64, 70)]
    assert save(tiers, "a", new, n_shared=70) == [(70, 134), (134, 170)]


def test_a_date_in_the_system_prompt_reaches_the_model() -> None:
    kit = tiered(n_parallel=1, n_sequences=2, n_ctx=400, kv_cells=420)
    history = "<|im_start|>user\nhow do you do, and what do you do\n<|im_end|>"
    for day in ("28", "29"):
        for key in ("x", "a", "y"):
            kit.ask(
                f"{key}{day}",
                system=f"Today is the {day}th.",
                history=history * (key == "a") * 2,
                cache_key=key,
                scope="s",
            )
            kit.run()
    assert kit.cached("a29") <= len(kit.ids("<|im_start|>system\nToday is the 29th.<|im_end|>\n"))


def test_a_conversation_larger_than_ram_never_becomes_a_shared_beginning() -> None:
    tiers = KvTiers(ram_bytes=250 * 4)
    for n_tokens in (400, 450, 500):
        save(tiers, "a", talk(1, n_tokens))
        found = tiers.find("s", "a", talk(1, 500), 0)
        assert 0 < found.n_tokens <= 250
        assert found.needed(0, 500) == found.blocks
    tiers.forget("a")
    assert (tiers.n_talks, tiers.ram_used_bytes) == (0, 0)


def test_a_line_whose_first_file_is_gone_never_becomes_a_shared_beginning(tmp_path: Path) -> None:
    def opened() -> KvTiers:
        return KvTiers(ram_bytes=MIB, disk=open_disk(tmp_path, MIB, "m"))

    tiers = opened()
    save(tiers, "a", talk(1, 200))
    tiers.close()
    min(tmp_path.rglob("*.kv")).unlink()
    tiers = opened()
    assert tiers.find("s", "a", talk(1, 250), 0).needed(0, 250) == ()
    assert save(tiers, "a", talk(1, 250))[0] == (0, 64)
    assert len(tiers.find("s", "a", talk(1, 250), 0).needed(0, 250)) == 4
    tiers.forget("a")
    assert tiers.n_talks == 0
    tiers.close()


def test_a_longer_system_prompt_that_ends_where_an_old_block_did_starts_a_new_line() -> None:
    tiers = KvTiers(ram_bytes=MIB)
    save(tiers, "a", talk(7, 70) + talk(1, 64), n_shared=70)
    new = talk(8, 134) + talk(1, 100)
    save(tiers, "a", new, n_shared=134)
    assert tiers.find("s", "a", new, 134).n_tokens == 234
    assert save(tiers, "a", new, n_shared=134) == []


def test_a_new_system_prompt_is_found_by_conversations_that_have_an_old_one() -> None:
    tiers = KvTiers(ram_bytes=MIB)
    save(tiers, "a", talk(7, 70) + talk(1, 64), n_shared=70)
    save(tiers, "b", talk(8, 90) + talk(2, 64), n_shared=90)
    assert tiers.find("s", "a", talk(8, 90) + talk(1, 64), 90).n_tokens == 90


def test_a_cancel_within_the_shared_beginning_leaves_the_loop_at_rest() -> None:
    kit = tiered()
    kit.ask("1", system="x" * 1000, cache_key="a", scope="s")
    kit.step(2)
    kit.core.cancel("1")
    kit.run(max_steps=10)


def test_who_waits_in_line_while_it_is_forgotten_leaves_nothing_in_the_tiers() -> None:
    kit = tiered({"reply": "x" * 100}, n_parallel=1)
    kit.ask("before", "y" * 100, cache_key="z", scope="s")
    kit.step(2)
    request = kit.ask("1", "secret " * 30, cache_key="a", scope="s")
    kit.core.forget("a")
    kit.run()
    assert kit.tiers
    found = kit.tiers.find("s", "a", request.prompt_tokens, request.n_shared_prefix)
    assert found.n_tokens <= request.n_shared_prefix
    assert kit.finished("1").reason is FinishReason.STOP


def test_who_builds_the_shared_beginning_never_waits_for_itself() -> None:
    kit = tiered()
    request = EngineRequest(id="1", prompt_tokens=tuple(range(100)), n_shared_prefix=50, scope="s")
    job = Job("1", request, False, list(range(100)), 200, 0.0, builds_prefix=True)
    choose_role(job, [job], kit.core._pool)
    assert (job.builds_prefix, job.awaits_prefix) == (True, False)


def test_nobody_waits_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"kv_ram_bytes": 0, "kv_disk_bytes": 10**7, "kv_dir": str(tmp_path)}
    kit = tiered(**fields)
    for key in "ab":
        kit.ask(f"{key}1", "tell me " * 20, cache_key=key, scope="s")
    kit.run()
    kit.core.close()
    kit = tiered(**fields)
    gate = threading.Event()
    read = BlockFiles.read

    def hanging(*args: Any) -> Any:
        gate.wait(20)
        return read(*args)

    monkeypatch.setattr(BlockFiles, "read", hanging)
    kit.ask("a2", "tell me " * 20, cache_key="a", scope="s")
    kit.step(5)
    assert kit.core._running["a2"].is_loading
    kit.clock.now += keeper.DISK_PATIENCE_S + 1
    kit.run()
    assert kit.finished("a2").reason is FinishReason.STOP
    kit.ask("b2", "tell me " * 20, cache_key="b", scope="s")
    kit.run()  # the clock stands still: the next one does not wait at all
    assert kit.finished("b2").reason is FinishReason.STOP
    gate.set()
    kit.core.close()


def test_a_read_that_fails_in_an_unknown_way_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"kv_ram_bytes": 0, "kv_disk_bytes": 10**7, "kv_dir": str(tmp_path)}
    kit = tiered(**fields)
    kit.ask("1", "tell me " * 20, cache_key="a", scope="s")
    kit.run()
    kit.core.close()
    kit = tiered(**fields)

    def broken(*_: Any) -> Any:
        raise ValueError("bytes length not a multiple of item size")

    monkeypatch.setattr(BlockFiles, "read", broken)
    loaded = threading.Event()
    assert kit.tiers
    kit.tiers._on_loaded = loaded.set
    kit.ask("2", "tell me " * 20, cache_key="a", scope="s")
    kit.step()
    assert loaded.wait(5)
    kit.core.close()
    kit.run()


@pytest.mark.parametrize("method", ["save_cells", "load_cells"])
def test_bytes_that_the_backend_chokes_on_end_no_reply(method: str) -> None:
    kit = tiered(n_parallel=1, n_sequences=2)

    def broken(*_: Any) -> Any:
        raise RuntimeError("llama.cpp wrote 0 of 8 bytes of a sequence")

    setattr(kit.backend, method, broken)
    for turn in range(3):
        for key in "abc":
            kit.ask(f"{key}{turn}", "tell me " * 20, cache_key=key, scope="s")
            kit.run()
            assert kit.finished(f"{key}{turn}").reason is FinishReason.STOP


def test_conversations_on_disk_alone_are_not_looked_at_when_ram_is_short(tmp_path: Path) -> None:
    disk = open_disk(tmp_path, MIB, "m")
    tiers = KvTiers(ram_bytes=100 * 4, disk=disk)
    settled = threading.Event()
    for seed in range(20):
        save(tiers, f"k{seed}", talk(seed, 100))
    assert disk
    disk._queue.add(1, settled.set)
    assert settled.wait(5)
    assert tiers.n_talks == 20
    assert len(tiers._in_ram) <= 2
    blocks = tiers.find("s", "k3", talk(3, 100), 0).blocks
    tiers.hold(blocks)
    tiers.close()
    assert {block.folder for block in blocks} <= set(tiers._in_ram)
    tiers.release(blocks)
    assert tiers.ram_used_bytes <= 100 * 4
    for seed in range(20):
        tiers.forget(f"k{seed}")
    assert (tiers.n_talks, tiers._in_ram, tiers.ram_used_bytes) == (0, {}, 0)


def test_a_conversation_that_left_the_disk_leaves_no_folder(tmp_path: Path) -> None:
    tiers = KvTiers(ram_bytes=0, disk=open_disk(tmp_path, 1000, "m"))
    for seed in range(9):
        save(tiers, f"k{seed}", talk(seed, 100))
    tiers.close()
    assert len([path for path in tmp_path.rglob("*-*") if path.is_dir()]) <= 2


@pytest.mark.parametrize("ram_bytes", [1, 300, 3000])
def test_a_conversation_that_ram_has_no_room_for_is_not_stored_again_and_again(
    ram_bytes: int,
) -> None:
    kit = tiered({"memory": "sliding", "n_swa": "8"}, kv_ram_bytes=ram_bytes)
    for turn in range(3):
        kit.ask(f"{turn}", "tell me " * (30 + turn), cache_key="a", scope="s")
        kit.run(max_steps=300)
        assert kit.finished(f"{turn}").reason is FinishReason.STOP


def test_blocks_that_were_held_while_the_disk_was_full_go_when_they_are_released(
    tmp_path: Path,
) -> None:
    disk = open_disk(tmp_path, 1000, "m")
    assert disk
    tiers = KvTiers(ram_bytes=0, disk=disk)

    def settle() -> None:
        done = threading.Event()
        disk._queue.add(1, done.set)
        assert done.wait(5)

    save(tiers, "a", talk(1, 100))
    settle()
    blocks = tiers.find("s", "a", talk(1, 100), 0).blocks
    tiers.hold(blocks)
    save(tiers, "b", talk(2, 60))
    tiers.hold(held := tiers.find("s", "b", talk(2, 60), 0).blocks)
    settle()
    assert tiers.disk_used_bytes > 1000
    tiers.release(blocks)
    tiers.release(held)
    settle()
    assert 0 < tiers.disk_used_bytes <= 1000
    tiers.close()


def test_a_turn_that_ends_where_a_block_does_has_its_state() -> None:
    kit = tiered({"memory": "recurrent", "reply": "x" * 200})
    request = kit.ask("1", "tell me", cache_key="a", scope="s")
    n_tokens = len(request.prompt_tokens) + 64
    while not kit.core._running or len(kit.core._running["1"].seq.tokens) < n_tokens:  # type: ignore[union-attr]
        kit.step()
    kit.core.cancel("1")
    kit.run()
    assert kit.tiers
    tokens = [*request.prompt_tokens, *kit.token_ids("1")]
    found = kit.tiers.find("s", "a", tokens, request.n_shared_prefix)
    assert found.until_state(n_tokens).n_tokens == n_tokens


class Death(BaseException):
    """A native crash: nothing in the process goes on behind it."""


@pytest.mark.parametrize("where", ["load_cells", "decode"])
def test_a_block_that_kills_kills_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Over loading it, or over what is computed behind it; what was not being loaded stays."""
    fields: dict[str, Any] = {"kv_ram_bytes": 0, "kv_disk_bytes": 10**7, "kv_dir": str(tmp_path)}
    kit = tiered(**fields)
    for key in "ab":
        kit.ask(key, "tell me " * 20, cache_key=key, scope="s", n_shared_prefix=0)
    kit.run()
    kit.core.close()
    kit = tiered(**fields)
    kit.ask("b2", "tell me " * 20, cache_key="b", scope="s", n_shared_prefix=0)
    run_with_disk(kit)
    assert kit.cached("b2") > 100
    assert kit.tiers
    assert kit.tiers._disk
    settled = threading.Event()
    kit.tiers._disk._queue.add(1, settled.set)
    assert settled.wait(5)
    with monkeypatch.context() as patch:
        patch.setattr(kit.backend, where, dying)
        kit.ask("a2", "tell me " * 20, cache_key="a", scope="s", n_shared_prefix=0)
        with pytest.raises(Death):
            run_with_disk(kit)
    kit.tiers._disk._trace.close()
    kit = tiered(**fields)
    for key in "ab":
        kit.ask(f"{key}3", "tell me " * 20, cache_key=key, scope="s", n_shared_prefix=0)
        run_with_disk(kit)
    assert kit.cached("a3") == 0
    assert kit.cached("b3") > 100
    kit.core.close()


def dying(*_: Any) -> Any:
    raise Death


def run_with_disk(kit: CoreKit) -> None:
    """Like `run`, for a core that may wait for the disk's thread."""
    while kit.core.has_work:
        if not kit.core.step() and kit.tiers and kit.tiers.n_reads_pending:
            time.sleep(0.001)

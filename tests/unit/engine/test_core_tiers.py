"""The core with KV tiers: conversations come back from RAM and disk, and only what is new is computed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.kv.disk import Disk
from engine.types import FinishReason, Started
from tests.support.corekit import CoreKit, fake_kit

MEMORIES = pytest.mark.parametrize(
    "script",
    [{}, {"memory": "sliding", "n_swa": "24"}, {"memory": "recurrent"}],
    ids=["attention", "sliding", "recurrent"],
)


def tiered(script: dict[str, str], root: Path | None = None, **fields: object) -> CoreKit:
    """One place in VRAM and one in line: a conversation always has to leave for the next one."""
    settings = {
        "n_ctx": 400,
        "n_parallel": 1,
        "n_sequences": 2,
        "kv_cells": 420,
        "kv_ram_bytes": 10**6,
        "kv_disk_bytes": 10**6 if root else 0,
        "kv_dir": str(root or ""),
    }
    return fake_kit(script, **(settings | fields))


class Chats:
    """Conversations that go on with what was answered."""

    def __init__(self, kit: CoreKit) -> None:
        self.kit = kit
        self.history: dict[str, str] = {}
        self.n_turns = 0

    def turn(self, key: str, question: str = "tell me more, please, and more") -> int:
        """Ask and run to the end. Returns how many prompt tokens were computed beyond what is new."""
        kit, history = self.kit, self.history.get(key, "")
        self.n_turns += 1
        before = kit.n_prompt_decoded
        request = kit.ask(
            f"{key}-{self.n_turns}", question, history=history, cache_key=key, scope="s"
        )
        kit.run()
        answer = kit.text(request.id)
        n_known = len(kit.ids(history)) + request.n_shared_prefix if history else 0
        if history:
            n_known -= len(kit.ids("<|im_end|>\n"))
        self.history[key] = (
            f"{history}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        )
        return kit.n_prompt_decoded - before - (len(request.prompt_tokens) - n_known)

    def also_from(self, other: Chats) -> Chats:
        self.history = dict(other.history)
        self.n_turns = other.n_turns
        return self


@MEMORIES
def test_a_conversation_that_left_vram_computes_only_what_is_new(script: dict[str, str]) -> None:
    chats = Chats(tiered(script))
    for key in "abc":
        chats.turn(key)
    for key in "abcab":
        assert chats.turn(key) == 0
    assert chats.kit.core.stats().kv_restored_tokens_total > 100


@MEMORIES
def test_without_tiers_all_of_it_is_computed_again(script: dict[str, str]) -> None:
    chats = Chats(tiered(script, kv_ram_bytes=0))
    for key in "abc":
        chats.turn(key)
    assert chats.turn("a") > 40


@MEMORIES
def test_it_survives_the_process(script: dict[str, str], tmp_path: Path) -> None:
    first = Chats(tiered(script, tmp_path / "kv"))
    for key in "abab":
        first.turn(key)
    first.kit.core.close()
    second = Chats(tiered(script, tmp_path / "kv")).also_from(first)
    assert second.turn("a") == 0
    assert second.turn("b") == 0
    second.kit.core.close()


def test_a_turn_writes_its_new_tokens_once() -> None:
    chats = Chats(tiered({}, n_ctx=1000, kv_cells=1000))
    for _ in range(6):
        chats.turn("a")
    seq = max(chats.kit.core._pool._seqs, key=lambda seq: len(seq.tokens))
    assert chats.kit.core.stats().kv_saved_tokens_total == len(seq.tokens)


def test_forgetting_leaves_nothing_to_come_back(tmp_path: Path) -> None:
    chats = Chats(tiered({}, tmp_path / "kv"))
    for key in "abc":
        chats.turn(key)
    chats.kit.core.forget("a")
    assert chats.turn("a") > 40
    chats.kit.core.close()


def test_what_is_said_while_it_is_forgotten_is_not_stored(tmp_path: Path) -> None:
    kit = tiered({"reply": "x" * 150}, tmp_path / "kv")
    kit.ask("1", cache_key="a", scope="s")
    kit.step(100)
    kit.core.forget("a")
    kit.run()
    assert kit.tiers
    assert kit.tiers.find("s", "a", kit.request("1").prompt_tokens, 0).n_tokens == 0
    kit.core.close()
    assert (
        not list((tmp_path / "kv").rglob("*.kv")) or kit.tiers.n_talks == 1
    )  # the system prompt's


def test_others_go_on_while_one_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Chats(tiered({}, tmp_path / "kv"))
    first.turn("a")
    first.kit.core.close()
    kit = tiered({}, tmp_path / "kv", n_parallel=2, n_sequences=8, kv_cells=800)
    gate = threading.Event()
    read = Disk.read

    def slow_read(disk: Disk, *args: object) -> None:
        disk._queue.add(0, lambda: gate.wait(10) and None)
        read(disk, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Disk, "read", slow_read)
    history = first.history["a"]
    kit.ask("a", "more", history=history, cache_key="a", scope="s")
    kit.ask("b", "hi", cache_key="b", scope="other bot")
    kit.step(60)
    assert kit.finished("b").reason is FinishReason.STOP
    assert not [event for event in kit.of("a") if isinstance(event, Started)]
    gate.set()
    kit.run()
    assert kit.cached("a") > len(kit.ids(history)) // 2
    kit.core.close()


@pytest.mark.parametrize("how", ["cancel", "forget", "close"])
def test_whoever_waits_for_the_disk_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = Chats(tiered({}, tmp_path / "kv"))
    first.turn("a")
    first.kit.core.close()
    kit = tiered({}, tmp_path / "kv", kv_ram_bytes=0)
    gate = threading.Event()
    read = Disk.read

    def slow_read(disk: Disk, *args: object) -> None:
        disk._queue.add(0, lambda: gate.wait(10) and None)
        read(disk, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Disk, "read", slow_read)
    kit.ask("a", "more", history=first.history["a"], cache_key="a", scope="s")
    kit.step(3)
    match how:
        case "cancel":
            kit.core.cancel("a")
        case "forget":
            kit.core.forget("a")
        case _:
            gate.set()
            kit.core.close()
    gate.set()
    kit.run()
    if how != "close":
        kit.ask("b", "hi", cache_key="b", scope="s")
        kit.run()
        assert kit.finished("b").reason is FinishReason.STOP
        assert kit.tiers
        kit.core.close()
        assert kit.tiers.ram_used_bytes == 0


def test_idle_conversations_leave_while_others_decode() -> None:
    chats = Chats(tiered({}, n_sequences=8, kv_cells=3000, n_ctx=1000))
    for key in "abcdef":
        chats.turn(key)
        chats.turn(key)
    kit = chats.kit
    kit.ask("long", "go on", cache_key="z", scope="s")
    kit.step(4)
    idle = [seq for seq in kit.core._pool._seqs if not seq.running and not seq.is_prefix]
    assert sum(len(seq.tokens) - seq.n_shared for seq in idle) <= 256
    kit.run()
    for key in "abcdef":
        assert chats.turn(key) == 0


def test_a_marker_word_never_reaches_another_conversation() -> None:
    """The fake answers with the last question it really holds: a wrong state would answer somebody else's."""
    kit = tiered({"reply": ""}, n_parallel=2, n_sequences=3, kv_cells=900)
    for turn in range(3):
        for i in range(6):
            marker = f"marker-{i}-{turn}"
            kit.ask(marker, f"{marker} {'word ' * i}", cache_key=f"k{i}", scope=f"s{i % 2}")
        kit.run()
    for turn in range(3):
        for i in range(6):
            text = kit.text(f"marker-{i}-{turn}")
            assert f"marker-{i}-{turn}" in text
            assert text.count("marker-") == text.count(f"marker-{i}-{turn}")

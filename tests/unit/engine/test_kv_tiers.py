"""Conversations outside VRAM: found only by their own tokens, bounded, forgotten whole, believed only when undamaged."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from engine.backends.fake import FakeBackend
from engine.config import EngineConfig
from engine.kv.disk import Disk, clear_disk, open_disk
from engine.kv.files import BlockFiles
from engine.kv.index import Found
from engine.kv.opening import open_tiers
from engine.kv.tiers import KvTiers, talk_folder

BYTES_PER_TOKEN = 100
MIB = 2**20


class Shelf:
    """Tiers, and what a keeper would do with them; cells are told by their tokens."""

    def __init__(
        self, root: Path | None, *, ram: int = MIB, disk: int = MIB, model: str = "model"
    ) -> None:
        self.loaded = threading.Event()
        self.disk: Disk | None = open_disk(root, disk, model) if root else None
        self.tiers = KvTiers(ram_bytes=ram, disk=self.disk, on_loaded=self.loaded.set)

    def save(
        self,
        key: str,
        tokens: list[int],
        *,
        scope: str = "s",
        n_shared: int = 0,
        marks: tuple[int, ...] = (),
        whole: bool = True,
        state: bool = False,
    ) -> int:
        """Returns how many tokens were written."""
        spans, _ = self.tiers.missing(scope, key, tokens, n_shared, marks=marks, whole=whole)
        for span in spans:
            own = tokens[span.start : span.end]
            with_state = state and span.end == len(tokens)
            self.tiers.put(span, own, cells_of(own), b"state" if with_state else None)
        return sum(span.end - span.start for span in spans)

    def find(self, key: str, tokens: list[int], *, scope: str = "s", n_shared: int = 0) -> Found:
        return self.tiers.find(scope, key, tokens, n_shared)

    def load(self, key: str, tokens: list[int], *, scope: str = "s", n_shared: int = 0) -> int:
        """How many tokens really come back, with the right bytes."""
        found = self.find(key, tokens, scope=scope, n_shared=n_shared)
        blocks = found.needed(0, len(tokens))
        self.tiers.hold(blocks)
        while self.tiers.is_reading(blocks):
            assert self.loaded.wait(5)
            self.loaded.clear()
        at = 0
        for block in blocks:
            if block.cells.data is None:
                break
            end = min(block.end, found.n_tokens)
            assert bytes(block.cells.data).startswith(cells_of(tokens[block.start : end]))
            at = end
        self.tiers.release(blocks)
        return at

    def settle(self) -> None:
        """Wait until the disk has done what was asked of it."""
        done = threading.Event()
        assert self.disk
        self.disk._queue.add(1, done.set)
        assert done.wait(5)

    def close(self) -> None:
        self.tiers.close()


def cells_of(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") * (BYTES_PER_TOKEN // 4) for token in tokens)


def talk(seed: int, n_tokens: int) -> list[int]:
    return [seed * 1000 + i for i in range(n_tokens)]


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in (".kv", ".st"))


def test_a_turn_writes_only_what_is_new() -> None:
    shelf = Shelf(None)
    assert shelf.save("a", talk(1, 100)) == 100
    assert shelf.save("a", talk(1, 150)) == 50
    assert shelf.save("a", talk(1, 150)) == 0
    assert shelf.load("a", talk(1, 160)) == 150


def test_an_unfinished_block_waits_while_the_reply_grows() -> None:
    shelf = Shelf(None)
    assert shelf.save("a", talk(1, 100), whole=False) == 64
    assert shelf.save("a", talk(1, 127), whole=False) == 0
    assert shelf.save("a", talk(1, 130)) == 66


def test_a_shorter_prompt_does_not_cost_what_is_stored() -> None:
    shelf = Shelf(None)
    shelf.save("a", talk(1, 200))
    assert shelf.save("a", talk(1, 90)) == 0
    assert shelf.load("a", talk(1, 200)) == 200


def test_what_parts_from_the_stored_line_is_dropped_when_the_talk_goes_on() -> None:
    shelf = Shelf(None)
    shelf.save("a", talk(1, 200), marks=(120,))
    other = talk(1, 120) + talk(9, 60)
    assert shelf.load("a", other) == 120
    assert shelf.save("a", other) == 60
    assert shelf.load("a", talk(1, 200)) == 120
    assert shelf.load("a", other) == 180


def test_a_block_serves_in_part_where_its_tokens_are_known() -> None:
    shelf = Shelf(None)
    shelf.save("a", talk(1, 100))
    assert shelf.load("a", talk(1, 90) + talk(9, 50)) == 90


def test_nobody_else_finds_a_conversation() -> None:
    shelf = Shelf(None)
    shelf.save("a", talk(1, 100))
    assert shelf.load("b", talk(1, 100)) == 0
    assert shelf.load("a", talk(1, 100), scope="another bot") == 0
    assert shelf.load("", talk(1, 100)) == 0


def test_a_shared_beginning_is_stored_once() -> None:
    shelf = Shelf(None)
    system = talk(7, 70)
    assert shelf.save("a", system + talk(1, 50), n_shared=70) == 120
    assert shelf.save("b", system + talk(2, 50), n_shared=70) == 50
    assert shelf.load("c", system + talk(3, 50), n_shared=70) == 70
    assert shelf.load("b", system + talk(2, 50), n_shared=70) == 120
    assert shelf.load("b", system + talk(2, 50), n_shared=0) == 120  # a warm-up does not know it
    assert shelf.load("c", system + talk(3, 50), n_shared=70, scope="another bot") == 0
    shelf.tiers.forget("a")
    assert shelf.load("b", system + talk(2, 50), n_shared=70) == 120


def test_own_blocks_serve_behind_a_beginning_that_vram_holds() -> None:
    shelf = Shelf(None)
    tokens = talk(7, 70) + talk(1, 50)
    shelf.save("a", tokens, n_shared=70)
    found = shelf.find("a", tokens, n_shared=70)
    assert [block.start for block in found.needed(70, 120)] == [70]
    assert [block.start for block in found.needed(90, 120)] == [70]
    assert found.needed(120, 120) == ()


def test_a_recurrent_model_goes_back_to_the_end_of_a_turn() -> None:
    shelf = Shelf(None)
    for n_tokens in (50, 100, 150):
        shelf.save("a", talk(1, n_tokens), state=True)
    found = shelf.find("a", talk(1, 149))
    assert found.until_state(149).n_tokens == 100
    assert shelf.find("a", [*talk(1, 150), 5]).until_state(150).n_tokens == 150
    # Only the last states are kept.
    assert shelf.find("a", talk(1, 99)).until_state(99).n_tokens == 0


def test_ram_is_bounded_and_the_longest_unused_goes() -> None:
    shelf = Shelf(None, ram=250 * BYTES_PER_TOKEN)
    for seed in (1, 2):
        shelf.save(f"k{seed}", talk(seed, 100))
    shelf.find("k1", talk(1, 100))
    shelf.save("k3", talk(3, 100))
    assert shelf.tiers.ram_used_bytes <= 250 * BYTES_PER_TOKEN
    assert shelf.load("k1", talk(1, 100)) == 100
    assert shelf.load("k3", talk(3, 100)) == 100
    assert shelf.load("k2", talk(2, 100)) < 100


def test_what_ram_has_no_room_for_comes_from_disk(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kv", ram=0)
    shelf.save("a", talk(1, 100))
    shelf.settle()
    assert shelf.tiers.ram_used_bytes == 0
    assert shelf.load("a", talk(1, 100)) == 100
    assert shelf.tiers.ram_used_bytes == 0
    shelf.close()


def test_it_survives_a_restart_without_a_goodbye(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(7, 70) + talk(1, 130), n_shared=70)
    shelf.settle()
    assert shelf.disk
    shelf.disk._trace.close()  # what kill -9 does to the lock
    again = Shelf(tmp_path / "kv")
    assert again.load("a", talk(7, 70) + talk(1, 130), n_shared=70) == 200
    assert again.save("a", talk(7, 70) + talk(1, 140), n_shared=70) == 10
    again.close()


def test_files_are_for_this_user_only(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(1, 100))
    shelf.close()
    found = files(tmp_path)
    assert len(found) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in found)
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o700 for p in found[0].parents if p != tmp_path and tmp_path in p.parents)  # fmt: skip


@pytest.mark.parametrize("harm", ["bit", "short", "empty", "gone", "longer"])
def test_a_damaged_file_is_ignored_and_removed(tmp_path: Path, harm: str) -> None:
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(1, 192))
    shelf.close()
    victim = files(tmp_path)[1]
    data = bytearray(victim.read_bytes())
    match harm:
        case "bit":
            data[len(data) // 2] ^= 4
        case "short":
            del data[-7:]
        case "empty":
            data.clear()
        case "longer":
            data += b"x"
        case _:
            pass
    victim.unlink() if harm == "gone" else victim.write_bytes(data)
    again = Shelf(tmp_path / "kv", ram=0)
    assert again.load("a", talk(1, 192)) == 64
    again.settle()
    assert victim not in files(tmp_path)
    assert again.save("a", talk(1, 192)) == 128
    assert again.load("a", talk(1, 192)) == 192
    again.close()


def test_strange_files_do_no_harm(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(1, 100))
    shelf.close()
    folder = files(tmp_path)[0].parent
    (folder / "notes.txt").write_text("what is this")
    (folder / "0000000-0000064-000000000000000000000000.kv").write_bytes(b"foreign")
    (folder / (files(tmp_path)[0].name + ".part")).write_bytes(b"half")
    mine = tmp_path / "kv" / "letter to my mother.txt"
    mine.write_text("dear")
    again = Shelf(tmp_path / "kv")
    assert again.load("a", talk(1, 100)) in (0, 100)
    again.save("a", talk(1, 100))
    assert again.load("a", talk(1, 100)) == 100
    again.close()
    assert mine.read_text() == "dear"
    assert {path.suffix for path in folder.iterdir()} == {".kv"}
    final = Shelf(tmp_path / "kv")
    assert final.load("a", talk(1, 100)) == 100
    final.close()


def test_forgetting_removes_every_copy_before_it_says_so(tmp_path: Path) -> None:
    old = Shelf(tmp_path / "kv", model="older file")
    old.save("a", talk(1, 100))
    old.close()
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(1, 100))
    shelf.save("a", talk(1, 100), scope="another bot")
    shelf.save("b", talk(2, 100))
    gone = threading.Event()
    shelf.tiers.forget("a", gone.set)
    assert shelf.load("a", talk(1, 100)) == 0
    assert gone.wait(5)
    names = {path.parent.name for path in files(tmp_path)}
    assert not any(name.startswith(talk_folder("s", "a")[:24]) for name in names)
    shelf.settle()  # what was still on its way to the disk must not come back
    names = {path.parent.name for path in files(tmp_path)}
    assert names == {talk_folder("s", "b")}
    assert shelf.load("a", talk(1, 100)) == 0
    assert shelf.tiers.ram_used_bytes == 100 * BYTES_PER_TOKEN
    shelf.close()


def test_a_disk_that_hangs_holds_up_nobody_who_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(1, 100))
    shelf.settle()
    goes_on, gone = threading.Event(), threading.Event()
    remove = BlockFiles.remove_everywhere

    def hanging(files: BlockFiles, prefix: str) -> None:
        assert goes_on.wait(10)
        remove(files, prefix)

    monkeypatch.setattr(BlockFiles, "remove_everywhere", hanging)
    shelf.tiers.forget("a", gone.set)
    assert shelf.tiers.find("s", "a", talk(1, 100), 0) == Found()
    assert not gone.is_set(), "what lies on the disk is not said to be gone"
    goes_on.set()
    assert gone.wait(5)
    assert files(tmp_path) == []
    shelf.close()


def test_what_cannot_be_removed_is_not_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(1, 100))

    def failing(_files: BlockFiles, _prefix: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(BlockFiles, "remove_everywhere", failing)
    gone = threading.Event()
    shelf.tiers.forget("a", gone.set)
    shelf.settle()
    assert not gone.is_set()
    shelf.close()


def test_another_model_file_finds_nothing_and_makes_room_first(tmp_path: Path) -> None:
    old = Shelf(tmp_path / "kv", model="older file")
    old.save("a", talk(1, 100))
    old.close()
    shelf = Shelf(tmp_path / "kv", ram=0, disk=210 * BYTES_PER_TOKEN)
    assert shelf.load("a", talk(1, 100)) == 0
    shelf.save("b", talk(2, 100))
    shelf.save("c", talk(3, 50))
    shelf.settle()
    assert shelf.load("b", talk(2, 100)) == 100
    assert shelf.load("c", talk(3, 50)) == 50
    assert len({path.parents[1] for path in files(tmp_path)}) == 1
    shelf.close()


def test_the_disk_is_bounded_and_the_longest_unused_goes(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kv", ram=0, disk=350 * BYTES_PER_TOKEN)
    for seed in range(1, 8):
        shelf.save(f"k{seed}", talk(seed, 100))
        shelf.settle()
        shelf.load("k1", talk(1, 100))
    shelf.settle()
    n_bytes = sum(path.stat().st_size for path in files(tmp_path))
    assert n_bytes <= 350 * BYTES_PER_TOKEN
    assert shelf.tiers.disk_used_bytes == n_bytes
    assert shelf.load("k1", talk(1, 100)) == 100
    assert shelf.load("k7", talk(7, 100)) == 100
    assert shelf.load("k2", talk(2, 100)) == 0
    shelf.close()


def test_a_full_disk_costs_nothing_but_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path / "kv")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(BlockFiles, "write", full)
    shelf.save("a", talk(1, 100))
    shelf.settle()
    assert shelf.load("a", talk(1, 100)) == 100  # from RAM
    shelf.save("b", talk(2, 100))  # while it pauses nothing is tried
    assert shelf.load("b", talk(2, 100)) == 100
    shelf.close()
    assert files(tmp_path) == []


def test_two_processes_never_share_a_folder(tmp_path: Path) -> None:
    first = Shelf(tmp_path / "kv")
    assert open_disk(tmp_path / "kv", MIB, "model") is None
    first.close()
    second = open_disk(tmp_path / "kv", MIB, "model")
    assert second
    second.close()


def test_a_folder_that_cannot_be_made_turns_the_disk_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert open_disk(tmp_path / "file" / "kv", MIB, "model") is None


def test_a_cache_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kv", ram=0)
    shelf.save("a", talk(1, 100))
    shelf.settle()
    shutil.rmtree(tmp_path / "kv")
    assert shelf.load("a", talk(1, 100)) == 0
    shelf.save("a", talk(1, 100))
    shelf.settle()
    assert shelf.load("a", talk(1, 100)) == 100
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
    shelf.close()


@pytest.mark.parametrize("what", ["pipe", "link", "folder"])
def test_what_is_no_file_is_not_waited_for_and_not_followed(tmp_path: Path, what: str) -> None:
    shelf = Shelf(tmp_path / "kv", ram=0)
    shelf.save("a", talk(1, 192))
    shelf.settle()
    victim, other = files(tmp_path)[1], tmp_path / "other"
    other.write_bytes(victim.read_bytes())
    for moment in ("while it runs", "before it starts"):
        victim.unlink()
        match what:
            case "pipe":
                os.mkfifo(victim)
            case "link":
                victim.symlink_to(other)
            case _:
                victim.mkdir()
                (victim / "letter").write_text("dear")
        if moment == "before it starts":
            shelf.close()
            shelf = Shelf(tmp_path / "kv", ram=0)
        assert shelf.load("a", talk(1, 192)) == 64, moment
        shelf.save("a", talk(1, 192))
        shelf.settle()
        assert shelf.load("a", talk(1, 192)) == 192, moment
        assert victim.is_file()
    shelf.close()
    assert other.exists()


def test_what_was_given_back_when_the_process_died_is_not_tried_again(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kv", ram=0)
    shelf.save("a", talk(7, 70) + talk(1, 130), n_shared=70)
    shelf.save("b", talk(2, 100))
    shelf.save("c", talk(3, 100))
    shelf.settle()
    assert shelf.load("b", talk(2, 100)) == 100  # the model has lived with these
    found = shelf.find("a", talk(7, 70) + talk(1, 130), n_shared=70)
    shelf.tiers.hold(found.blocks)
    while shelf.tiers.is_reading(found.blocks):
        assert shelf.loaded.wait(5)
        shelf.loaded.clear()
    shelf.settle()
    assert shelf.disk
    shelf.disk._trace.close()  # it dies
    again = Shelf(tmp_path / "kv", ram=0)
    assert again.load("a", talk(7, 70) + talk(1, 130), n_shared=70) == 0
    assert again.load("b", talk(2, 100)) == 100
    assert again.load("c", talk(3, 100)) == 100
    assert not any(path.parent.name == found.blocks[0].folder for path in files(tmp_path))
    again.settle()
    again.close()
    last = Shelf(tmp_path / "kv", ram=0)
    assert last.load("b", talk(2, 100)) == 100, "one death is blamed once"
    last.close()


def test_names_that_are_no_folders_of_ours_are_not_followed(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "in-use").write_bytes(b"../keep\n/etc\n\xff\x00" + b"a" * 100_000)
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(1, 100))
    assert shelf.load("a", talk(1, 100)) == 100
    shelf.close()
    assert keep.is_dir()


def test_nothing_stays_where_the_disk_is_not_to_be_used_any_more(tmp_path: Path) -> None:
    """Nobody could forget it later: it is not known then."""
    clear_disk(tmp_path / "kv")
    assert not (tmp_path / "kv").exists()
    shelf = Shelf(tmp_path / "kv")
    shelf.save("a", talk(7, 70) + talk(1, 130), n_shared=70)
    shelf.settle()
    mine = tmp_path / "kv" / "letter to my mother.txt"
    mine.write_text("dear")
    clear_disk(tmp_path / "kv")
    assert files(tmp_path), "it is in use"
    shelf.close()
    config = EngineConfig(name="m", backend="fake", kv_dir=str(tmp_path / "kv"))
    assert open_tiers(config, FakeBackend(config)) is None
    assert files(tmp_path) == []
    assert mine.read_text() == "dear"

"""Disks: what they are by the mount table, how fast they are, and what is too little. Slowness is played, the rest is real."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from bot.doctor import disk
from bot.doctor.disk import look_at_database_folder, look_at_kv_folders, volume_of
from bot.doctor.findings import Level
from tests.support.doctorkit import machine, patient, said

GIB = 2**30


def mounts(*lines: str) -> dict[str, str]:
    return {"proc/mounts": "/dev/sda / ext4 rw 0 0\n" + "".join(f"{line}\n" for line in lines)}


def test_the_longest_mount_point_counts(tmp_path: Path) -> None:
    nested = f"srv:/x {tmp_path} nfs4 rw 0 0"
    inner = f"tmpfs {tmp_path}/in\\040ram tmpfs rw 0 0"
    (tmp_path / "in ram").mkdir()
    who = patient(tmp_path, root=machine(tmp_path / "root", mounts(nested, inner)))
    assert volume_of(tmp_path / "a" / "b", who).kind == "nfs4"
    assert volume_of(tmp_path / "a" / "b", who).there == tmp_path
    assert volume_of(tmp_path / "in ram", who).kind == "tmpfs"
    assert volume_of(Path("/"), who).kind == "ext4"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_sqlite_on_a_network_is_an_error(kind: str, tmp_path: Path) -> None:
    root = machine(tmp_path / "root", mounts(f"srv:/x {tmp_path} {kind} rw 0 0"))
    (text,) = said(look_at_database_folder(patient(tmp_path, root=root)), Level.ERROR)
    assert f"is on {kind}, where SQLite's locks and its WAL do not hold" in text


def test_a_database_in_ram_is_told(tmp_path: Path) -> None:
    root = machine(tmp_path / "root", mounts(f"tmpfs {tmp_path} tmpfs rw 0 0"))
    (text,) = said(look_at_database_folder(patient(tmp_path, root=root)), Level.WARNING)
    assert "gone at the next start" in text


def test_a_slow_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_sync_time", lambda _: 0.3)
    monkeypatch.setattr(disk, "_stream_speed", lambda _: (40.0 * 2**20, 200.0 * 2**20))
    who = patient(tmp_path)
    assert "takes 300 ms to be on disk" in said(look_at_database_folder(who), Level.WARNING)[0]
    assert "writes 40 and reads 200 MiB/s" in said(look_at_kv_folders(who), Level.WARNING)[0]


def test_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=700, f_frsize=2**20))
    monkeypatch.setattr(disk, "_stream_speed", lambda _: (1e9, 1e9))
    who = patient(tmp_path)
    assert "only 700 MiB free" in said(look_at_database_folder(who), Level.WARNING)[0]
    (text,) = said(look_at_kv_folders(who), Level.WARNING)
    assert "700 MiB free, and idle conversations may take 8.0 GiB" in text
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=9, f_frsize=2**20))
    assert "only 9 MiB free" in said(look_at_database_folder(who), Level.ERROR)[0]
    assert 'set kv_disk = "0"' in said(look_at_kv_folders(who), Level.WARNING)[0]


def test_what_is_measured_leaves_nothing_behind(tmp_path: Path) -> None:
    who = patient(tmp_path)
    found = [*look_at_database_folder(who), *look_at_kv_folders(who)]
    assert not [finding for finding in found if finding.level is Level.ERROR]
    assert "a commit takes" in found[0].what or "to be on disk" in found[0].what
    assert list(tmp_path.iterdir()) == []


def test_no_disk_tier_is_not_measured(tmp_path: Path) -> None:
    assert list(look_at_kv_folders(patient(tmp_path, {"models": {"m": {"kv_disk": "0"}}}))) == []

"""Damaged set-ups, each damaged in reality: the doctor names the damage and its cure, and a sound one has no error.

`make prove ARGS=doctor` runs the whole doctor on each of them and writes what it says into docs/proof/doctor.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bot.cli.doctor import DoctorOptions, admit
from bot.doctor.checks import MACHINE
from bot.doctor.findings import Finding, Level
from tests.support.damages import DAMAGES, Damage, SetUp, copy_of, make_sound, misspelt_keys
from tests.support.doctorkit import look, said


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    make_sound(folder)
    return folder


@pytest.fixture
def setup(sound: Path, tmp_path: Path) -> Iterator[SetUp]:
    with ExitStack() as stack:
        yield copy_of(sound, tmp_path / "setup", stack)


def examine(it: SetUp, title: str) -> list[Finding]:
    who = admit(DoctorOptions(config=it.config))
    return [found for check in MACHINE if check.title == title for found in look(check, who)]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_damage_is_named_with_its_cure(damage: Damage, setup: SetUp) -> None:
    damage.do(setup)
    found = [f for f in examine(setup, damage.check) if f.level is damage.level]
    texts = said(found, damage.level)
    assert any(damage.says in text and damage.cure in text for text in texts), texts
    assert all(finding.cure for finding in found)


def test_every_fault_of_a_configuration_is_told_at_once(setup: SetUp) -> None:
    misspelt_keys(setup)
    texts = said(examine(setup, "config"), Level.ERROR)
    places = [text.partition(":")[0] for text in texts]
    assert sorted(places) == ["chat.language", "models.main.n_batch", "models.main.n_ctz", "storag"]


@pytest.mark.parametrize("title", ["config", "model", "memory", "disk", "database", "port"])
def test_a_sound_set_up_has_no_error(title: str, setup: SetUp) -> None:
    found = examine(setup, title)
    assert said(found, Level.ERROR) == []
    assert any(finding.level is Level.OK for finding in found)

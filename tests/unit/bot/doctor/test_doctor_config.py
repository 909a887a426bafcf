"""A broken configuration, read as far as it can be: all faults at once, and the right part of it stays."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from bot.config_survey import survey
from bot.doctor.configuration import look_at_config
from bot.doctor.findings import Level
from bot.doctor.patient import Patient
from tests.support.doctorkit import said

GOOD_BOT = '[bots.good]\nplatform = "dingtalk"\nclient_id = "a"\nclient_secret = "b"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_right_file_has_no_fault(tmp_path: Path) -> None:
    found = survey(write(tmp_path, GOOD_BOT))
    assert found.faults == ()
    assert list(found.config.bots) == ["good"]
    assert found.config.folder == tmp_path


def test_the_right_part_stays(tmp_path: Path) -> None:
    text = (
        '[server]\nport = 99999\nhost = "0.0.0.0"\n'
        '[models.main]\npath = "m.gguf"\nn_ctx = 1\nn_parallel = 7\n'
        '[models.far]\nbackend = "openai"\nbase_url = "ftp://x"\nmodel = "m"\nn_ctx = 4096\n'
        '[bots.bad]\nplatform = "dingtalk"\nclient_id = "x"\n' + GOOD_BOT
    )
    found = survey(write(tmp_path, text))
    places = sorted(fault.partition(":")[0] for fault in found.faults)
    assert places == [
        "bots.bad.client_secret",
        "models.far.base_url",
        "models.main.n_ctx",
        "server.port",
    ]
    assert found.config.server.host == "0.0.0.0"
    assert found.config.models["main"].n_parallel == 7
    assert found.config.models["main"].n_ctx == 4096
    assert list(found.config.bots) == ["good"]


def test_faults_that_tables_have_together_come_after_their_own(tmp_path: Path) -> None:
    text = GOOD_BOT + GOOD_BOT.replace("good", "twin") + "[server]\nport = -1\n"
    faults = survey(write(tmp_path, text)).faults
    assert any(fault.startswith("server.port") for fault in faults)
    assert any("is used by two bots" in fault for fault in faults)


def test_a_model_that_was_taken_away_is_told_once(tmp_path: Path) -> None:
    text = '[models.far]\nbackend = "openai"\nmodel = "m"\nn_ctx = 4096\n[chat]\nmodel = "far"\n'
    assert [fault.partition(":")[0] for fault in survey(write(tmp_path, text)).faults] == [
        "models.far.base_url"
    ]


def test_every_unset_variable_is_told_and_no_fault_of_its_value(tmp_path: Path) -> None:
    text = '[server]\napi_keys = ["${HEARTH_NO_A}"]\n[models.far]\nbackend = "openai"\nbase_url = "${HEARTH_NO_B}"\nmodel = "m"\nn_ctx = 4096\n'
    assert survey(write(tmp_path, text)).faults == (
        "server.api_keys[0]: the environment variable HEARTH_NO_A is not set",
        "models.far.base_url: the environment variable HEARTH_NO_B is not set",
    )


def test_no_secret_is_shown(tmp_path: Path) -> None:
    text = '[bots.x]\nplatform = "feishu"\nmode = "webhook"\napp_id = "a"\napp_secret = "topsecret"\nport = "topsecret"\n'
    faults = " ".join(survey(write(tmp_path, text)).faults)
    assert faults
    assert "topsecret" not in faults


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[server\n", "is not valid TOML"),
        (b"[chat]\nsystem_prompt = \"\xb0\xe4\"\n", "is not text in UTF-8"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_fault(text: bytes, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, "")
    path.write_bytes(text)
    found = survey(path)
    assert len(found.faults) == 1
    assert says in found.faults[0]
    assert found.config.default_model == "main"


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    assert "cannot be read" in survey(tmp_path).faults[0]


def test_secrets_that_everybody_can_read(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD_BOT)
    who = Patient(survey(path).config, path)
    assert said(look_at_config(who), Level.WARNING) == []
    path.chmod(0o644)
    assert "chmod 600" in said(look_at_config(who), Level.WARNING)[0]


def test_without_a_file_the_defaults_are_checked(tmp_path: Path) -> None:
    who = Patient(survey(write(tmp_path, "")).config)
    assert "cp config.example.toml" in said(look_at_config(who), Level.WARNING)[0]


def test_whatever_happens_to_a_file_it_is_read(tmp_path: Path) -> None:
    """Lines of the example lost, doubled and spoilt: every survey ends with a configuration, and with faults if any."""
    example = (Path(__file__).parents[4] / "config.example.toml").read_text(encoding="utf-8")
    lines = [re.sub(r"^# (?=\w+ = |\[)", "", line) for line in example.splitlines()]
    rng = random.Random(7)
    n_faults = 0
    for _ in range(150):
        spoilt = list(lines)
        for _ in range(rng.randint(1, 12)):
            at = rng.randrange(len(spoilt))
            spoilt[at] = rng.choice(("", spoilt[at].replace("= ", "= -7 # ", 1), "x_" + spoilt[at]))
        found = survey(write(tmp_path, "\n".join(spoilt)))
        n_faults += len(found.faults)
        assert found.config.models
        assert len(set(found.faults)) == len(found.faults)
    assert n_faults > 150

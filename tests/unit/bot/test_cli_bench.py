"""`hearth bench`: which columns the options make, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.cli.bench import BenchOptions, _columns, _plan
from bot.config import parse_config
from bot.errors import ConfigError
from engine.config import EngineConfig, OpenAISettings

CONFIG = {
    "models": {
        "main": {"path": "demo", "n_parallel": 2, "kv_ram": "1GiB"},
        "far": {
            "backend": "openai",
            "base_url": "http://127.0.0.1:1/v1",
            "model": "m",
            "n_ctx": 4096,
        },
    }
}


def columns(tmp_path: Path, *, configured: bool = True, **options: object) -> dict[str, object]:
    config = parse_config(CONFIG, tmp_path) if configured else None
    return dict(_columns(config, BenchOptions(**options), tmp_path / "kv"))  # type: ignore[arg-type]


def test_the_configured_model_with_files_of_its_own(tmp_path: Path) -> None:
    (name, ours), *others = columns(tmp_path).items()
    assert (name, others) == ("hearth", [])
    assert isinstance(ours, EngineConfig)
    assert (ours.n_parallel, ours.kv_ram_bytes) == (2, 2**30)
    assert Path(ours.kv_dir).is_relative_to(tmp_path / "kv")


def test_without_tiers_is_one_more_column_of_the_same_model(tmp_path: Path) -> None:
    found = columns(
        tmp_path, no_kv_tiers=True, parallel=8, against="http://127.0.0.1:8000", against_key="k"
    )
    assert list(found) == ["hearth", "no tiers", "against"]
    ours, bare, against = found.values()
    assert isinstance(ours, EngineConfig)
    assert isinstance(bare, EngineConfig)
    assert isinstance(against, OpenAISettings)
    assert (bare.kv_ram_bytes, bare.kv_disk_bytes, bare.kv_dir) == (0, 0, "")
    assert ours.kv_ram_bytes > 0
    assert (ours.n_parallel, bare.n_parallel) == (8, 8)
    assert (against.base_url, against.api_key) == ("http://127.0.0.1:8000/v1", "k")


def test_a_server_may_be_measured_itself(tmp_path: Path) -> None:
    found = columns(tmp_path, configured=False, model="http://127.0.0.1:8080/v1")
    assert list(found) == ["127.0.0.1:8080"]


def test_a_file_is_measured_also_beside_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.touch()
    ours = columns(tmp_path, model=str(path))["hearth"]
    assert isinstance(ours, EngineConfig)
    assert ours.path == str(path)
    assert isinstance(columns(tmp_path, model="far")["hearth"], OpenAISettings)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "gone.gguf"}, r'"gone.gguf" is no \[models\] table \(main, far\) and no file'),
        ({"against": "127.0.0.1:8000"}, "--against 127.0.0.1:8000: write a URL"),
        ({"model": "far", "no_kv_tiers": True}, "--no-kv-tiers needs a local model"),
        ({"model": "http://h:1", "no_kv_tiers": True}, "--no-kv-tiers needs a local model"),
    ],
)
def test_what_cannot_be_measured_is_said(
    tmp_path: Path, options: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        columns(tmp_path, **options)


def test_the_plan_is_what_the_options_say() -> None:
    plan = _plan(
        BenchOptions(concurrency="2, 5", conversations=12, turns=6, rounds=3, max_tokens=7)
    )
    assert plan.concurrency == (2, 5)
    assert (plan.conversations, plan.turns, plan.rounds, plan.max_new_tokens) == (12, 6, 3, 7)
    with pytest.raises(ConfigError, match='write numbers, for example "1,4,8"'):
        _plan(BenchOptions(concurrency="many"))

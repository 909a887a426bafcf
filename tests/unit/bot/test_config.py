"""The configuration: the example stays complete, faults are one sentence, secrets stay hidden."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bot import config as c
from bot.cli.report import findings, start_block
from bot.config_hub import ModelsHubConfig
from bot.config_machine import WatchConfig
from bot.config_survey import survey
from bot.errors import ConfigError

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "config.example.toml").read_text(encoding="utf-8")
FEISHU = {
    "platform": "feishu",
    "app_id": "cli_1",
    "app_secret": "app-secret-1",
    "encrypt_key": "encrypt-key-1",
    "verification_token": "token-1",
}


def uncommented() -> dict[str, Any]:
    """The example with its commented-out tables and keys switched on."""
    lines = [re.sub(r"^# (?=\[|[a-z_]+ = )", "", line) for line in EXAMPLE.splitlines()]
    return tomllib.loads("\n".join(lines))


@pytest.mark.parametrize(
    ("path", "model"),
    [
        (("server",), c.ServerConfig),
        (("storage",), c.StorageConfig),
        (("log",), c.LogConfig),
        (("models", "main"), c.LlamaModelConfig),
        (("models", "main", "sampling"), c.SamplingConfig),
        (("models", "other"), c.OpenAIModelConfig),
        (("models_hub",), ModelsHubConfig),
        (("chat",), c.ChatConfig),
        (("summarizer",), c.SummarizerConfig),
        (("recall",), c.RecallConfig),
        (("access",), c.AccessConfig),
        (("watch",), WatchConfig),
        (("bots", "feishu"), c.FeishuBotConfig),
        (("bots", "wecom"), c.WeComBotConfig),
        (("bots", "wecom_app"), c.WeComAppConfig),
        (("bots", "dingtalk"), c.DingTalkBotConfig),
    ],
)
def test_the_example_names_every_key(path: tuple[str, ...], model: type[c.BaseModel]) -> None:
    table: Any = uncommented()
    for part in path:
        table = table[part]
    nested = {"sampling"}
    assert set(model.model_fields) - nested == set(table) - nested


def test_the_example_holds_the_defaults(tmp_path: Path) -> None:
    example = c.parse_config(tomllib.loads(EXAMPLE), tmp_path)
    assert example == c.parse_config({}, tmp_path)


def test_the_uncommented_example_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{([A-Z_]+)\}", EXAMPLE):
        monkeypatch.setenv(name, "k" * 43 if name.endswith("AES_KEY") else f"value-of-{name}")
    loaded = c.parse_config(uncommented(), tmp_path)
    assert loaded.bots["feishu"].encrypt_key.get_secret_value() == "value-of-FEISHU_ENCRYPT_KEY"
    assert isinstance(loaded.models["other"], c.OpenAIModelConfig)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            {"chat": {"sesion": "shared"}},
            "chat.sesion: this key is not known; did you mean session?",
        ),
        (
            {"models_hub": {"endpont": "x"}},
            "models_hub.endpont: this key is not known; did you mean endpoint?",
        ),
        ({"models_hub": {"endpoint": "hf-mirror.com"}}, "is not an http.s. URL, for example"),
        ({"srever": {}}, "srever: this key is not known; did you mean server?"),
        ({"models": {}}, r"models: at least one \[models.<name>\] table is needed"),
        ({"models": {"default": {}}}, "cannot be called"),
        ({"models": {"m": {"n_ctx": 10}}}, "models.m.n_ctx"),
        ({"models": {"m": {"backend": "vllm"}}}, "models.m"),
        ({"models": {"m": {"kv_ram": "lots"}}}, "is not a size"),
        (
            {"models": {"m": {"backend": "openai", "base_url": "x", "model": "m", "n_ctx": 4096}}},
            "is not an http",
        ),
        ({"chat": {"model": "gone"}}, r'chat.model = "gone" is not a \[models\] table'),
        ({"access": {"admins": ["ou_1"]}}, "access.admins.*<bot name here>:<user id>"),
        (
            {"access": {"tiers": ["feishu:ou_1"]}},
            r"access.tiers: is a list of lists, for example \[\[",
        ),
        ({"access": {"tiers": [["ou_1"]]}}, "access.tiers.*<bot name here>:<user id>"),
        (
            {"access": {"tiers": [["f:a"], ["f:b", "f:a"]]}},
            'access.tiers: "f:a" stands in it twice',
        ),
        ({"access": {"tiers": [[f"f:{n}"] for n in range(10)]}}, "access.tiers: at most 9 lists"),
        ({"chat": {"max_wait_s": -1}}, "chat.max_wait_s"),
        (
            {"bots": {"f": {**FEISHU, "encrypt_key": ""}}},
            "needs encrypt_key: copy it from the Feishu console",
        ),
        ({"bots": {"f": {**FEISHU, "api_base": "http://example.com"}}}, "must be https://"),
        ({"bots": {"f": FEISHU, "g": FEISHU}}, "used by two bots"),
        (
            {"bots": {"f": {**FEISHU, "app_secret": "${HEARTH_NOT_SET}"}}},
            "environment variable HEARTH_NOT_SET is not set",
        ),
        ({"storage": {"dedupe_hours": 1}}, "storage.dedupe_hours"),
        (
            {"bots": {"feishu": {**FEISHU, "encrypt_key": ""}}},
            "bots.feishu: mode",  # a bot that is called like its platform
        ),
        (
            {"bots": {"w": {"platform": "wecom_bot", "token": "t", "encoding_aes_key": "short"}}},
            "bots.w.encoding_aes_key: must be the 43 letters and digits",
        ),
        (
            {"bots": {"w": {"platform": "wecom_bot", "mode": "websocket", "bot_id": "b"}}},
            'bots.w: mode = "websocket" needs secret: copy it from the WeCom console',
        ),
        (
            {"bots": {"w": {"platform": "wecom_bot", "mode": "websocket", "ws_url": "ws://h"}}},
            "must be wss://",
        ),
        (
            {
                "bots": {
                    "w": {
                        "platform": "wecom_app",
                        "corp_id": "c",
                        "corp_secret": "",
                        "agent_id": 1,
                        "token": "t",
                        "encoding_aes_key": "k" * 43,
                    }
                }
            },
            "bots.w: needs corp_secret: copy it from the WeCom console",
        ),
    ],
)
def test_faults_are_one_sentence(data: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        c.parse_config(data, tmp_path)
    assert "\n" not in str(caught.value)


def test_cards_whose_buttons_lead_nowhere_are_told(tmp_path: Path) -> None:
    bot = {
        "platform": "dingtalk",
        "client_id": "d",
        "client_secret": "s",
        "card_template": "t.schema",
    }
    for more, told in (
        ({"mode": "webhook"}, True),
        ({"mode": "webhook", "card_callback_url": "https://x.example/webhook/d/card"}, False),
        ({"mode": "stream"}, False),
    ):
        config = c.parse_config({"bots": {"d": {**bot, **more}}}, tmp_path)
        places = [finding.where for finding in findings(config)]
        assert ("bots.d.card_callback_url" in places) is told


def test_no_secret_in_an_error_or_a_repr(tmp_path: Path) -> None:
    bot = {**FEISHU, "app_secret": "very-secret-value", "nonsense": "also-secret"}
    with pytest.raises(ConfigError) as caught:
        c.parse_config({"bots": {"f": bot}}, tmp_path)
    assert "secret-value" not in str(caught.value)
    assert "also-secret" not in str(caught.value)
    del bot["nonsense"]
    loaded = c.parse_config({"bots": {"f": bot}}, tmp_path)
    assert "very-secret-value" not in repr(loaded)
    assert "very-secret-value" not in start_block(loaded, "http://127.0.0.1:8080")


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"copy config\.example\.toml"):
        c.load_config(tmp_path / "config.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[server\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        c.load_config(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not text in UTF-8; save it as UTF-8"):
        c.load_config(broken)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        c.load_config(tmp_path)


def test_a_file_of_a_windows_editor_is_read(tmp_path: Path) -> None:
    """A byte order mark in front, and lines that end as there."""
    path = tmp_path / "config.toml"
    path.write_bytes(b'\xef\xbb\xbf[chat]\r\nlanguage = "en"\r\n')
    assert c.load_config(path).chat.language == "en"
    assert survey(path).faults == ()


def test_a_secret_whose_variable_is_empty_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEARTH_TEST_SECRET", "")
    bot = {"platform": "feishu", "mode": "websocket", "app_id": "a", "app_secret": "${HEARTH_TEST_SECRET}"}  # fmt: skip
    with pytest.raises(ConfigError, match=r"bots\.feishu\.app_secret"):
        c.parse_config({"bots": {"feishu": bot}}, tmp_path)


def test_relative_paths_belong_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[storage]\nurl = "sqlite:///data/x.db"\n')
    assert c.load_config(tmp_path / "config.toml").path("data/x.db") == tmp_path / "data" / "x.db"


@pytest.mark.parametrize(
    ("text", "n"),
    [("12GiB", 12 * 2**30), ("512 MiB", 2**29), ("1.5GB", 1_500_000_000), ("7", 7), (5, 5)],
)
def test_sizes(text: str | int, n: int) -> None:
    assert c.parse_bytes(text) == n


def test_findings_name_the_key_and_the_cure(tmp_path: Path) -> None:
    (tmp_path / "near.gguf").touch()
    data = {
        "server": {"api_keys": ["plain"], "interactive_api_keys": ["plain too"]},
        "models": {"m": {"path": "gone.gguf"}},
        "bots": {"f": FEISHU},
        "access": {"admins": ["typo:ou_1"], "tiers": [["f:ou_1"], ["typo:ou_2"]]},
    }
    found = {finding.where: finding for finding in findings(c.parse_config(data, tmp_path))}
    assert found["models.m.path"].level == "error"
    assert "near.gguf" in found["models.m.path"].text
    assert "proxy or tunnel" in found["server.public_url"].text
    assert "sha256" in found["server.api_keys[0]"].text
    assert "sha256" in found["server.interactive_api_keys[0]"].text
    assert "names no configured bot" in found["access.admins"].text
    assert "names no configured bot" in found["access.tiers[1]"].text
    assert "access.tiers[0]" not in found
    block = start_block(c.parse_config(data, tmp_path), "http://127.0.0.1:8080")
    assert "http://127.0.0.1:8080/webhook/f" in block

"""Set-up guides: both languages alike, this configuration's values filled in, never a secret."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bot.config import Config, parse_config
from bot.doctor import guides_en, guides_zh
from bot.doctor.guides import guide

AES_KEY = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
TABLES: dict[str, dict[str, Any]] = {
    "feishu": {"platform": "feishu", "mode": "websocket", "app_id": "cli_0123", "app_secret": "s3cret-a"},
    "feishu-hook": {
        "platform": "feishu", "mode": "webhook", "app_id": "cli_4567", "app_secret": "s3cret-a", "encrypt_key": "s3cret-b",
        "verification_token": "s3cret-c", "answer_in_groups": "all",
    },
    "ding": {
        "platform": "dingtalk", "mode": "stream", "client_id": "ding0123", "client_secret": "s3cret-a",
        "card_template": "42.schema",
    },
    "ding-hook": {
        "platform": "dingtalk", "mode": "webhook", "client_id": "ding4567", "client_secret": "s3cret-a",
        "card_template": "42.schema", "card_callback_secret": "s3cret-b",
    },
    "wecom": {"platform": "wecom_bot", "mode": "websocket", "bot_id": "aib0123", "secret": "s3cret-a"},
    "wecom-hook": {"platform": "wecom_bot", "mode": "webhook", "token": "s3cret-a", "encoding_aes_key": AES_KEY},
    "wecom-app": {
        "platform": "wecom_app", "corp_id": "ww0123", "corp_secret": "s3cret-a", "agent_id": 1000003, "token": "s3cret-b",
        "encoding_aes_key": AES_KEY,
    },
}  # fmt: skip
# What of each table people find in its guide again.
SHOWN = {
    "feishu": ["cli_0123"],
    "feishu-hook": ["cli_4567", "im:message.group_msg"],
    "ding": ["ding0123", "42.schema", "Card.Streaming.Write"],
    "ding-hook": ["ding4567", "42.schema", "https://bot.example.com/webhook/ding-hook/card"],
    "wecom": ["aib0123"],
    "wecom-hook": [],
    "wecom-app": ["ww0123", "1000003", "60020"],
}


def config(public_url: str = "https://bot.example.com/", **chat: Any) -> Config:
    return parse_config(
        {"server": {"public_url": public_url}, "chat": chat, "bots": TABLES}, Path()
    )


@pytest.mark.parametrize("language", ["zh", "en"])
@pytest.mark.parametrize("name", TABLES)
def test_a_guide_has_the_values_of_the_config_and_no_secret(name: str, language: str) -> None:
    text = guide(config(), name, language)
    assert "s3cret" not in text
    assert AES_KEY not in text
    assert "{" not in text
    assert "?" not in re.sub(r"auth\?", "", text)
    assert name in text
    for shown in SHOWN[name]:
        assert shown in text
    hooked = name.endswith(("-hook", "-app"))
    assert (f"https://bot.example.com/webhook/{name}" in text) == hooked
    assert "/whoami" in text
    numbers = [int(n) for n in re.findall(r"^ *(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 5


@pytest.mark.parametrize("name", TABLES)
def test_both_languages_have_the_same_steps(name: str) -> None:
    zh, en = (guide(config(), name, language) for language in ("zh", "en"))
    assert zh.count("\n") == en.count("\n")
    assert re.search("[\u4e00-\u9fff]{4}", zh)
    # What stands in code is the same, step by step: keys, scopes, events, addresses.
    names = r"[a-z_]+:[a-z_.:]+|im\.[a-z_.0-9]+|https://[\w./-]+|access\.admins|60020"
    assert sorted(set(re.findall(names, zh))) == sorted(set(re.findall(names, en)))


def test_every_platform_and_mode_has_a_guide() -> None:
    wanted = {(bot.platform, bot.mode) for bot in config().bots.values()}
    assert set(guides_zh.STEPS) == set(guides_en.STEPS) == wanted


def test_steps_that_do_not_apply_are_left_out() -> None:
    bare = {"ding": {**TABLES["ding"], "card_template": ""}}
    text = guide(parse_config({"bots": bare}, Path()), "ding", "en")
    assert "Card." not in text
    assert "im:message.group_msg" not in guide(config(), "feishu", "en").replace("im:message.group_at_msg", "")  # fmt: skip


def test_a_bot_that_listens_needs_the_scope_for_all_messages() -> None:
    assert "im:message.group_msg" in guide(config(listen=["feishu:*"]), "feishu", "zh")


def test_the_language_is_the_configs_and_a_missing_address_is_said() -> None:
    assert "飞书" in guide(config(language="zh"), "feishu")
    assert "Feishu" in guide(config(language="en"), "feishu")
    assert "https://<公网地址>/webhook/wecom-app" in guide(config(""), "wecom-app", "zh")
    assert "https://<public address>/webhook/wecom-app" in guide(config(""), "wecom-app", "en")


def test_lark_outside_china_has_its_own_console() -> None:
    abroad = {"lark": {**TABLES["feishu"], "api_base": "https://open.larksuite.com"}}
    assert "https://open.larksuite.com/app" in guide(parse_config({"bots": abroad}, Path()), "lark", "en")  # fmt: skip


def test_an_unknown_bot_has_none() -> None:
    with pytest.raises(KeyError):
        guide(config(), "nobody")

"""What to click in a platform's console, step by step, with the values of this configuration filled in; never a secret.

The steps themselves stand in `guides_zh` and `guides_en`, alike step for step. A step that begins with `?word ` is shown only
where `word` holds: `all` (the bot is to hear every message of a group), `cards` (a card template is configured).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from bot.config import BotConfig, Config, DingTalkBotConfig, WeComAppConfig, WeComBotConfig
from bot.doctor import guides_en, guides_zh

Steps = Mapping[tuple[str, str], tuple[str, Sequence[str]]]
_LANGUAGES: Final[Mapping[str, Steps]] = {"zh": guides_zh.STEPS, "en": guides_en.STEPS}
_NO_ADDRESS: Final = {"zh": "https://<公网地址>", "en": "https://<public address>"}
_CONDITION = re.compile(r"\?(\w+) ")


def guide(config: Config, bot_name: str, language: str = "") -> str:
    """The guide for one configured bot, in `language` or else the config's. Raises KeyError for an unknown bot."""
    bot = config.bots[bot_name]
    language = language if language in _LANGUAGES else config.chat.language
    title, steps = _LANGUAGES[language][bot.platform, bot.mode]
    values, holds = _values(config, bot_name, bot, language), _conditions(config, bot_name, bot)
    lines: list[str] = []
    for step in steps:
        condition = _CONDITION.match(step)
        if condition is None or condition[1] in holds:
            text = step[condition.end() if condition else 0 :].format_map(values)
            lines.append(f"{len(lines) + 1:>3}. {text}")
    return "\n".join([title.format_map(values), "", *lines])


def listens_to(config: Config, bot_name: str) -> bool:
    """Whether the talk of some group is kept for this bot (chat.listen)."""
    return any(entry.partition(":")[0] == bot_name for entry in config.chat.listen)


def _conditions(config: Config, bot_name: str, bot: BotConfig) -> set[str]:
    hears_all = bot.answer_in_groups == "all" or listens_to(config, bot_name)
    found = {"all"} if hears_all else set()
    if isinstance(bot, DingTalkBotConfig) and bot.card_template:
        found.add("cards")
    return found


def _values(config: Config, bot_name: str, bot: BotConfig, language: str) -> dict[str, str]:
    """Everything a step may name. Secrets are not among them: they go from the console into the file, never back."""
    base = config.server.public_url.rstrip("/") or _NO_ADDRESS[language]
    values = {
        "bot": bot_name,
        "url": f"{base}/webhook/{bot_name}",
        "card_url": f"{base}/webhook/{bot_name}/card",
        "console": _console(bot),
    }
    if isinstance(bot, WeComAppConfig):
        return {**values, "corp_id": bot.corp_id, "agent_id": str(bot.agent_id)}
    if isinstance(bot, WeComBotConfig):
        return {**values, "bot_id": bot.bot_id}
    if isinstance(bot, DingTalkBotConfig):
        return {**values, "app_id": bot.app_id, "template": bot.card_template, "key": bot.card_content_key}  # fmt: skip
    return {**values, "app_id": bot.app_id}


def _console(bot: BotConfig) -> str:
    """The console that belongs to the bot's API address."""
    if bot.platform == "feishu":
        host = urlsplit(bot.api_base).hostname or ""
        return "https://open.larksuite.com/app" if host.endswith("larksuite.com") else "https://open.feishu.cn/app"  # fmt: skip
    if bot.platform == "dingtalk":
        return "https://open-dev.dingtalk.com"
    return "https://work.weixin.qq.com/wework_admin"

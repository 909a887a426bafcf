"""Which adapter belongs to a `[bots.*]` table: the only place that knows all platforms."""

from __future__ import annotations

from bot.config import (
    BotConfig,
    DingTalkBotConfig,
    FeishuBotConfig,
    WeComAppConfig,
    WeComBotConfig,
)
from bot.platforms import dingtalk, feishu, wecom
from bot.platforms.base import PlatformAdapter
from bot.platforms.budget import CallBudget
from bot.platforms.checkup import Checkup
from bot.platforms.dingtalk.checkup import DingTalkCheckup
from bot.platforms.feishu.checkup import FeishuCheckup
from bot.platforms.http import SharedHttp
from bot.platforms.wecom.checkup import WeComAppCheckup, WeComBotCheckup


def open_adapter(
    name: str, config: BotConfig, http: SharedHttp, budget: CallBudget
) -> PlatformAdapter:
    """The adapter of one configured bot; `start` it before use. Raises ConfigError for what is not built."""
    match config:
        case DingTalkBotConfig():
            return dingtalk.open_adapter(name, config, http, budget)
        case FeishuBotConfig():
            return feishu.open_adapter(name, config, http, budget)
        case WeComBotConfig() | WeComAppConfig():
            return wecom.open_adapter(name, config, http, budget)


def open_checkup(config: BotConfig, http: SharedHttp, *, listens: bool = False) -> Checkup:
    """The check-up of one configured bot; `listens`: it is to hear all that is said in some group."""
    match config:
        case DingTalkBotConfig():
            return DingTalkCheckup(config, http)
        case FeishuBotConfig():
            return FeishuCheckup(config, http, listens=listens)
        case WeComBotConfig():
            return WeComBotCheckup(config, http)
        case WeComAppConfig():
            return WeComAppCheckup(config, http)

"""WeCom: AI bots (callbacks or a long connection) and self-built apps. `open_adapter` is the door."""

from bot.config import WeComAppConfig, WeComBotConfig
from bot.platforms.budget import CallBudget
from bot.platforms.http import SharedHttp
from bot.platforms.wecom.adapter import WeComCallbackAdapter, WeComSocketAdapter
from bot.platforms.wecom.appadapter import WeComAppAdapter

__all__ = ["WeComAppAdapter", "WeComCallbackAdapter", "WeComSocketAdapter", "open_adapter"]


def open_adapter(
    name: str, config: WeComBotConfig | WeComAppConfig, http: SharedHttp, budget: CallBudget
) -> WeComCallbackAdapter | WeComSocketAdapter | WeComAppAdapter:
    """The adapter of one configured bot or app; `start` it before use."""
    if isinstance(config, WeComAppConfig):
        return WeComAppAdapter(name, config, http, budget)
    if config.mode == "websocket":
        return WeComSocketAdapter(name, config, http)
    return WeComCallbackAdapter(name, config, http)

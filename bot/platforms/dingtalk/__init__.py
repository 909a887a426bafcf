"""DingTalk: webhooks or the stream in, AI cards or messages out. `open_adapter` is the door; nothing else is used from outside."""

from bot.platforms.dingtalk.adapter import DingTalkAdapter, open_adapter

__all__ = ["DingTalkAdapter", "open_adapter"]

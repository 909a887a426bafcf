"""Feishu: webhooks in, CardKit cards out. `open_adapter` is the door; nothing else is used from outside."""

from bot.platforms.feishu.adapter import FeishuAdapter, open_adapter

__all__ = ["FeishuAdapter", "open_adapter"]

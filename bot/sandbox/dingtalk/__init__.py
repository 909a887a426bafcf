"""DingTalk played on loopback, as strict as the real platform. The public names for tests and the demo."""

from bot.sandbox.clock import ManualClock
from bot.sandbox.dingtalk.card import Button, Card, CardOp
from bot.sandbox.dingtalk.clicks import PressResult
from bot.sandbox.dingtalk.config import (
    ALL_SCOPES,
    DEFAULT_TEMPLATE,
    CardButton,
    Limits,
    SandboxConfig,
    Template,
)
from bot.sandbox.dingtalk.judge import visible_text
from bot.sandbox.dingtalk.people import SentMessage
from bot.sandbox.dingtalk.sandbox import DingTalkSandbox
from bot.sandbox.dingtalk.world import Chat, Message, User
from bot.sandbox.faults import Fault, Faults
from bot.sandbox.records import Attempt, Call, Push
from bot.sandbox.violations import Violation

__all__ = [
    "ALL_SCOPES",
    "DEFAULT_TEMPLATE",
    "Attempt",
    "Button",
    "Call",
    "Card",
    "CardButton",
    "CardOp",
    "Chat",
    "DingTalkSandbox",
    "Fault",
    "Faults",
    "Limits",
    "ManualClock",
    "Message",
    "PressResult",
    "Push",
    "SandboxConfig",
    "SentMessage",
    "Template",
    "User",
    "Violation",
    "visible_text",
]

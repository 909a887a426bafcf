"""Feishu played on loopback, as strict as the real platform. The public names for tests and the demo."""

from bot.sandbox.clock import ManualClock
from bot.sandbox.faults import Fault, Faults
from bot.sandbox.feishu.card import Card, CardOp
from bot.sandbox.feishu.clicks import PressResult
from bot.sandbox.feishu.config import ALL_SCOPES, Limits, SandboxConfig
from bot.sandbox.feishu.events import envelope, envelope_v1
from bot.sandbox.feishu.judge import visible_text
from bot.sandbox.feishu.people import SentMessage
from bot.sandbox.feishu.sandbox import FeishuSandbox
from bot.sandbox.feishu.world import Chat, Message, Reaction, StoredFile, User
from bot.sandbox.records import Attempt, Call, Push
from bot.sandbox.violations import Violation

__all__ = [
    "ALL_SCOPES",
    "Attempt",
    "Call",
    "Card",
    "CardOp",
    "Chat",
    "Fault",
    "Faults",
    "FeishuSandbox",
    "Limits",
    "ManualClock",
    "Message",
    "PressResult",
    "Push",
    "Reaction",
    "SandboxConfig",
    "SentMessage",
    "StoredFile",
    "User",
    "Violation",
    "envelope",
    "envelope_v1",
    "visible_text",
]

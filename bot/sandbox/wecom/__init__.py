"""WeCom played on loopback, as strict as the document describes it. The public names for tests and the demo."""

from bot.sandbox.clock import ManualClock
from bot.sandbox.faults import Fault, Faults
from bot.sandbox.records import Attempt, Call, Push
from bot.sandbox.violations import Violation
from bot.sandbox.wecom.config import Limits, Mode, WeComConfig
from bot.sandbox.wecom.crypto import new_encoding_aes_key
from bot.sandbox.wecom.judge import visible_text
from bot.sandbox.wecom.people import PressResult, SentMessage
from bot.sandbox.wecom.sandbox import WeComSandbox
from bot.sandbox.wecom.world import Chat, Message, User

__all__ = [
    "Attempt",
    "Call",
    "Chat",
    "Fault",
    "Faults",
    "Limits",
    "ManualClock",
    "Message",
    "Mode",
    "PressResult",
    "Push",
    "SentMessage",
    "User",
    "Violation",
    "WeComConfig",
    "WeComSandbox",
    "new_encoding_aes_key",
    "visible_text",
]

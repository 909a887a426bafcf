"""The one table of commands, and how a message is recognized as one. Pure.

A command is the exact first word of a message after the bot's mention was stripped: "/reset", "／ＲＥＳＥＴ" and "/重置" are,
"/etc/passwd 是什么" is not. The Chinese names that nobody would send as a question work without the slash, alone.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum


class Command(StrEnum):
    """What can be ordered."""

    HELP = "help"
    NEW = "new"
    RESET = "reset"
    STOP = "stop"
    RETRY = "retry"
    STATUS = "status"
    WHOAMI = "whoami"
    CONTINUE = "continue"
    CONTEXT = "context"
    COMPACT = "compact"
    HISTORY = "history"
    EXPORT = "export"
    FORGET = "forget"
    SYSTEM = "system"
    REMIND = "remind"
    SCHEDULE = "schedule"
    MISSED = "missed"
    IGNORE = "ignore"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A row of the table. `aliases` follow a slash, `bare` words stand alone as a whole message.

    What stands behind a command that takes no arguments is not even stored.
    """

    command: Command
    aliases: tuple[str, ...]
    bare: tuple[str, ...] = ()
    takes_arguments: bool = False


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """Looks like a command and is none. `word` is as typed, without the slash."""

    word: str


COMMANDS: tuple[CommandSpec, ...] = (
    CommandSpec(Command.HELP, ("帮助", "?"), ("帮助",)),
    CommandSpec(Command.NEW, ("新话题", "新对话"), ("新话题", "新对话")),
    CommandSpec(Command.RESET, ("重置", "清空"), ("重置",)),
    CommandSpec(Command.STOP, ("停止", "停"), ("停止",)),
    CommandSpec(Command.RETRY, ("重试", "重新回答"), ("重试",)),
    CommandSpec(Command.STATUS, ("状态",)),
    CommandSpec(Command.WHOAMI, ("我是谁",)),
    CommandSpec(Command.CONTINUE, ("继续",), ("继续",)),
    CommandSpec(Command.CONTEXT, ("上下文",)),
    CommandSpec(Command.COMPACT, ("压缩",)),
    CommandSpec(Command.HISTORY, ("历史", "记录"), takes_arguments=True),
    CommandSpec(Command.EXPORT, ("导出",)),
    CommandSpec(Command.FORGET, ("忘记",), takes_arguments=True),
    CommandSpec(Command.SYSTEM, ("设定",), takes_arguments=True),
    CommandSpec(Command.REMIND, ("提醒",), takes_arguments=True),
    CommandSpec(Command.SCHEDULE, ("定时",), takes_arguments=True),
    CommandSpec(Command.MISSED, ("错过",)),
    CommandSpec(Command.IGNORE, ("别记我", "忽略"), takes_arguments=True),
    CommandSpec(Command.SUMMARY, ("总结", "摘要"), takes_arguments=True),
)

_BY_NAME = {name: spec.command for spec in COMMANDS for name in (spec.command.value, *spec.aliases)}
_WITH_ARGUMENTS = {spec.command for spec in COMMANDS if spec.takes_arguments}
_BARE = {word: spec.command for spec in COMMANDS for word in spec.bare}
# Characters that chat clients leave around mentions and that nobody sees.
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff]")
_LOOKS_LIKE_COMMAND = re.compile(r"[^\W\d_][\w-]{0,31}")


def clean(text: str) -> str:
    """A message without invisible characters and without space (full-width too) at its ends."""
    return _INVISIBLE.sub("", text).strip()


def parse_command(text: str) -> Command | UnknownCommand | None:
    """The command that a message is, an unknown one, or None for an ordinary question."""
    text = clean(text)
    words = text.split(maxsplit=1)
    if not words:
        return None
    if len(words) == 1 and words[0] in _BARE:
        return _BARE[words[0]]
    first = unicodedata.normalize("NFKC", words[0])
    if not first.startswith("/"):
        return None
    name = first[1:].casefold()
    if name in _BY_NAME:
        return _BY_NAME[name]
    return UnknownCommand(first[1:]) if _LOOKS_LIKE_COMMAND.fullmatch(name) else None


def command_text(command: Command, text: str) -> str:
    """A command as it is stored: its English name and its arguments, if it takes any."""
    words = clean(text).split(maxsplit=1)
    if command in _WITH_ARGUMENTS and len(words) == 2:
        return f"/{command.value} {words[1]}"
    return f"/{command.value}"


def number_of(word: str, most: int) -> int | None:
    """The number from 1 to `most` that a word is; None for anything else, of whatever length."""
    if not word.isdecimal() or len(word) > 9:
        return None
    number = int(word)
    return number if 1 <= number <= most else None


def arguments_of(text: str) -> str:
    """What stands behind the first word of a stored command."""
    words = text.split(maxsplit=1)
    return words[1].strip() if len(words) == 2 else ""

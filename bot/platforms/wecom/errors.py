"""WeCom's error codes: the tables that say what the caller must do next (wecom.md §3.6, §4.1-4.3).

The finer classes below are all FallBack: they are handled inside this package and never leave it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto

from bot.errors import Ambiguous, FallBack, GiveUp, PlatformError, RetryLater, TargetGone
from bot.platforms.http import BETWEEN, BETWEEN_PAUSE_S, HttpAnswer

_IP = re.compile(r"from ip:\s*([0-9A-Fa-f.:]+)")
_RATE_PAUSE_S = 60.0


class SlowDown(RetryLater):
    """A rate limit: `after_s` is how long this target wants to rest."""


class TokenRefused(PlatformError):
    """The access token is invalid or expired: fetch a new one and repeat once."""


class StreamOver(FallBack):
    """846608: this stream takes no more frames; another one may."""


class WindowOver(FallBack):
    """846604, 846605: the question's frame id takes no more replies; only a message of our own can be sent."""


class Conflict(RetryLater):
    """6000: another frame of this stream is being taken."""


class NotSubscribed(RetryLater):
    """846609: this connection receives nothing any more."""


class BadCredentials(GiveUp):
    """The bot's id or secret is wrong."""


class What(Enum):
    """What to do about a code."""

    RETRY = auto()
    SLOW_DOWN = auto()
    BUSY = auto()
    TOKEN = auto()
    STREAM_OVER = auto()
    WINDOW_OVER = auto()
    CONFLICT = auto()
    NOT_SUBSCRIBED = auto()
    CREDENTIALS = auto()
    FALL_BACK = auto()
    GONE = auto()
    GIVE_UP = auto()


_CODES: dict[int, tuple[What, str]] = {
    -1: (What.RETRY, "WeCom is busy"),
    # access tokens and credentials (§4.1)
    40014: (What.TOKEN, "the access token is invalid"),
    42001: (What.TOKEN, "the access token is expired"),
    40001: (What.TOKEN, "the secret or the access token is wrong"),
    40013: (What.CREDENTIALS, "corp_id is wrong"),
    40056: (What.GIVE_UP, "agent_id is wrong"),
    60011: (What.GIVE_UP, "the app may not do this"),
    # limits (§4.3)
    45009: (What.SLOW_DOWN, "too many calls"),
    45033: (What.BUSY, "too many calls at the same time"),
    # recipients
    81013: (What.GONE, "the person is outside the app's visibility"),
    60111: (What.GONE, "there is no such person"),
    86008: (What.GONE, "there is no right to write to this chat"),
    93001: (What.GONE, "the bot is not in this group"),
    93006: (What.GONE, "there is no such chat"),
    93008: (What.GONE, "the bot is not in this group"),
    40008: (What.FALL_BACK, "this kind of message is not supported"),
    # long connection (§3.6)
    6000: (What.CONFLICT, "another frame of this message is on its way"),
    846604: (What.WINDOW_OVER, "the question is too old to be replied to"),
    846605: (What.WINDOW_OVER, "the question's frame is not known"),
    846608: (What.STREAM_OVER, "this message can no longer grow"),
    846609: (What.NOT_SUBSCRIBED, "the connection is not subscribed"),
    853000: (What.CREDENTIALS, "bot_id or secret is wrong"),
}
_CLASSES: dict[What, type[PlatformError]] = {
    What.RETRY: RetryLater,
    What.TOKEN: TokenRefused,
    What.STREAM_OVER: StreamOver,
    What.WINDOW_OVER: WindowOver,
    What.CREDENTIALS: BadCredentials,
    What.FALL_BACK: FallBack,
    What.GONE: TargetGone,
    What.GIVE_UP: GiveUp,
}
_LATER: dict[What, tuple[type[RetryLater], float]] = {
    What.RETRY: (RetryLater, 1.0),
    What.SLOW_DOWN: (SlowDown, _RATE_PAUSE_S),
    What.BUSY: (SlowDown, 1.0),
    What.CONFLICT: (Conflict, 0.2),
    What.NOT_SUBSCRIBED: (NotSubscribed, 1.0),
}


def judge(api: str, answer: Mapping[str, object]) -> PlatformError | None:
    """What an answer's `errcode` means; None when the call was done. No errcode at all counts as done."""
    code = answer.get("errcode", 0)
    if not isinstance(code, int) or code == 0:
        return None
    if code == 60020:
        return GiveUp(
            f"{api}: {_untrusted_ip(str(answer.get('errmsg', '')))} (code 60020)", code=code
        )
    what, why = _CODES.get(code, (What.GIVE_UP, "a code that is not in our table"))
    text = f"{api}: {why} (code {code})"
    if what in _LATER:
        later, after_s = _LATER[what]
        return later(text, code=code, after_s=after_s)
    return _CLASSES[what](text, code=code)


def judge_http(api: str, answer: HttpAnswer, *, runs_out: bool = False) -> PlatformError | None:
    """What an HTTP answer means: by its JSON where there is one, else by its status. An address that `runs_out` is refused
    for good."""
    body = answer.json()
    if body is not None and isinstance(body.get("errcode"), int):
        return judge(api, body)
    text = f"{api}: HTTP {answer.status} without a readable answer"
    if answer.status == 429:
        return SlowDown(text, after_s=_RATE_PAUSE_S)
    if answer.status in {502, 503}:
        return RetryLater(text)
    if answer.status >= 500 or answer.status < 300:
        return Ambiguous(text)
    if answer.status in BETWEEN and not runs_out:
        return RetryLater(text, after_s=BETWEEN_PAUSE_S)
    return GiveUp(text)


def _untrusted_ip(message: str) -> str:
    """60020 (§4.1): the one fault whose text an admin must see."""
    found = _IP.search(message)
    address = f"address {found[1].rstrip('.')}" if found else "address"
    return (
        f"this machine's {address} is not among the app's trusted IPs: add it in the WeCom console, "
        "on the app's page under 企业可信IP"
    )

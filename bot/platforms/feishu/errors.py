"""Feishu's error codes: the one table that says what the caller must do next (feishu.md §3, §4.5, §4.6, §5.3).

The finer classes below are all FallBack: they are handled inside this package and never leave it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto

from bot.errors import Ambiguous, FallBack, GiveUp, PlatformError, RetryLater, TargetGone
from bot.platforms.http import BETWEEN, BETWEEN_PAUSE_S


class SequenceStale(FallBack):
    """300317: the card has seen a higher sequence number."""


class StreamingOff(FallBack):
    """300309 and kin: the card does not stream (any more); content calls are refused."""


class TooBig(FallBack):
    """The card or message holds too many bytes, elements or tables."""


class CardLost(FallBack):
    """The card entity is unknown, expired, or cannot be sent."""


class CardKitRefused(FallBack):
    """99991672: the app lacks a scope."""


class NoThreadReply(FallBack):
    """230071 on a reply: this group does not know threads."""


class NotReplyable(FallBack):
    """230072 on a reply: the message is an aggregated one; write to its chat instead."""


class TokenRefused(PlatformError):
    """The access token is invalid or expired: fetch a new one and repeat once."""


class MonthSpent(RetryLater):
    """99991403: no calls are left this month. What waits is tried again now and then: more may be bought, or a month begin."""


class What(Enum):
    """What to do about a code."""

    DONE = auto()
    RETRY = auto()
    SLOW_DOWN = auto()
    MONTH_SPENT = auto()
    TOKEN = auto()
    SEQUENCE = auto()
    STREAMING_OFF = auto()
    TOO_BIG = auto()
    CARD_LOST = auto()
    SCOPE = auto()
    NO_THREAD = auto()
    NOT_REPLYABLE = auto()
    FALL_BACK = auto()
    GONE = auto()
    GIVE_UP = auto()


_CODES: dict[int, tuple[What, str]] = {
    # access tokens and apps (§3)
    99991661: (What.TOKEN, "no access token"),
    99991663: (What.TOKEN, "the access token is invalid or expired"),
    99991664: (What.TOKEN, "the app token is invalid"),
    99991665: (What.TOKEN, "the tenant token is invalid"),
    99991668: (What.TOKEN, "the user token is invalid"),
    99991671: (What.TOKEN, "the access token has a wrong prefix"),
    99991677: (What.TOKEN, "the access token is expired"),
    99991672: (What.SCOPE, "the app lacks a scope: grant it in the console and publish a version"),
    99991662: (What.GIVE_UP, "the app is disabled"),
    99991401: (What.GIVE_UP, "this machine's address is not on the app's IP whitelist"),
    10003: (What.GIVE_UP, "app_id or app_secret is wrong"),
    10014: (What.GIVE_UP, "the app is disabled"),
    10015: (What.GIVE_UP, "app_secret is wrong"),
    # rate limits (§4.5)
    99991400: (What.SLOW_DOWN, "too many calls of this API"),
    99991403: (What.MONTH_SPENT, "the month's calls are used up"),
    230020: (What.SLOW_DOWN, "too many messages to this chat"),
    11232: (What.SLOW_DOWN, "Feishu is under load"),
    11233: (What.SLOW_DOWN, "too many messages to this chat"),
    11247: (What.SLOW_DOWN, "too many messages"),
    230049: (What.RETRY, "the same request still runs"),
    18121: (What.RETRY, "the same request still runs"),
    # messages (§4.3, §4.6)
    230001: (What.FALL_BACK, "a parameter is wrong"),
    230002: (What.GONE, "the bot is not in this group"),
    230006: (What.GIVE_UP, "the app's bot ability is off"),
    230009: (What.GIVE_UP, "the message is too old to be recalled"),
    230011: (What.GONE, "the message was recalled"),
    230013: (What.GONE, "the person is outside the app's availability"),
    230018: (What.GIVE_UP, "the group's settings forbid it"),
    230019: (What.GONE, "the topic is gone"),
    230022: (What.GIVE_UP, "Feishu found sensitive content"),
    230025: (What.TOO_BIG, "the message is too long"),
    230027: (What.GIVE_UP, "the app lacks a permission"),
    230028: (What.GIVE_UP, "data loss prevention refused it (a phone number or an e-mail address)"),
    230031: (What.GIVE_UP, "the card is older than 14 days"),
    230034: (What.GIVE_UP, "the receiver's id is wrong"),
    230035: (What.GIVE_UP, "the bot is muted in this chat"),
    230050: (What.GONE, "the message is not visible"),
    230053: (What.GONE, "the person muted the bot"),
    230054: (What.FALL_BACK, "this kind of message is not supported here"),
    230071: (What.NO_THREAD, "this group has no thread replies"),
    230072: (What.NOT_REPLYABLE, "this message cannot be replied to or edited again"),
    230075: (What.GIVE_UP, "the message is too old to be edited"),
    230110: (What.GONE, "the message was deleted"),
    231001: (What.GIVE_UP, "unknown reaction"),
    231003: (What.GONE, "the message was not found"),
    232009: (What.GONE, "the chat was dissolved"),
    # cards (§5.3)
    10002: (What.FALL_BACK, "a card parameter is wrong"),
    200220: (What.FALL_BACK, "the card is not valid"),
    200510: (What.STREAMING_OFF, "the card does not stream"),
    200740: (What.CARD_LOST, "the card is unknown"),
    200750: (What.CARD_LOST, "the card has expired"),
    200770: (What.DONE, "already applied"),
    200810: (What.RETRY, "a person is clicking the card"),
    200850: (What.STREAMING_OFF, "the card's streaming timed out"),
    200860: (What.TOO_BIG, "the card is too big"),
    300120: (What.RETRY, "internal error of CardKit"),
    300302: (What.FALL_BACK, "the card is not valid"),
    300303: (What.FALL_BACK, "the card is not valid"),
    300305: (What.TOO_BIG, "the card has too many elements"),
    300307: (What.FALL_BACK, "the card is not valid"),
    300309: (What.STREAMING_OFF, "the card does not stream"),
    300311: (What.CARD_LOST, "the card was sent before, or is not ours"),
    300313: (What.FALL_BACK, "the card element is not valid"),
    300315: (What.FALL_BACK, "the card element is not valid"),
    300317: (What.SEQUENCE, "the card has seen a higher sequence"),
}  # fmt: skip

_CLASSES: dict[What, type[PlatformError]] = {
    What.TOKEN: TokenRefused,
    What.SEQUENCE: SequenceStale,
    What.STREAMING_OFF: StreamingOff,
    What.TOO_BIG: TooBig,
    What.CARD_LOST: CardLost,
    What.SCOPE: CardKitRefused,
    What.NO_THREAD: NoThreadReply,
    What.NOT_REPLYABLE: NotReplyable,
    What.FALL_BACK: FallBack,
    What.GONE: TargetGone,
    What.GIVE_UP: GiveUp,
}

_MONTH_SPENT_S = 300.0

# Real causes inside 230099 "card creation failed" (§4.6); 11310 has three meanings, told apart by its sentence.
_SUB_CODE = re.compile(r"ErrCode:\s*(\d+)")
_MEANINGS_OF_11310 = (
    (re.compile(r"lock", re.IGNORECASE), What.RETRY, "a person is clicking the card"),
    (re.compile(r"card\s*_?id|invalid card", re.IGNORECASE), What.CARD_LOST, "the card id is not valid (yet)"),
    (re.compile(r""), What.TOO_BIG, "the card has too many elements or tables"),
)  # fmt: skip


class SlowDown(RetryLater):
    """A rate limit: `after_s` is how long this target wants to rest."""


def _of_230099(message: str) -> tuple[What, str]:
    found = _SUB_CODE.search(message)
    sub_code = int(found[1]) if found else 0
    if sub_code == 11310:
        for pattern, what, why in _MEANINGS_OF_11310:
            if pattern.search(message):
                return what, why
    if sub_code in _CODES:
        return _CODES[sub_code]
    return What.FALL_BACK, f"the card was refused (inner code {sub_code})"


def _reset_s(headers: Mapping[str, str]) -> float:
    try:
        return min(60.0, max(0.1, float(headers.get("x-ogw-ratelimit-reset", ""))))
    except ValueError:
        return 1.0


def judge(
    api: str, status: int, headers: Mapping[str, str], answer: Mapping[str, object] | None
) -> PlatformError | None:
    """What an answer means; None when the call was done (or had been done before)."""
    if answer is None or not isinstance(answer.get("code"), int):
        return _judge_status(api, status, headers)
    code = answer["code"]
    if not isinstance(code, int) or code == 0:
        return None
    if code == 230099:
        what, why = _of_230099(str(answer.get("msg", "")))
    elif code in _CODES:
        what, why = _CODES[code]
    elif status == 429:
        what, why = What.SLOW_DOWN, "too many calls"
    elif status >= 500:
        what, why = What.RETRY, "Feishu has an internal error"
    else:
        what, why = What.FALL_BACK, "a code that is not in our table"
    return _error(what, f"{api}: {why} (code {code})", code, headers)


def _judge_status(api: str, status: int, headers: Mapping[str, str]) -> PlatformError:
    """An answer that is not Feishu's JSON: a gateway's page, or nothing."""
    text = f"{api}: HTTP {status} without a readable answer"
    if status == 429:
        return SlowDown(text, after_s=_reset_s(headers))
    if status in {502, 503}:
        return RetryLater(text)
    if status >= 500 or status < 300:
        return Ambiguous(text)
    return RetryLater(text, after_s=BETWEEN_PAUSE_S) if status in BETWEEN else GiveUp(text)


def _error(what: What, text: str, code: int, headers: Mapping[str, str]) -> PlatformError | None:
    if what is What.DONE:
        return None
    if what is What.RETRY:
        return RetryLater(text, code=code, after_s=1.0)
    if what is What.MONTH_SPENT:
        return MonthSpent(text, code=code, after_s=_MONTH_SPENT_S)
    if what is What.SLOW_DOWN:
        return SlowDown(text, code=code, after_s=_reset_s(headers))
    return _CLASSES[what](text, code=code)

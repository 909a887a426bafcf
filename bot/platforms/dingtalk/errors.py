"""DingTalk's error codes: the one table that says what the caller must do next (dingtalk.md §3, §4.1–4.3, §5.1, §5.2).

OpenAPI codes are dotted words that differ in their ends, so a table of patterns is read from top to bottom. The finer
classes below are all FallBack: they are handled inside this package and never leave it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from bot.errors import Ambiguous, FallBack, GiveUp, PlatformError, RetryLater, TargetGone


class SlowDown(RetryLater):
    """A rate limit: `after_s` is how long this target wants to rest."""


class TooBig(FallBack):
    """The text is longer than this call takes."""


class CardExists(FallBack):
    """A card of this outTrackId was made before."""


class CardRefused(FallBack):
    """The template, its variable or a permission is missing: no card of this bot can work now."""


class SessionEnded(FallBack):
    """The sessionWebhook is no longer (or not) valid."""


class MonthSpent(FallBack):
    """The organisation's API calls of this month are used up."""


class NotDingTalk(FallBack):
    """The answer is not DingTalk's: a page of something between, which judges neither the message nor the app."""


class TokenRefused(PlatformError):
    """The access token is invalid or expired: fetch a new one and repeat once."""


class Blocked(RetryLater):
    """This machine's address is shut out for some minutes: every call waits."""


class What(Enum):
    """What to do about a code."""

    RETRY = auto()
    SLOW_DOWN = auto()
    BLOCKED = auto()
    TOKEN = auto()
    TOO_BIG = auto()
    EXISTS = auto()
    CARD_REFUSED = auto()
    SESSION_ENDED = auto()
    MONTH_SPENT = auto()
    FALL_BACK = auto()
    GONE = auto()
    GIVE_UP = auto()


_WORDS: tuple[tuple[re.Pattern[str], What, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), what, why)
    for pattern, what, why in (
        # access (§3)
        (r"InvalidAuthentication|accessToken", What.TOKEN, "the access token is invalid or expired"),
        (r"invalidClientIdOrSecret", What.GIVE_UP, "client_id or client_secret is wrong"),
        (r"ApiCountLimitForOrg", What.MONTH_SPENT, "the organisation's API calls of this month are used up"),
        (r"Qp[sm]LimitFor", What.SLOW_DOWN, "too many calls of this API"),
        (r"IpNotInWhiteList", What.GIVE_UP, "this machine's address is not on the app's IP whitelist"),
        # robots (§4.3)
        (r"send\.too\.?fast|tooFast|too\.many\.(group|people)|flowControl", What.SLOW_DOWN, "too many messages"),
        (r"tooLong", What.TOO_BIG, "the message is too long"),
        (r"staffId\.notExisted|userId\.notExist", What.GONE, "the person is not in the organisation"),
        (r"bot\.stopped|robot\.stopped", What.GIVE_UP, "the robot was stopped in the console"),
        (r"notAllow\.sendOTO", What.GIVE_UP, "the robot may not write to people"),
        (r"session\.(expired|notExisted)", What.SESSION_ENDED, "the sessionWebhook has expired"),
        # cards (§5.1, §5.2)
        (r"cardAlreadyExist", What.EXISTS, "this card was made before"),
        (r"contentUnsafe", What.GIVE_UP, "DingTalk found sensitive content"),
        (r"param\.stream\.content$|content\.?is\.?too\.?large|200092", What.TOO_BIG, "the text is too long for one update"),
        (r"param\.template|templateNotExist|templateUnpublished", What.CARD_REFUSED, "the card template is unknown or not published"),
        (r"concurren", What.RETRY, "another update of this card still runs"),
        (r"system\.busy|ServiceUnavailable", What.RETRY, "DingTalk is busy"),
    )
)  # fmt: skip

# Old-style errcodes, of sessionWebhooks and of token trouble (§3, §4.1, §4.2, §4.4).
_NUMBERS: dict[int, tuple[What, str]] = {
    -1: (What.RETRY, "DingTalk is busy"),
    88: (What.TOKEN, "the access token is invalid or expired"),
    40014: (What.TOKEN, "the access token is invalid"),
    42001: (What.TOKEN, "the access token is expired"),
    90018: (What.SLOW_DOWN, "too many calls of this app"),
    90002: (What.SLOW_DOWN, "DingTalk is under load"),
    90020: (What.MONTH_SPENT, "the organisation's API calls of this month are used up"),
    130101: (What.SLOW_DOWN, "more than 20 messages a minute"),
    410100: (What.SLOW_DOWN, "more than 20 messages a minute"),
    300001: (What.SESSION_ENDED, "the sessionWebhook has expired"),
    460101: (What.TOO_BIG, "the message is longer than 20000 bytes"),
    430101: (What.GIVE_UP, "DingTalk found an unsafe link"),
    430102: (What.GIVE_UP, "DingTalk found sensitive content"),
    430103: (What.GIVE_UP, "DingTalk found an unsafe picture"),
    430104: (What.GIVE_UP, "DingTalk found sensitive content"),
}

_CLASSES: dict[What, type[PlatformError]] = {
    What.TOKEN: TokenRefused,
    What.TOO_BIG: TooBig,
    What.EXISTS: CardExists,
    What.CARD_REFUSED: CardRefused,
    What.SESSION_ENDED: SessionEnded,
    What.MONTH_SPENT: MonthSpent,
    What.FALL_BACK: FallBack,
    What.GONE: TargetGone,
    What.GIVE_UP: GiveUp,
}
_WAIT_S = {What.RETRY: 1.0, What.SLOW_DOWN: 2.0, What.BLOCKED: 300.0}
_WAIT_CLASSES = {What.RETRY: RetryLater, What.SLOW_DOWN: SlowDown, What.BLOCKED: Blocked}
_PUNISHED = 1111
_PAGES = {
    403: What.BLOCKED, 413: What.TOO_BIG, 429: What.SLOW_DOWN, 502: What.RETRY, 503: What.RETRY,
}  # fmt: skip


def _error(what: What, text: str, code: int = 0) -> PlatformError:
    if what in _WAIT_CLASSES:
        return _WAIT_CLASSES[what](text, code=code, after_s=_WAIT_S[what])
    return _CLASSES[what](text, code=code)


def judge(api: str, status: int, answer: Mapping[str, Any] | None) -> PlatformError | None:
    """What an OpenAPI answer means; None when the call was done."""
    if answer is None:
        return _judge_status(api, status)
    if answer.get("punish") or answer.get("status") == _PUNISHED:
        return _error(
            What.BLOCKED, f"{api}: this machine's address is shut out for 5 minutes", _PUNISHED
        )
    code = answer.get("code", answer.get("errcode"))
    word = "" if code is None else str(code)
    if status < 300 and word in {"", "0", "OK", "ok"}:
        return None
    return _judge_code(api, status, word, answer)


def _judge_code(api: str, status: int, code: str, answer: Mapping[str, Any]) -> PlatformError:
    number = int(code) if re.fullmatch(r"-?\d{1,9}", code) else 0
    if number in _NUMBERS:
        what, why = _NUMBERS[number]
        return _error(what, f"{api}: {why} (code {code})", number)
    if "PermissionDenied" in code:
        return _error(*_missing_scope(api, answer))
    for pattern, what, why in _WORDS:
        if pattern.search(code) or (
            what is What.RETRY and pattern.search(str(answer.get("message", "")))
        ):
            return _error(what, f"{api}: {why} (code {code[:80]})", number)
    text = f"{api}: HTTP {status}, a code that is not in our table ({code[:80] or 'none'})"
    if status == 429:
        return _error(What.SLOW_DOWN, text)
    if status == 401:
        return _error(What.TOKEN, text)
    if status == 500:  # a wrong variable of a template is told like this, too (§5.4)
        return Ambiguous(text)
    return _error(What.RETRY if status > 500 else What.FALL_BACK, text)


def _missing_scope(api: str, answer: Mapping[str, Any]) -> tuple[What, str]:
    detail = answer.get("accessdenieddetail")
    scopes = detail.get("requiredScopes") if isinstance(detail, Mapping) else None
    named = ", ".join(str(scope)[:60] for scope in scopes) if isinstance(scopes, list) else ""
    text = (
        f"{api}: the app lacks the permission {named or 'for this call'}: grant it in the console"
    )
    return (What.CARD_REFUSED if api.startswith("card_") else What.GIVE_UP), text


def _judge_status(api: str, status: int) -> PlatformError:
    """An answer that is not DingTalk's JSON: a gateway's page (perhaps the one that shuts us out, §3), or nothing."""
    text = f"{api}: HTTP {status} without a readable answer"
    if status in _PAGES:
        return _error(_PAGES[status], text)
    if status >= 500 or status < 300:
        return Ambiguous(text)
    return NotDingTalk(text)


def judge_session(status: int, answer: Mapping[str, Any] | None) -> PlatformError | None:
    """What a sessionWebhook's answer means: HTTP is 200 even where nothing was sent (§4.1)."""
    error = judge("session_send", status, answer)
    if isinstance(error, TokenRefused):  # it needs no token: the session itself is meant
        return SessionEnded(str(error), code=error.code)
    if error is None and "errcode" not in (answer or {}):
        return Ambiguous("session_send: the answer does not say whether it was sent")
    return error

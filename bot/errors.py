"""The bot's error tree, classed by what the caller must do next.

HearthError
├── ConfigError          the config file or environment is wrong: say it in one line, exit
├── StoreError           the database could not do it: nothing of the call is stored; say so, go on
├── HubError             a model could not be fetched: say it in one line; what came so far stays for the next try
├── Rejected             an inbound request is not genuine or not readable: answer `status`, do no work
└── PlatformError        a call to a platform did not succeed
    ├── RetryLater       not done; the same call may be repeated after `after_s`
    ├── Ambiguous        it may or may not have been done (timeout, connection lost after sending)
    ├── FallBack         this way of answering does not work here; use the next simpler one
    ├── TooLarge         a file is larger than may be fetched; nothing of it was kept
    ├── TargetGone       nobody is there to answer (recalled, left, dissolved): stay silent
    └── GiveUp           it cannot work: log for the admin, stop
"""

from __future__ import annotations


class HearthError(Exception):
    """Base of everything raised on purpose; the message is one clear sentence."""


class ConfigError(HearthError):
    """The configuration cannot work; the message says what, where and how to mend it."""


class StoreError(HearthError):
    """The database could not do what was asked (in use, full, unreachable, too new, closed).

    Nothing of the failed call is stored, with one exception: when a PostgreSQL connection is lost in the very moment of
    the commit, it may have been.
    """


class HubError(HearthError):
    """A model could not be fetched from its hub, or not as it should be."""


class Rejected(HearthError):
    """An inbound request that is refused before any work is done."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class PlatformError(HearthError):
    """A platform call that did not succeed. `code` is the platform's own, 0 when there was none."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class RetryLater(PlatformError):
    """Certainly not done; may be repeated after `after_s` seconds."""

    def __init__(self, message: str, *, code: int = 0, after_s: float = 1.0) -> None:
        super().__init__(message, code=code)
        self.after_s = after_s


class Ambiguous(PlatformError):
    """The call may have taken effect: repeat only with the same idempotency key."""


class FallBack(PlatformError):
    """This way of answering does not work for this message; the next simpler one may."""


class TooLarge(PlatformError):
    """A file is larger than the caller wants to have; nothing of it was kept."""


class TargetGone(PlatformError):
    """The message or chat to answer no longer exists; stay silent."""


class GiveUp(PlatformError):
    """It cannot work however often it is tried."""

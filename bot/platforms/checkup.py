"""The check-up of one configured bot, alike for all platforms: what `hearth doctor --bot NAME` asks, and the nouns it speaks in.

Each platform's `checkup.py` implements `Checkup`. A check-up sends nothing that a person can see, opens no connection that
would take another one's place, and stores nothing. Must not know how a finding is shown.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Protocol
from urllib.parse import urlsplit

from bot.domain.findings import Finding
from bot.domain.findings import error as wrong
from bot.errors import GiveUp, PlatformError
from bot.platforms.base import WebhookRequest
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp


@dataclass(frozen=True, slots=True)
class Handshake:
    """A request as the platform (or a forger) sends it, and whether an answer's status and body are right.

    `path` is put behind the bot's webhook address.
    """

    title: str
    request: WebhookRequest
    passes: Callable[[int, bytes], bool]
    path: str = ""
    forged: bool = False


class Checkup(Protocol):
    """What can be asked about one bot. Nothing raises for what the platform says; that becomes a remark."""

    @property
    def skew_s(self) -> float | None:
        """This machine's clock minus the platform's, in seconds, by the last answer's Date; None while nothing answered."""
        ...

    async def credentials(self, running: Mapping[str, str]) -> tuple[Finding, ...]:
        """Whether the id and the secret are right. `running`: what a running Hearth tells of this bot (/readyz), if any."""
        ...

    async def permissions(self) -> tuple[Finding, ...]:
        """What the app may do, as far as the platform tells. Ask after `credentials`, once those are right."""
        ...

    async def connection(self) -> tuple[Finding, ...]:
        """Whether a long connection could be opened; nothing for bots without one."""
        ...

    def handshakes(self) -> tuple[Handshake, ...]:
        """How the platform would call this bot's webhook; nothing for bots without one."""
        ...


class Asker:
    """Asks the platform and compares clocks on the way. One per check-up."""

    def __init__(self, http: SharedHttp, *, clock: Callable[[], float] = time.time) -> None:
        self._http = http
        self._clock = clock
        self.skew_s: float | None = None

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """One call. Raises PlatformError when no answer came."""
        began = self._clock()
        answer = await self._http.exchange(replace(request, timeout_s=10.0))
        ours = (began + self._clock()) / 2
        with contextlib.suppress(ValueError, TypeError):  # no Date, or none that can be read
            theirs = parsedate_to_datetime(answer.headers.get("date", ""))
            self.skew_s = ours - theirs.timestamp() - 0.5  # a Date is cut to whole seconds
        return answer


class Asking:
    """What all check-ups share: somebody who asks, and the clock that was compared on the way."""

    def __init__(self, http: SharedHttp) -> None:
        self._asker = Asker(http)

    @property
    def skew_s(self) -> float | None:
        """See Checkup."""
        return self._asker.skew_s


def unreached(error: PlatformError, key: str) -> Finding:
    """The platform did not answer."""
    if isinstance(error, GiveUp):
        cure = f"correct {key}"
    else:
        cure = "check the network, the DNS and the proxy (HTTPS_PROXY, NO_PROXY) of this machine"
    return wrong(str(error), key, cure)


def minutes_of(seconds: object) -> int:
    """A lifetime in minutes; 0 where a platform (or what stands in its place) told none."""
    return int(seconds) // 60 if isinstance(seconds, (int, float)) else 0


def host_of(address: object) -> str:
    """The host of an address that a platform named, "" where it is none."""
    try:
        return urlsplit(address).hostname or "" if isinstance(address, str) else ""
    except ValueError:
        return ""


def without_secrets(text: str, limit: int = 160) -> str:
    """What a platform said, on one line and no longer than a line."""
    return " ".join(text.split())[:limit]

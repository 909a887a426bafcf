"""Faults on demand, per API: what the network and a platform do on a bad day. Owned by the sandbox, set by tests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal


@dataclass(slots=True)
class Fault:
    """One rule. `api` may be a pattern ("card.*", "*"). It applies `remaining` times, then it is gone.

    `drop`: cut the connection before or after the call was applied. `code`: a business refusal with `status`.
    `html`: a gateway page instead of JSON. `reset_s`: the platform's rate limit refusal, with how long to wait.
    `latency_s` waits first and then goes on with the rest.
    """

    api: str
    remaining: int = 1
    status: int = 400
    code: int | str = 0
    msg: str = "injected fault"
    html: bool = False
    reset_s: float | None = None
    drop: Literal["", "before", "after"] = ""
    latency_s: float = 0.0

    @property
    def answers(self) -> bool:
        """It replaces the reply."""
        return bool(self.code) or self.html or self.reset_s is not None


class Faults:
    """The rules in force. First match wins."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []
        self._down_until: float | None = None
        self._slow_until = 0.0
        self._slow_s = 0.0

    def add(self, fault: Fault) -> Fault:
        """Put a rule in force."""
        self._rules.append(fault)
        return fault

    def refuse(
        self,
        api: str,
        code: int | str,
        count: int = 1,
        *,
        status: int = 400,
        msg: str = "injected fault",
    ) -> Fault:
        """The next `count` calls get this business code; `msg` may carry a sub-code ("ErrCode: 11310")."""
        return self.add(Fault(api, count, status=status, code=code, msg=msg))

    def rate_limit(self, api: str, count: int = 1, *, reset_s: float = 1.0) -> Fault:
        """The next `count` calls get the platform's rate limit refusal (Feishu: HTTP 429, 99991400 and x-ogw-ratelimit-reset)."""
        return self.add(Fault(api, count, status=429, reset_s=reset_s))

    def bad_gateway(self, api: str, count: int = 1, *, status: int = 502) -> Fault:
        """The next `count` calls get an HTML page."""
        return self.add(Fault(api, count, status=status, html=True))

    def drop(self, api: str, count: int = 1, *, after: bool = False) -> Fault:
        """The next `count` calls lose their connection, before or after they were applied.

        An aiohttp client repeats GET, PUT and DELETE once by itself when a kept-alive connection dies: such a call takes
        two counts (with `after`, the repeat meets the state that the first one left).
        """
        return self.add(Fault(api, count, drop="after" if after else "before"))

    def delay(self, api: str, latency_s: float, count: int = 1) -> Fault:
        """The next `count` calls take this much longer."""
        return self.add(Fault(api, count, latency_s=latency_s))

    def hang(
        self, api: str, count: int = 1, *, after: bool = False, hold_s: float = 3600.0
    ) -> Fault:
        """The next `count` calls are never answered (the caller's own timeout ends them)."""
        return self.add(Fault(api, count, drop="after" if after else "before", latency_s=hold_s))

    def down(self, for_s: float | None = None) -> None:
        """Every connection is cut, for a while or until `up`."""
        loop = asyncio.get_running_loop()
        self._down_until = float("inf") if for_s is None else loop.time() + for_s

    def up(self) -> None:
        """The end of `down`."""
        self._down_until = None

    def slow(self, latency_s: float, for_s: float) -> None:
        """Every call takes longer for a while."""
        self._slow_s = latency_s
        self._slow_until = asyncio.get_running_loop().time() + for_s

    def clear(self) -> None:
        """No rules, up, not slow."""
        self._rules.clear()
        self._down_until = None
        self._slow_until = 0.0

    def is_down(self) -> bool:
        """Whether connections are cut now."""
        return self._down_until is not None and asyncio.get_running_loop().time() < self._down_until

    def extra_latency_s(self) -> float:
        """What `slow` adds now."""
        if not self._slow_until:
            return 0.0
        return self._slow_s if asyncio.get_running_loop().time() < self._slow_until else 0.0

    def take(self, api: str) -> Fault | None:
        """The rule for this call, counted down."""
        for rule in self._rules:
            if fnmatchcase(api, rule.api):
                rule.remaining -= 1
                if rule.remaining <= 0:
                    self._rules.remove(rule)
                return rule
        return None

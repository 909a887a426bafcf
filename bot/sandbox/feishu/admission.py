"""What the app may do: scopes that the tenant granted, its state, the addresses it may call from (feishu.md §3, §4.8).

Owns the table of which call needs which scope; a wider scope includes narrower ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bot.sandbox.feishu.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.feishu.config import SandboxConfig

_SEND = ("im:message:send_as_bot", "im:message")
_CARD = ("cardkit:card:write",)
_REACT = ("im:message.reactions:write_only", "im:message")
# Any one of them will do.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "message.create": _SEND,
    "message.reply": _SEND,
    "message.edit": ("im:message:update", *_SEND),
    "message.patch": ("im:message:update", *_SEND),
    "message.recall": ("im:message:recall", *_SEND),
    "message.get": ("im:message:readonly", "im:message"),
    "message.resource": ("im:message:readonly", "im:message"),
    "reaction.add": _REACT,
    "reaction.delete": _REACT,
    "reaction.list": ("im:message.reactions:read", *_REACT),
}


class Admission:
    """Asked by the pipeline after the token."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config

    @property
    def granted(self) -> frozenset[str]:
        """The scopes in force."""
        everything = {"im:message.group_msg"} if self._config.group_messages == "all" else set()
        return self._config.scopes | everything

    def check(self, api: str, remote: str) -> None:
        """Raise what the gateway answers to a caller from elsewhere and to a missing scope."""
        trusted = self._config.trusted_ips
        if trusted is not None and remote not in trusted:
            raise ApiError(99991401, f"ip {remote}")
        needed = _CARD if api.startswith(("card.", "element.")) else _NEEDED.get(api, ())
        if needed and not self.granted.intersection(needed):
            names = ", ".join(needed)
            raise ApiError(99991672, f"One of the following scopes is required: [{names}]")

    def scopes(self) -> dict[str, Any]:
        """GET application/v6/scopes: what was asked for, and whether the tenant granted it."""
        listed = sorted(self.granted | self._config.asked_scopes)
        return {
            "scopes": [
                {
                    "scope_name": name,
                    "grant_status": 1 if name in self.granted else 2,
                    "scope_type": "tenant",
                }
                for name in listed
            ]
        }

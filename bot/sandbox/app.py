"""The stage of `hearth demo`: one group with two speakers and one direct chat, set up in a sandbox that shows its page.

The caller starts the sandbox, points the bot at `base_url` with the config's credentials, and subscribes the bot's webhook.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from bot.sandbox import dingtalk, wecom
from bot.sandbox.feishu import SandboxConfig

U = TypeVar("U")
C_co = TypeVar("C_co", covariant=True)


class Playable(Protocol[U, C_co]):
    """A sandbox, whatever its platform: U are its people, C_co its chats."""

    def add_user(self, name: str) -> U:
        """A new person."""
        ...

    def add_group(self, name: str, members: Sequence[U]) -> C_co:
        """A group with the bot in it."""
        ...

    def direct_chat(self, user: U) -> C_co:
        """A person's direct chat with the bot."""
        ...


@dataclass(frozen=True, slots=True)
class Stage(Generic[U, C_co]):
    """Who and what is on the stage. `sandbox.config` holds the credentials the bot needs."""

    sandbox: Playable[U, C_co]
    people: tuple[U, U]
    group: C_co
    direct: C_co


def build_stage(sandbox: Playable[U, C_co]) -> Stage[U, C_co]:
    """Put the default people and chats into a sandbox (started or not)."""
    people = (sandbox.add_user("小林"), sandbox.add_user("Alex"))
    group = sandbox.add_group("Hearth 试用群", people)
    return Stage(sandbox, people, group, sandbox.direct_chat(people[0]))


def stage_config(
    *, notes: Mapping[str, Any] | None = None, page_hosts: tuple[str, ...] = ()
) -> SandboxConfig:
    """A Feishu with the page and with credentials nobody knows, so that no other program can speak to the bot.

    `page_hosts` are further values of the Host header ("192.168.1.5:8080") under which the page may be opened.
    """
    return SandboxConfig(
        app_id=f"cli_{secrets.token_hex(8)}",
        app_secret=secrets.token_urlsafe(24),
        encrypt_key=secrets.token_urlsafe(24),
        verification_token=secrets.token_urlsafe(18),
        page=True,
        page_hosts=page_hosts,
        notes=dict(notes or {}),
    )


def dingtalk_stage_config(
    *, notes: Mapping[str, Any] | None = None, page_hosts: tuple[str, ...] = ()
) -> dingtalk.SandboxConfig:
    """The same for DingTalk."""
    return dingtalk.SandboxConfig(
        client_id=f"ding{secrets.token_hex(8)}",
        client_secret=secrets.token_urlsafe(24),
        corp_id=f"ding{secrets.token_hex(12)}",
        page=True,
        page_hosts=page_hosts,
        notes=dict(notes or {}),
    )


def wecom_stage_config(
    mode: wecom.Mode = "callback",
    *,
    notes: Mapping[str, Any] | None = None,
    page_hosts: tuple[str, ...] = (),
) -> wecom.WeComConfig:
    """The same for WeCom, in one of its three modes. On the stage one person may ask as many questions at once as they like."""
    return wecom.WeComConfig(
        mode=mode,
        corp_id=f"ww{secrets.token_hex(8)}",
        corp_secret=secrets.token_urlsafe(24),
        bot_id=f"aib{secrets.token_hex(10)}",
        bot_secret=secrets.token_urlsafe(24),
        token=secrets.token_hex(12),
        encoding_aes_key=wecom.new_encoding_aes_key(),
        limits=wecom.Limits(in_flight_per_user=None),
        page=True,
        page_hosts=page_hosts,
        notes=dict(notes or {}),
    )

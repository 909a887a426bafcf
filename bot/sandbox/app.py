"""The stage of `hearth demo`: one group with two speakers and one direct chat, set up in a sandbox that shows its page.

The caller starts the sandbox, points the bot at `base_url` with the config's credentials, and subscribes the bot's webhook.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bot.sandbox.feishu import Chat, FeishuSandbox, SandboxConfig, User


@dataclass(frozen=True, slots=True)
class Stage:
    """Who and what is on the stage. `sandbox.config` holds the credentials the bot needs."""

    sandbox: FeishuSandbox
    people: tuple[User, User]
    group: Chat
    direct: Chat


def build_stage(sandbox: FeishuSandbox) -> Stage:
    """Put the default people and chats into a sandbox (started or not)."""
    people = (sandbox.add_user("小林"), sandbox.add_user("Alex"))
    group = sandbox.add_group("Hearth 试用群", people)
    return Stage(sandbox, people, group, sandbox.direct_chat(people[0]))


def stage_config(
    *, notes: Mapping[str, Any] | None = None, page_hosts: tuple[str, ...] = ()
) -> SandboxConfig:
    """A config with the page and with credentials nobody knows, so that no other program can speak to the bot.

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

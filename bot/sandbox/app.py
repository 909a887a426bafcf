"""The stage of `hearth demo`: a sandbox with its page, one group with two speakers and one direct chat.

The caller starts the sandbox, points the bot at `base_url` with the config's credentials, and subscribes the bot's webhook.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bot.sandbox.feishu import Chat, FeishuSandbox, SandboxConfig, User


@dataclass(frozen=True, slots=True)
class Stage:
    """What the demo plays on. `sandbox.config` holds the credentials the bot needs."""

    sandbox: FeishuSandbox
    people: tuple[User, User]
    group: Chat
    direct: Chat


def build_stage(
    config: SandboxConfig | None = None,
    *,
    notes: Mapping[str, Any] | None = None,
    page_hosts: tuple[str, ...] = (),
) -> Stage:
    """A stage with fresh random credentials (unless `config` gives them), not started yet.

    `page_hosts` are further values of the Host header ("192.168.1.5:8080") under which the page may be opened.
    """
    base = config or fresh_config()
    sandbox = FeishuSandbox(
        replace(
            base,
            page=True,
            notes=dict(notes if notes is not None else base.notes),
            page_hosts=page_hosts,
        )
    )
    people = (sandbox.add_user("小林"), sandbox.add_user("Alex"))
    group = sandbox.add_group("Hearth 试用群", people)
    return Stage(sandbox, people, group, sandbox.direct_chat(people[0]))


def fresh_config() -> SandboxConfig:
    """Credentials nobody knows, so that a page of another program cannot speak to the bot."""
    return SandboxConfig(
        app_id=f"cli_{secrets.token_hex(8)}",
        app_secret=secrets.token_urlsafe(24),
        encrypt_key=secrets.token_urlsafe(24),
        verification_token=secrets.token_urlsafe(18),
    )

"""Options that must keep to what the config allows: a plan for settings that no start would take helps nobody."""

from __future__ import annotations

from bot.config_sizes import CTX_TOKENS, STEP_TOKENS
from bot.errors import ConfigError


def check_sizes(ctx: int, ubatch: int = 0) -> None:
    """0 = not given. Raises ConfigError."""
    for option, value, (least, most) in (
        ("--ctx", ctx, CTX_TOKENS),
        ("--ubatch", ubatch, STEP_TOKENS),
    ):
        if value and not least <= value <= most:
            raise ConfigError(f"{option} {value}: write {least} to {most} tokens")

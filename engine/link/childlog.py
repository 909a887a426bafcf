"""The engine child's log lines on their way into the bot's log: JSON lines on the child's output, told again by the parent.

Owns both ends of that format. Tracebacks are plain, since those with local values would print prompts. Whatever else the
child prints (native libraries do) is no log line and stays in the tail.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import structlog

_LEVELS = {"debug", "info", "warning", "error", "critical"}


def configure_child_logging() -> None:
    """Let structlog write JSON lines to standard error; for the child only."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def relay(line: bytes, logger: Any) -> bool:
    """Tell a log line of the child again; False = it is none."""
    if not line.startswith(b"{"):
        return False
    try:
        fields = json.loads(line)
        event, level = fields.pop("event"), fields.pop("level")
    except (ValueError, KeyError, AttributeError):
        return False
    if not isinstance(event, str) or level not in _LEVELS:
        return False
    getattr(logger, level)(event, **{f"{key}": value for key, value in fields.items()})
    return True

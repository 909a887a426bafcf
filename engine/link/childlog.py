"""The engine child's log lines on their way into the bot's log: JSON lines on the child's output, told again by the parent.

Owns both ends of that format. Tracebacks are plain, since those with local values would print prompts. Whatever else the
child prints (native libraries do) is no log line and stays in the tail.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Final

import structlog

# The event under which the backend repeats what llama.cpp logs; its `line` belongs to the child's last words.
NATIVE_EVENT: Final = "llama_cpp"

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


def relay(line: bytes, logger: Any) -> dict[str, Any] | None:
    """Tell a log line of the child again. Returns what it said, its event included; None = it is no log line."""
    if not line.startswith(b"{"):
        return None
    try:
        fields = json.loads(line)
        event, level = fields.pop("event"), fields.pop("level")
    except (ValueError, KeyError, AttributeError):
        return None
    if not isinstance(event, str) or level not in _LEVELS:
        return None
    getattr(logger, level)(event, **{f"{key}": value for key, value in fields.items()})
    return {"event": event, **fields}

"""Logging: one structlog set-up for our events and for the libraries' standard loggers.

Events carry ids and counts, never what people wrote. As a second fence every string is searched for the configured secrets.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator

import structlog
from pydantic import BaseModel, SecretStr
from structlog.typing import EventDict, Processor

from bot.config import Config


def secrets_of(value: object) -> Iterator[str]:
    """Every secret in a config, long enough to be recognized without hiding ordinary words."""
    if isinstance(value, SecretStr):
        if len(value.get_secret_value()) >= 6:
            yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from secrets_of(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from secrets_of(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from secrets_of(item)


class Redactor:
    """A structlog processor that replaces secrets in any string of an event."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted(set(secrets), key=len, reverse=True)

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        for key, value in event.items():
            if isinstance(value, str):
                event[key] = self._clean(value)
        return event

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, "***")
        return text


class OneLine(logging.Filter):
    """Makes one line of what aiohttp's server says about a peer that does not speak HTTP; our own faults are logged by us."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record without its traceback (which may quote what was sent)."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg, record.args = "http_peer_fault", None
            record.exc_info = None
            record.__dict__["error"] = type(error).__name__
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def set_up_logging(config: Config, *, stream: object = None) -> None:
    """Install handlers for structlog and the standard library. Call once, from the composition root."""
    out = stream or sys.stderr
    is_terminal = bool(getattr(out, "isatty", lambda: False)())
    as_json = config.log.format == "json" or (config.log.format == "auto" and not is_terminal)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        Redactor(secrets_of(config)),
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=is_terminal, pad_event_to=28)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)  # type: ignore[arg-type]  # any text stream will do
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(["error"]), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.getLogger("aiohttp.server").filters[:] = [OneLine()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.log.level.upper())
    for noisy in ("aiohttp.access", "aiosqlite", "apscheduler", "alembic", "Lark", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

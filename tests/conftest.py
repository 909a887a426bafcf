"""Fixtures for every test. Each kind lives in a module of its own and is only named here."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

pytest_plugins = ["tests.fixtures_postgres"]


def pytest_configure(config: pytest.Config) -> None:
    """Leave the long proofs to `make prove` (or `pytest -m long`); pytest's summary counts them as deselected."""
    if not config.option.markexpr:
        config.option.markexpr = "not long"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command under test writes its log to a stream that pytest closes: later tests must not write there."""
    root, was_configured = logging.getLogger(), structlog.is_configured()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    if structlog.is_configured() and not was_configured:
        structlog.reset_defaults()
